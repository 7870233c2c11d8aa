"""Who is there, and who knows it: joins, leaves, kills, pauses, wrong clocks, and the membership's news of them.

A membership is no failure detector: it tells of a death `detection_s` later, of a leave and a join one message delay
later, and never of a host that fell silent. Either all share one view, which keeps memory small, or each node has its
own and hears of changes at its own moment (`Scenario.own_views`), so that for a while nodes disagree on who is there:
`known` says how much of the group a newcomer is told of at once, `late_s` by when it knows the rest and they know it.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from softmutex.core.events import (
    SECOND,
    Duration,
    Event,
    Leaving,
    MembersChanged,
    NodeId,
    Received,
    Slept,
    Started,
    Token,
    Withdrawn,
)
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Void
from softmutex.sim import demand
from softmutex.sim.node import NEVER, Clock, SimNode

if TYPE_CHECKING:
    from softmutex.sim.world import World

BACKLOG = 256  # datagrams that a kernel keeps for a process that does not read them
WORTH_TELLING = SECOND // 2  # how long a pause is noticed at the least (machine.D7)
LEAVE_PATIENCE_S = 60.0  # a node that was told to leave is switched off after so long, and A
IDS = 1 << 27  # what a random id is below: a trace has room for no more


class Population:
    def __init__(self, world: World, make: Callable[[Setup], Algorithm], setup: Setup) -> None:
        self.nodes: dict[NodeId, SimNode] = {}
        self.living: list[NodeId] = []
        self.paused = 0
        self.silent: set[NodeId] = set()  # dead, together with their hosts: nothing says so
        self.elders: frozenset[NodeId] = frozenset()  # who was there from the beginning
        self._world = world
        self._scenario = world.scenario
        self._make = make
        self._setup = setup  # of nobody yet
        self._shared: list[NodeId] = []
        self._last_id = 0
        self._used_ids: set[NodeId] = set()
        self._chance = random.Random(f"who {world.scenario.seed}").random  # of ids and views: no fault changes these
        self._within_s = max(2 * world.scenario.delay_s, world.scenario.late_s)  # until a join or a leave is known

    def populate(self) -> None:
        scenario = self._scenario
        self.living = [self._new_id() for _ in range(scenario.nodes)]
        self.elders = frozenset(self.living)
        self._shared.extend(sorted(self.living))
        for node_id in self.living:
            self._add(node_id)
        for number, node_id in enumerate(self.living):
            self._world.at_once(self.nodes[node_id], Started(founder=number < scenario.founders))
            if scenario.known < 1:
                self._tell_rest(node_id)

    def _new_id(self) -> NodeId:
        """One that nobody had before (`events.N1`)."""
        if self._scenario.ids == "ascending":
            self._last_id += 1
            return self._last_id
        while True:
            node_id = 1 + int(self._chance() * IDS)
            if node_id not in self._used_ids:
                self._used_ids.add(node_id)
                return node_id

    def _first_view(self, node_id: NodeId) -> list[NodeId]:
        """Whom a node knows when it begins: itself, and some others, or all."""
        scenario = self._scenario
        if scenario.known >= 1:
            return sorted(self.living)
        others = [other for other in self.living if other != node_id]
        known = {node_id}
        for _ in range(min(len(others), max(1, math.ceil(scenario.known * len(others))))):
            known.add(others.pop(int(self._chance() * len(others))))
        return sorted(known)

    def _tell_rest(self, node_id: NodeId) -> None:
        """Of whom a node did not know at first, one after the other."""
        view = set(self.nodes[node_id].members)
        for other in [other for other in self.living if other not in view]:
            lag = int(self._chance() * self._scenario.late_s * SECOND)
            self._world.after(lag, self.tell_one, node_id, (other,), ())

    def _add(self, node_id: NodeId) -> SimNode:
        own = self._scenario.own_views
        members = self._first_view(node_id) if own else self._shared
        setup = replace(self._setup, me=node_id, members=members, shared={} if own else self._setup.shared)
        node = self.nodes[node_id] = SimNode(node_id, self._make(setup), members)
        return node

    # --- comings and goings ------------------------------------------------------------------------------------------

    def join(self) -> SimNode:
        """A newcomer."""
        node_id = self._new_id()
        self.living.append(node_id)
        if not self._scenario.own_views:
            insort(self._shared, node_id)
        node = self._add(node_id)
        self._world.laws.joined(self._world.now)
        self._world.at_once(node, Started(founder=False))
        self._tell(joined=(node_id,), left=(), within_s=self._within_s)
        if self._scenario.known < 1:
            self._tell_rest(node_id)
        demand.newcomer(self._world, node)
        return node

    def leave(self, node: SimNode) -> None:
        """In good order: what waits is withdrawn, what runs may end, and the machine hands over what it has."""
        node.leaving = True
        self._world.laws.leaving(self._world.now, node)
        for request in node.pending:
            self._world.at_once(node, Withdrawn(request))
        self._world.at_once(node, Leaving())
        self._world.after(round((LEAVE_PATIENCE_S + self._scenario.op_s) * SECOND), self._switch_off, node)

    def departed(self, node: SimNode) -> None:
        if not node.leaving:
            self._world.laws.illegal(self._world.now, node.id, "departed without having been told to leave")
        self._world.laws.departed(self._world.now, node)
        self._remove(node, seen_after_s=self._within_s)

    def kill(self, node: SimNode, silent: bool = False) -> None:
        """SIGKILL, or a power cut: nothing is said, and the others find out."""
        self._world.laws.killed(self._world.now, node)
        if silent:
            self.silent.add(node.id)
        self._remove(node, seen_after_s=None if silent else self._scenario.detection_s)

    def _switch_off(self, node: SimNode) -> None:
        if node.id in self.nodes:
            self._world.laws.stayed(self._world.now, node)
            self.kill(node)

    def _remove(self, node: SimNode, seen_after_s: float | None) -> None:
        if node.id not in self.nodes:
            return
        world, tally = self._world, self._world.tally
        mine = {token.id for token in node.machine.view().tokens} | tally.committed_by_or_to(node.id)
        del self.nodes[node.id]
        self.living.remove(node.id)
        if node.backlog is not None:
            self.paused -= 1
        node.awake, node.backlog = False, None
        for running in node.holds.values():
            world.running.remove(running)
            tally.ended(running, world.now, world.sent)
            if not running.rights and not world.running:
                tally.bereft(world.now)
        for _ in node.pending:
            tally.settled(world.now, world.sent)
        if mine:
            tally.gone(sorted(mine - self.tokens_in_reach().keys()), world.now)
        world.laws.removed(world.now, node)
        if seen_after_s is not None:
            world.after(round(seen_after_s * SECOND), self._tell, (), (node.id,), seen_after_s)

    def tokens_in_reach(self) -> dict[int, Token]:
        """Every token that a live node may use, or that a message brings to one. Costs a look at everything."""
        found = {token.id: token for node in self.nodes.values() for token in node.machine.view().tokens}
        coming = self._world.on_the_way()
        for node in self.nodes.values():
            coming += [(node, event) for event in node.backlog or ()]
        carrier = self._world.tally.carrier
        for node, event in coming:
            if type(event) is Received and isinstance(event.message, carrier) and node.id in self.nodes:
                found.setdefault(event.message.token.id, event.message.token)
        return found

    def committed_to_nobody(self, message: Any) -> None:
        """Nobody will answer: the token is lost, unless this is said once more of one that arrived and has gone on."""
        tally, token = self._world.tally, message.token
        if token.id in tally.alive and token.id not in self.tokens_in_reach():
            tally.gone([token.id], self._world.now)

    def refusals_on_the_way(self) -> int:
        """Each may bring a token back, of which nobody but its sender knows meanwhile that it was not taken."""
        coming = {(node.id, void) for node, event in self._world.on_the_way() if (void := _refusal(event)) is not None}
        return sum(node_id in self.nodes for node_id, _ in coming)

    # --- pauses ------------------------------------------------------------------------------------------------------

    def pause(self, node: SimNode) -> None:
        """SIGSTOP: the whole process, A included."""
        if node.awake:
            self.paused += 1
            node.awake = False
            node.asleep_at = self._world.now
            node.backlog = []
            self._world.laws.parted(self._world.now)

    def resume(self, node: SimNode) -> None:
        """SIGCONT: the messages that the kernel kept, and the timers that are overdue, in either order."""
        backlog, node.backlog = node.backlog, None
        if backlog is None:
            return
        self.paused -= 1
        self._world.laws.disturbed(self._world.now)
        node.awake = True
        self._world.laws.parted(self._world.now)
        slept = self._world.now - node.asleep_at
        if slept >= WORTH_TELLING:
            self._world.at_once(node, Slept(slept))
        messages: list[Event] = [event for event in backlog if type(event) is Received]
        others = [event for event in backlog if type(event) is not Received]
        for event in messages + others if self._world.chance() < 0.5 else others + messages:
            self._world.at_once(node, event)

    def set_aside(self, node: SimNode, event: Event) -> None:
        """For a node that is paused, or gone."""
        if node.backlog is not None:
            is_datagram = type(event) is Received
            if not is_datagram or sum(type(other) is Received for other in node.backlog) < BACKLOG:
                node.backlog.append(event)
                return
        if type(event) is Received:
            self._world.tally.dropped(event.message, self._world.now)

    # --- clocks ------------------------------------------------------------------------------------------------------

    def set_clock(self, node: SimNode, offset: Duration, rate: float) -> None:
        """From now on. Timers keep the moment that the machine asked for, as its clock shows it."""
        old = node.clock
        node.clock = new = Clock(offset, rate, self._world.now)
        for timer in node.timers.values():
            if timer.due != NEVER:
                shown = timer.due if old is None else old.shows(timer.due)
                self._world.move_timer(node, timer, max(self._world.now, new.when(shown)))

    # --- the membership's news ---------------------------------------------------------------------------------------

    def _tell(self, joined: tuple[NodeId, ...], left: tuple[NodeId, ...], within_s: float) -> None:
        if not self._scenario.own_views:
            left = tuple(node_id for node_id in left if _discard(self._shared, node_id))
            if not joined and not left:
                return  # known already
            for node_id in self.living:
                if node_id not in joined:
                    self._world.at_once(self.nodes[node_id], MembersChanged(joined, left))
            return
        for node_id in self.living:
            if node_id not in joined:
                lag = int(self._world.chance() * within_s * SECOND)
                self._world.after(lag, self.tell_one, node_id, joined, left)

    def tell_one(self, node_id: NodeId, joined: tuple[NodeId, ...], left: tuple[NodeId, ...]) -> None:
        """One node's own view changes, and nobody else's."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        joined = tuple(other for other in joined if other not in node.members and other in self.nodes)
        left = tuple(other for other in left if other in node.members)
        for other in left:
            _discard(node.members, other)
        for other in joined:
            insort(node.members, other)
        if joined or left:
            self._world.at_once(node, MembersChanged(joined, left))

    def found_dead(self, by: SimNode, dead: NodeId) -> None:
        """Its host refuses what `by` sends there."""
        if self._scenario.own_views:
            self.tell_one(by.id, (), (dead,))
        elif dead in self._shared:
            self._tell((), (dead,), 0.0)

    def make_views_agree(self) -> None:
        """Whatever was told to some only, or not yet, is known to all."""
        if self._scenario.own_views:
            everybody = tuple(self.living)
            for node in list(self.nodes.values()):
                gone = tuple(other for other in node.members if other not in self.nodes and other not in self.silent)
                self.tell_one(node.id, everybody, gone)


def _discard(members: list[NodeId], node_id: NodeId) -> bool:
    """Whether it was in there."""
    at = bisect_left(members, node_id)
    found = at < len(members) and members[at] == node_id
    if found:
        del members[at]
    return found


def _refusal(event: object) -> Void | None:
    return event.message if isinstance(event, Received) and isinstance(event.message, Void) else None
