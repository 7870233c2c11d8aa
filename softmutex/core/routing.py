"""Prefix routing over the membership: who answers for a key, and by which others a message gets there.

What it decides: each key belongs to the member whose spot is nearest to it on a ring of 64 bits, and a message goes
there in steps, each with one more digit in common with the key, as in Pastry and Kademlia. Everybody knows everybody
here, so a message could go straight. But then all that is wanted of a key would come to one node, and nobody in between
could answer for it (`e2e`, `non-e2e`).

The naive way, a table that joins and leaves repair by messages, is wrong until it is repaired. Here a step is computed
when it is needed, from the members as they are known now: of those that have the digit, the first one after a point of
the key's own. So the ways of all who want one key soon meet, those to different keys do not, and who comes or goes
changes only the steps that it is in. (With a point of each node's own, a node would speak with 15 others for each row
of digits and no more, but ways to one key would meet only at their end.)

    spot 3a7f.. wants b2c1.. --> b91e.. --> b2f4.. --> nobody has b2c: straight to whoever is nearest, b2bd..

P1  Each step has more digits in common with the key than the last one, or is the last: at most 16 and one, O(log N).
P2  Where two agree on who is there, they agree on whose each key is, and on each step of every other node.
P3  Who comes takes keys only from its neighbours, who goes leaves them only to its neighbours.
P4  `update` may be told the same twice, so machines that are told one after the other may share a ring.
P5  After `agree` it is the ring of those members, whatever it was told or not told before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from softmutex.core.events import NOBODY, NodeId

DIGIT: Final = 4  # bits
BITS: Final = 64
ALL: Final = (1 << BITS) - 1
HOPS_MOST: Final = BITS // DIGIT + 2  # where views differ a message could go in a circle: after so many it is dropped
OWNERS_KEPT: Final = 4096


def spot_of(number: int) -> int:
    """Where a number lies on the ring. No two lie at one spot, and neighbours are no neighbours any more."""
    number = (number + 0x9E3779B97F4A7C15) & ALL
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & ALL
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & ALL
    return number ^ number >> 31


def key_of(place: int, replica: int) -> int:
    """The key of one replica of a mutex."""
    return spot_of(spot_of(place & ALL) + replica)


class PrefixRing:
    """The members by their spots."""

    __slots__ = ("_news", "_nodes", "_owners", "_spots")

    def __init__(self, members: Iterable[NodeId]) -> None:
        self._make(members)

    def _make(self, members: Iterable[NodeId]) -> None:
        pairs = sorted((spot_of(node), node) for node in members)
        self._spots = [spot for spot, _ in pairs]
        self._nodes = [node for _, node in pairs]
        self._owners: dict[int, NodeId] = {}  # asked before, and nothing changed since
        self._news: tuple[object, object] = ((), ())  # what was told last

    def __len__(self) -> int:
        return len(self._nodes)

    def agree(self, members: Sequence[NodeId]) -> None:
        """Those are there, whatever was told before: where nobody told this ring what has changed meanwhile."""
        if len(members) != len(self._nodes) or set(members) != set(self._nodes):
            self._make(members)

    def update(self, joined: Sequence[NodeId], left: Sequence[NodeId]) -> None:
        if self._news[0] is joined and self._news[1] is left:
            return
        self._news = (joined, left)
        spots, nodes = self._spots, self._nodes
        for node in left:
            spot = spot_of(node)
            at = bisect_left(spots, spot)
            if at < len(spots) and spots[at] == spot:
                del spots[at], nodes[at]
                self._owners.clear()
        for node in joined:
            spot = spot_of(node)
            at = bisect_left(spots, spot)
            if at == len(spots) or spots[at] != spot:
                spots.insert(at, spot)
                nodes.insert(at, node)
                self._owners.clear()

    def owner(self, key: int, but: NodeId = NOBODY) -> NodeId:
        """The nearest to the key. `but`: as if that one was not there."""
        if but:
            return self._nearest(key, but)
        found = self._owners.get(key)
        if found is None:
            if len(self._owners) >= OWNERS_KEPT:
                self._owners.clear()
            found = self._owners[key] = self._nearest(key, NOBODY)
        return found

    def _nearest(self, key: int, but: NodeId) -> NodeId:
        count, at = len(self._nodes), bisect_left(self._spots, key)
        near = dict.fromkeys(step % count for step in range(at - 2, at + 2)) if count else {}
        found = [(_distance(self._spots[index], key), self._nodes[index]) for index in near]
        return min((pair for pair in found if pair[1] != but), default=(0, NOBODY))[1]

    def next_hop(self, me: NodeId, key: int) -> NodeId:
        """To whom `me` passes on what is for this key; to itself where it has arrived."""
        owner = self.owner(key)
        if owner == me:
            return me
        mine = spot_of(me)
        below = BITS - DIGIT * (_digits_in_common(mine, key) + 1)  # bits that do not matter for this step
        if below <= 0:
            return owner
        low = key >> below << below
        first, end = bisect_left(self._spots, low), bisect_left(self._spots, low + (1 << below))
        if first == end:
            return owner
        at = bisect_left(self._spots, low + (spot_of(key) >> BITS - below), first, end)
        return self._nodes[first if at == end else at]

    def path(self, me: NodeId, key: int) -> list[NodeId]:
        """All steps, as long as nobody comes or goes."""
        steps: list[NodeId] = []
        while (step := self.next_hop(steps[-1] if steps else me, key)) != (steps[-1] if steps else me):
            steps.append(step)
        return steps


def _distance(one: int, other: int) -> int:
    apart = (one - other) & ALL
    return min(apart, ALL + 1 - apart)


def _digits_in_common(one: int, other: int) -> int:
    return (BITS - (one ^ other).bit_length()) // DIGIT
