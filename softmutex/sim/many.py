"""Many mutexes in one group, by rounds: the world of seed 004's figures.

What it decides: what a round is. In each, so many requests are made, by random nodes or by a few in turn, each for a
random mutex; every node that holds something ends one of its runs of A with some probability; and so many nodes die and
join. A message takes a thousandth of a round, so each round's traffic is over before the next one.

`world.py` has one mutex, and a machine for it on each node. 1,000 nodes with 65 mutexes are 65,000 machines, of which
most would never hear a message. So here a machine is made where the first message for its mutex comes, as in the
runtime (`runtime/node.py`), and members that have none are not told of comers and goers. Mutexes share the members, and
what machines make of them (`Setup.shared`), and nothing else.

M1  Machines are driven by the promises of `machine.py`; a message to who is not there is lost.
M2  What is counted is what is sent to another node between the first round and the last one: what it takes to begin
    (`founder`) is not.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from softmutex import plugins
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Effect,
    Event,
    Fired,
    Grant,
    Instant,
    Lose,
    MembersChanged,
    NodeId,
    Received,
    Released,
    Requested,
    Send,
    SetTimer,
    Started,
    TimerName,
)
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import name_of
from softmutex.core.routing import spot_of
from softmutex.core.timing import Timing
from softmutex.sim.tally import EPOCH

ROUND = SECOND
MESSAGE = SECOND // 1000


@dataclass(frozen=True)
class Rounds:
    """One run."""

    algorithm: str
    nodes: int = 1000
    mutexes: int = 65
    rounds: int = 20
    requests: int = 20  # a round
    requesters: int = 0  # so many nodes make all requests, in turn; 0: any node
    ends: float = 0.5  # probability that a node with holds ends one of them in a round
    churn: int = 0  # nodes that die, and nodes that join, together, a round; who wants or holds something is spared
    turn_rounds: float = 0.0  # what a machine is told of how long A takes; 0: 1 / ends
    replicas: int = 5
    lease_rounds: float = 1000.0
    seed: int = 1


@dataclass
class Counted:
    """What it took."""

    job: Rounds
    sent: Counter[str] = field(default_factory=Counter)
    load: dict[NodeId, int] = field(default_factory=dict)  # messages that came to each node that was there throughout
    asked: int = 0
    granted: int = 0
    overlaps: int = 0
    machines: int = 0

    @property
    def messages(self) -> int:
        return sum(self.sent.values())


class Driven:
    """One mutex on one node."""

    __slots__ = ("machine", "mutex", "node", "requests", "timers", "waiting")

    def __init__(self, node: NodeId, mutex: int, machine: Algorithm) -> None:
        self.node = node
        self.mutex = mutex
        self.machine = machine
        self.timers: dict[TimerName, Instant] = {}
        self.requests = 0
        self.waiting: list[int] = []


class Many:
    def __init__(self, job: Rounds) -> None:
        self.counted = Counted(job)
        self._job = job
        self._make = plugins.algorithm(job.algorithm)
        self._rng = random.Random(job.seed)  # the machines'
        self._chance = random.Random(f"rounds {job.seed}")  # the world's
        self._members = list(range(1, job.nodes + 1))
        self._requesters = [self._somebody() for _ in range(job.requesters)]
        self._newest = job.nodes
        self._shared: dict[str, Any] = {}
        self._seats: dict[tuple[NodeId, int], Driven] = {}
        self._running: dict[int, list[tuple[Driven, int]]] = {}  # mutex -> who runs A, by which request
        self._told: set[tuple[NodeId, int, int]] = set()  # runs that may not be alone, and know it
        self._heap: list[tuple[Instant, int, tuple[NodeId, int], Event]] = []
        self._news: deque[tuple[Driven, Event]] = deque()
        self._order = 0
        self._now = EPOCH

    def run(self) -> Counted:
        job, counted = self._job, self.counted
        for mutex in range(job.mutexes):
            self._seat(self._somebody(), mutex, founder=True)
        self._go_on_until(EPOCH + ROUND)
        counted.sent.clear()
        counted.load = dict.fromkeys(self._members, 0)
        for number in range(1, job.rounds + 1):
            self._churn()
            self._end_some()
            for _ in range(job.requests):
                self._ask(self._seat(self._next_requester(), int(self._chance.random() * job.mutexes)))
            self._go_on_until(EPOCH + ROUND * (number + 1))
        counted.machines = len(self._seats)
        counted.load = {node: counted.load[node] for node in self._members if node in counted.load}
        return counted

    def _somebody(self) -> NodeId:
        return self._members[int(self._chance.random() * len(self._members))]

    # --- what a round brings -----------------------------------------------------------------------------------------

    def _next_requester(self) -> NodeId:
        if not self._requesters:
            return self._somebody()
        return self._requesters[self.counted.asked % len(self._requesters)]

    def _ask(self, seat: Driven) -> None:
        seat.requests += 1
        seat.waiting.append(seat.requests)
        self.counted.asked += 1
        self._handle(seat, Requested(seat.requests))

    def _end_some(self) -> None:
        held: dict[NodeId, list[tuple[Driven, int]]] = {}
        for runs in self._running.values():
            for seat, request in runs:
                held.setdefault(seat.node, []).append((seat, request))
        for holds in held.values():
            if self._chance.random() < self._job.ends:
                seat, request = holds[int(self._chance.random() * len(holds))]
                self._running[seat.mutex].remove((seat, request))
                self._handle(seat, Released(request))

    def _churn(self) -> None:
        half = self._job.churn // 2
        if not half:
            return
        busy = {seat.node for seat in self._seats.values() if seat.waiting}
        busy |= {seat.node for runs in self._running.values() for seat, _ in runs} | {*self._requesters}
        free = [node for node in self._members if node not in busy]
        self._chance.shuffle(free)
        left = tuple(sorted(free[:half]))
        joined = tuple(range(self._newest + 1, self._newest + half + 1))
        self._newest += half
        for node in left:
            del self._members[bisect_left(self._members, node)]
        for node in joined:
            insort(self._members, node)
        gone = set(left)
        self._seats = {at: seat for at, seat in self._seats.items() if at[0] not in gone}
        for seat in list(self._seats.values()):
            self._handle(seat, MembersChanged(joined, left))

    # --- driving -----------------------------------------------------------------------------------------------------

    def _seat(self, node: NodeId, mutex: int, founder: bool = False) -> Driven:
        seat = self._seats.get((node, mutex))
        if seat is None:
            job = self._job
            timing = Timing(op=ROUND / SECOND * (job.turn_rounds or 1 / job.ends), nodes_max=max(2, job.nodes))
            options = {"replicas": job.replicas, "lease_s": job.lease_rounds * ROUND / SECOND}
            setup = Setup(node, self._members, self._rng, timing, options, place=spot_of(mutex), shared=self._shared)
            seat = self._seats[node, mutex] = Driven(node, mutex, self._make(setup))
            self._handle(seat, Started(founder))
        return seat

    def _go_on_until(self, end: Instant) -> None:
        heap = self._heap
        while heap and heap[0][0] < end:
            self._now, _, (node, mutex), event = heappop(heap)
            if type(event) is Received:
                at = bisect_left(self._members, node)
                if at < len(self._members) and self._members[at] == node:
                    self.counted.load[node] = self.counted.load.get(node, 0) + 1
                    self._handle(self._seat(node, mutex), event)
            elif (seat := self._seats.get((node, mutex))) and seat.timers.get(event.timer) == self._now:  # type: ignore[union-attr]
                del seat.timers[event.timer]  # type: ignore[union-attr]
                self._handle(seat, event)
        self._now = end

    def _handle(self, seat: Driven, event: Event) -> None:
        self._perform(seat, seat.machine.handle(event, self._now))

    def _perform(self, seat: Driven, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.counted.sent[name_of(type(message))] += 1
                    delay = MESSAGE // 2 + int(self._chance.random() * MESSAGE)
                    self._put(self._now + delay, (to, seat.mutex), Received(seat.node, message))
                case SetTimer(timer, at):
                    seat.timers[timer] = at = max(at, self._now)
                    self._put(at, (seat.node, seat.mutex), Fired(timer))
                case CancelTimer(timer):
                    seat.timers.pop(timer, None)
                case Grant():
                    runs = self._running.setdefault(seat.mutex, [])
                    self.counted.granted += 1
                    alone = all((one.node, one.mutex, request) in self._told for one, request in runs)
                    self.counted.overlaps += not alone
                    seat.waiting.remove(effect.request)
                    runs.append((seat, effect.request))
                case Lose(request):
                    self._told.add((seat.node, seat.mutex, request))
                case _:
                    pass

    def _put(self, at: Instant, to: tuple[NodeId, int], event: Event) -> None:
        self._order += 1
        heappush(self._heap, (at, self._order, to, event))


def count(job: Rounds) -> Counted:
    return Many(job).run()
