"""What the algorithms of seed 002 and their kin have in common: the requests of one node, one after the other.

What it decides: in which order a node's own requests are served (as they came), what a silent member is worth, and who
learns of an overlap. What is asked of the other nodes, and when A may run, is a subclass's: it says `_enter`.

    Requested --> waiting --(first, and nothing runs)--> _want --> ... --> _enter --> running --Released--> _ended
                     '--Withdrawn--> _unwant, if it was the one that was asked for

These algorithms need answers of certain others, and a member that does not answer may be dead, or run A and be cut
off. The naive way, to go on after a time limit, makes a strict mutex a soft one without a word. So only what is known
counts: who left (`MembersChanged`) is not asked any more, who is merely silent is waited for, and the application is
told why (`isolated`). With when_isolated="proceed" whoever is `Silenced` is gone until it has `Returned`: then two may
overlap, as they may when the membership is wrong about a death. Whoever runs A says so to each member that comes or
comes back, HOLDING, and two that run A at once are both told:

    first --HOLDING(mine, 0)--> second --HOLDING(mine, yours)--> first: told --HOLDING(mine, yours)--> second: told

Invariants
    O1  A runs once at a time on one node, and only for a request that waited.
    O2  Nobody is told of an overlap unless each of the two heard of the other while it ran A.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    Count,
    Depart,
    Duration,
    Effect,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    Leaving,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Note,
    Received,
    Released,
    Requested,
    RequestId,
    Returned,
    Right,
    Send,
    Silenced,
    Slept,
    Started,
    TimerName,
    Withdrawn,
    from_seconds,
)
from softmutex.core.machine import Algorithm, Setup, View, WhenIsolated
from softmutex.core.messages import Message


class Holding(NamedTuple):
    """I run A, as my request `mine`. `yours`: and so do you, as you said; 0: do you?"""

    mine: RequestId
    yours: RequestId


OF_HOLDERS: Final = {152: Holding}


class OneByOne(Algorithm):
    """One mutex on one node. Subclasses say what is to be done before A may run, and after it."""

    has_token = False

    __slots__ = (
        "_departed",
        "_last",
        "_leaving",
        "_me",
        "_members",
        "_op",
        "_proceed",
        "_rng",
        "_running",
        "_silent",
        "_told",
        "_waiting",
    )

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        self.Options.read(setup.options, self.name)  # says what is unknown
        self._me = setup.me
        self._members = setup.members
        self._rng = setup.rng
        self._op: Duration = from_seconds(setup.timing.op)
        self.when_isolated(setup.when_isolated)
        self._waiting: list[RequestId] = []
        self._running: RequestId | None = None
        self._last: RequestId = 0  # ran A before
        self._told: tuple[NodeId, RequestId] | None = None  # of whose hold the running one was told
        self._silent: list[NodeId] = []  # members that were asked in every way, and do not answer
        self._leaving = False
        self._departed = False

    # --- what happens ------------------------------------------------------------------------------------------------

    def when_isolated(self, choice: WhenIsolated) -> None:
        self._proceed = choice == "proceed"

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out: list[Effect] = []
        if isinstance(event, Received):
            sender, message = event
            if type(message) is Holding:
                self._overlapped(sender, message, out)
            else:
                self._received(sender, message, now, out)
        elif isinstance(event, Fired):
            self._fired(event.timer, now, out)
        else:
            self._told_of(event, now, out)
        if self._leaving and not self._departed and self._running is None and self._may_depart(now, out):
            self._departed = True
            out.append(Depart())
        return out

    def _told_of(self, event: Event, now: Instant, out: list[Effect]) -> None:
        match event:
            case Requested(request):
                self._waiting.append(request)
                if len(self._waiting) == 1 and self._running is None and not self._leaving:
                    self._want(now, out)
            case Released(request, baggage):
                if request != self._running:
                    raise InvariantBreach(f"node {self._me}: {request} is released, and {self._running} runs")  # O1
                self._running, self._last = None, request
                self._ended(baggage, now, out)
                self._want_next(now, out)
            case Withdrawn(request):
                self._withdraw(request, now, out)
            case MembersChanged(joined, left):
                for node in left:
                    self._speaks(node, out)
                self._changed(joined, left, now, out)
                self._meet(joined, out)
            case Silenced(node):
                self._falls_silent(node, now, out)
            case Returned(node):
                if self._speaks(node, out) and self._proceed and node in self._members:
                    self._changed((node,), (), now, out)
                self._meet((node,), out)
            case Started(founder):
                self._started(founder, now, out)
            case Leaving():
                self._leaving = True
                if self._waiting and self._running is None:
                    self._unwant(self._waiting[0], now, out)
                self._leave(now, out)
            case Slept():
                self._slept(now, out)
            case _:
                self._heard_of_group(event, now, out)

    def _withdraw(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        if request not in self._waiting:
            raise InvariantBreach(f"node {self._me}: {request} is withdrawn, and {self._waiting} wait")
        was_first = self._waiting[0] == request and self._running is None
        self._waiting.remove(request)
        if was_first and not self._leaving:
            self._unwant(request, now, out)
            self._want_next(now, out)

    def _want_next(self, now: Instant, out: list[Effect]) -> None:
        if self._waiting and self._running is None and not self._leaving:
            self._want(now, out)

    def _enter(self, out: list[Effect], epoch: Count = 0, hop: Count = 0, rights: tuple[Right, ...] = ()) -> None:
        """A runs, for the first that waits."""
        self._grant(Grant(self._waiting[0], epoch, hop, rights=rights), out)

    def _grant(self, grant: Grant, out: list[Effect]) -> None:
        if self._running is not None:
            raise InvariantBreach(f"node {self._me}: {grant.request} is granted while {self._running} runs")  # O1
        self._waiting.remove(grant.request)
        self._running, self._told = grant.request, None
        out.append(grant)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _others(self) -> list[NodeId]:
        """Whose word counts, in order."""
        if self._proceed and self._silent:
            return [node for node in self._members if node != self._me and node not in self._silent]
        return [node for node in self._members if node != self._me]

    def _counts(self, node: NodeId) -> bool:
        at = bisect_left(self._members, node)
        is_member = at < len(self._members) and self._members[at] == node
        return is_member and not (self._proceed and node in self._silent)

    def _falls_silent(self, node: NodeId, now: Instant, out: list[Effect]) -> None:
        if node in self._silent or node not in self._members:
            return
        self._silent.append(node)
        if self._proceed:
            self._changed((), (node,), now, out)
        elif len(self._silent) == 1:
            out.append(Note(FactKind.ISOLATED, None, node, f"{self.name} waits for a member that does not answer"))

    def _speaks(self, node: NodeId, out: list[Effect]) -> bool:
        if node not in self._silent:
            return False
        self._silent.remove(node)
        if not self._silent and not self._proceed:
            out.append(Note(FactKind.REJOINED, None, node))
        return True

    # --- two at once (O2) --------------------------------------------------------------------------------------------

    def _meet(self, nodes: Sequence[NodeId], out: list[Effect]) -> None:
        """Somebody comes, who may run A as well."""
        if self._running is not None:
            out.extend(Send(node, Holding(self._running, 0)) for node in nodes if node != self._me)

    def _overlapped(self, sender: NodeId, holding: Holding, out: list[Effect]) -> None:
        theirs, mine = holding
        about = (sender, theirs)
        if self._running is not None and mine in (0, self._running):
            if about != self._told:
                out.append(Send(sender, Holding(self._running, theirs)))
            if mine and about != self._told:
                self._told = about
                out += [Note(FactKind.OVERLAP, None, sender), Lose(self._running, LostReason.OVERLAP)]
        elif mine and mine == self._last and about != self._told:
            self._told = about
            out.append(Note(FactKind.OVERLAP, None, sender))

    # --- what a subclass does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _want(self, now: Instant, out: list[Effect]) -> None:
        """The first that waits wants to run, and nothing else here does."""

    @abstractmethod
    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        """What was wanted no longer is."""

    @abstractmethod
    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        """A has run."""

    @abstractmethod
    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None: ...

    @abstractmethod
    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None: ...

    @abstractmethod
    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        """Others count from now on, or no longer."""

    def _started(self, founder: bool, now: Instant, out: list[Effect]) -> None: ...

    def _slept(self, now: Instant, out: list[Effect]) -> None: ...

    def _heard_of_group(self, event: Event, now: Instant, out: list[Effect]) -> None: ...

    def _leave(self, now: Instant, out: list[Effect]) -> None:
        """It was told to leave; A may still run."""

    def _may_depart(self, now: Instant, out: list[Effect]) -> bool:
        """Whether nothing is left that others need."""
        return True

    # --- what is shown -----------------------------------------------------------------------------------------------

    def may_take_again(self) -> bool:
        return len(self._members) < 2

    def view(self) -> View:
        holding = () if self._running is None else (self._running,)
        holder = self._me if holding else NOBODY
        state = "holding" if holding else "asking" if self._waiting else "idle"
        return View(tokens=(), holding=holding, waiting=len(self._waiting), holder=holder, state=state)
