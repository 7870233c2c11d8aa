"""What the network does to one message: nothing, delay, loss, duplication, reordering, a cut.

Corruption is loss: above UDP, the kernel's checksum or the seal of a frame eats what was damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from softmutex.core.events import SECOND, Duration, NodeId
from softmutex.core.messages import Message
from softmutex.sim.scenario import Scenario

if TYPE_CHECKING:
    from softmutex.sim.node import SimNode

Interceptor = Callable[["SimNode", NodeId, Message], bool]  # (from, to, message) -> is it swallowed


class Cut:
    """Between `side` and everybody else. `to_side`, `from_side`: which of the two ways is cut."""

    __slots__ = ("from_side", "side", "to_side")

    def __init__(self, side: frozenset[NodeId], to_side: bool = True, from_side: bool = True) -> None:
        self.side = side
        self.to_side = to_side
        self.from_side = from_side

    def __call__(self, sender: NodeId, to: NodeId) -> bool:
        """Whether a message is lost to it."""
        arrives, leaves = to in self.side, sender in self.side
        return arrives != leaves and (self.to_side if arrives else self.from_side)

    def parts(self, one: NodeId, other: NodeId) -> bool:
        """Whether there is no way to and fro between them."""
        return (one in self.side) != (other in self.side)


class Network:
    """`plain` says that `base`, `spread` and `loss` are the whole story, so that the world need not ask."""

    def __init__(self, scenario: Scenario, random: Callable[[], float]) -> None:
        self._random = random
        self._scenario = scenario
        self.cuts: list[Cut] = []
        self.dead: dict[tuple[NodeId, NodeId], int] = {}  # links, from and to, and how many faults cut them
        self.interceptors: list[Interceptor] = []
        self.slow: dict[NodeId, Duration] = {}  # links of these take so much longer
        self.set(scenario.delay_s, scenario.loss, scenario.duplication, scenario.reordering, scenario.corruption)

    def set(self, delay_s: float, loss: float, duplication: float, reordering: float, corruption: float) -> None:
        delay = round(delay_s * SECOND)
        swing = round(delay * self._scenario.jitter)
        self.base: Duration = delay - swing
        self.spread: Duration = 2 * swing + 1 if swing else 0
        self.loss = 1.0 - (1.0 - loss) * (1.0 - corruption)
        self.duplication = duplication
        self.reordering = reordering
        self._refresh()

    def _refresh(self) -> None:
        self.plain = not (
            self.cuts or self.dead or self.interceptors or self.slow or self.duplication or self.reordering
        )
        self.instant = self.plain and not (self.base or self.spread or self.loss)

    def cut(self, cut: Cut) -> None:
        self.cuts.append(cut)
        self._refresh()

    def mend(self, cut: Cut) -> None:
        if cut in self.cuts:
            self.cuts.remove(cut)
            self._refresh()

    def divides(self, nodes: Sequence[NodeId]) -> bool:
        """Whether dead links alone leave two of these without a way to each other, also by way of others."""
        broken = {frozenset(link) for link in self.dead}
        if len(broken) < len(nodes) - 1:  # what it takes to cut off one of them
            return False
        apart, near = set(nodes[1:]), list(nodes[:1])
        while near:
            here = near.pop()
            found = [other for other in apart if frozenset((here, other)) not in broken]
            apart.difference_update(found)
            near += found
        return bool(apart)

    def kill_link(self, sender: NodeId, to: NodeId) -> None:
        self.dead[sender, to] = self.dead.get((sender, to), 0) + 1
        self._refresh()

    def mend_link(self, sender: NodeId, to: NodeId) -> None:
        if self.dead.get((sender, to), 0) > 1:
            self.dead[sender, to] -= 1
        else:
            self.dead.pop((sender, to), None)
        self._refresh()

    def intercept(self, interceptor: Interceptor) -> None:
        if interceptor not in self.interceptors:
            self.interceptors.append(interceptor)
            self._refresh()

    def release(self, interceptor: Interceptor) -> None:
        if interceptor in self.interceptors:
            self.interceptors.remove(interceptor)
            self._refresh()

    def slow_down(self, node: NodeId, by: Duration) -> None:
        self.slow[node] = by
        self._refresh()

    def heal(self) -> None:
        """Back to a network that only takes its time."""
        self.cuts.clear()
        self.dead.clear()
        self.interceptors.clear()
        self.slow.clear()
        self.set(self._scenario.delay_s, 0.0, 0.0, 0.0, 0.0)

    def delays(self, node: SimNode, to: NodeId, message: Message) -> list[Duration]:
        """When the copies of one message arrive, from now; none when it is lost."""
        for swallows in tuple(self.interceptors):
            if swallows(node, to, message):
                return []
        return self.travel(node.id, to)

    def is_cut(self, sender: NodeId, to: NodeId) -> bool:
        if self.cuts and any(cut(sender, to) for cut in self.cuts):
            return True
        return (sender, to) in self.dead

    def travel(self, sender: NodeId, to: NodeId) -> list[Duration]:
        """The same of anything that nobody intercepts."""
        random = self._random
        if self.is_cut(sender, to):
            return []
        if self.loss and random() < self.loss:
            return []
        copies = 2 if self.duplication and random() < self.duplication else 1
        out = []
        for _ in range(copies):
            delay = self.base + (int(random() * self.spread) if self.spread else 0)
            if self.reordering and random() < self.reordering:
                delay += int(random() * 10 * (self.base + self.spread + 1))
            out.append(delay + (max(self.slow.get(sender, 0), self.slow.get(to, 0)) if self.slow else 0))
        return out
