"""A token that is here: who uses it, who gets it next, and for how long it is lent.

        Taken           nobody waits            FED, request
    ------------> free -------------> parked ----------------> free        lease over: neither granted nor passed on
                 |    ^--- released ---.                                   before the keeper has lent it anew
                 '---- grant -----> in use
                 '---- queue -----> giving --Passed--> gone (FED is sent after it)
                          ^------ Failed ------'

H1  A grant, and a passing on, need a token here whose lease runs. The lease is renewed by the answer to a beat, from
    the moment on at which the beat was sent, and by nothing else. It travels with the token (`escort.unseen`).
H2  One grant at most on each token at a time; (epoch, hop) grows with each grant.
H3  A token that was replaced is discarded as soon as that is heard; a hold that runs with it is told so.
L1  A token here is being given, or its timer runs: ("seat", slot).
"""

from __future__ import annotations

from typing import Final

from softmutex.core.algorithms.in_common import row_goes_on
from softmutex.core.algorithms.keeper.desk import Desk, KeeperOptions, name_of, rank
from softmutex.core.algorithms.keeper.ledger import Ledger
from softmutex.core.algorithms.keeper.messages import Beat, Fed, Lease, Name, Unclaimed, Unconfirmed
from softmutex.core.algorithms.keeper.waiter import Waiter
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Duration,
    FactKind,
    Grant,
    Instant,
    Lose,
    LostReason,
    NodeId,
    RequestId,
    Ticket,
    Token,
    escorted,
    from_seconds,
)
from softmutex.core.handover import Failed, Gone, Handover, Outcome, Passed, Taken

QUEUE: Final = 32
LOW: Final = 2  # so few tickets in a token, and it is fed again
LEASE_MOST: Final = 7 * SECOND
SUSPECTED_AFTER: Final = 2  # unanswered beats
ASKED: Final = 16
MISMATCHES: Final = 16  # told once each
LOST_AFTER: Final = 6  # ... and another keeper is looked for


class Seat:
    """One token that is here."""

    __slots__ = (
        "asked",
        "asked_at",
        "beat_at",
        "fresh_until",
        "giving",
        "granted_at",
        "idle",
        "late",
        "lease_end",
        "mine",
        "more",
        "row",
        "token",
        "told",
        "tries",
        "turn_at",
        "used",
        "using",
    )

    def __init__(self, token: Token, lease_end: Instant) -> None:
        self.token = token
        self.lease_end = lease_end
        self.late: tuple[Fed, ...] = ()  # came while it was being given
        self.using: RequestId | None = None
        self.told = False  # the hold that runs
        self.used = token.hop if token.hop == 0 else -1  # the hop of the last grant; hop 0 is never granted
        self.mine = False  # it is this node's turn
        self.granted_at: Instant = 0
        self.row = 0  # grants in this turn, which began at
        self.turn_at: Instant = 0
        self.giving: Ticket | None = None  # to whom it is committed, or offered
        self.more = token.escort.more  # others wait whom the queue does not have
        self.asked_at: Instant | None = None  # the first beat that nobody has answered yet
        self.asked: dict[Instant, Duration] = {}  # when the beats were sent that may be answered, and for which lease
        self.beat_at: Instant = -1  # the last beat
        self.tries = 0
        self.idle = False  # the keeper knows that it is parked
        self.fresh_until: Instant = 0  # when the next beat of a parked one is due


class Went:
    """Where a token went from here."""

    __slots__ = ("name", "sent_after", "to")

    def __init__(self, name: Name, to: NodeId) -> None:
        self.name = name
        self.to = to
        self.sent_after: set[tuple[int, tuple[Ticket, ...]]] = set()  # FEDs: once each, or copies breed copies


