"""One mutex on one node: takes events, hands each to the part that it concerns, and gives back the effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from softmutex.core.algorithms.keeper.desk import Desk, KeeperOptions
from softmutex.core.algorithms.keeper.holder import Holder
from softmutex.core.algorithms.keeper.installer import Installer
from softmutex.core.algorithms.keeper.ledger import Ledger
from softmutex.core.algorithms.keeper.messages import (
    MESSAGES,
    Beat,
    Claim,
    Entered,
    Fed,
    Keeps,
    Lease,
    Legacy,
    Propose,
    Reckon,
    Reckoned,
    Report,
    Told,
    Unclaimed,
    Unconfirmed,
)
from softmutex.core.algorithms.keeper.office import Office, announce
from softmutex.core.algorithms.keeper.waiter import Waiter
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Depart,
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
    RequestId,
    Returned,
    Silenced,
    Slept,
    Started,
    Ticket,
    TimerName,
    Withdrawn,
)
from softmutex.core.handover import TIMER as HANDOVER
from softmutex.core.handover import Handover, Passing
from softmutex.core.laws import IN_ANY_WEATHER, Law, Weather, claim
from softmutex.core.machine import Algorithm, Setup, View, WhenIsolated
from softmutex.core.messages import Message, Offer

PATIENCE: Final = SECOND // 5  # of a hand-over, before a round trip was measured
RESENDS: Final = 3
LINGER: Final = SECOND // 10  # who departs answers for so long, or longer where the network is slow
FIRST_EPOCH: Final = 1  # of a founder's tokens
HEIR_ANSWERS: Final = 5 * SECOND // 2  # at most, or the next one is asked
TELL: Final = 2 * SECOND  # a former keeper is told again


class Keeper(Algorithm):
    """The second generation of the default algorithm: a preview. See the package's header for its rules."""

    name: ClassVar[str] = "keeper"
    laws: ClassVar = {
        **IN_ANY_WEATHER,
        **claim(Weather.ANY & ~Weather.CLOCKS, Law.ORDER),
    }  # its epochs are seconds of clocks
    Options = KeeperOptions
    messages = MESSAGES
    slots_most = 8
    small_talk = frozenset({"Beat", "Lease", "Propose", "Report"})

    __slots__ = (
        "_bequeathed_to",
        "_departed",
        "_desk",
        "_handover",
        "_holder",
        "_installer",
        "_ledger",
        "_linger_until",
        "_office",
        "_refusals",
        "_waiter",
    )

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        options = KeeperOptions.read(setup.options, self.name)
        self._desk = Desk(setup, options)
        self._handover = Handover(setup.me, setup.rng, Passing.FOUR_WAY, PATIENCE, RESENDS)
        self._installer = Installer(self._desk, self._generate)
        self._waiter = Waiter(self._desk, self._installer.consider)
        self._ledger = Ledger(self._desk, self._lose)
        self._holder = Holder(self._desk, options, self._waiter, self._handover, self._ledger)
        self._office = Office(self._desk, options, self._installer.search)
        self._installer.connect(self._office, self._holder, self._claim_again)
        self._bequeathed_to: NodeId = NOBODY
        self._refusals = 0  # of those that leave as well
        self._linger_until: Instant = 0
        self._departed = False

    # --- the door ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        desk = self._desk
        desk.now = now
        desk.out = []
        for seat in self._holder.seats.values():
            if seat.using is not None and not (isinstance(event, Released) and event.request == seat.using):
                self._holder.look(seat)  # first of all: was this node asleep?
        self._handle(event)
        self._settle()
        return desk.out

    def _settle(self) -> None:
        """Until nothing is left to say to oneself."""
        desk, waiter = self._desk, self._waiter
        while True:
            while desk.inbox:
                self._message(desk.me, desk.inbox.pop(0))
            waiter.settle()
            if waiter.waiting and not waiter.claim and not waiter.frozen and not self._holder.serve():
                waiter.want()
            if not desk.inbox:
                break
        if waiter.claim != self._handover.standing:
            self._handover.stand(waiter.claim)
            if waiter.claim != self._handover.standing:
                waiter.claim = 0
                desk.timer("claim", desk.now)
        if desk.leaving:
            self._try_to_depart()

    def _handle(self, event: Event) -> None:
        desk = self._desk
        match event:
            case Received(sender, message):
                self._message(sender, message)
            case Fired(timer):
                self._fired(timer)
            case Requested(request):
                self._waiter.waiting[request] = desk.now
                self._holder.serve()
            case Withdrawn(request):
                self._waiter.waiting.pop(request, None)
            case Released(request, baggage):
                self._holder.release(request, baggage)
            case MembersChanged(joined, left):
                self._members_changed(joined, left)
            case Started(founder, hint):
                self._waiter.started(hint)
                if founder and desk.term == 0:
                    desk.follow(1, desk.me)
                    self._office.begin(desk.now)
                    announce(desk)
                    for slot in range(desk.slots):
                        self._generate(slot, FIRST_EPOCH)
            case Slept():
                self._woke()
            case Leaving():
                self._leave()
            case Silenced(node):
                desk.silent[node] = None
                if node == desk.keeper:
                    self._keeper_is_gone()
            case Returned(node):
                desk.silent.pop(node, None)
                if desk.keeps:
                    desk.tell_keeper(node)
            case Reach(level):
                self._office.reaches(level)

    def _message(self, sender: NodeId, message: Message) -> None:
        desk = self._desk
        if sender == desk.keeper:
            desk.heard_at = desk.now
            desk.silent.pop(sender, None)
        match message:
            case Claim():
                self._claimed(sender, message)
            case Entered():
                self._follow(message.term, sender)
                self._waiter.entered(message)
            case Beat():
                if desk.keeps:
                    self._office.beat(sender, message)
                elif desk.term:
                    desk.tell_keeper(sender)
            case Lease():
                self._follow(message.term, sender)
                if sender == desk.keeper:
                    self._holder.lent(message)
            case Fed():
                if message.steps:
                    self._holder.fed(message)
                elif desk.keeps:
                    self._office.returned(message)
            case Unclaimed(ticket):
                if desk.keeps:
                    self._office.unclaimed(ticket)
            case Unconfirmed(name):
                if desk.keeps:
                    self._office.missed(name)
            case Propose():
                if message.term < desk.term or (message.term == desk.term and sender != desk.keeper):
                    desk.tell_keeper(sender)  # to propose a term is not to keep in it
                    return
                if self._installer.proposed(sender, message) and sender != desk.me:
                    self._waiter.freeze()
            case Report():
                self._follow(message.term, message.keeper)
                self._installer.reported(sender, message)
            case Keeps():
                self._keeps(sender, message)
            case Legacy():
                self._bequeathed(sender, message)
            case Reckon():
                self._ledger.recalled(sender, message)
            case Reckoned():
                self._ledger.answered(sender, message)
            case Told():
                self._ledger.told(message)
            case _:
                accept = isinstance(message, Offer) and self._holder.welcome(message.token)
                outcome = self._handover.received(sender, message, desk.now, desk.out, accept)
                if self._waiter.claim and not self._handover.standing:
                    self._waiter.claim = 0  # it was kept
                self._holder.outcome(outcome)

    def _fired(self, timer: TimerName) -> None:
        match timer:
            case "claim":
                self._waiter.fired()
            case ("seat", slot):
                self._holder.fired(slot)
                seat = self._holder.seats.get(slot)
                if seat is not None and self._holder.is_lost(seat):
                    self._keeper_is_gone(surely=False)
            case ("watch", slot):
                self._office.fired(slot)
            case "round":
                self._installer.fired()
            case ("case", number):
                self._ledger.fired(number)
            case "tell":
                self._tell_former()
            case "linger":
                pass  # `_try_to_depart` looks at each event
            case _:
                self._holder.outcome(self._handover.fired(timer, self._desk.now, self._desk.out))
                if timer[0] == HANDOVER:
                    self._holder.unanswered()

    # --- who keeps ---------------------------------------------------------------------------------------------------

    def _follow(self, term: int, keeper: NodeId) -> None:
        desk = self._desk
        kept = desk.keeps
        if desk.follow(term, keeper):
            if kept:
                self._office.end()
            if keeper != desk.me:
                self._installer.followed()
            self._tell_former()
            self._holder.beat_all()
            if self._waiter.waiting and self._waiter.claim:
                self._waiter.want(anew=False)

    def _tell_former(self) -> None:
        """Until it says so itself."""
        desk = self._desk
        desk.former = [node for node in desk.former if node in desk.members and node != desk.keeper]
        for node in desk.former:
            if node != desk.me:
                desk.tell_keeper(node)
        desk.former = [node for node in desk.former if node != desk.me] if desk.keeps else []
        if desk.former:
            desk.timer("tell", desk.now + TELL)

    def _keeps(self, sender: NodeId, message: Keeps) -> None:
        desk = self._desk
        if message.keeper == NOBODY:
            self._waiter.nobody_known()
            return
        self._follow(message.term, message.keeper)
        if (message.term, message.keeper) == (desk.term, desk.keeper):
            if sender in desk.former:
                desk.former.remove(sender)
            if sender == desk.keeper:
                self._waiter.thaw()
            if sender == self._bequeathed_to and not desk.keeps:
                self._bequeathed_to = NOBODY
            elif sender == self._bequeathed_to and self._refusals < len(desk.members):
                self._refusals += 1
                self._linger_until = desk.now  # it leaves as well: to the next one
        elif (message.term, message.keeper) < (desk.term, desk.keeper):
            desk.tell_keeper(sender)

    def _keeper_is_gone(self, surely: bool = True) -> None:
        """Dead, silent, or it does not answer: whoever needs one looks for another."""
        if self._desk.keeps:
            return
        if self._waiter.waiting or self._holder.seats or not surely:
            self._installer.consider()

    def _claimed(self, sender: NodeId, claim: Claim) -> None:
        desk = self._desk
        if desk.keeps:
            if claim.node in desk.members:
                self._office.claimed(claim)
        elif desk.keeper_counts:
            if claim.steps > 0 and desk.keeper != sender:
                desk.post(desk.keeper, claim._replace(steps=claim.steps - 1))
            if claim.term < desk.term:  # the keeper may not know this node yet
                desk.tell_keeper(claim.node)
        else:
            home = next(iter(desk.homes()), NOBODY)
            if claim.steps > 0 and home not in (NOBODY, sender, claim.node):
                desk.post(home, claim._replace(steps=claim.steps - 1))
            elif claim.node != desk.me:
                desk.post(claim.node, Keeps(desk.term, NOBODY))

    def _lose(self, request: RequestId) -> None:
        self._holder.lose(request)

    def _generate(self, slot: int, epoch: int = 0) -> None:
        token = self._installer.make(slot, epoch)
        desk = self._desk
        self._holder.take(token, desk.now)
        self._office.found(desk.best[slot], desk.me)
        seat = self._holder.seats.get(slot)
        if seat is not None and seat.asked_at is None:
            self._holder.beat_all()

    # --- comings and goings ------------------------------------------------------------------------------------------

    def _members_changed(self, joined: Sequence[NodeId], left: Sequence[NodeId]) -> None:
        desk = self._desk
        before = desk.homes() if desk.keeps else []
        desk.members_changed(joined, left)
        for node in left:
            for outcome in self._handover.departed(node, desk.out):
                self._holder.outcome(outcome)
            if desk.keeps:
                self._office.left(node)
            if node == self._bequeathed_to:
                self._bequeathed_to = NOBODY
        if desk.keeps:
            for node in desk.homes():
                if node not in before:
                    desk.tell_keeper(node)
        self._installer.members_changed()
        if desk.keeper in left:
            self._keeper_is_gone()
        self._holder.advance_all()

    def _woke(self) -> None:
        """Whatever was here may have been replaced, and so may what was sent here meanwhile."""
        self._waiter.claim = 0
        self._handover.stand(0)
        if self._desk.keeps:
            self._office.doubt()
        self._holder.doubt_all()

    def _leave(self) -> None:
        """First the tokens, then the role, then `Depart`."""
        desk = self._desk
        desk.leaving = True
        self._waiter.waiting.clear()
        if self._waiter.claimed and not desk.keeps:
            desk.post(desk.keeper, Unclaimed(Ticket(desk.me, self._waiter.claimed)))
        self._waiter.claim = 0
        self._handover.renounce(desk.out)
        self._holder.advance_all()
        self._linger_until = desk.now + max(LINGER, min(2 * desk.patience.wait(), SECOND))
        desk.timer("linger", self._linger_until)

    def _try_to_depart(self) -> None:
        desk = self._desk
        if self._departed or self._holder.using:
            return
        if desk.alone:
            for slot in list(self._holder.seats):
                seat = self._holder.seats.pop(slot)
                desk.note(FactKind.DISCARDED, seat.token, detail="the last one leaves")
        elif self._holder.seats:
            return
        elif desk.keeps:
            self._bequeath()
            return
        if self._bequeathed_to == NOBODY and desk.now >= self._linger_until and self._handover.idle:
            self._departed = True
            desk.out.append(Depart())

    def _bequeath(self) -> None:
        """To a holder, if there is another one; who does not answer in time is passed over."""
        desk = self._desk
        holders = [post.holder for post in self._office.posts.values()]
        others = [node for node in desk.members if node != desk.me and node not in desk.silent]
        heirs = list(dict.fromkeys([*(node for node in holders if node in others), *others]))
        patience = max(LINGER, min(2 * desk.patience.wait(), HEIR_ANSWERS))
        if heirs and (self._bequeathed_to == NOBODY or desk.now >= self._linger_until):
            at = 0 if self._bequeathed_to not in heirs else (heirs.index(self._bequeathed_to) + 1) % len(heirs)
            self._bequeathed_to = heirs[at]
            desk.post(heirs[at], self._office.bequest())
            self._linger_until = desk.now + patience
            desk.timer("linger", self._linger_until)

    def _bequeathed(self, sender: NodeId, message: Legacy) -> None:
        desk = self._desk
        leaves = desk.leaving and not (self._holder.using and len(desk.members) == 2)
        if leaves or message.term <= desk.term or (sender != desk.keeper and desk.keeper != NOBODY):
            desk.tell_keeper(sender)
            return
        desk.follow(message.term, desk.me)
        desk.former = []
        self._installer.followed()
        self._office.inherit(message)
        announce(desk)
        desk.tell_keeper(sender)
        self._holder.beat_all()
        self._claim_again()

    def _claim_again(self) -> None:
        if self._waiter.claim:
            self._waiter.want(anew=False)

    # --- what it shows -----------------------------------------------------------------------------------------------

    def may_take_again(self) -> bool:
        return any(seat.giving is None for seat in self._holder.seats.values())

    def when_isolated(self, choice: WhenIsolated) -> None:
        self._desk.when_isolated = choice

    def view(self) -> View:
        desk, holder = self._desk, self._holder
        seats = [seat for seat in holder.seats.values() if not holder.is_away(seat)]
        using = holder.using
        best = desk.best.get(0)
        post = self._office.posts.get(0) if desk.keeps else None
        queue = tuple(ticket.node for ticket in seats[0].token.queue) if seats else ()
        if post is not None:
            queue = (*post.fed, *self._office.register)
        if self._office.isolated:
            state = "isolated"
        elif using:
            state = "holding"
        elif any(seat.giving is not None for seat in holder.seats.values()):
            state = "passing"
        elif seats:
            state = "parked" if all(seat.idle for seat in seats) else "doubtful"
        else:
            state = "waiting" if self._waiter.waiting else "keeping" if desk.keeps else "idle"
        return View(
            tokens=tuple(seat.token for seat in seats),
            holding=tuple(using),
            waiting=len(self._waiter.waiting),
            holder=desk.me if seats else NOBODY if post is None else post.holder,
            queue=queue,
            epoch=0 if best is None else best.epoch,
            state=state,
        )
