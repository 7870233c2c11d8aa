"""`random-access`: no coordination at all, the seeds' yardstick (seed 000 section 2, seed 001 section 3).

What it decides: only when a node may run A again, a random gap after it last began. Without the random part, nodes
that once started together would collide for ever.

    gap = uniform from min to max        seed 000: max = 1.5 min;   seed 001's benchmark: 600 s to 1800 s

A node that starts is somewhere within a gap already: a group that starts together would otherwise run A together.
With `min_interval=0` there is no gap and every request is granted at once.

Its grants rest on no right. Their hop counts the runs of A on this node.

Invariants
    R1  A runs once at a time on one node.
    R2  A request that waits does so for A to end or for a timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

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
    Released,
    Requested,
    RequestId,
    SetTimer,
    Started,
    Withdrawn,
    from_seconds,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.core.options import Options, within
from softmutex.core.timing import Pace

GAP: Final = "gap"


@dataclass(frozen=True)
class RandomAccessOptions(Options):
    min_interval: float | None = within(None, 0.0)  # in seconds; None: the group's min


class RandomAccess(Algorithm):
    name: ClassVar[str] = "random-access"
    has_token = False
    Options = RandomAccessOptions
    laws = claim(Weather.ANY, Law.EFFECTS, Law.REQUESTS)  # that runs overlap is the point
    pace = Pace(max_per_min=1.5)  # seed 000, section 2

    __slots__ = ("_leaving", "_me", "_min", "_next", "_rng", "_running", "_runs", "_spread", "_timed", "_waiting")

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        pause_s = RandomAccessOptions.read(setup.options, self.name).min_interval
        constants = setup.timing.constants(self.pace)
        self._me = setup.me
        self._rng = setup.rng
        self._min = constants.min_ns if pause_s is None else from_seconds(pause_s)
        spread = constants.max_ns - constants.min_ns
        self._spread = spread if self._min == constants.min_ns else self._min // 2
        self._next: Instant = 0
        self._running: RequestId | None = None
        self._waiting: tuple[RequestId, ...] = ()
        self._timed = False
        self._leaving = False
        self._runs = 0

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out: list[Effect] = []
        match event:
            case Requested(request):
                self._waiting += (request,)
            case Fired():
                self._timed = False
            case Released(request):
                if request != self._running:
                    raise InvariantBreach(f"node {self._me}: request {request} is released, and {self._running} runs")
                self._running = None
            case Withdrawn(request):
                self._waiting = tuple(each for each in self._waiting if each != request)
            case Started():
                self._next = now + int(self._rng.random() * self._gap())
            case Leaving():
                self._leaving = True
            case _:
                return out  # there is nothing to tell one another
        self._serve(now, out)
        if self._waiting and self._running is None and not self._timed and not self._leaving:
            raise InvariantBreach(f"R2: node {self._me} lets {self._waiting} wait for nothing")
        return out

    def _gap(self) -> int:
        return self._min + int(self._rng.random() * self._spread)

    def _serve(self, now: Instant, out: list[Effect]) -> None:
        if self._running is not None:
            return
        if self._leaving:
            out.append(Depart())
        elif self._waiting and now >= self._next:
            request, self._waiting = self._waiting[0], self._waiting[1:]
            self._running = request
            self._next = now + self._gap()
            self._runs += 1
            if self._timed:
                self._timed = False
                out.append(CancelTimer(GAP))
            out.append(Grant(request, hop=self._runs))
        elif self._waiting and not self._timed:
            self._timed = True
            out.append(SetTimer(GAP, self._next))

    def view(self) -> View:
        running = self._running is not None
        return View(
            tokens=(),
            holding=() if self._running is None else (self._running,),
            waiting=len(self._waiting),
            state="running" if running else "waiting" if self._waiting else "idle",
        )
