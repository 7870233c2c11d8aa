"""What a group tells its machines where all share one view: whom it does not hear, how many it reaches.

In the field each node has a group of its own that finds out; here a hundred thousand must fit, so only the questions
are played: pings that the network delays, loses or cuts like any message, and that are counted. A node whose host lives
refuses for it when it is dead; who is paused, cut off, or dead with its host is silent.

A suspected node that does not answer the first ping is asked by way of two others, too: a dead link is no dead node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from softmutex.core.events import SECOND, Duration, Level, NodeId, Reach, Silenced
from softmutex.core.messages import Message, Ping, Pong

if TYPE_CHECKING:
    from softmutex.sim.node import SimNode
    from softmutex.sim.world import World

TRIES = 3  # pings to who is suspected; the gap between them doubles
ROLL_TRIES = 2
FIRST_GAP = SECOND // 5
SAMPLE = 32  # members that a wide roll call asks, in a larger group
RELAYS = 2
SURELY = 2  # refusals in a row


class Suspicion:
    __slots__ = ("closed", "refusals")

    def __init__(self) -> None:
        self.closed = False
        self.refusals = 0


class RollCall:
    __slots__ = ("asked", "closed", "here", "refused", "wide")

    def __init__(self, wide: bool, asked: Sequence[NodeId]) -> None:
        self.wide = wide
        self.asked = asked
        self.here: set[NodeId] = set()
        self.refused: set[NodeId] = set()
        self.closed = False

    @property
    def complete(self) -> bool:
        return len(self.here) + len(self.refused) == len(self.asked)

    def level(self) -> Level:
        total = 1 + len(self.asked) - len(self.refused)
        reached = 2 * (1 + len(self.here))
        return Level.MORE if reached > total else Level.HALF if reached == total else Level.LESS


class Roll:
    def __init__(self, world: World) -> None:
        self._world = world
        self._suspicions: dict[tuple[NodeId, NodeId], Suspicion] = {}
        self._calls: dict[NodeId, RollCall] = {}
        round_trip = 2 * world.scenario.delay_s * (1 + world.scenario.jitter)
        self._gap: Duration = max(FIRST_GAP, round(1.1 * round_trip * SECOND))

    # --- does it live? -----------------------------------------------------------------------------------------------

    def suspect(self, node: SimNode, of: NodeId) -> None:
        if (node.id, of) not in self._suspicions and of != node.id:
            suspicion = self._suspicions[node.id, of] = Suspicion()
            self._look(node, of, suspicion, 0)

    def _look(self, node: SimNode, of: NodeId, suspicion: Suspicion, tries: int) -> None:
        if suspicion.closed:
            return
        if tries == TRIES or node.id not in self._world.nodes:
            self._close(node, of, suspicion)
            if tries == TRIES:
                self._world.at_once(node, Silenced(of))
            return

        def heard() -> None:
            self._close(node, of, suspicion)

        def refused() -> None:
            suspicion.refusals += 1
            if suspicion.refusals == SURELY and not suspicion.closed:
                self._close(node, of, suspicion)
                self._world.group.found_dead(node, of)

        self._ping(node, of, heard, refused)
        if tries:
            for way in self._some(node, RELAYS, but=of):
                self._ping(node, of, heard, None, way)
        self._world.after(self._gap << tries, self._look, node, of, suspicion, tries + 1)

    def _close(self, node: SimNode, of: NodeId, suspicion: Suspicion) -> None:
        suspicion.closed = True
        self._suspicions.pop((node.id, of), None)

    # --- how many are reached? ---------------------------------------------------------------------------------------

    def call(self, node: SimNode, wide: bool) -> None:
        under_way = self._calls.get(node.id)
        if under_way is not None and (under_way.wide or not wide):
            return
        if under_way is not None:
            under_way.closed = True
        others = [other for other in node.members if other != node.id] if wide and len(node.members) <= 33 else None
        asked = self._some(node, SAMPLE if wide else 1) if others is None else others
        call = self._calls[node.id] = RollCall(wide, asked)
        if asked:
            self._ask(node, call, 0)
        else:
            self._answer(node, call)

    def _ask(self, node: SimNode, call: RollCall, tries: int) -> None:
        if call.closed:
            return
        if tries == ROLL_TRIES:
            self._answer(node, call)
            return
        for other in call.asked:
            if other not in call.here and other not in call.refused:
                self._ping(
                    node,
                    other,
                    self._booked(node, call, call.here, other),
                    self._booked(node, call, call.refused, other),
                )
        self._world.after(self._gap << tries, self._ask, node, call, tries + 1)

    def _booked(self, node: SimNode, call: RollCall, where: set[NodeId], other: NodeId) -> Callable[[], None]:
        def book() -> None:
            where.add(other)
            if call.complete and not call.closed:
                self._answer(node, call)

        return book

    def _answer(self, node: SimNode, call: RollCall) -> None:
        call.closed = True
        if self._calls.get(node.id) is call:
            del self._calls[node.id]
        if node.id not in self._world.nodes:
            return
        level = call.level()
        if call.wide or level is Level.MORE or not call.asked:
            self._world.at_once(node, Reach(level))
        else:
            self.call(node, wide=True)

    # --- pings -------------------------------------------------------------------------------------------------------

    def _ping(
        self,
        node: SimNode,
        to: NodeId,
        heard: Callable[[], None],
        refused: Callable[[], None] | None,
        way: NodeId | None = None,
    ) -> None:
        """Calls `heard` when the answer has come, `refused` when the host has said that nobody listens there."""
        world = self._world
        target = world.nodes.get(to)
        there = self._trip([node.id, to] if way is None else [node.id, way, to], Ping(0))
        if there is None or (target is None and (to in world.group.silent or way is not None)):
            return
        if target is not None and not target.awake:
            return
        back = self._trip([to, node.id] if way is None else [to, way, node.id], Pong(0))
        if back is None:
            return
        outcome = heard if target is not None else refused
        if outcome is not None:
            world.after(there + back, outcome)

    def _trip(self, hops: Sequence[NodeId], message: Message) -> Duration | None:
        """How long a message takes from the first to the last of them; None where it does not arrive."""
        world, took = self._world, 0
        for sender, to in pairwise(hops):
            if sender in world.nodes:
                world.sent[type(message)] += 1
            elif sender != hops[0]:
                return None
            delays = world.network.travel(sender, to)
            if not delays:
                return None
            took += min(delays)
        return took

    def _some(self, node: SimNode, count: int, but: NodeId | None = None) -> list[NodeId]:
        """So many random other members, or all where there are not so many."""
        members, chance = node.members, self._world.chance
        total = len(members) - 1 - (but is not None and node.knows(but))
        found: dict[NodeId, None] = {}
        while len(found) < min(count, total):
            other = members[int(chance() * len(members))]
            if other not in (node.id, but):
                found[other] = None
        return list(found)
