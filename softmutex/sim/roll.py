"""What a group tells its machines where all share one view: whom it does not hear, how many it reaches.

In the field each node has a `Group` of its own. Here a hundred thousand nodes must fit, so only two of its parts are
there, and only at nodes whose machine has asked something: `Suspicion` and `RollCall`, the very ones of the core. Their
pings are played, not handled: delayed, lost, cut and counted like any message, they reach no machine. A dead node
whose host lives refuses; who is paused, cut off, or dead with its host is silent. Who answers only by way of another is
spoken to by that way (`Relay`), until the direct one works again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from softmutex.core.events import (
    NOBODY,
    CancelTimer,
    Duration,
    Instant,
    NodeId,
    Returned,
    Send,
    SetTimer,
    Silenced,
    TimerName,
    from_seconds,
)
from softmutex.core.group.effects import Answer
from softmutex.core.group.roll_call import RollCall
from softmutex.core.group.search import LOOK
from softmutex.core.group.suspicion import PING, Suspicion
from softmutex.core.group.ways import DIRECT_AGAIN, RELAYS
from softmutex.core.messages import Message, Ping, Pong, Relay
from softmutex.core.patience import Patience

if TYPE_CHECKING:
    from softmutex.sim.node import SimNode
    from softmutex.sim.world import World

PING_PLAYED, PONG_PLAYED = Ping(0), Pong(0)  # all there is to see of them is their kind


class Roll:
    """Of one node."""

    def __init__(self, world: World, node: SimNode) -> None:
        self._world = world
        self._node = node
        self._rng = random.Random(f"roll {world.scenario.seed} {node.id}")
        self._timers: dict[TimerName, Instant] = {}
        self._heard_at: dict[NodeId, Instant] = {}
        self._ways: dict[NodeId, tuple[NodeId, Instant]] = {}  # by whom, and when it was last tried without
        self._is_looking = False
        patience = Patience(PING)
        timeout_s = world.scenario.isolated_timeout_s
        timeout = None if timeout_s is None else from_seconds(timeout_s)
        self._suspicion = Suspicion(self, self._rng, patience, timeout)
        self._roll_call = RollCall(node.id, node.members, self, self._rng, patience, self._when_heard)

    # --- what happens ------------------------------------------------------------------------------------------------

    def suspect(self, of: NodeId) -> None:
        if self._node.knows(of) and of != self._node.id:
            self._suspicion.suspect(of, self._world.now)

    def call(self, wide: bool) -> None:
        self._roll_call.call("", wide, self._world.now)

    def heard(self, sender: NodeId) -> None:
        """Any message of it came."""
        now = self._heard_at[sender] = self._world.now
        self._suspicion.heard(sender, now)
        self._roll_call.heard(sender, now)

    def left(self, nodes: Sequence[NodeId]) -> None:
        for node in nodes:
            self._suspicion.forget(node, self._world.now)
            self._ways.pop(node, None)
        for node in [node for node, (way, _) in self._ways.items() if way in nodes]:
            del self._ways[node]
        self._roll_call.left(nodes, self._world.now)

    def way_to(self, node: NodeId) -> NodeId:
        """By whom a message for it goes; NOBODY: directly."""
        way, tried_at = self._ways.get(node, (NOBODY, 0))
        if way and self._world.now - tried_at >= DIRECT_AGAIN:
            self._ways[node] = (way, self._world.now)
            self._ping(node, [node], lambda: self._ways.pop(node, None), None)
        return way

    def came_by(self, sender: NodeId, way: NodeId) -> None:
        """It goes to the trouble of a relay, so it is answered on the same way."""
        known, _ = self._ways.get(sender, (NOBODY, 0))
        if known != way:  # `core/group/ways.py`: the way that was known may be no more
            self._ways[sender] = (way, self._world.now)

    def is_silent(self, node: NodeId) -> bool:
        return self._suspicion.is_silent(node)

    def _when_heard(self, node: NodeId) -> Instant:
        return self._heard_at.get(node, 0)

    # --- what the two parts want -------------------------------------------------------------------------------------

    def put(self, effect: Send | SetTimer | CancelTimer | Answer) -> None:
        match effect:
            case SetTimer(name, at):
                self._timers[name] = at
                self._world.after(max(0, at - self._world.now), self._fire, name, at)
            case CancelTimer(name):
                self._timers.pop(name, None)
            case Answer(_, reach):
                self._world.at_once(self._node, reach)
            case Send(to, message):
                assert isinstance(message, Ping)
                self.ping(to, message.nonce, 1, self._world.now)

    def _fire(self, name: TimerName, at: Instant) -> None:
        if self._timers.get(name) != at or self._node.id not in self._world.nodes:
            return
        if not self._node.awake:
            self._world.after(LOOK // 10, self._fire, name, at)
            return
        del self._timers[name]
        if isinstance(name, str):
            self._roll_call.fired(self._world.now)
        else:
            self._suspicion.fired(*name, self._world.now)

    def ping(self, node: NodeId, nonce: int, tries: int, now: Instant) -> None:
        def answered(way: NodeId = NOBODY) -> None:
            self.heard(node)
            if self._suspicion.answered(node, nonce, self._world.now):
                self._ways.pop(node, None)
                if way:
                    self._ways[node] = (way, self._world.now)

        self._ping(node, [node], answered, lambda: self._suspicion.refused(node, self._world.now))
        if tries > 1 or node in self._ways:
            for way in self._some_others(node):
                self._ping(node, [way, node], lambda way=way: answered(way), None)  # type: ignore[misc]

    def not_there(self, nodes: Sequence[NodeId], now: Instant) -> None:
        for node in nodes:
            self.suspect(node)

    def found_dead(self, node: NodeId, why: str, now: Instant) -> None:
        self._world.group.found_dead(self._node, node)

    def given_up(self, node: NodeId, now: Instant) -> None:
        self._world.group.found_dead(self._node, node)

    def found_silent(self, node: NodeId, now: Instant) -> None:
        self._ways.pop(node, None)
        self._world.at_once(self._node, Silenced(node))
        if not self._is_looking:
            self._is_looking = True
            self._world.after(LOOK, self._look)

    def found_back(self, node: NodeId, now: Instant) -> None:
        self._world.at_once(self._node, Returned(node))

    def _look(self) -> None:
        silent = self._suspicion.silent()
        self._is_looking = bool(silent) and self._node.id in self._world.nodes
        if self._is_looking:
            if self._node.awake:
                self._suspicion.look(silent[int(self._rng.random() * len(silent))], self._world.now)
            self._world.after(LOOK, self._look)

    # --- the network -------------------------------------------------------------------------------------------------

    def _ping(
        self, to: NodeId, hops: list[NodeId], heard: Callable[[], object], refused: Callable[[], object] | None
    ) -> None:
        """Calls `heard` when the answer has come back the same way, `refused` when nobody listens there, it says."""
        world, me = self._world, self._node.id
        there = self.travel(hops, PING_PLAYED)
        target = world.nodes.get(to)
        if there is None or (target is None and to in world.group.silent) or (target is not None and not target.awake):
            return
        answer = heard if target is not None else refused
        back = None if answer is None else self.travel([*reversed(hops[:-1]), me], PONG_PLAYED, to)
        if back is not None and answer is not None:
            world.after(there + back, self._if_awake, answer)

    def _if_awake(self, answer: Callable[[], object]) -> None:
        if self._node.awake:
            answer()

    def travel(self, hops: Sequence[NodeId], message: Message, sender: NodeId = NOBODY) -> Duration | None:
        """How long a message takes from here, or from `sender`, to the last of these; None: it does not arrive."""
        world, took = self._world, 0
        start = sender or self._node.id
        for number, (one, other) in enumerate(pairwise([start, *hops])):
            passes_on = world.nodes.get(one)
            if number and (passes_on is None or not passes_on.awake):
                return None
            world.sent[Relay if len(hops) > 1 else type(message)] += 1
            delays = world.network.travel(one, other)
            if not delays:
                return None
            took += min(delays)
        return took

    def _some_others(self, but: NodeId) -> list[NodeId]:
        """The one that served last, and random others."""
        members, me = self._node.members, self._node.id
        found = dict.fromkeys([self._ways[but][0]]) if but in self._ways else {}
        for _ in range(4 * RELAYS):
            other = members[int(self._rng.random() * len(members))]
            if other not in (me, but) and not self._suspicion.is_silent(other) and len(found) < RELAYS:
                found[other] = None
        return list(found)
