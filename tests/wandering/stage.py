"""A few wandering machines on a stage: a network of 1 ms that can be cut, and a clock that only goes when told."""

from __future__ import annotations

import random
from collections import Counter
from heapq import heappop, heappush
from typing import Any

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.algorithms.wandering.messages import Place
from softmutex.core.events import (
    CallRoll,
    CancelTimer,
    Effect,
    Event,
    Fired,
    Grant,
    Instant,
    Leaving,
    Lose,
    MembersChanged,
    NodeId,
    Note,
    Overlapped,
    Received,
    Released,
    Requested,
    Send,
    SetTimer,
    Slept,
    Started,
    Suspect,
    TimerName,
    Withdrawn,
    from_seconds,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Message, name_of
from softmutex.core.timing import Timing
from softmutex.core.wire import Frame, learn, write_body
from tests.tracing import Trace

DELAY = from_seconds(0.001)


class Stage:
    def __init__(self, trace: Trace | None = None, nodes: int = 3, founder: bool = True, **options: Any) -> None:
        learn(Wandering.name, Wandering.messages)
        self.trace = trace
        self.now: Instant = from_seconds(1000)
        self.members = list(range(1, nodes + 1))
        self.options = options
        self.machines: dict[NodeId, Wandering] = {}
        self.timers: dict[tuple[NodeId, TimerName], Instant] = {}
        self.cut: set[NodeId] = set()  # nothing from and to these arrives
        self.loses: tuple[type[Message], ...] = ()  # nor what is one of these
        self.asleep: dict[NodeId, list[Event]] = {}
        self.sent: Counter[str] = Counter()
        self.granted: list[tuple[NodeId, int]] = []
        self.lost: list[tuple[NodeId, str]] = []
        self.orders: list[tuple[NodeId, CallRoll | Overlapped]] = []
        self.notes: list[tuple[NodeId, Note]] = []
        self.holding: dict[NodeId, int] = {}
        self._heap: list[tuple[Instant, int, NodeId, Event | TimerName | NodeId]] = []
        self._order = 0
        for node in list(self.members):
            self.add(node, founder and node == 1)

    def add(self, node: NodeId, founder: bool = False, **options: Any) -> None:
        switches = {**self.options, **options}
        told = {name: switches.pop(name) for name in ("slots", "when_isolated") if name in switches}
        setup = Setup(node, self.members, random.Random(node), Timing(op=1.0), switches, **told)
        self.machines[node] = Wandering(setup)
        self.tell(node, Started(founder))

    # --- what happens ------------------------------------------------------------------------------------------------

    def tell(self, node: NodeId, event: Event) -> None:
        if node in self.asleep:
            self.asleep[node].append(event)
            return
        machine = self.machines.get(node)
        if machine is None:
            return
        if self.trace is not None:
            effects = self.trace.handle(machine, event, self.now, node)
        else:
            effects = machine.handle(event, self.now)
        for effect in effects:
            match effect:
                case Send(to, message):
                    assert write_body(Frame(node, to, "x", message)), "it can be said"
                    self.sent[name_of(type(message))] += 1
                    if to in self.machines and not self.cut & {node, to} and not isinstance(message, self.loses):
                        self._push(self.now + DELAY, to, Received(node, message))
                case SetTimer(timer, at):
                    assert at >= self.now
                    self.timers[node, timer] = at
                    self._push(at, node, timer)
                case CancelTimer(timer):
                    self.timers.pop((node, timer), None)
                case Grant(request):
                    self.granted.append((node, request))
                    self.holding[node] = request
                case Lose(_, reason):
                    self.lost.append((node, reason))
                case Note():
                    self.notes.append((node, effect))
                case Suspect(of):
                    if of not in self.machines and of in self.members:
                        self._push(self.now + 2 * DELAY, node, of)  # its host refuses
                case CallRoll() | Overlapped():
                    self.orders.append((node, effect))
                case _:
                    self.notes.append((node, Note(None, detail="depart")))  # type: ignore[arg-type]

    def _push(self, at: Instant, node: NodeId, what: Event | TimerName | NodeId) -> None:
        self._order += 1
        heappush(self._heap, (at, self._order, node, what))

    def run(self, span_s: float) -> None:
        end = self.now + from_seconds(span_s)
        while self._heap and self._heap[0][0] <= end:
            at, _, node, what = heappop(self._heap)
            self.now = at
            if isinstance(what, Received):
                self.tell(node, what)
            elif isinstance(what, int):
                if what in self.members:
                    self.news(left=(what,))
            elif self.timers.get((node, what)) == at:  # type: ignore[arg-type]
                del self.timers[node, what]  # type: ignore[arg-type]
                self.tell(node, Fired(what))  # type: ignore[arg-type]
        self.now = end

    # --- who does what -----------------------------------------------------------------------------------------------

    def request(self, node: NodeId, request: int = 1) -> None:
        self.tell(node, Requested(request))

    def withdraw(self, node: NodeId, request: int = 1) -> None:
        self.tell(node, Withdrawn(request))

    def release(self, node: NodeId) -> None:
        self.tell(node, Released(self.holding.pop(node)))

    def leave(self, node: NodeId) -> None:
        self.tell(node, Leaving())

    def kill(self, node: NodeId) -> None:
        del self.machines[node]
        self.holding.pop(node, None)

    def sleep(self, node: NodeId) -> None:
        self.asleep[node] = []

    def wake(self, node: NodeId, slept_s: float = 5, first: Event | None = None) -> None:
        events = self.asleep.pop(node)
        self.tell(node, Slept(from_seconds(slept_s)))
        for event in events if first is None else (first, *events):
            self.tell(node, event)

    def news(self, joined: tuple[NodeId, ...] = (), left: tuple[NodeId, ...] = ()) -> None:
        self.members[:] = sorted({*self.members, *joined} - set(left))
        for node in list(self.machines):
            if node not in joined:
                self.tell(node, MembersChanged(joined, left))


def said_by(stage: Stage, node: NodeId, sender: NodeId, message: Message) -> list[Send]:
    """What it sends at once when this comes."""
    effects: list[Effect] = list(stage.machines[node].handle(Received(sender, message), stage.now))
    return [effect for effect in effects if isinstance(effect, Send)]


def place_of_token(stage: Stage, node: NodeId) -> Place:
    (token,) = stage.machines[node].view().tokens
    return Place(token.slot, token.epoch, token.stamp, token.id, token.hop, node)
