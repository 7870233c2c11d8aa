"""`ring-search`, seed 003's System Search: a token goes round, and whoever wants it sends a search ahead to meet it.

What it decides: how a token that goes round is had sooner than after half a round. The naive way, to ask everybody,
costs N messages for each use. Here a GIMME goes from neighbour to neighbour and leaves a trap at each; the token goes
to whoever set the trap that it meets, is used there once, and returns to its lender, from where it goes on round.

    wanted --GIMME--> x --GIMME--> y ... each keeps a trap, until one has the token, or has lent it
    token, at a node:  errand: to the borrower, and back to its lender  >  a trap: lend it  >  wanted here: use it
                       >  nobody wants it: rest, then on to the next of the ring; ever more slowly

GIMMEs are cheap (the paper's word): all of them may be lost, and the token still comes by. So a trap may be stale. Who
lends does so in one message, by the promise that the GIMME is (`at_once.py`), and a promise that was kept or withdrawn
is VOID: a stale trap costs a round trip, never the token. Options choose between the paper's variants:

    search      delegated: nodes send the GIMME on; directed: they answer the searcher, MISSED, who asks the next
    cleanup     rotation: the token tells who was served of late; inverse: it goes back on the searcher's own trail,
                and takes the traps away. A dead or missing node on the trail is left out
    initiative  pull: GIMMEs; push: the holder sends an ANYBODY round, and who wants the token answers it; both; none
    discipline  fast: lent to the next few who wait, in the order of their traps, in one tour; fair: to one at a time
    throttle    a node with a search of its own under way keeps others' back until it was served

A dead holder is found by its neighbours, and nobody makes a second token: `remake.py`.

Survives: loss, repetition, delay, reordering, pauses, wrong clocks; comings, goings and deaths. Two may overlap where
members do not know of each other, or several founded. While a token is lost, all members must answer, or be known dead.
Labels count seconds, so that they go on where all die, within a hand-over or so, who knew the last one.

Invariants, with those of `lending.py`
    L1  A waiter searches again until it is granted, and if nobody who has or has lent the token answers, inquires;
        however often others leave meanwhile.
    A4  One trap a member.
"""

from __future__ import annotations

from typing import ClassVar, Final

from softmutex.core.algorithms.lending import REST, Lending
from softmutex.core.algorithms.one_by_one import OF_HOLDERS
from softmutex.core.algorithms.remake import (
    INQUIRY,
    NO_LABEL,
    Clear,
    Denied,
    Here,
    Inquire,
    Phase,
    Sighting,
)
from softmutex.core.algorithms.ring_words import Anybody, Gimme, Initiative, Missed, Mission, SearchKind, Trap, Trapped
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Duration,
    Effect,
    Instant,
    NodeId,
    RequestId,
    Send,
    SetTimer,
    Suspect,
    TimerName,
)
from softmutex.core.handover import Passing
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup
from softmutex.core.messages import Message

AGAIN: Final = "again"
TRIES: Final = 2  # searches without an answer, until the token may be lost
SOONEST, SELDOM = SECOND, 60 * SECOND  # between two searches for one request
COPIES: Final = SECOND // 4  # so long: sent on by each on its way, what comes twice would double with each step
FEW: Final = 16  # members; where there are more, it is that much longer
DOUBTS: Final = 10 * SECOND  # between two doubts about borrowers


