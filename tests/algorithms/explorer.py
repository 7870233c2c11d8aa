"""Every interleaving of a few whole machines, up to stated bounds: whatever is on its way may arrive next.

Messages overtake one another and take as long as they like; a timer may fire at any moment, for no time limit may be a
part of why a strict algorithm is right. What is bounded is how often something of their own happens to the nodes
(`Bounds`); within the bounds the search is complete: it ends when no new state is left.

The state of a machine and its answer to an event are computed by the real machine, once for each pair, and remembered.
Time has two moments, before and after the first timer that fired, so that what waits for a time can be seen at work;
only where it is asked whether all can finish does it go on with every timer.

Checked in every state
    exclusion       no two nodes run A at once
    no breach       no machine raises
    it can finish   where nothing is on its way: if timers now fire in turn and all is delivered, everybody is granted
"""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Depart,
    Event,
    Fired,
    Grant,
    Leaving,
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
    Withdrawn,
)
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Message
from softmutex.core.timing import Timing

SOON = LONG = 1000 * SECOND


@dataclass(frozen=True)
class Bounds:
    nodes: int = 2
    requests: int = 1  # of each node ...
    askers: tuple[NodeId, ...] = ()  # ... of these; empty: of all
    withdrawn: int = 0  # all nodes together, as below
    timers: int = 0
    leaves: int = 0
    joins: int = 0
    kills: int = 0  # of which all hear at any moment afterwards
    losses: int = 0
    repeats: int = 0
    founders: int = 1
    finish: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    holds: bool = True  # whoever is granted may hold on for as long as it likes; else it releases at once


class Posted(NamedTuple):
    sender: NodeId
    to: NodeId
    kind: str  # tuples of different messages with the same numbers are equal
    message: Message


class Node(NamedTuple):
    """One node: its machine, frozen, and what a driver knows of it. `machine` None: it is gone, not yet known."""

    id: NodeId
    machine: int | None
    pending: tuple[int, ...] = ()
    holding: int = 0
    asked: int = 0
    leaving: bool = False
    timers: tuple[TimerName, ...] = ()


class State(NamedTuple):
    nodes: tuple[Node, ...]
    network: tuple[int, ...]
    spent: tuple[int, ...]  # withdrawn, timers, leaves, joins, kills, losses, repeats
    late: int  # how often it became later


WITHDRAWN, TIMERS, LEAVES, JOINS, KILLS, LOSSES, REPEATS = range(7)


class Act(NamedTuple):
    what: str
    node: NodeId = 0
    about: Any = None

    def __str__(self) -> str:
        about = self.about
        if isinstance(about, Posted):
            return f"{self.what} {about.message} from {about.sender} to {about.to}"
        return f"{self.what} {self.node}" + (f" ({about})" if about is not None else "")


class Path(NamedTuple):
    act: Act
    before: Path | None


class Found(AssertionError):
    """A state that must not be; says how to get there."""


class NoChance:
    def random(self) -> float:
        return 0.5

    def __deepcopy__(self, memo: dict[int, Any]) -> NoChance:
        return self


class Members(list[NodeId]):
    """The shared view of who is there: one object, never copied, never part of a machine's own state."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Members:
        return self


PLAIN = frozenset({type(None), int, float, str, bytes, bool})
NAMES: dict[type, tuple[str, ...]] = {}  # of the slots of a class


def freeze(value: Any) -> Any:
    """Something that is equal where the values are."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, tuple):
        return (kind.__name__, *[each if type(each) in PLAIN else freeze(each) for each in value])
    if isinstance(value, dict):
        return ("dict", *[(freeze(key), freeze(item)) for key, item in value.items()])
    if isinstance(value, Members | NoChance) or callable(value):
        return None
    if isinstance(value, list):
        return ("list", *[freeze(each) for each in value])
    if isinstance(value, set | frozenset):
        return ("set", frozenset(map(freeze, value)))
    if isinstance(value, int | float | str | bytes | Enum):
        return value
    if kind not in NAMES:
        NAMES[kind] = tuple(name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ()))
    fields = [getattr(value, name, None) for name in NAMES[kind]]
    fields += getattr(value, "__dict__", {}).values()
    return (kind.__name__, *[each if type(each) in PLAIN else freeze(each) for each in fields])


