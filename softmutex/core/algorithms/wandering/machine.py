"""One mutex on one node: takes events, hands each to the part that it concerns, and gives back the effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from softmutex.core.algorithms.wandering.context import Context, place_of
from softmutex.core.algorithms.wandering.evidence import OverlapEvidence
from softmutex.core.algorithms.wandering.home import Home
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
from softmutex.core.algorithms.wandering.requests import OwnRequests
from softmutex.core.algorithms.wandering.search import Deafness, Ghosts, TokenSearches
from softmutex.core.algorithms.wandering.settings import FIRST_EPOCH, WanderingOptions, read_switches
from softmutex.core.algorithms.wandering.tokens import HeldToken, KeptAhead, TokenHolder, TokensHere
from softmutex.core.algorithms.wandering.watch import LendersRoll, Watch
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
    LostReason,
    MembersChanged,
    NodeId,
    Reach,
    Received,
    Released,
    Requested,
    Returned,
    Send,
    Silenced,
    Slept,
    Started,
    Ticket,
    TimerName,
    Token,
    Withdrawn,
    escorted,
    from_seconds,
)
from softmutex.core.handover import Failed, Gone, Handover, Outcome, Passed, Passing, Taken
from softmutex.core.machine import Algorithm, Setup, View, WhenIsolated
from softmutex.core.messages import HANDOVER, Ask, Commit, Message, Offer, Void

PATIENCE: Duration = SECOND // 5  # of a hand-over, before a round trip was measured
RESENDS = 3
OF_HANDOVER = frozenset(HANDOVER.values())


class Wandering(Algorithm):
    """The default algorithm. See the package's header for its rules."""

    name: ClassVar[str] = "wandering"
    Options = WanderingOptions
    messages = MESSAGES
    slots_most = 256
    ticket_s = 0.05
    may_be_forgotten = (
        True  # who has forgotten it is as a newcomer, and what went with it is made anew when it is wanted
    )
    small_talk = frozenset({"Seen", "Heard", "Probe", "Sight"})

    __slots__ = (
        "ahead",
        "context",
        "deafness",
        "depart_said",
        "evidence",
        "ghosts",
        "handover",
        "here",
        "holder",
        "home",
        "lingers_until",
        "requests",
        "roll",
        "search",
        "watch",
    )

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        context = self.context = Context(setup, read_switches(setup, self.name))
        self.handover = Handover(setup.me, setup.rng, Passing.FOUR_WAY, PATIENCE, RESENDS)
        here = self.here = TokensHere(context, self.handover)
        self.ahead = KeptAhead(context)
        self.roll = LendersRoll(context)
        self.ghosts = Ghosts(context)
        self.deafness = Deafness(here)
        self.evidence = OverlapEvidence(here)
        search = self.search = TokenSearches(here, self.deafness, self.ghosts, self)
        requests = self.requests = OwnRequests(here, self.ahead, search, self, setup.timing)
        watch = self.watch = Watch(here, search)
        home = self.home = Home(here, self.ahead, search, self.roll, self)
        skip_s = setup.timing.skip if setup.timing.skip is not None else setup.timing.op / 40
        skip = max(from_seconds(skip_s), SECOND // 1000)
        self.holder = TokenHolder(here, self.ahead, self.evidence, self.deafness, search, requests, watch, home, skip)
        self.depart_said = False
        self.lingers_until: Instant = 0

    @classmethod
    def holds_of_one_node(cls, options: Mapping[str, Any]) -> int:
        return WanderingOptions.read(options, cls.name).each

    # --- the door ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        context, requests, here = self.context, self.requests, self.here
        context.begin(now)
        for held in here.by_slot.values():
            if held.using is not None and type(event) is not Released:
                self.watch.check(held)  # first of all: was this node asleep?
        self._handle(event)
        inbox = context.inbox
        while inbox:
            self._message(context.me, inbox.pop(0))
        if requests.waiting and requests.asked is None and not here.by_slot:
            self._requested()  # a token that was to serve them is gone
            while inbox:
                self._message(context.me, inbox.pop(0))
        request = 0 if requests.asked is None else requests.stands_for
        if request != self.handover.standing:
            self.handover.stand(request)
        if here.leaving:
            self._try_to_depart()
        for slot, held in here.by_slot.items():
            if held.token.slot != slot or (held.giving and held.using is not None):  # `tokens.S2`
                raise InvariantBreach(f"node {context.me}: {held.token} is given away while A runs with it")
        return context.out

    def _handle(self, event: Event) -> None:
        match event:
            case Fired(timer):
                self._fired(timer)
            case Received(sender, message):
                self._message(sender, message)
            case Requested(request, priority):
                self.requests.add(request, priority)
                self._requested()
            case Released(request, baggage):
                self.holder.release(request, baggage)
            case Withdrawn(request):
                self.requests.remove(request)
            case MembersChanged(joined, left):
                self._members_changed(joined, left)
            case Started(founder):
                self.search.listen()
                if founder:
                    for slot in range(self.context.options.slots):
                        self.regenerate(slot, "the first one", FIRST_EPOCH)
            case Slept():
                self._woke()
            case Leaving():
                self._leave()
            case Returned(node):
                self.context.returned(node)
                self._tell_of_tokens(node)
                self.requests.returned(node)
            case Silenced(node):
                self.context.silenced(node)
                self.requests.departed(node)
                self.home.silenced(node)
                if self.here.by_slot or self.home.lends:
                    self.roll.silenced()
                self.search.silenced(node)
            case Reach(level):
                if self.roll.reaches(level):
                    self._is_cut_off()

    def _woke(self) -> None:
        """Whatever was here may have been replaced, and so may what was sent here meanwhile."""
        self.context.woke()
        for held in self.here.by_slot.values():
            if not held.doubt:
                self.search.doubt(held)
        self.requests.ask_again()

    def _requested(self) -> None:
        """A token that is parked here is taken again without a message; else we ask."""
        for held in self.here.by_slot.values():
            if held.using is None and not held.giving and not held.doubt:
                self.holder.advance(held)
                if not self.requests.waiting:
                    return
        if self.requests.waiting and self.here.in_use < self.context.options.each:
            self.requests.ask()
        elif self.requests.waiting and self.requests.asked is None:
            for held in self.here.by_slot.values():
                if held.using is not None and not held.doubt:
                    self.holder.queue_self(held)
                    return

    def _message(self, sender: NodeId, message: Message) -> None:
        self.context.trust(sender)
        if self.requests.tries:
            self.requests.heard(sender)
        if self.ghosts.nodes:
            self.ghosts.speaks(sender)
        if sender in self.context.deaf and self.deafness.heard(sender, message):
            self.holder.members_changed()
        if type(message) in OF_HANDOVER:
            self._passing(sender, message)
            return
        match message:
            case Want():
                self.holder.wanted(message)
            case Urge(want, credit):
                self.holder.wanted(want, credit)
            case Queued(request, patience):
                self.requests.queued(request, patience, sender)
            case Feed():
                self.holder.feed(sender, message)
            case Seen():
                self.home.seen(sender, message)
            case Heard():
                self.home.heard_back(message)
                self.holder.heard(sender, message)
            case Probe():
                if message.number:
                    self.search.probed(sender, message)
                else:
                    self._hears_nobody(sender, message)
            case Sight():
                self.search.sighted(sender, message)
            case Bequest():
                self.home.bequeathed(sender, message)
            case Recall():
                self.evidence.recalled(sender, message)
            case Account():
                self.evidence.answered(message)
            case _:
                pass

    def _passing(self, sender: NodeId, message: Message) -> None:
        accept = isinstance(message, Offer) and self._welcome(sender, message)
        outcome = self.handover.received(sender, message, self.context.now, self.context.out, accept)
        if not accept and isinstance(message, (Commit, Offer)) and not isinstance(outcome, Taken):
            self.ahead.refused(message.token)
        if isinstance(message, Ask) and any(
            type(each) is Send and type(each.message) is Void for each in self.context.out
        ):
            self.requests.missed_commit()
        if outcome is not None:
            self._outcome(outcome)

    def _fired(self, timer: TimerName) -> None:
        name, number = timer if isinstance(timer, tuple) else (timer, 0)
        match name:
            case "want":
                self.requests.want_fired()
            case "gen":
                self.requests.gen_fired()
            case "beat":
                self.watch.fired(number)
            case "watch":
                self.home.watch_fired(number)
            case "probe":
                self.search.fired(number)
            case "retry":
                self.search.retry(number)
            case "more":
                self.home.looked_after(number)
            case "serve":
                self.home.serve_returned()
            case "listened":
                self.search.listened()
            case "deaf":
                self.deafness.fired()
                self.holder.members_changed()
            case "ghosts":
                self.ghosts.fired()
            case "case":
                self.evidence.fired(number)
            case "linger":
                pass  # `_try_to_depart` looks at each event
            case "walk":
                self.holder.walk(number)
            case "invite":
                self.holder.invite_fired(number)
            case "queued":
                self.holder.tell_queued(number)
            case _:
                if self.handover.is_silent(timer):
                    self.context.lost()
                outcome = self.handover.fired(timer, self.context.now, self.context.out)
                for effect in self.context.out:
                    if type(effect) is Send and type(effect.message) is Ask:
                        self.context.suspicious(effect.to)  # it may have died with the token
                        break
                self._outcome(outcome)

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _welcome(self, sender: NodeId, offer: Offer) -> bool:
        """Take an offer unless it is of no use here, or of a token that has been replaced."""
        context = self.context
        token = offer.token
        if self.here.leaving or not 0 <= token.slot < context.options.slots:
            return False
        better = context.outranked(token)
        if better is not None:
            context.post(sender, Sight(0, token.slot, better, Presence.ABSENT, False))
            return False
        held = self.here.by_slot.get(token.slot)
        place = place_of(token, sender)
        is_news = context.learn(place)
        if held is not None and held.doubt:
            self.search.seen(place)
        elif is_news and held is not None and not held.giving:
            self.search.doubt(held)
        needed = bool(self.requests.waiting) and self.here.in_use < context.options.each
        if needed:
            self.requests.offered(offer.early)
        elif self.requests.waiting:
            self.requests.passed_over()
        return needed or not context.options.hints or not (offer.early or token.queue)

    def _outcome(self, outcome: Outcome | None) -> None:
        match outcome:
            case Taken(token, sender):
                self.holder.take(token, sender)
            case Passed(token, to):
                self.holder.passed(token, to)
            case Failed(token, to, is_silent):
                self.holder.failed(token, to, is_silent)
            case Gone(token, to):
                self.holder.gone(token, to)
            case None:
                pass

    def regenerate(self, slot: int, why: str, epoch: int = 0) -> None:
        """Make a token. Who calls this has done what can be done to know that there is none (`search.S1`)."""
        context = self.context
        if slot in self.here.by_slot:
            return
        epoch = epoch or context.next_epoch(slot)
        queue, more = self.home.queue_for(slot)
        token = Token(epoch, context.now, int(context.rng.random() * 2**53), 0, slot, queue, context.fingerprint)
        token = escorted(token, more=more)
        last = context.best.get(slot)  # who had it last is probably dead: the driver may want to look
        context.note(
            FactKind.GENERATED, token, NOBODY if last is None or last.holder == context.me else last.holder, why
        )
        self.home.made(token)
        self.holder.take(token, NOBODY)

    # --- what its parts ask of it ------------------------------------------------------------------------------------

    def withhold(self, held: HeldToken) -> bool:
        return self.holder.withhold(held)

    def still_looks_for(self, slot: int) -> bool:
        best = self.context.best.get(slot)
        went = best is not None and best.holder in self.context.gone
        hearsay = best is not None and self.context.home == self.context.me and slot not in self.home.posts
        return went or hearsay or self.home.misses(slot) or self.home.somebody_waits or self.requests.asks

    def heard_of(self, slot: int) -> Place | None:
        return self.home.heard_of(slot)

    def found(self, place: Place, presence: Presence) -> None:
        """Somebody has the token. Who waits asks there, also for one that was here and had to give way."""
        held = self.here.by_slot.get(place.slot)
        if held is not None:
            self.holder.discard(held, place, presence)
        self.home.found(place, presence)
        self.requests.ask_again(place.holder)
        if held is not None:
            self.requests.ask()

    def settled(self, held: HeldToken) -> None:
        self.holder.settled(held)

    def fed(self, held: HeldToken, tickets: tuple[Ticket, ...], more: bool) -> None:
        self.holder.fed(held, tickets, more)

    # --- the group ---------------------------------------------------------------------------------------------------

    def _members_changed(self, joined: tuple[NodeId, ...], left: tuple[NodeId, ...]) -> None:
        context = self.context
        home = self.home
        returned = tuple(node for node in joined if node in context.gone)
        context.changed(joined, left)
        for node in returned:
            self._tell_of_tokens(node)
        for node in left:
            self.ghosts.forget(node)
            self.search.departed(node)
            home.departed(node)
            self.requests.departed(node)
            for outcome in self.handover.departed(node, context.out):
                self._outcome(outcome)
        self.requests.moved_homes()
        self.watch.moved_homes()
        self.holder.members_changed()
        if context.home != context.me and home.somebody_waits:
            home.hand_over(context.home)
        if left:
            self._missed()
        if joined and self.requests.asked is not None and len(context.members) <= len(joined) + 1:
            self.requests.ask_again()

    def _tell_of_tokens(self, node: NodeId) -> None:
        """It was only silent, and may have been on the other side of a divided group."""
        for slot, best in self.context.best.items():
            self.context.post(node, Sight(0, slot, best, Presence.ABSENT, False))

    def _hears_nobody(self, sender: NodeId, probe: Probe) -> None:
        """It says so: it is not waited for, and no ballot is promised to it."""
        if not 0 <= probe.slot < self.context.options.slots:
            return
        self.deafness.said(sender)
        self.search.release_ballot(probe.slot, sender)
        if probe.rival is not None and self.home.holder_is_deaf(probe.slot, sender):
            self.search.start(probe.slot, "its holder hears nobody")

    def _is_cut_off(self) -> None:
        """With the smaller side of the group: nothing is lent, and what is here is doubted; what was doubted before is
        told to A, as an inquiry could only find the same."""
        self.home.takes_back_leases()
        for held in list(self.here.by_slot.values()):
            if held.doubt:
                self.here.tell(held, LostReason.ISOLATED)
            elif not held.giving:
                self.search.doubt(held)

    def _missed(self) -> None:
        """A death that the membership tells of before the watch noticed: of the holder, or of the home before us."""
        context = self.context
        if context.home != context.me or not context.options.watch:
            return
        if not context.best:
            self.search.looks_around()  # who knew of the tokens left, perhaps, or will say where they are
        for slot in range(context.options.slots):
            if slot not in self.here.by_slot and self.home.is_lost(slot):
                self.search.start(slot, "its holder or its home left the group")

    def _leave(self) -> None:
        self.here.leave()
        if self.handover.standing:  # somebody may be about to commit a token to us: it is told that it may keep it
            self.lingers_until = self.context.now + 2 * self.context.rto
            self.context.timer("linger", self.lingers_until)
        self.handover.renounce(self.context.out)
        for held in list(self.here.by_slot.values()):
            self.holder.advance(held)

    def _try_to_depart(self) -> None:
        held = bool(self.here.by_slot) and not self.context.alone
        held = held or self.context.now < self.lingers_until
        if not self.depart_said and not held and not self.here.in_use and self.handover.idle:
            self.depart_said = True
            self._hand_on()
            self.context.out.append(Depart())

    def _hand_on(self) -> None:
        """The tokens have gone before: now it is known where to, and nobody looks for one that is on its way."""
        if self.context.heir == self.context.me:
            return
        if self.home.somebody_waits or self.home.posts:
            self.home.hand_over(self.context.heir)
        for place in self.evidence.last_seen():
            self.context.post(self.context.heir, Bequest(place, ()))

    # --- what it shows -----------------------------------------------------------------------------------------------

    def may_take_again(self) -> bool:
        """A token is here that is not on its way to somebody else."""
        return any(not held.giving for held in self.here.by_slot.values())

    def when_isolated(self, choice: WhenIsolated) -> None:
        self.context.isolation_is(choice)

    def view(self) -> View:
        here = self.here
        tokens = tuple(
            held.token for held in here.by_slot.values() if here.presence(held.token.slot) is not Presence.PASSING
        )
        using = tuple(held.using for held in here.by_slot.values() if held.using is not None)
        best = self.context.best.get(0)
        queue = next((held.token.queue for held in here.by_slot.values()), ())
        if self.search.isolated:
            state = "isolated"
        elif using or here.orphans:
            state = "holding"
        elif any(held.doubt for held in here.by_slot.values()):
            state = "doubtful"
        elif tokens:
            state = "passing" if any(held.giving for held in here.by_slot.values()) else "parked"
        else:
            state = "waiting" if self.requests.waiting else "idle"
        return View(
            tokens=tokens,
            holding=(*using, *sorted(here.orphans)),
            waiting=len(self.requests.waiting),
            holder=NOBODY if best is None else best.holder,
            queue=tuple(ticket.node for ticket in queue),
            epoch=0 if best is None else best.epoch,
            state=state,
        )