class RingSearch(Lending):
    name: ClassVar[str] = "ring-search"
    messages: ClassVar = {
        96: Gimme, 97: Missed, 98: Trapped, 99: Anybody, 100: Inquire, 101: Here, 102: Clear, 103: Denied, **OF_HOLDERS
    }  # fmt: skip
    laws = (
        claim(Weather.ANY, Law.EFFECTS)
        | claim(Weather.ANY & ~Weather.SILENCE, Law.REQUESTS)
        | claim(Weather.ANY & ~(Weather.VIEWS | Weather.FOUNDERS), Law.OVERLAP, Law.EXCLUSION)
        | claim(Weather.ANY & ~(Weather.VIEWS | Weather.FOUNDERS | Weather.CUTS), Law.ORDER)
    )
    needs_every_member = True

    __slots__ = ("_asked_at", "_doubt_again", "_search", "_tries")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._search: Gimme | None = None  # this node's own, as it was sent last
        self._asked_at: Instant = 0
        self._tries = 0
        self._doubt_again: Instant = 0  # from then on

    # --- wanting it --------------------------------------------------------------------------------------------------

    def _want(self, now: Instant, out: list[Effect]) -> None:
        request = self._waiting[0]
        self._traps.pop(self._me, None)
        self._traps[self._me] = Trap(request, self._me, False)
        if self._token is None:
            self._miss(NOBODY, now, out)

    def _miss(self, lender: NodeId, now: Instant, out: list[Effect]) -> None:
        """It is wanted here, and not here, or no longer: it goes back to `lender`."""
        request = self._waiting[0]
        if self._how is Passing.FOUR_WAY:
            self._handover.stand(request)
        self._asked_at, self._tries = now, 0
        if lender not in (NOBODY, self._me):
            out.append(Send(lender, Gimme(self._me, request, NOBODY, NOBODY, self._seen)))
        elif not self._lent:
            self._look_for_it(False, out)
        out.append(SetTimer(AGAIN, now + self._soonest()))

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        self._traps.pop(self._me, None)
        self._handover.stand(0)
        self._search = None
        out.append(CancelTimer(AGAIN))
        if self._token is None:
            for node, trap in self._traps.items():
                if trap.held_back:
                    to, gimme = self._first(Gimme(node, trap.request, NOBODY, NOBODY, self._seen))
                    out.extend([Send(to, gimme)] if to not in (NOBODY, node) else [])

    def _found(self, out: list[Effect]) -> None:
        self._search = None
        out.append(CancelTimer(AGAIN))

    def _heard_of_holder(self, holder: NodeId, out: list[Effect]) -> None:
        if self._waiting and self._token is None:
            self._tries = 0
            out.append(Send(holder, Gimme(self._me, self._waiting[0], NOBODY, NOBODY, self._seen, again=True)))

    def _look_for_it(self, again: bool, out: list[Effect]) -> None:
        if self._options.initiative not in (Initiative.PULL, Initiative.BOTH):
            return
        to, gimme = self._first(Gimme(self._me, self._waiting[0], NOBODY, NOBODY, self._seen, again=again))
        if to != NOBODY:
            self._search = gimme
            out.append(Send(to, gimme))

    def _search_soon(self, now: Instant, out: list[Effect]) -> None:
        """What lay in wait for the token may be gone."""
        if self._waiting and self._running is None and self._token is None and not self._leaving:
            out.append(SetTimer(AGAIN, now + SOONEST // 2 + int(self._rng.random() * SOONEST)))

    def _search_again(self, now: Instant, out: list[Effect]) -> None:
        if not self._waiting or self._running is not None or self._token is not None:
            return
        self._tries += 1
        if self._lent:
            self._doubt(now, out)
        else:
            self._look_for_it(True, out)
        if self._tries > TRIES and not self._remake.stage and self._passing is None:
            self._tries = 0
            self._heed(self._remake.begin(Phase.ALL, NO_LABEL, now, out), now, out)
        self._search_later(self._patient(now) if self._lent else self._soonest() * (1 + self._tries), now, out)

    def _soonest(self) -> Duration:
        """A search that is repeated before it can have come round leaves traps that are stale."""
        return SOONEST * max(FEW, len(self._members)) // FEW

    def _patient(self, now: Instant) -> Duration:
        """While the token is known to be somewhere."""
        return min(SELDOM, max(SOONEST, 3 * (now - self._asked_at)))

    def _search_later(self, wait: Duration, now: Instant, out: list[Effect]) -> None:
        out.append(SetTimer(AGAIN, now + wait + int(self._rng.random() * (wait // 2))))

    def _doubt(self, now: Instant, out: list[Effect]) -> None:
        """Are those to whom the token is lent still there?"""
        if now >= self._doubt_again:
            self._doubt_again = now + DOUBTS
            out.extend(Suspect(borrower) for borrower in self._lent)

    def _first(self, gimme: Gimme) -> tuple[NodeId, Gimme]:
        """To whom a search is sent first; NOBODY: to nobody."""
        return self._next_of(self._me), gimme

    def _onward(self, gimme: Gimme, at: NodeId, seen: Sighting) -> tuple[NodeId, Gimme]:
        """To whom it goes from `at`, which saw the token then; NOBODY: it ends there."""
        to = self._next_of(at)
        return (NOBODY if to == gimme.node else to), gimme

    def _ask_round(self, question: Anybody, out: list[Effect]) -> None:
        to = self._next_of(self._me)
        if to not in (NOBODY, question.holder):
            out.append(Send(to, question))

    # --- messages ----------------------------------------------------------------------------------------------------

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        match message:
            case Gimme():
                self._sought(sender, message, now, out)
            case Missed(request, seen):
                if self._search is not None and self._search.request == request and self._token is None:
                    self._send_on(self._search, sender, seen, out)
            case Trapped(request):
                if self._waiting and self._waiting[0] == request and self._running is None and self._token is None:
                    self._tries = 0
                    self._search_later(self._patient(now), now, out)
            case Anybody(holder):
                if self._me in self._traps and self._token is None:
                    request = self._traps[self._me].request
                    out.append(Send(holder, Gimme(self._me, request, NOBODY, NOBODY, self._seen)))
                elif self._token is None:
                    self._ask_round(message, out)
            case Inquire() | Here() | Clear() | Denied():
                mine = self._my_label()
                self._tries = 0 if type(message) is Inquire else self._tries
                self._heed(self._remake.received(sender, message, mine, self._visited, now, out), now, out)
            case _:
                self._passed_to_me(sender, message, now, out)

    def _sought(self, sender: NodeId, gimme: Gimme, now: Instant, out: list[Effect]) -> None:
        node, request, *_ = gimme
        known = self._traps.get(node)
        if node == self._me or not self._counts(node) or (known is not None and known.request > request):
            return
        if gimme.steps > 2 * len(self._members) + 8:
            return  # members that do not agree on the ring
        self._calm = 0
        lender = NOBODY if self._token is None else Mission.of(self._token).lender
        if lender not in (NOBODY, self._me):
            if lender != node and self._counts(lender):
                out.append(Send(lender, gimme._replace(steps=gimme.steps + 1)))  # to there it comes back
            return
        at_home = self._token is not None or bool(self._lent)
        directed = self._options.search is SearchKind.DIRECTED
        hold_back = self._options.throttle and self._search is not None and not at_home and not gimme.again
        is_copy = known is not None and known.request == request and gimme.steps <= known.steps
        if is_copy and not at_home and known is not None and now - known.at < COPIES:
            return
        self._traps[node] = Trap(request, sender, hold_back, now, gimme.steps)
        if at_home:
            if gimme.again or directed:
                out.append(Send(node, Trapped(request)))
                self._doubt(now, out)
        elif directed:
            out.append(Send(node, Missed(request, self._seen)))
        elif not hold_back:
            self._send_on(gimme, self._me, self._seen, out)

    def _send_on(self, gimme: Gimme, at: NodeId, seen: Sighting, out: list[Effect]) -> None:
        to, gimme = self._onward(gimme, at, seen)
        if to in (NOBODY, self._me):
            return
        gimme = gimme._replace(steps=gimme.steps + 1)
        if gimme.node == self._me:
            self._search = gimme
        out.append(Send(to, gimme))

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer == AGAIN:
            self._search_again(now, out)
        elif timer == REST:
            self._resting, self._rested = False, True
        elif timer == INQUIRY:
            self._heed(self._remake.fired(self._my_label(), now, out), now, out)
        else:
            self._conclude(self._handover.fired(timer, now, out), now, out)
