"""Virtual time: one heap of what is to happen, the real machines, and nothing of their rules.

The world is a driver like the asyncio runtime (`machine.D1` to `machine.D7`): it hands events to machines and performs
their effects, but time costs nothing and everything is decided by the seed. The naive way, a coroutine for each
node, spends its time in switches and cannot be replayed event by event.

    heap (when, order, whom, what) --> machine.handle(event, now) --> effects --> heap, or `ready` when at once

W1  Time is integer nanoseconds since `EPOCH`; what happens at one instant happens in the order it was asked for.
W2  A timer has at most one live entry in the heap. One that is moved later stays where it is and moves on when it
    comes up: the timers that are renewed with every message and never fire cost an assignment, no queue.
W3  Machines draw from one generator, the world (network, demand, faults) from another: a fault does not change
    what a machine draws before it.
"""

from __future__ import annotations

import random
import sys
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from softmutex.core.events import (
    SECOND,
    CallRoll,
    CancelTimer,
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
    MembersChanged,
    NodeId,
    Note,
    Overlapped,
    Reach,
    Received,
    Released,
    Requested,
    RequestId,
    Returned,
    Send,
    SetTimer,
    Silenced,
    Slept,
    Started,
    Suspect,
    TimerName,
    Withdrawn,
    new,
)
from softmutex.core.laws import Law
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Message
from softmutex.sim import demand, trace
from softmutex.sim.bounds import Bounds
from softmutex.sim.checkers import Laws
from softmutex.sim.group import Population
from softmutex.sim.network import Network
from softmutex.sim.node import NEVER, Running, SimNode, Timer
from softmutex.sim.roll import Roll
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH, Tally

TO_CANCEL = SECOND // 1000  # how long an application takes to end A when it is told
STORM = 5_000  # messages and timers on their way, for each node: more than that never ends


def kind_of(name: TimerName) -> str:
    return name if isinstance(name, str) else name[0]


class MachineFailed(Exception):
    """A machine raised, whatever its cause; it never may (`machine.A1`)."""

    def __init__(self, node: NodeId) -> None:
        super().__init__(node)
        self.node = node


class Storm(Exception):
    """Messages breed messages."""


class TooLong(Exception):
    """A run of more events than its caller has time for."""


