"""Nodes that did not answer when a token was made: one of them may have the old one, and come back with it.

A node that was only cut off or asleep finds out by itself if it was using the token (its lease). A token that was
parked has no lease, and its node would take it again without a message. So whoever made the new token tells the silent
ones of it, again and again, until they answer, the membership drops them, or a few minutes have passed.

A4  At most `MOST` ghosts a node; the oldest is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from softmutex.core.algorithms.wandering.desk import Desk
from softmutex.core.algorithms.wandering.messages import Presence, Sight
from softmutex.core.events import SECOND, NodeId

MOST: Final = 16
EVERY: Final = 4 * SECOND
TIMES: Final = 75


class Ghosts:
    __slots__ = ("desk", "nodes")

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.nodes: dict[NodeId, tuple[int, int]] = {}  # node -> (slot, how often it is told yet)

    def haunt(self, slot: int, silent: Sequence[NodeId]) -> None:
        for node in silent:
            self.nodes[node] = (slot, TIMES)
        while len(self.nodes) > MOST:
            del self.nodes[next(iter(self.nodes))]
        if self.nodes:
            self.desk.timer("ghosts", self.desk.now + EVERY)

    def answer(self, node: NodeId) -> None:
        """It speaks: now it will hear."""
        slot, _ = self.nodes.pop(node)
        self._tell(node, slot)

    def forget(self, node: NodeId) -> None:
        self.nodes.pop(node, None)

    def fired(self) -> None:
        for node, (slot, times) in list(self.nodes.items()):
            self._tell(node, slot)
            if times > 1:
                self.nodes[node] = (slot, times - 1)
            else:
                del self.nodes[node]
        if self.nodes:
            self.desk.timer("ghosts", self.desk.now + EVERY)

    def _tell(self, node: NodeId, slot: int) -> None:
        self.desk.post(node, Sight(0, slot, self.desk.best.get(slot), Presence.ABSENT, False))