class Holder:
    __slots__ = ("_desk", "_handover", "_ledger", "_mismatches", "_options", "_orphans", "_waiter", "_went", "seats")

    def __init__(self, desk: Desk, options: KeeperOptions, waiter: Waiter, handover: Handover, ledger: Ledger) -> None:
        self._desk = desk
        self._options = options
        self._waiter = waiter
        self._handover = handover
        self._ledger = ledger
        self.seats: dict[int, Seat] = {}
        self._mismatches: list[int] = []  # fingerprints of settings that differ from ours
        self._orphans: dict[RequestId, int] = {}  # holds whose token was discarded, and its slot
        self._went: dict[int, Went] = {}  # where the last token of each slot went from here

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def using(self) -> list[RequestId]:
        return [seat.using for seat in self.seats.values() if seat.using is not None] + list(self._orphans)

    def is_away(self, seat: Seat) -> bool:
        """Committed: it is this node's no longer."""
        return seat.giving is not None and all(token.key != seat.token.key for token in self._handover.offered)

    def here(self) -> tuple[Name, ...]:
        return tuple(name_of(seat.token) for seat in self.seats.values() if not self.is_away(seat))[:8]

    def passing(self) -> tuple[Name, ...]:
        return tuple(name_of(seat.token) for seat in self.seats.values() if self.is_away(seat))[:8]

    # --- a token comes -----------------------------------------------------------------------------------------------

    def take(self, token: Token, lease_end: Instant | None = None) -> None:
        """It is here now: passed on to us, or made here."""
        desk = self._desk
        if desk.better(token) is not None:
            desk.note(FactKind.DISCARDED, token, detail="it was replaced")
            self._ledger.open(token.slot)
            return
        self._compare_settings(token)
        old = self.seats.get(token.slot)
        if old is not None and rank(old.token) != rank(token):
            if self.is_away(old):
                del self.seats[token.slot]
            else:
                self._discard(old)
        desk.learn(name_of(token))
        seat = self.seats[token.slot] = Seat(token, desk.now + token.escort.unseen if lease_end is None else lease_end)
        if old is not None:
            for late in old.late:
                self._add(seat, late)
        self.advance(seat)
        self._set(seat)
        if seat.more and len(seat.token.queue) <= LOW and seat.giving is None:
            self._beat(seat)

    def _compare_settings(self, token: Token) -> None:
        said, known = token.settings, self._mismatches
        if said not in (0, self._desk.fingerprint) and said not in known and len(known) < MISMATCHES:
            known.append(said)
            self._desk.note(FactKind.MISMATCH, token, detail="slots, min_interval or switches differ from ours")

    def replaced(self, name: Name) -> None:
        """Heard of the best token of a slot."""
        self._desk.learn(name)
        seat = self.seats.get(name.slot)
        if seat is not None and rank(name) > rank(seat.token) and not self.is_away(seat):
            self._discard(seat)

    def _discard(self, seat: Seat) -> None:
        desk = self._desk
        if seat.giving is not None:
            self._handover.withdraw(seat.token, desk.out)
        del self.seats[seat.token.slot]
        desk.cancel(("seat", seat.token.slot))
        desk.note(FactKind.DISCARDED, seat.token, detail="it was replaced")
        if seat.using is not None:
            self._orphans[seat.using] = seat.token.slot
            self._tell(seat, LostReason.OVERLAP)
        self._ledger.open(seat.token.slot)

    # --- what to do with it ------------------------------------------------------------------------------------------

    def advance(self, seat: Seat) -> None:
        """The one place that decides what happens to a token that is here."""
        desk, waiter = self._desk, self._waiter
        if seat.giving is not None or seat.using is not None:
            return
        if seat.lease_end <= desk.now:
            if waiter.waiting or seat.token.queue or desk.leaving:
                self._beat(seat)  # H1
            return
        queue = seat.token.queue
        while queue and queue[0].node == desk.me:
            seat.mine, queue = True, queue[1:]
        if queue and not self._may_get(queue[0].node):  # who is not known here, the keeper knows
            known = tuple(ticket for ticket in queue if self._may_get(ticket.node))
            queue = known if desk.keeps else known + tuple(ticket for ticket in queue if ticket not in known)
            while queue and queue[0].node == desk.me:
                seat.mine, queue = True, queue[1:]
        if queue != seat.token.queue:
            seat.token = seat.token._replace(queue=queue)
        can_use = bool(waiter.waiting) and not desk.leaving and len(self.using) < self._options.each
        if can_use and seat.lease_end - desk.now < self.slack() * 7 // 10:
            self._beat(seat)
        elif can_use and (self._is_its_turn(seat) or self._row_goes_on(seat)):
            self._grant(seat)
        elif queue and self._may_get(queue[0].node):
            self._give(seat, queue[0], queue[1:])
        elif queue and self._may_get(desk.keeper):
            self._give(seat, Ticket(desk.keeper, 0), queue)
        elif seat.more and not desk.leaving:
            if seat.beat_at < desk.now:  # who keeps answers itself at once, and might go on for ever
                self._beat(seat)
        elif desk.leaving:
            self._leave(seat)

    def _is_its_turn(self, seat: Seat) -> bool:
        return seat.mine or seat.token.hop > max(seat.used, 0) or not (seat.token.queue or seat.more)

    def _row_goes_on(self, seat: Seat) -> bool:
        asked = next(iter(self._waiter.waiting.values()))
        return row_goes_on(self._options, seat.row, seat.turn_at, asked, self._desk.now)

    def _may_get(self, node: NodeId) -> bool:
        return node in self._desk.members

    def _grant(self, seat: Seat) -> None:
        desk = self._desk
        if seat.using is not None or seat.giving is not None or seat.lease_end <= desk.now:
            raise InvariantBreach(f"H1: node {desk.me} grants {seat.token} twice, or while it is not lent")
        if self._is_its_turn(seat):
            seat.row, seat.turn_at = 0, desk.now
        seat.row += 1
        if seat.used >= seat.token.hop:
            seat.token = seat.token._replace(hop=seat.used + 1)
            desk.learn(name_of(seat.token))
        seat.used = seat.token.hop
        seat.granted_at, seat.told = desk.now, False
        seat.using, seat.mine = self._waiter.next(), False
        self._ledger.begin(seat.token, seat.using)
        desk.out.append(Grant.by(seat.token, seat.using))
        seat.idle = False
        self._set(seat)

    def release(self, request: RequestId, baggage: bytes) -> None:
        self._ledger.end(request)
        slot = self._orphans.pop(request, None)
        if slot is not None:
            self._ledger.open(slot)
        for seat in list(self.seats.values()):
            if seat.using == request:
                seat.using = None
                seat.token = seat.token._replace(baggage=baggage)
                if seat.told and seat.lease_end <= self._desk.now:
                    self._beat(seat)
                self.advance(seat)
                if self.seats.get(seat.token.slot) is seat and seat.giving is None and seat.using is None:
                    self._set(seat)

    def serve(self) -> bool:
        """Something waits here: is there a token for it already, or soon?"""
        if self._waiter.waiting:
            self.advance_all()
        waits = any(seat.using is None and seat.giving is None for seat in self.seats.values())
        return not self._waiter.waiting or len(self.using) >= self._options.each or waits

    def advance_all(self) -> None:
        for seat in list(self.seats.values()):
            self.advance(seat)

    # --- to the next -------------------------------------------------------------------------------------------------

    def _give(self, seat: Seat, ticket: Ticket, rest: tuple[Ticket, ...]) -> None:
        desk = self._desk
        left = seat.lease_end - desk.now - desk.patience.wait() // 2
        if left <= 0:
            seat.lease_end = desk.now
            self._beat(seat)
            return
        seat.giving = ticket
        seat.asked_at, seat.tries = None, seat.tries if desk.leaving else 0
        seat.asked.clear()
        desk.cancel(("seat", seat.token.slot))
        seat.token = escorted(seat.token._replace(queue=rest, settings=desk.fingerprint), unseen=left, more=seat.more)
        if ticket.request:
            self._handover.give_at_once(seat.token, ticket.node, ticket.request, desk.now, desk.out)
        else:
            self.outcome(self._handover.give(seat.token, ticket.node, desk.now, desk.out))

    def _leave(self, seat: Seat) -> None:
        """This node leaves: to the keeper, or to anybody."""
        desk = self._desk
        heirs = [desk.keeper] if desk.keeper not in (NOBODY, desk.me) and desk.keeper not in desk.silent else []
        heirs += [node for node in desk.members if node != desk.me and node not in desk.silent]
        if heirs:
            at = seat.tries % min(len(heirs), 4)
            seat.tries += 1
            self._give(seat, Ticket(heirs[at], 0), ())

    def outcome(self, outcome: Outcome | None) -> None:
        desk = self._desk
        match outcome:
            case Taken(token, _):
                self.take(token)
            case Passed(token, to) | Gone(token, to):
                seat = self._given(token)
                went = self._went[token.slot] = Went(name_of(token)._replace(hop=token.hop + 1), to)
                if isinstance(outcome, Gone):
                    desk.post(desk.keeper, Unconfirmed(went.name))
                if seat is not None:
                    del self.seats[token.slot]
                    for late in seat.late:
                        self._send_after(late)
            case Failed(token, _):
                seat = self._given(token)
                if seat is not None:
                    if seat.giving is not None and seat.giving.request:
                        desk.post(desk.keeper, Unclaimed(seat.giving))
                    seat.giving, seat.idle = None, False
                    for late in seat.late:
                        self._add(seat, late)
                    seat.late = ()
                    better = desk.better(token)
                    if better is not None:
                        self.replaced(better)
                        return
                    self.advance(seat)
                    if seat.giving is None:
                        self._set(seat)
                else:
                    desk.note(FactKind.DISCARDED, token, detail="it was replaced on its way")
                    self._ledger.open(token.slot)
            case None:
                pass

    def unanswered(self) -> None:
        """Whom a token is given to does not answer: the group finds out, or finds another way."""
        for seat in self.seats.values():
            if seat.giving is not None:
                seat.tries += 1
                if seat.tries >= SUSPECTED_AFTER:
                    self._desk.suspect(seat.giving.node)

    def _given(self, token: Token) -> Seat | None:
        seat = self.seats.get(token.slot)
        return seat if seat is not None and seat.token.key == token.key and seat.giving is not None else None

    def welcome(self, token: Token) -> bool:
        """Whether an offer is accepted: it comes from somebody who leaves."""
        return not self._desk.leaving and not self._waiter.frozen and self._desk.better(token) is None

    # --- who waits ---------------------------------------------------------------------------------------------------

    def fed(self, message: Fed) -> None:
        slot = message.token.slot
        if not self._waiter.waiting:
            message = self._without_mine(message)
        seat = self.seats.get(slot)
        if seat is not None and rank(seat.token) == rank(message.token) and seat.giving is None:
            self._add(seat, message)
            seat.idle = False
            self.advance(seat)
            self._set(seat)
            return
        if seat is not None and rank(seat.token) == rank(message.token):
            seat.late = (*seat.late, message)[-QUEUE:]  # until it is known who has the token
        else:
            self._send_after(message)

    def _without_mine(self, fed: Fed) -> Fed:
        """This node wants nothing: the keeper believed a claim that was served already, and would feed it for ever."""
        desk = self._desk
        for ticket in fed.tickets:
            if ticket.node == desk.me:
                desk.post(desk.keeper, Unclaimed(ticket))
        return fed._replace(tickets=tuple(ticket for ticket in fed.tickets if ticket.node != desk.me))

    def _send_after(self, message: Fed) -> None:
        """Where the token went; or back to the keeper, which knows more some day."""
        went = self._went.get(message.token.slot)
        is_newer = went is not None and went.name.hop > message.token.hop and rank(went.name) == rank(message.token)
        if went is not None and is_newer and message.steps > 1 and went.to in self._desk.members:
            copy = (message.token.hop, message.tickets)
            if copy not in went.sent_after and len(went.sent_after) < QUEUE:
                went.sent_after.add(copy)
                self._desk.post(went.to, message._replace(token=went.name, steps=message.steps - 1))
        else:
            self._desk.post(self._desk.keeper, message._replace(steps=0))

    def _add(self, seat: Seat, fed: Fed) -> None:
        """No node twice; those that do not fit, the keeper will find missing."""
        queue = {ticket.node: ticket for ticket in seat.token.queue}
        for ticket in fed.tickets:
            if ticket.node not in queue or queue[ticket.node].request < ticket.request:
                queue[ticket.node] = ticket
        seat.token = seat.token._replace(queue=tuple(queue.values())[:QUEUE])
        seat.more = fed.more

    # --- the lease ---------------------------------------------------------------------------------------------------

    def slack(self) -> Duration:
        return min(max(from_seconds(self._options.slack), 4 * self._desk.patience.wait()), 5 * SECOND)

    def _pace(self, seat: Seat) -> Duration:
        age = 0 if seat.using is None else self._desk.now - seat.granted_at
        most = from_seconds(self._options.pace_most)
        least = from_seconds(self._options.pace)
        return max(least, min(round(age / self._options.age_paces), most))

    def _is_parked(self, seat: Seat) -> bool:
        return seat.using is None and not self._waiter.waiting and not seat.token.queue and not self._desk.leaving

    def _waits_for_more(self, seat: Seat) -> bool:
        """With several slots, nobody takes one again while others wait: the keeper says whose turn it is."""
        return self._desk.slots > 1 and seat.more and seat.using is None and not seat.token.queue

    def _set(self, seat: Seat) -> None:
        """When this token needs a look again."""
        desk = self._desk
        if seat.giving is not None or self.seats.get(seat.token.slot) is not seat:
            return
        if seat.asked_at is not None:
            at = seat.beat_at + desk.patience.wait(seat.tries)  # not from now: FED each half a second would put it off
        elif self._waits_for_more(seat):
            at = desk.now + desk.patience.wait(1)
        elif self._is_parked(seat):
            at = seat.fresh_until if seat.idle else desk.now + (SECOND // 20 if desk.slots == 1 else 0)
        else:
            at = seat.lease_end - self.slack()
        if seat.using is not None and not seat.told:
            at = min(at, seat.lease_end)
        desk.timer(("seat", seat.token.slot), at)

    def fired(self, slot: int) -> None:
        seat = self.seats.get(slot)
        if seat is None or seat.giving is not None:
            return
        self.look(seat)
        if seat.asked_at is not None:
            seat.tries += 1
            if seat.tries >= SUSPECTED_AFTER:
                self._desk.suspect(self._desk.keeper)
        self._beat(seat, again=True)

    def look(self, seat: Seat) -> None:
        """Is the lease of a hold over?"""
        if seat.using is not None and not seat.told and seat.lease_end <= self._desk.now:
            self._tell(seat, LostReason.LEASE)

    def _tell(self, seat: Seat, reason: LostReason) -> None:
        if seat.using is not None and not seat.told:
            seat.told = True
            self._desk.out.append(Lose(seat.using, reason))

    def lose(self, request: RequestId) -> None:
        """It overlapped: a fact."""
        for seat in self.seats.values():
            if seat.using == request:
                self._tell(seat, LostReason.OVERLAP)

    def is_lost(self, seat: Seat) -> bool:
        """Nobody answers: another keeper is needed."""
        return seat.asked_at is not None and seat.tries >= (LOST_AFTER if self._desk.keeper_counts else SUSPECTED_AFTER)

    def beat_all(self) -> None:
        """There is a new keeper, and it should know what is here."""
        for seat in self.seats.values():
            if seat.giving is None:
                seat.asked_at, seat.tries = None, 0
                seat.asked.clear()
                self._beat(seat)

    def doubt_all(self) -> None:
        """This node slept: whatever it was lent is over."""
        for seat in self.seats.values():
            seat.lease_end = min(seat.lease_end, self._desk.now)
            seat.asked_at = None
            seat.asked.clear()
            self.look(seat)
            if seat.giving is None:
                self._beat(seat)

    def _beat(self, seat: Seat, again: bool = False) -> None:
        desk = self._desk
        if seat.asked_at is not None and not again:
            return
        seat.beat_at = desk.now
        parked = self._is_parked(seat) or self._waits_for_more(seat)
        lease = 0 if parked else min(self._pace(seat) + self.slack(), LEASE_MOST)
        if seat.asked_at is None:
            seat.asked_at = desk.now
        seat.asked[desk.now] = lease
        if len(seat.asked) > ASKED:
            del seat.asked[next(iter(seat.asked))]
        desk.post(desk.keeper, Beat(desk.term, name_of(seat.token), lease, parked, seat.token.queue, desk.now))
        self._set(seat)

    def lent(self, message: Lease) -> None:
        """The keeper has answered a beat."""
        desk = self._desk
        if message.better is not None:
            self.replaced(message.better)
        seat = self.seats.get(message.token.slot)
        if seat is None or seat.giving is not None or rank(seat.token) != rank(message.token) or message.better:
            return
        if message.sent not in seat.asked:
            return
        if desk.now > message.sent:  # nothing is learnt of the network where this node is the keeper
            desk.patience.learn(desk.now - message.sent)
        asked_lease, seat.asked_at, seat.tries = seat.asked[message.sent], None, 0
        seat.asked = {sent: lease for sent, lease in seat.asked.items() if sent > message.sent}
        seat.more = message.more and (bool(seat.token.queue) or desk.slots > 1)  # else FED follows at once
        if message.renewed:
            seat.lease_end = max(seat.lease_end, message.sent + asked_lease)
            seat.idle = False
        else:
            seat.idle = not seat.more
            seat.fresh_until = desk.now + from_seconds(self._options.idle_pace)
        if message.renewed or not self._waits_for_more(seat):
            self.advance(seat)
        if seat.giving is None:
            self._set(seat)
