"""How a member is reached: directly, or by way of another one where the direct link is dead.

    suspected --PING, first alone, then in RELAYs by two others too--> PONG the way the PING came
                 a PONG by way of B: frames for it go by B, in RELAYs, until a PING without B is answered without B
    here      A --RELAY(C, sealed frame)--> B --RELAY(C, the same)--> C opens it as if it had come from A

What it decides: a dead link is not a dead node. The naive way, to take one's own silence for the other's death, makes
a second token in a group whose members all live and nearly all hear each other.

Y1  A way is believed after a round trip on it, and only what was sealed for this very life sets one.
Y2  Nothing about an address is learnt from what came by way of another.
Y3  A frame takes one step at most, between members; so many a second.
"""

from __future__ import annotations

from typing import Final, Protocol

from softmutex.core.chance import Rng, drawn
from softmutex.core.events import NOBODY, SECOND, Duration, Instant, NodeId
from softmutex.core.group.company import Company, KnownPeer
from softmutex.core.group.effects import Drop, Mail, Unwrap
from softmutex.core.machine import pick_other
from softmutex.core.messages import Ping, Pong, Relay

RELAYS: Final = 2
RELAYS_A_SECOND: Final = 1000
DIRECT_AGAIN: Final[Duration] = 5 * SECOND
PROVED_FOR: Final[Duration] = SECOND  # the other side may not know yet that the direct way works


class WaysOwner(Protocol):
    def put(self, effect: Mail | Unwrap | Drop) -> None: ...

    def is_silent(self, node: NodeId) -> bool: ...

    def is_within(self, what: str, most: int, now: Instant) -> bool:
        """A bound on what others can make this node do in a second."""
        ...


class Ways:
    def __init__(self, owner: WaysOwner, company: Company, rng: Rng) -> None:
        self._owner = owner
        self._company = company
        self._rng = rng

    def route(self, node: NodeId, now: Instant) -> tuple[str, NodeId] | None:
        """The address to send a frame for it to, and in whose RELAY (NOBODY: as it is)."""
        peer = self._company.peers.get(node)
        if peer is None:
            return None
        if peer.by:
            relay = self._company.peers.get(peer.by)
            if relay is not None:
                if now - peer.direct_at >= DIRECT_AGAIN:
                    self._try_direct(peer, now)
                return relay.address, relay.id
            peer.by = NOBODY
        return peer.address, NOBODY

    def ping(self, node: NodeId, nonce: int, tries: int, now: Instant) -> None:
        """Of a suspicion: by every way there is, from the second time on."""
        peer, message = self._company.peers[node], Ping(nonce)
        peer.direct_at = now
        self._owner.put(Mail(peer.address, node, message))
        if peer.listed is not None and peer.listed.address != peer.address:
            self._owner.put(Mail(peer.listed.address, node, message))
        if peer.by or tries > 1:
            for relay in self._relays(peer):
                self._owner.put(Mail(relay.address, node, message, by=relay.id))

    def answer(self, sender: NodeId, ping: Ping, source: str, by: NodeId) -> None:
        relay = self._company.peers.get(by)
        if not by:
            self._owner.put(Mail(source, sender, Pong(ping.nonce)))
        elif relay is not None:
            self._owner.put(Mail(relay.address, sender, Pong(ping.nonce), by=by))

    def answered(self, sender: NodeId, nonce: int, by: NodeId, now: Instant, *, of_suspicion: bool) -> None:
        peer = self._company.peers[sender]
        if of_suspicion:
            peer.by = by
        elif peer.direct_nonce == nonce and not by:
            peer.by = NOBODY
        if not peer.by:
            peer.direct_proved_at = now

    def came_by(self, peer: KnownPeer, by: NodeId, now: Instant) -> None:
        """It goes to the trouble of a relay, so it is answered on the same way, and the direct one is tried."""
        if peer.by != by and now - peer.direct_proved_at >= PROVED_FOR:
            peer.by = by
            self._try_direct(peer, now)

    def lost(self, node: NodeId) -> None:
        """None of its ways works: it is asked on the direct one."""
        self._company.peers[node].by = NOBODY

    def pass_on(self, sender: NodeId, relay: Relay, by: NodeId, now: Instant) -> None:
        peers, owner = self._company.peers, self._owner
        if by or sender not in peers:
            owner.put(Drop("relays of strangers"))
        elif relay.to == self._company.me:
            owner.put(Unwrap(relay.frame, sender))
        elif relay.to not in peers:
            owner.put(Drop("relays to nobody"))
        elif owner.is_within("relays", RELAYS_A_SECOND, now):
            owner.put(Mail(peers[relay.to].address, relay.to, relay))

    def _relays(self, peer: KnownPeer) -> list[KnownPeer]:
        """The one that served last, and others at random."""
        company = self._company
        chosen = [company.peers[peer.by]] if peer.by in company.peers else []
        for _ in range(4 * RELAYS):
            relay = company.peers.get(pick_other(company.members, company.me, self._rng))
            is_fit = relay is not None and relay is not peer and relay not in chosen and not relay.by
            if relay is not None and is_fit and not self._owner.is_silent(relay.id) and len(chosen) < RELAYS:
                chosen.append(relay)
        return chosen

    def _try_direct(self, peer: KnownPeer, now: Instant) -> None:
        peer.direct_at, peer.direct_nonce = now, drawn(self._rng) | 1
        self._owner.put(Mail(peer.address, peer.id, Ping(peer.direct_nonce)))
