"""One mutex on one node: takes events, hands each to the part that it concerns, and gives back the effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from softmutex.core.algorithms.wandering.ahead import Ahead
from softmutex.core.algorithms.wandering.borrowing import Borrowing
from softmutex.core.algorithms.wandering.deafness import Deafness
from softmutex.core.algorithms.wandering.desk import Desk, place_of
from softmutex.core.algorithms.wandering.ghosts import Ghosts
from softmutex.core.algorithms.wandering.inquirer import Inquirer
from softmutex.core.algorithms.wandering.ledger import Ledger
from softmutex.core.algorithms.wandering.messages import (
    MESSAGES,
    Account,
    Bequest,
    Feed,
    Heard,
    Place,
    Presence,
    Probe,
    Queued,
    Recall,
    Seen,
    Sight,
    Urge,
    Want,
)
from softmutex.core.algorithms.wandering.reckoning import Reckoning
from softmutex.core.algorithms.wandering.registrar import Registrar
from softmutex.core.algorithms.wandering.roll import Roll
from softmutex.core.algorithms.wandering.seats import Seats
from softmutex.core.algorithms.wandering.settings import FIRST_EPOCH, WanderingOptions, read_switches
from softmutex.core.algorithms.wandering.waiter import Waiter
from softmutex.core.algorithms.wandering.watch import Watch
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Depart,
    Duration,
    Effect,
    Event,
    FactKind,
    Fired,
    Instant,
    Leaving,
    MembersChanged,
    NodeId,
    Reach,
    Received,
    Released,
    Requested,
    Returned,
    Silenced,
    Slept,
    Started,
    TimerName,
    Token,
    Withdrawn,
    escorted,
    from_seconds,
)
from softmutex.core.handover import Failed, Gone, Handover, Outcome, Passed, Passing, Taken
from softmutex.core.machine import Algorithm, Setup, View, WhenIsolated
from softmutex.core.messages import Commit, Message, Offer

PATIENCE: Duration = SECOND // 5  # of a hand-over, before a round trip was measured
RESENDS = 3


class Wandering(Algorithm):
    """The default algorithm. See the package's header for its rules."""

    name: ClassVar[str] = "wandering"
    Options = WanderingOptions
    messages = MESSAGES
    slots_most = 256
    may_be_forgotten = (
        True  # who has forgotten it is as a newcomer, and what went with it is made anew when it is wanted
    )
    small_talk = frozenset({"Seen", "Heard", "Probe", "Sight"})

    __slots__ = (
        "ahead",
        "borrowing",
        "deafness",
        "depart_said",
        "desk",
        "ghosts",
        "handover",
        "inquirer",
        "ledger",
        "lingers_until",
        "mismatches",
        "reckoning",
        "registrar",
        "roll",
        "seats",
        "skip",
        "waiter",
        "watch",
    )

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        self.desk = Desk(setup, read_switches(setup, self.name))
        self.handover = Handover(setup.me, setup.rng, Passing.FOUR_WAY, PATIENCE, RESENDS)
        self.seats = Seats(self, self.handover)
        self.waiter = Waiter(self, setup.timing)
        self.watch = Watch(self)
        self.registrar = Registrar(self)
        self.borrowing = Borrowing(self)
        self.ahead = Ahead(self)
        self.roll = Roll(self)
        self.inquirer = Inquirer(self)
        self.deafness = Deafness(self)
        self.ghosts = Ghosts(self.desk)
        self.ledger = Ledger(self)
        self.reckoning = Reckoning(self)
        skip = setup.timing.skip if setup.timing.skip is not None else setup.timing.op / 40
        self.skip: Duration = max(from_seconds(skip), SECOND // 1000)
        self.mismatches: list[int] = []
        self.depart_said = False
        self.lingers_until: Instant = 0

    @classmethod
    def holds_of_one_node(cls, options: Mapping[str, Any]) -> int:
        return WanderingOptions.read(options, cls.name).each

    # --- the door ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        desk = self.desk
        desk.now = now
        desk.out = []
        for seat in self.seats.by_slot.values():
            if seat.using is not None and type(event) is not Released:
                self.watch.check(seat)  # first of all: was this node asleep?
        self._handle(event)
        inbox = desk.inbox
        while inbox:
            self._message(desk.me, inbox.pop(0))
        if self.waiter.waiting and self.waiter.asked is None and not self.seats.by_slot:
            self._requested()  # a token that was to serve them is gone
            while inbox:
                self._message(desk.me, inbox.pop(0))
        request = self.waiter.stands_for
        if request != self.handover.standing:
            self.handover.stand(request)
        if self.seats.leaving:
            self._try_to_depart()
        if self.seats.by_slot:
            self._check()
        return desk.out

    def _handle(self, event: Event) -> None:
        match event:
            case Received(sender, message):
                self._message(sender, message)
            case Fired(timer):
                self._fired(timer)
            case Requested(request, priority):
                self.waiter.add(request, priority)
                self._requested()
            case Withdrawn(request):
                self.waiter.remove(request)
            case Released(request, baggage):
                self.seats.release(request, baggage)
            case MembersChanged(joined, left):
                self._members_changed(joined, left)
            case Started(founder):
                self.inquirer.listen()
                if founder:
                    for slot in range(self.desk.options.slots):
                        self.regenerate(slot, "the first one", FIRST_EPOCH)
            case Slept():
                self._woke()
            case Leaving():
                self._leave()
            case Returned(node):
                self.desk.silent.pop(node, None)
                self._tell_of_tokens(node)
                self.waiter.returned(node)
            case Silenced(node):
                self.desk.silent[node] = None
                self.waiter.departed(node)
                self.roll.silenced()
                self.inquirer.silenced(node)
            case Reach(level):
                self.roll.reaches(level)

    def _woke(self) -> None:
        """Whatever was here may have been replaced, and so may what was sent here meanwhile."""
        self.desk.woke_at = self.desk.now
        for seat in self.seats.by_slot.values():
            if not seat.doubt:
                self.inquirer.doubt(seat)
        self.waiter.ask_again()

    def _requested(self) -> None:
        """A token that is parked here is taken again without a message; else we ask."""
        for seat in self.seats.by_slot.values():
            if seat.using is None and not seat.giving and not seat.doubt:
                self.seats.advance(seat)
                if not self.waiter.waiting:
                    return
        if self.waiter.waiting and self.seats.in_use < self.desk.options.each:
            self.waiter.ask()
        elif self.waiter.waiting and self.waiter.asked is None:
            for seat in self.seats.by_slot.values():
                if seat.using is not None and not seat.doubt:
                    self.seats.queue_self(seat)
                    return

    def _message(self, sender: NodeId, message: Message) -> None:
        self.desk.trust(sender)
        self.waiter.heard(sender)
        if sender in self.ghosts.nodes:
            self.ghosts.answer(sender)
        if sender in self.desk.deaf:
            self.deafness.heard(sender, message)
        match message:
            case Want():
                self.registrar.wanted(message)
            case Urge(want, credit):
                self.registrar.wanted(want, credit)
            case Queued(request, patience):
                self.waiter.queued(request, patience, sender)
            case Feed():
                self.registrar.fed(sender, message)
            case Seen():
                self.registrar.seen(sender, message)
            case Heard():
                self.watch.heard(sender, message)
            case Probe():
                self.inquirer.probed(sender, message)
            case Sight():
                self.inquirer.sighted(sender, message)
            case Bequest():
                self.registrar.bequeathed(message)
            case Recall():
                self.ledger.recalled(sender, message)
            case Account():
                self.reckoning.answered(message)
            case _:
                accept = isinstance(message, Offer) and self._welcome(sender, message)
                outcome = self.handover.received(sender, message, self.desk.now, self.desk.out, accept)
                if isinstance(message, Offer | Commit) and not accept and not isinstance(outcome, Taken):
                    self.ahead.refused(message.token)
                self._outcome(outcome)

    def _fired(self, timer: TimerName) -> None:
        match timer:
            case "want":
                self.waiter.want_fired()
            case "gen":
                self.waiter.gen_fired()
            case ("beat", slot):
                self.watch.fired(slot)
            case ("watch", slot):
                self.registrar.watch_fired(slot)
            case ("probe", slot):
                self.inquirer.fired(slot)
            case ("retry", slot):
                self.inquirer.retry(slot)
            case "kept":
                self.ahead.tell()
            case ("more", slot):
                self.registrar.looked_after(slot)
            case "serve":
                self.registrar.serve_returned()
            case "listened":
                self.inquirer.listened()
            case "deaf":
                self.deafness.fired()
            case "ghosts":
                self.ghosts.fired()
            case ("case", number):
                self.reckoning.fired(number)
            case "linger":
                pass  # `_try_to_depart` looks at each event
            case ("walk", slot):
                self.seats.walk(slot)
            case ("invite", slot):
                self.seats.invitations.fired(slot)
            case ("queued", slot):
                self.seats.tell_queued(slot)
            case _:
                self._outcome(self.handover.fired(timer, self.desk.now, self.desk.out))

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _welcome(self, sender: NodeId, offer: Offer) -> bool:
        """Take an offer unless it is of no use here, or of a token that has been replaced."""
        desk = self.desk
        token = offer.token
        if self.seats.leaving or not 0 <= token.slot < desk.options.slots:
            return False
        better = desk.outranked(token)
        if better is not None:
            desk.post(sender, Sight(0, token.slot, better, Presence.ABSENT, False))
            return False
        seat = self.seats.by_slot.get(token.slot)
        if desk.learn(place_of(token, sender)) and seat is not None and not seat.giving:
            self.inquirer.doubt(seat)
        needed = bool(self.waiter.waiting) and self.seats.in_use < desk.options.each
        if needed:
            self.waiter.offered()
        elif self.waiter.waiting:
            self.waiter.missed = True
        return needed or not desk.options.hints or not (offer.early or token.queue)

    def _outcome(self, outcome: Outcome | None) -> None:
        match outcome:
            case Taken(token, sender):
                self.inquirer.came(token.slot)
                self.seats.take(token, sender)
            case Passed(token, to):
                self.seats.passed(token, to)
            case Failed(token, to, is_silent):
                self.seats.failed(token, to, is_silent)
            case Gone(token, to):
                self.seats.gone(token, to)
            case None:
                pass

    def regenerate(self, slot: int, why: str, epoch: int = 0) -> None:
        """Make a token. Who calls this has done what can be done to know that there is none (`inquirer`)."""
        desk = self.desk
        if slot in self.seats.by_slot:
            return
        epoch = epoch or desk.next_epoch(slot)
        queue, more = self.registrar.queue_for(slot)
        token = Token(epoch, desk.now, int(desk.rng.random() * 2**53), 0, slot, queue, desk.fingerprint)
        token = escorted(token, more=more)
        last = desk.best.get(slot)  # who had it last is probably dead: the driver may want to look
        desk.note(FactKind.GENERATED, token, NOBODY if last is None or last.holder == desk.me else last.holder, why)
        desk.learn(Place(slot, epoch, token.stamp, token.id, 0, desk.me))
        self.registrar.made(token)
        self.inquirer.came(slot)
        self.seats.take(token, NOBODY)

    # --- the group ---------------------------------------------------------------------------------------------------

    def _members_changed(self, joined: tuple[NodeId, ...], left: tuple[NodeId, ...]) -> None:
        desk = self.desk
        registrar = self.registrar
        returned = tuple(node for node in joined if node in desk.gone)
        desk.changed(joined, left)
        for node in returned:
            self._tell_of_tokens(node)
        for node in left:
            self.ghosts.forget(node)
            self.inquirer.departed(node)
            registrar.departed(node)
            self.waiter.departed(node)
            for outcome in self.handover.departed(node, desk.out):
                self._outcome(outcome)
        self.watch.moved_homes()
        self.seats.members_changed()
        if desk.home != desk.me and (registrar.ready or registrar.late):
            registrar.hand_over(desk.home)
        if left:
            self._missed()
        if joined and self.waiter.asked is not None and len(desk.members) <= len(joined) + 1:
            self.waiter.ask_again()

    def _tell_of_tokens(self, node: NodeId) -> None:
        """It was only silent, and may have been on the other side of a divided group."""
        for slot, best in self.desk.best.items():
            self.desk.post(node, Sight(0, slot, best, Presence.ABSENT, False))

    def _missed(self) -> None:
        """A death that the membership tells of before the watch noticed: of the holder, or of the home before us."""
        desk = self.desk
        if desk.home != desk.me or not desk.options.watch:
            return
        for slot in range(desk.options.slots):
            post = self.registrar.posts.get(slot)
            if post is None:
                lost = bool(desk.best)  # we never heard of this one, but there are tokens: who knew of it left
            else:
                lost = not desk.is_member(post.place.holder) or bool(post.second and post.until)
            if lost and slot not in self.seats.by_slot:
                self.inquirer.start(slot, "its holder or its home left the group")

    def _leave(self) -> None:
        self.seats.leaving = True
        if self.handover.standing:  # somebody may be about to commit a token to us: it is told that it may keep it
            self.lingers_until = self.desk.now + 2 * self.desk.rto
            self.desk.timer("linger", self.lingers_until)
        self.handover.renounce(self.desk.out)
        for seat in list(self.seats.by_slot.values()):
            self.seats.advance(seat)

    @property
    def heir(self) -> NodeId:
        """The home after this node."""
        return next(iter(self.desk.homes(1, but=self.desk.me)), self.desk.me)

    def _try_to_depart(self) -> None:
        held = bool(self.seats.by_slot) and not self.desk.alone
        held = held or self.desk.now < self.lingers_until
        if not self.depart_said and not held and not self.seats.in_use and self.handover.idle:
            self.depart_said = True
            self._hand_on()
            self.desk.out.append(Depart())

    def _hand_on(self) -> None:
        """The tokens have gone before: now it is known where to, and nobody looks for one that is on its way."""
        if self.heir == self.desk.me:
            return
        if self.registrar.ready or self.registrar.late or self.registrar.posts:
            self.registrar.hand_over(self.heir)
        for place in self.ledger.last_seen():
            self.desk.post(self.heir, Bequest(place, ()))

    # --- what it shows and checks ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """`seats.S2`, at the end of each event: a hold has one token, and a token that is given away is not in use."""
        for slot, seat in self.seats.by_slot.items():
            if seat.token.slot != slot or (seat.giving and seat.using is not None):
                raise InvariantBreach(f"node {self.desk.me}: {seat.token} is given away while A runs with it")

    def may_take_again(self) -> bool:
        """A token is here that is not on its way to somebody else."""
        return any(not seat.giving for seat in self.seats.by_slot.values())

    def when_isolated(self, choice: WhenIsolated) -> None:
        self.desk.options = replace(self.desk.options, when_isolated=choice)

    def view(self) -> View:
        seats = self.seats
        tokens = tuple(
            seat.token for seat in seats.by_slot.values() if seats.presence(seat.token.slot) is not Presence.PASSING
        )
        using = tuple(seat.using for seat in seats.by_slot.values() if seat.using is not None)
        best = self.desk.best.get(0)
        queue = next((seat.token.queue for seat in seats.by_slot.values()), ())
        if self.inquirer.isolated:
            state = "isolated"
        elif using or seats.orphans:
            state = "holding"
        elif any(seat.doubt for seat in seats.by_slot.values()):
            state = "doubtful"
        elif tokens:
            state = "parked" if all(seat.parked for seat in seats.by_slot.values()) else "passing"
        else:
            state = "waiting" if self.waiter.waiting else "idle"
        return View(
            tokens=tokens,
            holding=(*using, *sorted(seats.orphans)),
            waiting=len(self.waiter.waiting),
            holder=NOBODY if best is None else best.holder,
            queue=tuple(ticket.node for ticket in queue),
            epoch=0 if best is None else best.epoch,
            state=state,
        )