GROUPS: weakref.WeakValueDictionary[int, Members] = weakref.WeakValueDictionary()


def same_group(number: int) -> Members:
    return GROUPS[number]


def share_group(members: Members) -> tuple[Any, ...]:
    GROUPS[id(members)] = members
    return same_group, (id(members),)


def packed(machine: Algorithm) -> bytes | None:
    """From which copies are made, many times faster than by `copy`; None where it has what cannot be written."""
    into = io.BytesIO()
    pickler = pickle.Pickler(into, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {Members: share_group}
    try:
        pickler.dump(machine)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return into.getvalue()


@dataclass
class Explorer:
    algorithm: type[Algorithm]
    bounds: Bounds
    visited: int = 0
    finished: int = 0
    machines: list[Algorithm] = field(default_factory=list)
    packed: dict[int, bytes | None] = field(default_factory=dict)
    ids: dict[Any, int] = field(default_factory=dict)
    posted: list[Posted] = field(default_factory=list)
    posted_ids: dict[Posted, int] = field(default_factory=dict)
    steps: dict[Any, Any] = field(default_factory=dict)
    members: Members = field(default_factory=Members)

    # --- the search --------------------------------------------------------------------------------------------------

    def explore(self) -> int:
        first = self._first()
        seen = {first}
        level: list[tuple[State, Path | None]] = [(first, None)]
        while level:
            following = []
            for state, path in level:
                if self.bounds.finish and not state.network and any(node.pending for node in state.nodes):
                    self._check_finish(state, path)
                for act in self._acts(state):
                    after = self.after(state, act, path)
                    if after not in seen:
                        seen.add(after)
                        following.append((after, Path(act, path)))
            level = following
        self.visited = len(seen)
        return self.visited

    def _first(self) -> State:
        ids = range(1, self.bounds.nodes + 1)
        nodes = tuple(Node(each, -1) for each in ids)
        state = State(nodes, (), (0,) * 7, 0)
        for node_id in ids:
            self.members[:] = list(ids)
            machine = self.algorithm(self._setup(node_id))
            state = _with(state, _node(state, node_id)._replace(machine=self._intern(machine)))
        for node_id in ids:
            state = self.tell(state, node_id, Started(founder=node_id <= self.bounds.founders), Act("start"), None)
        return state

    def _setup(self, me: NodeId) -> Setup:
        return Setup(me, self.members, NoChance(), Timing(op=1.0, nodes_max=3), dict(self.bounds.options))

    def _acts(self, state: State) -> Iterator[Act]:
        bounds, spent = self.bounds, state.spent
        for number in dict.fromkeys(state.network):
            posted = self.posted[number]
            yield Act("deliver", posted.to, posted)
            if spent[LOSSES] < bounds.losses:
                yield Act("lose", posted.to, posted)
            if spent[REPEATS] < bounds.repeats:
                yield Act("repeat", posted.to, posted)
        for node in state.nodes:
            if node.machine is None:
                yield Act("detect", node.id)
                continue
            if node.holding:
                yield Act("release", node.id)
            may_ask = not bounds.askers or node.id in bounds.askers
            if may_ask and node.asked < bounds.requests and not node.leaving and not node.pending and not node.holding:
                yield Act("request", node.id)
            if node.pending and spent[WITHDRAWN] < bounds.withdrawn:
                yield Act("withdraw", node.id)
            if spent[TIMERS] < bounds.timers:
                for timer in node.timers:
                    yield Act("fire", node.id, timer)
            if spent[LEAVES] < bounds.leaves and not node.leaving:
                yield Act("leave", node.id)
            if spent[KILLS] < bounds.kills:
                yield Act("kill", node.id)
        if spent[JOINS] < bounds.joins:
            yield Act("join", bounds.nodes + spent[JOINS] + 1)  # no id comes twice

    def after(self, state: State, act: Act, path: Path | None) -> State:
        what, node_id, about = act
        if what in ("deliver", "lose", "repeat"):
            network = list(state.network)
            if what != "repeat":
                network.remove(self.posted_ids[about])
            state = state._replace(network=tuple(network))
            if what == "lose":
                return _spend(state, LOSSES)
            state = _spend(state, REPEATS) if what == "repeat" else state
            return self.tell(state, node_id, Received(about.sender, about.message), act, path)
        if what == "join":
            return self._join(_spend(state, JOINS), act, path)
        node = _node(state, node_id)
        if what == "request":
            number = node.asked + 1
            state = _with(state, node._replace(asked=number, pending=(*node.pending, number)))
            return self.tell(state, node_id, Requested(number), act, path)
        if what == "release":
            state = _with(state, node._replace(holding=0))
            return self.tell(state, node_id, Released(node.holding), act, path)
        if what == "withdraw":
            return self._withdraw(_spend(state, WITHDRAWN), node_id, act, path)
        if what == "fire":
            timers = tuple(timer for timer in node.timers if timer != about)
            state = _spend(_with(state, node._replace(timers=timers)), TIMERS)._replace(late=max(1, state.late))
            return self.tell(state, node_id, Fired(about), act, path)
        if what == "leave":
            state = _spend(_with(state, node._replace(leaving=True)), LEAVES)
            while _node(state, node_id).pending:
                state = self._withdraw(state, node_id, act, path)
            return self.tell(state, node_id, Leaving(), act, path)
        if what == "kill":
            return self._gone(_spend(state, KILLS), node_id)
        assert what == "detect"
        return self._detect(state, node_id, act, path)

    def _withdraw(self, state: State, node_id: NodeId, act: Act, path: Path | None) -> State:
        node = _node(state, node_id)
        request, *rest = node.pending
        return self.tell(_with(state, node._replace(pending=tuple(rest))), node_id, Withdrawn(request), act, path)

    def _join(self, state: State, act: Act, path: Path | None) -> State:
        newcomer = act.node
        self._see(state, newcomer)
        machine = self._intern(self.algorithm(self._setup(newcomer)))
        state = state._replace(nodes=(*state.nodes, Node(newcomer, machine)))
        state = self.tell(state, newcomer, Started(), act, path)
        return self._tell_all(state, MembersChanged((newcomer,), ()), newcomer, act, path)

    def _gone(self, state: State, node_id: NodeId) -> State:
        """Whatever is on its way to it goes nowhere; what it sent may still arrive."""
        dead = Node(node_id, None)
        return _with(state, dead)._replace(
            network=tuple(number for number in state.network if self.posted[number].to != node_id)
        )

    def _detect(self, state: State, node_id: NodeId, act: Act, path: Path | None) -> State:
        state = state._replace(nodes=tuple(node for node in state.nodes if node.id != node_id))
        return self._tell_all(state, MembersChanged((), (node_id,)), node_id, act, path)

    def _tell_all(self, state: State, event: Event, but: NodeId, act: Act, path: Path | None) -> State:
        for node in state.nodes:
            if node.id != but and node.machine is not None and any(each.id == node.id for each in state.nodes):
                state = self.tell(state, node.id, event, act, path)
        return state

    # --- one machine -------------------------------------------------------------------------------------------------

    def _see(self, state: State, *more: NodeId) -> tuple[NodeId, ...]:
        here = tuple(sorted({*(node.id for node in state.nodes), *more}))
        if tuple(self.members) != here:
            self.members[:] = here
        return here

    def _intern(self, machine: Algorithm) -> int:
        key = freeze(machine)
        if key not in self.ids:
            self.ids[key] = len(self.machines)
            self.machines.append(machine)
        return self.ids[key]

    def _copy(self, number: int) -> Algorithm:
        machine = self.machines[number]
        if number not in self.packed:
            self.packed[number] = packed(machine)
        written = self.packed[number]
        return copy.deepcopy(machine) if written is None else pickle.loads(written)  # type: ignore[no-any-return]

    def tell(self, state: State, node_id: NodeId, event: Event, act: Act, path: Path | None) -> State:
        node = next((each for each in state.nodes if each.id == node_id), None)
        if node is None or node.machine is None:
            return state
        here = self._see(state)
        key = (node.machine, type(event).__name__, event, state.late, here)
        if isinstance(event, Received):
            key += (type(event.message).__name__,)  # type: ignore[assignment]
        if key not in self.steps:
            machine = self._copy(node.machine)
            try:
                effects = tuple(machine.handle(event, SOON + state.late * LONG))
            except InvariantBreach as breach:
                raise Found(self._story(f"breach at node {node_id}: {breach}", Path(act, path))) from breach
            self.steps[key] = (self._intern(machine), effects)
        after, effects = self.steps[key]
        return self.perform(_with(state, node._replace(machine=after)), node_id, effects, act, path)

    def perform(self, state: State, node_id: NodeId, effects: Any, act: Act, path: Path | None) -> State:
        node = _node(state, node_id)
        network = list(state.network)
        departs = False
        for effect in effects:
            match effect:
                case Send(to, message):
                    if any(each.id == to and each.machine is not None for each in state.nodes):
                        network.append(self._post(Posted(node_id, to, type(message).__name__, message)))
                case SetTimer(timer, _):
                    node = node._replace(timers=tuple(sorted({*node.timers, timer}, key=repr)))
                case CancelTimer(timer):
                    node = node._replace(timers=tuple(each for each in node.timers if each != timer))
                case Grant(request):
                    if request not in node.pending:
                        raise Found(self._story(f"node {node_id} grants {request}: it does not wait", Path(act, path)))
                    others = [other.id for other in state.nodes if other.holding]
                    if others:
                        raise Found(self._story(f"nodes {others} and {node_id} run A at once", Path(act, path)))
                    pending = tuple(each for each in node.pending if each != request)
                    node = node._replace(pending=pending, holding=request)
                case Lose(request):
                    raise Found(self._story(f"node {node_id} is told that it is not alone", Path(act, path)))
                case Depart():
                    departs = True
                case _:
                    pass
        state = _with(state, node)._replace(network=tuple(sorted(network)))
        if departs:
            state = self._detect(self._gone(state, node_id), node_id, act, path)
        return state

    def _post(self, posted: Posted) -> int:
        if posted not in self.posted_ids:
            self.posted_ids[posted] = len(self.posted)
            self.posted.append(posted)
        return self.posted_ids[posted]

    # --- it can finish -----------------------------------------------------------------------------------------------

    def _check_finish(self, state: State, path: Path | None) -> None:
        self.finished += 1
        begin = state
        for _ in range(600):
            act = self._next_in_order(state)
            if act is None:
                break
            state, path = self.after(state, act, path), Path(act, path)
            state = state._replace(late=state.late + (act.what == "fire"))
            if not any(node.pending or node.holding for node in state.nodes):
                return
        waiting = {node.id: node.pending for node in state.nodes if node.pending}
        views = [self.machines[node.machine].view() for node in begin.nodes if node.machine is not None]
        raise Found(self._story(f"with no more faults these wait for ever: {waiting}, of {views}", path))

    def _next_in_order(self, state: State) -> Act | None:
        if state.network:
            posted = self.posted[state.network[0]]
            return Act("deliver", posted.to, posted)
        for node in state.nodes:
            if node.machine is None:
                return Act("detect", node.id)
            if node.holding:
                return Act("release", node.id)
        timers = [(node.id, timer) for node in state.nodes for timer in node.timers]
        if not timers:
            return None
        at = state.spent[TIMERS] % len(timers)
        return Act("fire", *timers[at])

    def _story(self, what: str, path: Path | None) -> str:
        acts: list[str] = []
        while path is not None:
            acts.append(str(path.act))
            path = path.before
        lines = [f"  {number}. {act}" for number, act in enumerate(reversed(acts), 1)][:100]
        return "\n".join([f"{self.algorithm.__name__}: {what}", *lines])


def _node(state: State, node_id: NodeId) -> Node:
    for node in state.nodes:
        if node.id == node_id:
            return node
    raise LookupError(node_id)


def _with(state: State, changed: Node) -> State:
    me = changed.id
    nodes = tuple([changed if node.id == me else node for node in state.nodes])
    return State(nodes, state.network, state.spent, state.late)


def _spend(state: State, what: int) -> State:
    spent = list(state.spent)
    spent[what] += 1
    return state._replace(spent=tuple(spent))


def explore(algorithm: type[Algorithm], **bounds: Any) -> int:
    """How many states there are within these bounds. Raises `Found` where one must not be."""
    return Explorer(algorithm, Bounds(**bounds)).explore()
