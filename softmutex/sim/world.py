"""Virtual time: one heap of what is to happen, the real machines, and nothing of their rules.

The world is a driver like the asyncio runtime (`core/machine.py` D1-D6): it hands events to machines and performs
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

import gc
import random
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, TypeAlias

from softmutex.core.events import (
    SECOND,
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
    Received,
    Released,
    Requested,
    RequestId,
    Send,
    SetTimer,
    Started,
    TimerName,
    Token,
    Withdrawn,
)
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Commit, Offer
from softmutex.sim import demand, trace, weather
from softmutex.sim.checkers import Laws
from softmutex.sim.network import Network
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import Hold, Tally

EPOCH: Instant = 10**18  # when a run begins: no machine may take 0 for "never", and the rest of the digits is the time
NEVER: Instant = -1

Action: TypeAlias = tuple[Callable[..., None], Any]


class Timer:
    """`due` is what the machine asked for, `queued` when its one entry in the heap comes up (W2)."""

    __slots__ = ("code", "due", "fired", "queued")

    def __init__(self, name: TimerName) -> None:
        self.fired = Fired(name)
        self.code = trace.code_of(name)
        self.due = NEVER
        self.queued = NEVER


class Clock:
    """What one node's clock shows, where it is not the world's: it may be off, run at another rate, jump ahead."""

    __slots__ = ("offset", "per_mille", "since")

    def __init__(self, offset: Duration, rate: float, since: Instant) -> None:
        self.offset = offset
        self.per_mille = round(rate * 1000)
        self.since = since

    def shows(self, now: Instant) -> Instant:
        return self.since + self.offset + (now - self.since) * self.per_mille // 1000

    def when(self, shown: Instant) -> Instant:
        """The first moment at which it shows that."""
        return self.since - (self.since + self.offset - shown) * 1000 // self.per_mille


class Running:
    """A run of A that has not ended yet."""

    __slots__ = ("alone", "asked", "node", "request", "start", "token", "told")

    def __init__(self, node: NodeId, request: RequestId, asked: Instant, start: Instant, grant: Grant) -> None:
        self.node = node
        self.request = request
        self.asked = asked
        self.start = start
        self.token = grant.token
        self.alone = grant.alone
        self.told = not grant.alone


class SimNode:
    __slots__ = (
        "acquired", "awake", "backlog", "clock", "holds", "id", "last_request", "last_start", "machine", "members",
        "pending", "timers",
    )  # fmt: skip

    def __init__(self, node_id: NodeId, machine: Algorithm, members: list[NodeId]) -> None:
        self.id = node_id
        self.machine = machine
        self.members = members
        self.awake = True
        self.backlog: list[Event | Timer] | None = None
        self.clock: Clock | None = None
        self.timers: dict[TimerName, Timer] = {}
        self.pending: dict[RequestId, Instant] = {}
        self.holds: dict[RequestId, Running] = {}
        self.last_request: RequestId = 0
        self.last_start: Instant = 0
        self.acquired = 0


class World:
    """One run of one scenario. `laws` watches from outside; `sink` gets the bytes that the digest eats."""

    def __init__(
        self,
        scenario: Scenario,
        make: Callable[[Setup], Algorithm],
        options: dict[str, Any],
        laws: Laws,
        sink: Callable[[bytes], None] | None = None,
    ) -> None:
        self.scenario = scenario
        self.now: Instant = EPOCH
        self.laws = laws
        self.recorder = trace.Recorder(sink)
        self.machine_rng = random.Random(scenario.seed)
        self.world_rng = random.Random(scenario.seed + (1 << 64))
        self.chance = self.world_rng.random
        self.network = Network(scenario, self.chance)
        self.tally = Tally(EPOCH, scenario.keep_holds)
        self.nodes: dict[NodeId, SimNode] = {}
        self.living: list[NodeId] = []
        self.members: list[NodeId] = []  # the view that all share, unless each has its own
        self.running: list[Running] = []
        self.sent: dict[type, int] = {}
        self.facts: dict[FactKind, int] = dict.fromkeys(FactKind, 0)
        self.events = 0
        self.asking = True  # demand goes on
        passing = options.get("passing")
        self.carrier: type[Offer] | type[Commit] = Offer if passing == "direct" else Commit
        self.commits_resent = passing not in ("direct", "3-way")
        self._make = make
        self._options = options
        self._timing = scenario.timing()
        self._hold_length = demand.hold_length(scenario.hold, scenario.op_s, self.world_rng)
        self._saturated = scenario.demand == "saturated"
        self._heap: list[tuple[Instant, int, SimNode | None, Any]] = []
        self._ready: deque[tuple[SimNode, Event]] = deque()
        self._order = 0
        self._stop = False
        self._last_id = scenario.nodes
        self.measured_sent: dict[type, int] = {}
        self.unserved = 0
        self.settled_s: float | None = None
        self._last_commit: dict[int, tuple[NodeId, NodeId]] = {}

    def run(self) -> None:
        end = EPOCH + round(self.scenario.duration_s * SECOND)
        collecting = gc.isenabled()
        gc.disable()  # nothing in the loop makes cycles, and a collection would look at every node
        try:
            self.populate()
            demand.start(self)
            weather.start(self)
            self.run_until(end)
            self.tally.freeze(end, self.messages)
            self.measured_sent = dict(self.sent)
        finally:
            if collecting:
                gc.enable()

    # --- time ---

    def after(self, delay: Duration, call: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heappush(self._heap, (self.now + delay, self._order, None, (call, args)))

    def run_until(self, end: Instant) -> None:
        self._order += 1
        heappush(self._heap, (end, self._order, None, (self.stop, ())))
        self._stop = False
        self._turn()

    def stop(self) -> None:
        self._stop = True

    def _turn(self) -> None:
        """Event after event, until `stop`. The hot loop of everything: what is spelled out here is so for speed."""
        heap, ready, recorder = self._heap, self._ready, self.recorder
        words, received, perform = recorder.words, recorder.received, self._perform
        at = self.now
        event: Any
        while True:
            if ready:
                node, event = ready.popleft()
                kind = type(event)
            else:
                at, _, whom, event = heappop(heap)
                self.now = at
                kind = type(event)
                if whom is None:
                    event[0](*event[1])
                    if self._stop:
                        break
                    continue
                node = whom
                if kind is Timer:
                    timer = event
                    if timer.queued != at or not self._is_due(node, timer, at):
                        continue
                    event = timer.fired
                    kind = Fired
                    words += (at, node.id << 4, timer.code)
            if kind is Received:
                if not node.awake:
                    self._set_aside(node, event)
                    continue
                words += (at, node.id << 4 | 1, event[0])
                received(event[1])
            elif kind is not Fired and not self._admit(node, event, kind, at):
                continue
            clock = node.clock
            effects = node.machine.handle(event, at if clock is None else clock.shows(at))
            self.events += 1
            if effects:
                perform(node, effects, at)
            if kind is Released and self._saturated and self.asking:
                self.ask(node)
            if len(words) > trace.CHUNK:
                recorder.flush()

    def _is_due(self, node: SimNode, timer: Timer, at: Instant) -> bool:
        """Whether this entry of the heap is the timer's one, and its time has come (W2)."""
        due = timer.due
        timer.queued = NEVER
        if due == NEVER:
            if type(timer.fired.timer) is tuple:
                node.timers.pop(timer.fired.timer, None)
            return False
        if due > at:
            self._order += 1
            timer.queued = due
            heappush(self._heap, (due, self._order, node, timer))
            return False
        if not node.awake:
            self._set_aside(node, timer)
            return False
        timer.due = NEVER
        if type(timer.fired.timer) is tuple:  # one of a kind: such names are not used again
            node.timers.pop(timer.fired.timer, None)
        return True

    def _admit(self, node: SimNode, event: Event, kind: type, at: Instant) -> bool:
        """The rarer events, with what must be booked before the machine hears of them."""
        if not node.awake:
            self._set_aside(node, event)
            return False
        words = self.recorder.words
        match event:
            case Requested(request):
                words += (at, node.id << 4 | trace.REQUESTED, request)
            case Withdrawn(request):
                if request not in node.pending:
                    return False
                words += (at, node.id << 4 | trace.WITHDRAWN, request)
                del node.pending[request]
                self.tally.withdrawn += 1
                self._settle(node, request, "withdrawn")
            case Released(request):
                words += (at, node.id << 4 | trace.RELEASED, request)
                self._finish(node, request)
            case Started(founder):
                words += (at, node.id << 4 | trace.STARTED, int(founder))
            case MembersChanged(joined, left):
                words += (at, node.id << 4 | trace.MEMBERS, len(joined), *joined, len(left), *left)
            case Leaving():
                words += (at, node.id << 4 | trace.LEAVING)
            case _:
                raise TypeError(f"{event!r} is handled elsewhere")
        return True

    # --- effects ---

    def _perform(self, node: SimNode, effects: Sequence[Effect], at: Instant) -> None:
        network, nodes, sent = self.network, self.nodes, self.sent
        for effect in effects:
            if type(effect) is Send:
                to = effect.to
                message: Any = effect.message
                sort = type(message)
                sent[sort] = sent.get(sort, 0) + 1
                if network.instant:
                    target = nodes.get(to)
                    if target is not None:
                        self._ready.append((target, Received(node.id, message)))
                    elif sort is self.carrier:
                        self._dropped(message)
                else:
                    self._carry(node, to, message, at)
            elif type(effect) is SetTimer:
                name, when = effect.timer, effect.at
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
            elif type(effect) is Grant:
                self._grant(node, effect, at)
            elif type(effect) is Note:
                self._note(node, effect, at)
            elif type(effect) is CancelTimer:
                timer = node.timers.get(effect.timer)
                if timer is not None:
                    timer.due = NEVER
            elif type(effect) is Lose:
                self._lose(node, effect, at)
            elif type(effect) is Depart:
                self.remove(node)
            else:
                self.laws.illegal(at, node.id, f"answered with {effect!r}, which is no effect")

    def _carry(self, node: SimNode, to: NodeId, message: Any, at: Instant) -> None:
        """Over a network that takes its time, or worse."""
        is_token = type(message) is self.carrier
        if is_token:
            self._last_commit[message.token.id] = (node.id, to)
        network = self.network
        target = self.nodes.get(to)
        if target is not None:
            received = Received(node.id, message)
            if not network.plain:
                delays = network.delays(node, to, message)
            elif network.loss and self.chance() < network.loss:
                delays = []
            else:
                delays = [network.base + int(self.chance() * network.spread)]
            for delay in delays:
                if delay:
                    self._order += 1
                    heappush(self._heap, (at + delay, self._order, target, received))
                else:
                    self._ready.append((target, received))
            if delays:
                return
        if is_token:
            self._dropped(message)

    def _grant(self, node: SimNode, grant: Grant, at: Instant) -> None:
        request = grant.request
        asked = node.pending.pop(request, None)
        if asked is None:
            self.laws.illegal(at, node.id, f"granted request {request}, which does not wait")
            return
        token = grant.token
        running = Running(node.id, request, asked, at, grant)
        self.laws.granted(at, running, self.running)
        tally = self.tally
        tally.granted(asked, node.last_start, at)
        if token is not None:
            tally.appeared(token, at)
        if not tally.frozen:
            node.acquired += 1
        node.last_start = at
        node.holds[request] = running
        self.running.append(running)
        self._order += 1
        heappush(self._heap, (at + self._hold_length(), self._order, node, Released(request)))

    def _finish(self, node: SimNode, request: RequestId) -> None:
        running = node.holds.pop(request)
        self.running.remove(running)
        self.tally.ended(self.now)
        if self.tally.holds is not None:
            self.tally.holds.append(
                Hold(node.id, request, running.asked - EPOCH, running.start - EPOCH, self.now - EPOCH, running.token)
            )
        self.laws.released(self.now, running)
        self._settle(node, request, "released")

    def _settle(self, node: SimNode, request: RequestId, how: str) -> None:
        self.tally.settled(self.now, self.messages)

    @property
    def default_period_s(self) -> float:
        """Half the load that the resource can bear, unless `max_interval` says how often a node wants it."""
        return self.scenario.max_interval_s or 2 * self.scenario.op_s * self.scenario.nodes

    @property
    def acquired(self) -> dict[NodeId, int]:
        return {node_id: node.acquired for node_id, node in self.nodes.items()}

    @property
    def messages(self) -> int:
        return sum(self.sent.values())

    def _note(self, node: SimNode, note: Note, at: Instant) -> None:
        kind, token = note.kind, note.token
        self.facts[kind] += 1
        if token is not None:
            if kind is FactKind.GENERATED:
                self.tally.made(token, at)
            elif kind is FactKind.DISCARDED:
                self.tally.removed(token, at)
            elif kind is FactKind.TOKEN_LOST:
                self.tally.gone([token.id], at)
        self.laws.noted(at, node.id, note)

    def _lose(self, node: SimNode, lose: Lose, at: Instant) -> None:
        running = node.holds.get(lose.request)
        if running is None:
            self.laws.illegal(at, node.id, f"took request {lose.request} away, which does not run")
        else:
            running.told = True
            self.laws.lost(at, running, lose.reason)

    def _dropped(self, message: Any) -> None:
        """A message with the right in it is gone: so is the token, unless its sender will say it again."""
        if not self.commits_resent:
            self.tally.gone([message.token.id], self.now)

    # --- who is there ---

    def populate(self) -> None:
        self.living = list(range(1, self.scenario.nodes + 1))
        self.members = list(self.living)
        for node_id in self.living:
            self._make_node(node_id)
        for node_id in self.living:
            self._ready.append((self.nodes[node_id], Started(founder=node_id == 1)))

    def _make_node(self, node_id: NodeId) -> SimNode:
        members = list(self.members) if self.scenario.own_views else self.members
        setup = Setup(node_id, members, self.machine_rng, self._timing, self._options)
        node = self.nodes[node_id] = SimNode(node_id, self._make(setup), members)
        return node

    def ask(self, node: SimNode) -> None:
        """The application of this node wants to run A once."""
        request = node.last_request = node.last_request + 1
        node.pending[request] = self.now
        self.tally.asked(self.now, self.messages)
        self._ready.append((node, Requested(request)))

    def join(self) -> SimNode:
        """A newcomer, with an id that nobody had before (N1)."""
        self._last_id += 1
        node_id = self._last_id
        insort(self.living, node_id)
        if not self.scenario.own_views:
            insort(self.members, node_id)
        node = self._make_node(node_id)
        self._ready.append((node, Started(founder=False)))
        self._tell(joined=(node_id,), left=())
        demand.newcomer(self, node)
        return node

    def remove(self, node: SimNode, seen_after: Duration = 0) -> None:
        """It is gone, killed or left; the others' membership tells of it later."""
        if node.id not in self.nodes:
            return
        mine = {token.id for token in node.machine.view().tokens}
        mine |= {token_id for token_id, ends in self._last_commit.items() if node.id in ends}
        del self.nodes[node.id]
        node.awake = False
        backlog, node.backlog = node.backlog, None
        self.living.remove(node.id)
        for running in node.holds.values():
            self.running.remove(running)
            self.tally.ended(self.now)
            self._settle(node, running.request, "killed")
        for request in node.pending:
            self._settle(node, request, "killed")
        del backlog
        self.tally.gone(sorted(mine - self.tokens_in_reach().keys()), self.now)
        self.after(seen_after, self._tell, (), (node.id,))

    def tokens_in_reach(self) -> dict[int, Token]:
        """Every token that a live node may use, or that a message on its way brings to one. Costs a look at all."""
        found = {token.id: token for node in self.nodes.values() for token in node.machine.view().tokens}
        on_the_way = [(node, event) for _, _, node, event in self._heap if node is not None]
        on_the_way += self._ready
        for node in self.nodes.values():
            on_the_way += [(node, event) for event in node.backlog or () if type(event) is not Timer]
        for node, event in on_the_way:
            message = event.message if type(event) is Received else None
            if isinstance(message, self.carrier) and node.id in self.nodes:
                found.setdefault(message.token.id, message.token)
        return found

    def _tell(self, joined: tuple[NodeId, ...], left: tuple[NodeId, ...]) -> None:
        """The membership's news. Each hears of it at once, or at its own moment where each has its own view."""
        if self.scenario.own_views:
            for node_id in self.living:
                lag = int(self.chance() * self.scenario.detection_s * SECOND)
                self.after(lag, self._tell_one, node_id, joined, left)
            return
        for node_id in left:
            _discard(self.members, node_id)
        for node_id in self.living:
            if node_id not in joined:
                self._ready.append((self.nodes[node_id], MembersChanged(joined, left)))

    def _tell_one(self, node_id: NodeId, joined: tuple[NodeId, ...], left: tuple[NodeId, ...]) -> None:
        node = self.nodes.get(node_id)
        if node is None:
            return
        for other in left:
            _discard(node.members, other)
        for other in joined:
            if other not in node.members:
                insort(node.members, other)
        self._ready.append((node, MembersChanged(joined, left)))

    def _set_aside(self, node: SimNode, event: Event | Timer) -> None:
        if node.backlog is not None:
            node.backlog.append(event)
        elif type(event) is Received and type(event.message) is self.carrier:
            self._dropped(event.message)


def _discard(members: list[NodeId], node_id: NodeId) -> None:
    at = bisect_left(members, node_id)
    if at < len(members) and members[at] == node_id:
        del members[at]
