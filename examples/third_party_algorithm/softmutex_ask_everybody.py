"""Ricart and Agrawala's mutual exclusion: who wants to run A asks everybody, and whoever wants it more says yes later.

What it decides: who goes first. The naive way, whoever asks first, is a race that each node sees otherwise. Here each
request carries a Lamport clock: all see the same order of (stamp, node), and a permission is withheld exactly from
those who come after.

    asked --REQUEST(stamp)--> everybody       all said yes --> A runs
                                '--PERMIT(stamp)--> at once; or, if it runs A or comes first itself, after its release

A message that is lost is asked for again, for a request may come twice: the answer depends on the stamps alone. Nobody
is given a permission whom this node does not know, for it would not ask it in turn.

Invariants
    S1  A runs only with a permit of every member, each given for this very request.
    S2  A permit is given to nobody who comes after a request that waits here, and to nobody while A runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    CancelTimer,
    Depart,
    Effect,
    Event,
    Fired,
    Grant,
    Instant,
    Leaving,
    MembersChanged,
    NodeId,
    Received,
    Released,
    Requested,
    RequestId,
    Send,
    SetTimer,
    Withdrawn,
    from_seconds,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.core.options import Options, within

AGAIN = "again"


class Request(NamedTuple):
    """May I? By (stamp, node) the smaller comes first."""

    stamp: Annotated[int, "varint"]


class Permit(NamedTuple):
    """You may, as far as I am concerned, for the request of this stamp."""

    stamp: Annotated[int, "varint"]


@dataclass(frozen=True)
class AskOptions(Options):
    patience: float = within(1.0, 0.01, 3600.0)  # seconds until the silent are asked again; doubled each time


class AskEverybody(Algorithm):
    name: ClassVar[str] = "ask-everybody"
    Options = AskOptions
    messages: ClassVar = {192: Request, 193: Permit}
    laws = claim(Weather.ANY, Law.EFFECTS, Law.REQUESTS) | claim(
        Weather.ANY & ~Weather.VIEWS, Law.EXCLUSION, Law.EVIDENCE
    )
    needs_every_member = True

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        self._me = setup.me
        self._members = setup.members
        self._patience = from_seconds(AskOptions.read(setup.options, self.name).patience)
        self._clock = 0  # the highest stamp seen
        self._waiting: list[RequestId] = []
        self._running: RequestId | None = None
        self._stamp = 0  # of the request that is asked for, or runs; 0: there is none
        self._silent: set[NodeId] = set()  # who has not permitted it
        self._wait = 0  # how long to wait until they are asked again
        self._postponed: dict[NodeId, int] = {}  # who is permitted later, and for which stamp
        self._leaving = False

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out: list[Effect] = []
        match event:
            case Requested(request):
                self._waiting.append(request)
                self._ask(now, out)
            case Received(sender, Request(stamp)):
                self._asked(sender, stamp, now, out)
            case Received(sender, Permit(stamp)):
                if stamp == self._stamp:
                    self._silent.discard(sender)
            case Released(request):
                if request != self._running:
                    raise InvariantBreach(f"node {self._me}: {request} is released, and {self._running} runs")
                self._end(now, out)
            case Withdrawn(request):
                was_first = self._stamp and self._waiting[0] == request and self._running is None
                self._waiting.remove(request)
                if was_first:
                    self._end(now, out)
            case Fired():
                self._ask_silent(sorted(self._silent), now, out)
            case MembersChanged(joined, left):
                for node in left:
                    self._silent.discard(node)
                    self._postponed.pop(node, None)
                for node in joined:
                    self._include(node, now, out)
            case Leaving():
                self._leaving = True
                if not self._stamp:
                    out.append(Depart())
            case _:
                pass  # nothing that it needs to know
        self._grant(out)
        return out

    def _ask(self, now: Instant, out: list[Effect]) -> None:
        """For the next request, where none is under way."""
        if self._waiting and not self._stamp:
            self._clock += 1
            self._stamp = self._clock
            self._silent = {node for node in self._members if node != self._me}
            self._wait = self._patience
            self._ask_silent(sorted(self._silent), now, out)

    def _ask_silent(self, nodes: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        if nodes:
            out.extend(Send(node, Request(self._stamp)) for node in nodes)
            out.append(SetTimer(AGAIN, now + self._wait))
            self._wait = min(2 * self._wait, 32 * self._patience)

    def _include(self, node: NodeId, now: Instant, out: list[Effect]) -> None:
        """Somebody joined while we ask: it has a say, too."""
        if self._stamp and self._running is None and node not in self._silent:
            self._silent.add(node)
            out.append(Send(node, Request(self._stamp)))

    def _asked(self, sender: NodeId, stamp: int, now: Instant, out: list[Effect]) -> None:
        self._clock = max(self._clock, stamp)
        if sender not in self._members:
            return
        mine_is_first = self._stamp and (self._stamp, self._me) < (stamp, sender)
        if self._running is not None or mine_is_first:
            self._postponed[sender] = stamp
        else:
            self._postponed.pop(sender, None)
            out.append(Send(sender, Permit(stamp)))

    def _grant(self, out: list[Effect]) -> None:
        if self._stamp and self._running is None and not self._silent:
            self._running = self._waiting.pop(0)
            out += [CancelTimer(AGAIN), Grant(self._running, hop=self._stamp)]

    def _end(self, now: Instant, out: list[Effect]) -> None:
        """A has run, or is no longer wanted: whoever was to wait may go."""
        self._running, self._stamp, self._silent = None, 0, set()
        out.append(CancelTimer(AGAIN))
        out.extend(Send(node, Permit(stamp)) for node, stamp in self._postponed.items())
        self._postponed.clear()
        if self._leaving:
            out.append(Depart())
        self._ask(now, out)

    def may_take_again(self) -> bool:
        return len(self._members) < 2

    def view(self) -> View:
        holding = () if self._running is None else (self._running,)
        state = "holding" if holding else "asking" if self._stamp else "idle"
        return View(tokens=(), holding=holding, waiting=len(self._waiting), state=state)
