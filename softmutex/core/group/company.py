"""The members of a group as one node knows them, and nothing of why they are members.

B1  `members` is sorted, has this node in it, and is one list for ever: machines hold it (machine.D5).
B2  `digest` belongs to a set of members, whoever has it: the same set, the same digest; another one, another.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from softmutex.core.events import NOBODY, Instant, NodeId
from softmutex.core.group.effects import Listed
from softmutex.core.tuples import NamedTuple

_U64: Final = (1 << 64) - 1


class KnownPeer:
    __slots__ = ("address", "by", "direct_at", "direct_nonce", "direct_proved_at", "heard_at", "id", "listed", "name")

    def __init__(self, place: Listed) -> None:
        self.id = place.id
        self.address = place.address  # where its last frame came from; where it is listed, before the first one
        self.name = place.name
        self.listed: Listed | None = None  # as the membership shows it now
        self.heard_at: Instant = 0
        self.by: NodeId = NOBODY  # by whose way it is reached; `ways.py` alone assigns these
        self.direct_at: Instant = 0  # when it was last tried without,
        self.direct_nonce = 0  # ... and with what,
        self.direct_proved_at: Instant = 0  # ... and when that was last answered


class PeerView(NamedTuple):
    """A member, as it is shown to people."""

    id: NodeId
    name: str
    address: str
    heard_at: Instant  # 0: never
    is_suspected: bool
    is_silent: bool
    by: NodeId


class Company:
    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.members: list[NodeId] = [me]
        self.peers: dict[NodeId, KnownPeer] = {}  # the others
        self.digest = mix(me)
        self._at: dict[str, KnownPeer] = {}  # who was heard last at an address

    def at(self, address: str) -> KnownPeer | None:
        return self._at.get(address)

    def heard_at(self, node: NodeId) -> Instant:
        peer = self.peers.get(node)
        return 0 if peer is None else peer.heard_at

    def add(self, places: Sequence[Listed]) -> None:
        for place in places:
            peer = self.peers[place.id] = KnownPeer(place)
            self._at[place.address] = peer
            self.digest ^= mix(place.id)
        if len(places) == 1:
            insort(self.members, places[0].id)
        else:
            self.members[:] = sorted({*self.members, *(place.id for place in places)})

    def remove(self, ids: Iterable[NodeId]) -> list[NodeId]:
        """Those of them that were there."""
        gone = []
        for id in ids:
            peer = self.peers.pop(id, None)
            if peer is not None:
                gone.append(id)
                self.digest ^= mix(id)
                del self.members[bisect_left(self.members, id)]
                if self._at.get(peer.address) is peer:
                    del self._at[peer.address]
        return gone

    def move(self, peer: KnownPeer, address: str) -> str:
        """The address at which nobody is known any more."""
        left = peer.address if self._at.get(peer.address) is peer else ""
        self._at.pop(left, None)
        peer.address = address
        self._at[address] = peer
        return left

    def after(self, node: NodeId, count: int) -> list[NodeId]:
        """The next members in ascending order of ids, this node not among them."""
        begin = bisect_left(self.members, node + 1)
        return [id for id in self.members[begin : begin + count + 1] if id != self.me][:count]

    def namesakes(self, own: str) -> list[KnownPeer]:
        """Who has the name of another one, or of this node."""
        seen, found = {own}, []
        for peer in self.peers.values():
            if peer.name in seen:
                found.append(peer)
            elif peer.name:
                seen.add(peer.name)
        return found

    def sights(self, is_suspected: Callable[[NodeId], bool], is_silent: Callable[[NodeId], bool]) -> list[PeerView]:
        return [
            PeerView(
                peer.id,
                peer.name,
                peer.address,
                peer.heard_at,
                is_suspected(peer.id),
                is_silent(peer.id),
                peer.by,
            )
            for peer in sorted(self.peers.values(), key=lambda peer: (peer.name, peer.id))
        ]

    def call(self, id: NodeId) -> str:
        """How people call a node."""
        peer = self.peers.get(id)
        return f"{peer.name or 'a node'} at {peer.address}" if peer else f"node {id:x}"


def mix(id: NodeId) -> int:
    """So that sets of neighbouring numbers, as the simulator has them, differ in their digests too (splitmix64)."""
    value = (id + 0x9E3779B97F4A7C15) & _U64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _U64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _U64
    return value ^ value >> 31