class World:
    """One run of one scenario, watched by the laws of these names. `sink` gets the bytes that the digest eats."""

    def __init__(
        self,
        scenario: Scenario,
        algorithm: type[Algorithm],
        make: Callable[[Setup], Algorithm],
        laws: tuple[str, ...],
        sink: Callable[[bytes], None] | None = None,
    ) -> None:
        self.scenario = scenario
        self.now: Instant = EPOCH
        self.recorder = trace.Recorder(sink)
        self.rng = random.Random(scenario.seed + (1 << 64))
        self.chance = self.rng.random
        setup = scenario.setup(random.Random(scenario.seed))
        self.algorithm = algorithm
        self.tally = Tally(algorithm.passing(setup), scenario.keep_holds)
        self.network = Network(scenario, self.chance)
        self.group = Population(self, make, setup)
        self.nodes = self.group.nodes
        self.running: list[Running] = []
        self.sent: dict[type, int] = defaultdict(int)
        self.facts: dict[FactKind, int] = dict.fromkeys(FactKind, 0)
        self.fired: dict[str, int] = defaultdict(int)  # timers by kind, each at its first time
        self.seen: dict[str, int] = defaultdict(int)  # what else machines did: what was reported, or taken away
        self.events = 0
        self.most_events = sys.maxsize
        self._bounded = scenario.bound_s is not None
        self.laws = Bounds(self, laws) if self._bounded else Laws(self, laws)
        self.measured_sent: dict[type, int] = {}
        self.acquired: dict[NodeId, int] = {}
        self.rough = True  # the first phase: demand and faults go on
        self.wanted = True  # between two bursts of demand nobody asks
        self._hold_length = demand.hold_length(scenario.hold, scenario.op_s, self.rng)
        self._always = self._hold_length() if scenario.hold.startswith("fixed") else 0
        self._cancels = scenario.on_lost == "cancel"
        self._strangers = scenario.known < 1 or scenario.late_s > 0
        self._ordered = Law.ORDER in laws
        self._saturated = scenario.demand.startswith(("saturated", "bursts"))
        self._fickle = bool(scenario.changes_mind) or scenario.patience_s is not None
        self._storm = STORM * scenario.nodes if self._bounded else sys.maxsize
        self._heap: list[tuple[Instant, int, SimNode | None, Any]] = []
        self._ready: deque[tuple[SimNode, Event]] = deque()
        self._order = 0
        self._stop = False

    def freeze(self) -> None:
        """The measured phase is over."""
        if self.tally.frozen:
            return
        self.tally.freeze(self.now, self.sent)
        self.measured_sent = dict(self.sent)
        self.acquired = {node.id: node.acquired for node in self.nodes.values()}

    # --- time --------------------------------------------------------------------------------------------------------

    def at_once(self, node: SimNode, event: Event) -> None:
        self._ready.append((node, event))

    def after(self, delay: Duration, call: Callable[..., object], *args: Any) -> None:
        self._order += 1
        heappush(self._heap, (self.now + delay, self._order, None, (call, args)))

    def on_the_way(self) -> list[tuple[SimNode, Event | Timer]]:
        """Whatever is to reach a node, in no useful order."""
        return [*((node, event) for _, _, node, event in self._heap if node is not None), *self._ready]

    def run_until(self, end: Instant) -> None:
        self._order += 1
        heappush(self._heap, (end, self._order, None, (self._halt, ())))
        self._stop = False
        self._turn()

    def _halt(self) -> None:
        self._stop = True

    def _turn(self) -> None:
        """Event after event, until `_halt`. The hot loop of everything: what is spelled out here is so for speed."""
        heap, ready, recorder = self._heap, self._ready, self.recorder
        words, received, perform, strangers = recorder.words, recorder.received, self._perform, self._strangers
        at = self.now
        event: Any
        while True:
            if ready:
                node, event = ready.popleft()
                kind = type(event)
            else:
                at, _, whom, event = heappop(heap)
                self.now = at
                if whom is None:
                    event[0](*event[1])
                    if self._stop:
                        return
                    continue
                node = whom
                kind = type(event)
                if kind is Timer:
                    timer = event
                    if timer.queued != at or not self._is_due(node, timer, at):
                        continue
                    event = timer.fired or self._fire(timer)
                    words += (at, node.id << 36, timer.code)
                if len(words) > trace.CHUNK:
                    recorder.flush()
                    if self.events > self.most_events:
                        raise TooLong(f"{self.events} events, and it is not over")
                    if len(heap) > self._storm:
                        raise MachineFailed(node.id) from Storm(f"{len(heap)} messages and timers are on their way")
            if kind is Received:
                if not node.awake:
                    self.group.set_aside(node, event)
                    continue
                received(at, node.id, event[0], event[1])
                if strangers:
                    self._meet(node, event[0])
                if node.roll is not None:
                    node.roll.heard(event[0])
            elif kind is not Timer and not self._admit(node, event, at):
                continue
            clock = node.clock
            try:
                effects = node.machine.handle(event, at if clock is None else clock.shows(at))
            except Exception as error:
                raise MachineFailed(node.id) from error
            self.events += 1
            if effects:
                perform(node, effects, at)

    def _fire(self, timer: Timer) -> Fired:
        """For the first time."""
        self.fired[kind_of(timer.name)] += 1
        return timer.fire()

    def _meet(self, node: SimNode, sender: NodeId) -> None:
        """A frame from somebody who is not known yet: it is a member before the machine hears what it says."""
        if not node.knows(sender) and sender in self.nodes:
            insort(node.members, sender)
            self._handle(node, MembersChanged((sender,), ()))

    def _handle(self, node: SimNode, event: Event) -> None:
        """Now, before whatever else happens at this instant."""
        at, clock = self.now, node.clock
        if self._admit(node, event, at):
            try:
                effects = node.machine.handle(event, at if clock is None else clock.shows(at))
            except Exception as error:
                raise MachineFailed(node.id) from error
            self.events += 1
            self._perform(node, effects, at)

    def _is_due(self, node: SimNode, timer: Timer, at: Instant) -> bool:
        """Whether this entry of the heap is the timer's live one, and its time has come (W2)."""
        due = timer.due
        if due > at:
            self._order += 1
            timer.queued = due
            heappush(self._heap, (due, self._order, node, timer))
            return False
        timer.queued = NEVER
        if due != NEVER and not node.awake:
            self.group.set_aside(node, timer.fire())  # still set: it may be cancelled or moved before it is heard of
            return False
        timer.due = NEVER
        if type(timer.name) is tuple and node.timers.get(timer.name) is timer:  # such names are not used again
            del node.timers[timer.name]
        return due != NEVER

    def _is_overdue(self, node: SimNode, fired: Fired) -> bool:
        """Whether a timer that was set aside was neither cancelled nor set anew since (`machine.D3`)."""
        timer = node.timers.get(fired.timer)
        if timer is None or timer.due == NEVER or timer.queued != NEVER:
            return False
        timer.due = NEVER
        if type(timer.name) is tuple:
            del node.timers[timer.name]
        return True

    def _admit(self, node: SimNode, event: Event, at: Instant) -> bool:
        """The rarer events, with what must be booked before the machine hears of them."""
        if not node.awake:
            self.group.set_aside(node, event)
            return False
        words, who = self.recorder.words, node.id << 36
        if isinstance(event, Requested):
            words += (at, who | trace.REQUESTED, event.request)
        elif isinstance(event, Released):
            if event.request not in node.holds:
                return False  # it ended early
            words += (at, who | trace.RELEASED, event.request)
            self._finish(node, event.request, at)
        elif isinstance(event, Withdrawn):
            if event.request not in node.pending:
                return False
            words += (at, who | trace.WITHDRAWN, event.request)
            del node.pending[event.request]
            self.tally.withdrew(at, self.sent)
            if self._bounded:
                self.laws.withdrew(at, node)
            if self._saturated:
                demand.again(self, node)
        elif isinstance(event, MembersChanged):
            joined, left = event
            words += (at, who | trace.MEMBERS, len(joined), *joined, len(left), *left)
            if node.roll is not None:
                node.roll.left(left)
        elif isinstance(event, Started):
            words += (at, who | trace.STARTED, int(event.founder))
        elif isinstance(event, Leaving):
            words += (at, who | trace.LEAVING)
        elif isinstance(event, Slept):
            words += (at, who | trace.SLEPT, event.span)
        elif isinstance(event, Silenced):
            words += (at, who | trace.SILENCED, event.node)
        elif isinstance(event, Returned):
            words += (at, who | trace.RETURNED, event.node)
        elif isinstance(event, Reach):
            words += (at, who | trace.REACH, event.level)
        elif isinstance(event, Fired):
            if not self._is_overdue(node, event):
                return False
            words += (at, who | trace.FIRED, trace.code_of(event.timer))
        return True

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, node: SimNode, effects: Sequence[Effect], at: Instant) -> None:
        for effect in effects:
            if type(effect) is Send:
                self._send(node, effect[0], effect[1], at)
            elif type(effect) is SetTimer:
                self._set_timer(node, effect, at)
            elif type(effect) is CancelTimer:
                timer = node.timers.get(effect.timer)
                if timer is not None:
                    timer.due = NEVER
            elif type(effect) is Grant:
                self._grant(node, effect, at)
            elif type(effect) is Note:
                self.facts[effect.kind] += 1
                self.tally.noted(effect, at)
                self.laws.noted(at, node, effect)
            elif type(effect) is Lose:
                self._lose(node, effect, at)
            elif type(effect) is Depart:
                self.group.departed(node)
            elif type(effect) is Suspect:
                self._roll_of(node).suspect(effect.node)
            elif type(effect) is CallRoll:
                self._roll_of(node).call(effect.wide)
            elif type(effect) is Overlapped:
                self.seen["overlap reported"] += 1
                self.laws.reported(at, node, effect)
            else:
                self.laws.illegal(at, node.id, f"answered with {effect!r}, which is no effect")

    def _send(self, node: SimNode, to: NodeId, message: Message, at: Instant) -> None:
        network = self.network
        target = self.nodes.get(to)
        kind = type(message)
        self.sent[kind] += 1
        if network.instant:
            if target is not None:
                self._ready.append((target, new(Received, (node.id, message))))
            else:
                self.tally.dropped(message, at)
            return
        if kind is self.tally.carrier:
            self.tally.committed(message, node.id, to)
            if target is None and self.tally.resent:
                self.group.committed_to_nobody(message)
        if not network.plain:
            self._carry(node, to, message, at)
        elif target is None or (network.loss and self.chance() < network.loss):
            self.tally.dropped(message, at)
        else:
            self._order += 1
            due = at + network.base + int(self.chance() * network.spread)
            heappush(self._heap, (due, self._order, target, new(Received, (node.id, message))))

    def _carry(self, node: SimNode, to: NodeId, message: Message, at: Instant) -> None:
        """Over a network that does worse than take its time and lose something."""
        target = self.nodes.get(to)
        if node.roll is not None and (way := node.roll.way_to(to)):
            self._carry_by(node, node.roll, way, to, message, at)
            return
        delays = self.network.delays(node, to, message)
        if target is None or not delays:
            self.tally.dropped(message, at)
            return
        for delay in delays:
            if delay:
                self._order += 1
                heappush(self._heap, (at + delay, self._order, target, Received(node.id, message)))
            else:
                self._ready.append((target, Received(node.id, message)))

    def deliver(self, sender: NodeId, to: NodeId, message: Message) -> None:
        """A message that nobody sends now."""
        target = self.nodes.get(to)
        if target is not None:
            self._ready.append((target, Received(sender, message)))

    def _roll_of(self, node: SimNode) -> Roll:
        if node.roll is None:
            node.roll = Roll(self, node)
        return node.roll

    def _carry_by(self, node: SimNode, roll: Roll, way: NodeId, to: NodeId, message: Message, at: Instant) -> None:
        """In a `Relay`, for the direct link is dead. Who gets it answers by the same way."""
        target, took = self.nodes.get(to), roll.travel([way, to], message)
        if target is None or took is None:
            self.tally.dropped(message, at)
            return
        self._order += 1
        heappush(self._heap, (at + took, self._order, target, Received(node.id, message)))
        self._roll_of(target).came_by(node.id, way)

    def _set_timer(self, node: SimNode, effect: SetTimer, at: Instant) -> None:
        name, when = effect
        if node.clock is not None:
            when = node.clock.when(when)
        timer = node.timers.get(name)
        if timer is None:
            timer = node.timers[name] = Timer(name)
        if when < at:
            self.laws.illegal(at, node.id, f"set timer {name!r} {at - when} ns in the past")
            when = at
        timer.due = when
        if timer.queued == NEVER or when < timer.queued:
            timer.queued = when
            self._order += 1
            heappush(self._heap, (when, self._order, node, timer))

    def move_timer(self, node: SimNode, timer: Timer, when: Instant) -> None:
        """For a clock that was set anew."""
        timer.due = timer.queued = when
        self._order += 1
        heappush(self._heap, (when, self._order, node, timer))

    def _grant(self, node: SimNode, grant: Grant, at: Instant) -> None:
        request = grant[0]
        asked = node.pending.pop(request, None)
        if asked is None:
            self.laws.illegal(at, node.id, f"granted request {request}, which does not wait")
            return
        running = Running(node.id, asked, at, grant)
        self.tally.granted(node, running)
        if self.running or self._ordered or self._bounded:
            self.laws.granted(at, running, self.running)
        node.holds[request] = running
        self.running.append(running)
        self._order += 1
        due = at + (self._always or self._hold_length())
        heappush(self._heap, (due, self._order, node, new(Released, (request, b""))))

    def _finish(self, node: SimNode, request: RequestId, at: Instant) -> None:
        running = node.holds.pop(request)
        self.running.remove(running)
        self.tally.ended(running, at, self.sent)
        self.laws.ended(at, running)
        if running.alarm:
            self.laws.alarmed(running)
        if self._saturated:  # heard of when the machine has heard of the release
            demand.again(self, node)

    def _lose(self, node: SimNode, lose: Lose, at: Instant) -> None:
        running = node.holds.get(lose.request)
        if running is None:
            self.laws.illegal(at, node.id, f"took request {lose.request} away, which does not run")
        else:
            running.told = True
            running.alarm = running.alarm or lose.reason.value
            if running.lost_at == NEVER:
                running.lost_at = at
                self.seen[f"lost: {lose.reason.value}"] += 1
                self.laws.lost(at, running)
            if self._cancels:
                self._order += 1
                heappush(self._heap, (at + TO_CANCEL, self._order, node, new(Released, (lose.request, b""))))

    # --- the application ---------------------------------------------------------------------------------------------

    def ask(self, node: SimNode) -> None:
        """The application of this node wants to run A once."""
        request = node.last_request = node.last_request + 1
        node.pending[request] = self.now
        self.tally.asked(self.now, self.sent)
        self._ready.append((node, new(Requested, (request, 0))))
        if self._bounded:
            self.laws.asked(self.now, node)
        if self._fickle:
            self._change_mind(node, request)

    def _change_mind(self, node: SimNode, request: RequestId) -> None:
        """Once its patience ends, or for no reason; unless it is granted before."""
        scenario = self.scenario
        patience_s = scenario.patience_s
        if self.chance() < scenario.changes_mind:
            patience_s = self.chance() * scenario.op_s
        if patience_s is not None:
            self._order += 1
            heappush(self._heap, (self.now + round(patience_s * SECOND), self._order, node, Withdrawn(request)))
