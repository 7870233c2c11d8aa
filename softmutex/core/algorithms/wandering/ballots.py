"""Who may make a token, as far as this node has a say: one node at a time, and only the first home that is there.

A home that another node calls silent may only be silent for that one. So the group is asked (`Suspect`): when it knows
that the home is dead or silent, the next one is the first; while it says nothing, we wait for a moment.

A4  One promise a slot, and one home that is waited for.
"""

from __future__ import annotations

from typing import Final

from softmutex.core.algorithms.wandering.desk import Desk
from softmutex.core.algorithms.wandering.settings import PROMISE, PROMISE_TRIPS, SUSPICION
from softmutex.core.events import NOBODY, SECOND, Instant, NodeId

WAIT_FOR_HOME: Final = 4 * SECOND  # whom others call silent, and the group does not tell of


class Ballots:
    __slots__ = ("_desk", "_promises", "_waited_for")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._promises: dict[int, tuple[NodeId, Instant]] = {}  # slot -> to whom, until when
        self._waited_for: tuple[NodeId, Instant] = (NOBODY, 0)  # a home that others want to stand in for, since when

    def is_next(self, node: NodeId) -> bool:
        home, since = self._desk.home, self._waited_for[1]
        if home in (node, NOBODY) or not self._desk.is_member(node):
            return True
        if home == self._desk.me:
            return False
        self._desk.suspicious(home)
        if self._waited_for[0] != home or self._desk.now - since > SUSPICION:
            self._waited_for = (home, self._desk.now)
            return False
        return self._desk.now - since > WAIT_FOR_HOME and self._desk.heard.get(home, 0) < since

    def promise(self, slot: int, node: NodeId) -> bool:
        """Whether it has ours now."""
        if node in self._desk.deaf:
            return False
        holder, until = self._promises.get(slot, (node, 0))
        if holder != node and until > self._desk.now:
            return False
        self._promises[slot] = (node, self._desk.now + max(PROMISE, PROMISE_TRIPS * self._desk.rto))
        return True

    def release(self, slot: int, node: NodeId) -> None:
        if self._promises.get(slot, (NOBODY, 0))[0] == node:
            del self._promises[slot]

    def departed(self, node: NodeId) -> None:
        for slot in list(self._promises):
            self.release(slot, node)
