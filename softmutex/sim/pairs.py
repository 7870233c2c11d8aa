"""Two holds of one slot that ran at once: what `bounds.py` notes of them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TypeAlias

from softmutex.core.events import Duration, Instant, NodeId, RequestId
from softmutex.sim.checkers import NOT_YET
from softmutex.sim.node import NEVER, Running

RECALLED, RECALLED_OF_ONE = 48, 16  # turns of all and holds of a node, back from when two could talk (`evidence.A4`)


class Pair:
    """Two holds of one slot that ran at once."""

    __slots__ = ("at", "first", "judged", "reported", "second", "talk_since", "until")

    def __init__(self, at: Instant, first: Running, second: Running, talk_since: Instant | None) -> None:
        self.at = at
        self.until = NOT_YET
        self.first = first
        self.second = second
        self.talk_since = talk_since  # None while they cannot
        self.judged = False
        self.reported: dict[NodeId, Duration] = {}  # how long each of them says that it was, at last

    @property
    def told_at(self) -> Instant:
        """When the second of them was told."""
        return max(_told_at(self.first), _told_at(self.second))

    def ends(self) -> tuple[tuple[Running, Running], tuple[Running, Running]]:
        return (self.first, self.second), (self.second, self.first)


def _told_at(running: Running) -> Instant:
    if running.lost_at != NEVER:
        return running.lost_at
    return running.start if running.told else NOT_YET


Named: TypeAlias = tuple[NodeId, RequestId, NodeId, RequestId]  # as a report names a pair of holds


def name_of(mine: Running, other: Running) -> Named:
    return (mine.node, mine.request, other.node, other.request)


def share_a_slot(one: Running, other: Running) -> bool:
    slots = {right.slot for right in one.rights}
    return any(right.slot in slots for right in other.rights)


class Memory:
    """When turns and each node's holds began: what is so long ago that nobody has to remember it."""

    def __init__(self) -> None:
        self.turns = array("q")
        self._holds: dict[NodeId, array[int]] = {}

    def held(self, at: Instant, node: NodeId) -> None:
        self._holds.setdefault(node, array("q")).append(at)

    def has_lost(self, pair: Pair) -> bool:
        """Whether so much happened before the two could talk that what they know of it may be forgotten."""
        asked = max(pair.until, pair.talk_since or 0)

        def since(when: array[int]) -> int:
            return bisect_right(when, asked) - bisect_right(when, pair.until)

        of_one = max(since(self._holds[running.node]) for running in (pair.first, pair.second))
        return since(self.turns) > RECALLED or of_one > RECALLED_OF_ONE
