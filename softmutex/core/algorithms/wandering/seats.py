"""A token that is here: who uses it, who gets it next, and that its watchers know.

        Taken           queue empty, nobody waits            FEED, request
    ------------> free ----------------------------> parked ---------------> free
                 |    ^--- released ---.
                 |                     |              watchers silent beyond the lease
                 '---- grant -----> in use  ............................................> doubted
                 '---- give / commit ---> giving --Passed--> gone                             |
                          ^-- Failed: next in the queue --'            inquiry: not replaced -'-> free, or discarded

A holder that nobody hears of may have been replaced; it cannot know. The naive way, to go on and pass the token,
carries the doubt to the next node and doubles every hold from then on. So a doubted token is neither granted nor
passed on before an inquiry has answered.

S1  A grant needs a token here, not outranked, not doubted, not being given: `_grant` is the only place that makes one.
S2  One grant at most on each token. (epoch, hop) grows with each grant: passing counts, and so does serving in a row.
L1  A token here is in use, parked, being given, or has a timer (`walk`, `beat`) or an inquiry that comes back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from softmutex.core.algorithms.wandering.desk import Desk, place_of
from softmutex.core.algorithms.wandering.invitations import Invitations
from softmutex.core.algorithms.wandering.ledger import Visit
from softmutex.core.algorithms.wandering.messages import Bequest, Place, Presence, Queued
from softmutex.core.algorithms.wandering.seat import Seat
from softmutex.core.algorithms.wandering.settings import BEAT, FRESH, PATIENCE, QUEUE
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
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
from softmutex.core.handover import Handover
from softmutex.core.machine import pick_other

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering

STALE = SECOND  # after waking up: what comes may have been sent long before
ATTEMPTS = 3  # to reach who does not answer; meanwhile the group may have found a way
LOW = 1  # tickets left in a token when its holder asks for more


class Seats:
    __slots__ = ("by_slot", "handover", "invitations", "leaving", "machine", "orphans", "passed_at", "unreached")

    def __init__(self, machine: Wandering, handover: Handover) -> None:
        self.machine = machine
        self.handover = handover
        self.invitations = Invitations(machine)
        self.by_slot: dict[int, Seat] = {}
        self.orphans: dict[RequestId, tuple[Visit, Place]] = {}  # holds whose token was discarded while A ran
        self.leaving = False
        self.unreached: dict[NodeId, int] = {}  # who did not answer our offers, how often
        self.passed_at: Instant = 0  # when a token was last committed at once

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    @property
    def in_use(self) -> int:
        return len(self.orphans) + sum(seat.using is not None for seat in self.by_slot.values())

    def presence(self, slot: int) -> Presence:
        seat = self.by_slot.get(slot)
        if seat is None:
            return Presence.ABSENT
        if seat.giving and all(token.key != seat.token.key for token in self.handover.offered):
            return Presence.PASSING
        if seat.doubt:
            return Presence.DOUBTED
        return Presence.PARKED if seat.using is None else Presence.IN_USE

    # --- a token comes -----------------------------------------------------------------------------------------------

    def take(self, token: Token, sender: NodeId) -> None:
        """It is here now: passed on to us, or made here."""
        desk = self.desk
        token = token._replace(queue=desk.living(token.queue))
        old = self.by_slot.get(token.slot)
        visit = self.machine.ledger.open(token, place_of(token, desk.me), sender)
        if old is not None and self.presence(token.slot) is not Presence.PASSING:
            newer = (token.epoch, -token.stamp, -token.id) > (old.token.epoch, -old.token.stamp, -old.token.id)
            if not newer:
                desk.note(FactKind.DISCARDED, token, detail="a better one of this slot is here")
                self.machine.reckoning.open(visit, old.visit.place)
                return
            self.discard(old, place_of(token, desk.me), Presence.PARKED)
        seat = self.by_slot[token.slot] = Seat(token, visit, desk.now)
        desk.learn(place_of(token, desk.me))
        self.machine.waiter.visited()
        self._compare_settings(token)
        better = desk.outranked(token)
        if better is not None or desk.now - desk.woke_at < STALE:
            self.machine.inquirer.doubt(seat)
        self.machine.watch.began(seat)
        if old is not None and old.giving:  # its return says that it had arrived
            old.visit.after = place_of(old.token._replace(hop=old.token.hop + 1), old.invited)
            self.machine.registrar.give_back(self.add(seat, old.late))
            self.machine.ahead.more |= old.late_more
        self.machine.ahead.arrives(seat)
        self.machine.registrar.arrives(seat)
        self.advance(seat)
        if seat.token.escort.more and len(seat.token.queue) <= LOW and token.slot in self.by_slot and not seat.giving:
            self.machine.watch.beat(seat)

    def _compare_settings(self, token: Token) -> None:
        known = self.machine.mismatches
        if token.settings not in (0, self.desk.fingerprint, *known) and len(known) < 16:
            known.append(token.settings)
            self.desk.note(FactKind.MISMATCH, token, detail="slots, min_interval or switches differ from ours")

    def add(self, seat: Seat, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """Put tickets into the token's queue: no node twice. Those that do not fit are given back."""
        queue = list(seat.token.queue)
        nodes = {ticket.node: i for i, ticket in enumerate(queue)}
        for ticket in tickets:  # one that waits already, for a later request by now
            at = nodes.get(ticket.node, -1)
            if at >= 0 and queue[at].request < ticket.request:
                queue[at] = ticket
                seat.token = seat.token._replace(queue=tuple(queue))
        new = [ticket for ticket in self.desk.living(tickets) if ticket.node not in nodes]
        strangers: list[Ticket] = []
        if len(queue) + len(new) > QUEUE:  # those whom this node can serve come first
            strangers = [ticket for ticket in queue if not self.desk.is_member(ticket.node)]
            queue = [ticket for ticket in queue if ticket not in strangers]
        room = QUEUE - len(queue)
        if new[:room]:
            seat.token = seat.token._replace(queue=(*queue, *new[:room]))
            if seat.unheard and not seat.sent_at and seat.using is not None and not seat.doubt:
                self.machine.watch.beat(seat)  # from now on it is missed
        return (*new[room:], *strangers)

    # --- what to do with it ------------------------------------------------------------------------------------------

    def advance(self, seat: Seat) -> None:
        """The one place that decides what happens to a token that is here."""
        waiter = self.machine.waiter
        if seat.giving:
            return
        if seat.using is not None:
            self.invitations.invite(seat)
            return
        if seat.parked and self.machine.watch.overslept(seat) and (waiter.waiting or seat.token.queue):
            self.machine.inquirer.doubt(seat)
        if seat.doubt:
            return
        queue = self.known_first(seat)
        while queue and queue[0].node == self.desk.me:
            queue = queue[1:]
            seat.token = seat.token._replace(queue=queue)
            if waiter.waiting:
                seat.row, seat.arrived = 0, self.desk.now
                self.invitations.withdraw(seat)
        queue = self.known_first(seat)
        hints = self.desk.options.hints
        if waiter.waiting and self.may_use() and ((hints and not queue) or self._row_goes_on(seat)):
            self._grant(seat)
        elif queue:
            self._pass(seat)
        elif self.leaving and not self.desk.alone:
            self._leave_to(seat, self.machine.heir)
        elif not hints:
            if not seat.parked:
                pause = 0 if seat.row else self.machine.skip
                self.desk.timer(("walk", seat.token.slot), self.desk.now + pause)
                seat.parked = True
        else:
            self._park(seat)

    def known_first(self, seat: Seat) -> tuple[Ticket, ...]:
        """Whom this node does not know yet it cannot pass to: others may. Nor to who hears nobody. Empty where it knows
        nobody else in the queue."""
        queue, reaches = seat.token.queue, self.desk.reaches
        if not queue or reaches(queue[0].node):
            return queue
        known = tuple(ticket for ticket in queue if reaches(ticket.node))
        if known:
            strangers = tuple(ticket for ticket in queue if not reaches(ticket.node))
            seat.token = seat.token._replace(queue=known + strangers)
        return known and seat.token.queue

    def members_changed(self) -> None:
        """Those who left wait no more, and whom we did not know may be here now."""
        for seat in list(self.by_slot.values()):
            queue = self.desk.living(seat.token.queue)
            if not seat.giving and len(queue) < len(seat.token.queue):
                seat.token = seat.token._replace(queue=queue)
            if (
                seat.token.queue
                and self.by_slot.get(seat.token.slot) is seat
                and (seat.parked or seat.using is not None)
            ):
                self.advance(seat)

    def may_use(self) -> bool:
        return not self.leaving and self.in_use < self.desk.options.each

    def _row_goes_on(self, seat: Seat) -> bool:
        """Requests of this node that waited when its turn began are served in a row, bounded in number and time."""
        options = self.desk.options
        if seat.row == 0:
            return not (self.machine.waiter.late and seat.token.queue)
        asked_at = next(iter(self.machine.waiter.waiting.values()))
        in_time = self.desk.now - seat.arrived < from_seconds(options.row_time)
        return seat.row < options.row and in_time and asked_at <= seat.arrived

    def _grant(self, seat: Seat) -> None:
        waiter = self.machine.waiter
        if seat.using is not None or seat.giving or seat.doubt or self.in_use >= self.desk.options.each:
            raise InvariantBreach(f"node {self.desk.me} grants {seat.token} twice, or while it is not its to grant")
        if seat.used >= seat.token.hop:
            seat.token = seat.token._replace(hop=seat.used + 1)
            self.desk.learn(place_of(seat.token, self.desk.me))
        seat.used = seat.token.hop
        seat.granted_at = self.desk.now
        seat.using = waiter.next()
        seat.visit.begin(seat.using, self.desk.now)
        seat.told = False
        seat.row += 1
        if seat.parked:
            seat.parked = False
            if not seat.unheard:
                seat.unheard = True
                seat.pace = BEAT
                seat.heard_at = self.desk.now  # nobody expected to hear of it until now, and from now on they do
            self.machine.watch.began(seat)
        waiter.rest()
        waiter.last_run = self.desk.now
        self.desk.out.append(Grant.by(seat.token, seat.using))
        self.invitations.invite(seat)
        if waiter.waiting:
            self.queue_self(seat)
        elif any(ticket.node == self.desk.me for ticket in seat.token.queue):  # all are served
            queue = tuple(ticket for ticket in seat.token.queue if ticket.node != self.desk.me)
            seat.token = seat.token._replace(queue=queue)

    def queue_self(self, seat: Seat) -> None:
        """More requests wait here than one turn serves: a ticket behind the others'."""
        waiter = self.machine.waiter
        there = [ticket.request for ticket in seat.token.queue if ticket.node == self.desk.me]
        if there and self.desk.options.ageing:
            waiter.noted(there[0])
            return
        request = waiter.label
        full = self.desk.options.each in (1, self.in_use)  # else another token may be free: ask for it
        direct = full and not seat.token.escort.more and self.desk.options.hints and not self.desk.options.ageing
        if there:  # it stands for this one now
            mine = Ticket(self.desk.me, request)
            queue = tuple(mine if ticket.node == mine.node else ticket for ticket in seat.token.queue)
            seat.token = seat.token._replace(queue=queue)
        if direct and not self.add(seat, (Ticket(self.desk.me, request),)):
            waiter.noted(request)
        else:
            waiter.ask()

    def release(self, request: RequestId, baggage: bytes) -> None:
        orphan = self.orphans.pop(request, None)
        if orphan is not None:
            visit, better = orphan
            visit.end(self.desk.now)
            self.machine.reckoning.open(visit, better)
        for seat in self.by_slot.values():
            if seat.using == request:
                seat.using = None
                seat.visit.end(self.desk.now)
                seat.token = seat.token._replace(baggage=baggage)
                self.machine.waiter.last_run = self.desk.now
                self.machine.watch.check(seat)
                self.advance(seat)
                self.machine.deafness.say(seat.token.slot)
                self.machine.waiter.freed()
                return
        for seat in list(self.by_slot.values()):
            self.advance(seat)

    # --- to the next -------------------------------------------------------------------------------------------------

    def passed_to(self) -> NodeId:
        """Where the token went from here just now: a request is sent after it, and not to the home."""
        desk = self.desk
        seat = self.by_slot.get(0)
        if desk.options.by_home or desk.now - self.passed_at > FRESH // 4:
            return NOBODY
        if seat is not None:
            return seat.invited if self.presence(0) is Presence.PASSING else NOBODY
        best = desk.best.get(0)
        return NOBODY if best is None or best.holder == desk.me or best.holder in desk.gone else best.holder

    def tell_queued(self, slot: int) -> None:
        """They wait in our token, and will wait for a while."""
        seat = self.by_slot.get(slot)
        if seat is not None and seat.unanswered:
            for ticket in seat.unanswered:
                if ticket in seat.token.queue:
                    self.desk.post(ticket.node, Queued(ticket.request, PATIENCE))
            seat.unanswered.clear()

    def _pass(self, seat: Seat) -> None:
        ticket, *rest = seat.token.queue
        self._give(seat, ticket.node, tuple(rest), ticket.request)

    def _leave_to(self, seat: Seat, heir: NodeId) -> None:
        """This node leaves, and knows nobody in the queue: its heir may. A token with a queue would be refused."""
        if seat.token.queue:
            self.desk.post(heir, Bequest(None, seat.token.queue))
        self._give(seat, heir, ())

    def _give(self, seat: Seat, to: NodeId, queue: tuple[Ticket, ...], request: RequestId = 0) -> None:
        desk = self.desk
        if self.machine.waiter.waiting and not self.leaving:
            self.queue_self(seat)  # before the token leaves: behind those who are in its queue
            queue = tuple(ticket for ticket in seat.token.queue if ticket.node != to)
        if seat.invited not in (NOBODY, to):
            self.invitations.withdraw(seat)
        self.machine.watch.ended(seat)
        # A beat that was sent just now will have been heard; if not, the watchers' probes find the next holder.
        unseen = max(0, desk.now - (seat.sent_at if seat.tries == 1 else seat.heard_at) - (seat.pace - BEAT))
        token = escorted(seat.token._replace(queue=queue, settings=desk.fingerprint), unseen=unseen)
        seat.giving = True
        seat.parked = False
        seat.token = token
        self.machine.ahead.leaves(token, seat.came_at, to)
        seat.given_for = Ticket(to, request) if request else None
        if seat.invited == to:
            self.handover.commit(token, desk.now, desk.out)
        elif request and seat.plain != to and self.invitations.is_there(to, FRESH):
            seat.invited = seat.plain = to
            seat.retry = Ticket(to, request)
            self.handover.give_at_once(token, to, request, desk.now, desk.out)
            self.passed_at = desk.now
        else:
            seat.invited = to
            self.handover.give(token, to, desk.now, desk.out)
        self.tell_queued(token.slot)

    def passed(self, token: Token, to: NodeId) -> None:
        """It is over there."""
        desk = self.desk
        seat = self.by_slot.get(token.slot)
        if seat is None or seat.token.key != token.key or not seat.giving:
            return
        del self.by_slot[token.slot]
        self.unreached.pop(to, None)
        place = place_of(token._replace(hop=token.hop + 1), to)
        seat.visit.after = place
        desk.learn(place)
        self.machine.registrar.moved(place, token, seat.watcher)
        if seat.late:
            self.machine.registrar.forward(token.slot, seat.late, token.escort.more or seat.late_more)

    def failed(self, token: Token, to: NodeId, is_silent: bool = False) -> None:
        """It is still, or again, here. Who refused has no need; who is silent keeps its place behind the others."""
        seat = self.by_slot.get(token.slot)
        if seat is None or seat.token.key != token.key:
            self.desk.note(FactKind.DISCARDED, token, to, "it came back when a better one had been here")
            visit = self.machine.ledger.find(place_of(token, self.desk.me))
            better = self.desk.best.get(token.slot)
            if visit is not None and better is not None:
                self.machine.reckoning.open(visit, better)
            return
        lost = [ticket for ticket in (*seat.token.queue, seat.given_for) if ticket is not None and ticket.node == to]
        queue = tuple(ticket for ticket in seat.token.queue if ticket.node != to)
        if is_silent:
            self.desk.suspicious(to)
            self.unreached[to] = self.unreached.get(to, 0) + 1
            if self.unreached[to] <= ATTEMPTS and self.desk.is_member(to):
                queue = (*queue, *(lost[:1] if seat.retry is None else ()))[:QUEUE]
            else:
                del self.unreached[to]
        seat.given_for = None
        seat.token = seat.token._replace(queue=queue)
        if seat.retry is not None:  # it did not stand for its ticket any more: now it is asked
            seat.token = seat.token._replace(queue=(seat.retry, *queue)[:QUEUE])
            seat.retry = None
        seat.invited = NOBODY
        self.machine.registrar.give_back(self.add(seat, seat.late))
        seat.late = ()
        inherited = self.leaving and not queue
        if seat.giving:
            seat.giving = False
            # Others may have heard that it is over there, one hop later: what they hear from here must be later still.
            seat.token = seat.token._replace(hop=seat.token.hop + 2)
            self.desk.learn(place_of(seat.token, self.desk.me))
            self.machine.watch.began(seat)
        if inherited:
            self.desk.suspect(to)  # it leaves, too
            seat.parked = True
            self.desk.timer(("walk", token.slot), self.desk.now + self.desk.rto)
        else:
            self.advance(seat)

    def gone(self, token: Token, to: NodeId) -> None:
        """Committed and never confirmed. Not ours to use; whether it lives is to be found out."""
        self.passed(token, to)
        self.desk.suspicious(to)
        if self.desk.options.watch:
            self.machine.inquirer.start(token.slot, "a hand-over was never confirmed")

    def walk(self, slot: int) -> None:
        """Without hints the token wanders at random, as in the seeds; a leaver looks for another heir."""
        seat = self.by_slot.get(slot)
        if seat is None or not seat.parked or seat.giving or seat.using is not None:
            return
        if self.leaving:
            self.advance(seat)
            return
        to = pick_other(self.desk.members, self.desk.me, self.desk.rng)
        if to != NOBODY:
            self._give(seat, to, seat.token.queue)
        else:
            seat.parked = False  # alone: look around again later
            self.advance(seat)

    def _park(self, seat: Seat) -> None:
        seat.row = 0
        if not seat.parked:
            seat.parked = True
            self.machine.watch.parked(seat)

    def fed(self, seat: Seat, tickets: tuple[Ticket, ...], more: bool) -> None:
        """Somebody waits."""
        self.machine.registrar.give_back(self.add(seat, tickets))
        seat.token = escorted(seat.token, more=more)
        if seat.parked and self.known_first(seat) and not self.machine.watch.overslept(seat):
            seat.parked = False
            seat.quiet_until = 0
            self.machine.watch.began(seat)
        self.advance(seat)

    # --- rivals ------------------------------------------------------------------------------------------------------

    def discard(self, seat: Seat, better: Place, presence: Presence) -> None:
        """Another token of this slot won. A goes on, knowing that it is not alone."""
        desk = self.desk
        if self.presence(seat.token.slot) is Presence.PASSING:
            return  # out of our hands
        self.handover.withdraw(seat.token, desk.out)
        self.machine.watch.ended(seat)
        del self.by_slot[seat.token.slot]
        desk.note(FactKind.DISCARDED, seat.token, better.holder, f"epoch {better.epoch} hop {better.hop} wins")
        if seat.using is not None:
            self.orphans[seat.using] = (seat.visit, better)
            self.tell(seat, LostReason.OVERLAP)
        self.machine.reckoning.open(seat.visit, better)
        self.machine.registrar.feed_elsewhere(seat.token, better)

    def withhold(self, seat: Seat) -> bool:
        """Take back what is offered, until the doubt is settled. False: it is committed already."""
        if self.presence(seat.token.slot) is Presence.PASSING:
            return False
        self.handover.withdraw(seat.token, self.desk.out)
        seat.invited = NOBODY
        seat.giving = False
        seat.parked = False
        if not seat.doubt:
            seat.doubt = True
            seat.doubted_at = self.desk.now
        self.machine.watch.ended(seat)
        return True

    def renew(self, seat: Seat) -> None:
        """The same hold goes on with a token that outranks one that was heard of and is nowhere any more."""
        desk = self.desk
        desk.note(FactKind.DISCARDED, seat.token, detail="renewed")
        epoch = desk.next_epoch(seat.token.slot)
        seat.token = seat.token._replace(epoch=epoch, stamp=desk.now, id=int(desk.rng.random() * 2**53), hop=0)
        seat.used = 0
        desk.note(FactKind.GENERATED, seat.token, detail="in place of one that was heard of and not found")
        place = place_of(seat.token, desk.me)
        visit, better = seat.visit, desk.best.get(seat.token.slot)
        seat.visit = self.machine.ledger.renamed(visit, seat.token, place)
        desk.learn(place)
        if better is not None:
            self.machine.reckoning.open(visit, better)

    def tell_visit(self, visit: Visit, reason: LostReason) -> None:
        for seat in self.by_slot.values():
            if seat.visit is visit:
                self.tell(seat, reason)

    def tell(self, seat: Seat, reason: LostReason) -> None:
        """Once a hold is enough: the application cannot become more careful."""
        if seat.using is not None and not seat.told:
            seat.told = True
            self.desk.out.append(Lose(seat.using, reason))
