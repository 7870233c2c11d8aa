"""What two lives share that nobody else has, not even who has the group's key: a secret of each pair of identities.

    A --HELLO: certificate, half of A, signed------------------------> B   knows A's half
    A <--WELCOME: certificate, half of B, mark of A's half, signed---- B   A knows B's half, and that B knows A's
    A --anything, sealed with what the two halves give---------------> B   ... and so does B now: it does the same

What it decides: whose frames are sealed with more than the group's key. That key lets everybody who has it speak in
everybody's name; a signature under each frame would cost 80 us each. So each life has one X25519 key, shows its public
half beside its certificate wherever it signs (`identity.py`), and from then on one agreement a pair does for all frames
what a signature does for one. The naive way, to use it as soon as one has the other's half, loses frames: the other
one may not have ours. So what is sent is signed until it is known that it has.

    pair key = HKDF-SHA256(group key | X25519, salt = "softmutex 1 pair",
                           info = key id (u8) | sender (u64) | receiver (u64) | the sender's half | the receiver's half
                                  | group in UTF-8, 64 bytes)

E1  A pair key needs the group's key and one of the two private halves, which never leave the life that made them: what
    was recorded cannot be read, or spoken, by who gets hold of keys and identities later.
E2  A life has one identity and one half for all its time: who signs under the id of another is refused. What a banned
    identity has said of itself is void.
E3  Memory: one entry for each sender that the seal remembers (`replays.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container

from softmutex.core.events import NodeId

HALF = 32
MARK = 8
SHOWN = HALF + MARK


class Session:
    __slots__ = ("half", "identity", "is_known_there", "is_spoken", "shared")

    def __init__(self, identity: bytes, half: bytes, shared: bytes) -> None:
        self.identity = identity
        self.half = half  # theirs
        self.shared = shared
        self.is_known_there = False  # they have ours
        self.is_spoken = False  # they have sealed with it


class Sessions:
    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        self._read_half = X25519PublicKey.from_public_bytes
        self._own = X25519PrivateKey.generate()
        self.half = self._own.public_key().public_bytes_raw()
        self._mark = mark(self.half)
        self._of: dict[NodeId, Session] = {}

    def get(self, peer: NodeId) -> Session | None:
        return self._of.get(peer)

    def shown_to(self, peer: NodeId) -> bytes:
        session = self._of.get(peer)
        return self.half + (bytes(MARK) if session is None else mark(session.half))

    def objection(self, peer: NodeId, identity: bytes, shown: bytes) -> str:
        """Why a life cannot be whom this signature says; "" where it can."""
        known = self._of.get(peer)
        if known is not None and (known.identity, known.half) != (identity, shown[:HALF]):
            return "shows another identity or another key than the life of that id did before"
        if known is None and not self._agree(shown[:HALF]):
            return "shows a key that is none"
        return ""

    def met(self, peer: NodeId, identity: bytes, shown: bytes) -> None:
        """It has shown that, and signed it."""
        session = self._of.get(peer)
        if session is None:
            session = self._of[peer] = Session(identity, shown[:HALF], self._agree(shown[:HALF]))
        session.is_known_there = shown[HALF:] == self._mark

    def spoken(self, peer: NodeId) -> None:
        session = self._of[peer]
        session.is_known_there = session.is_spoken = True

    def forget(self, but: Container[NodeId]) -> None:
        self._of = {peer: session for peer, session in self._of.items() if peer in but}

    def strike(self, identities: Collection[int | bytes]) -> None:
        self._of = {peer: each for peer, each in self._of.items() if each.identity not in identities}

    def _agree(self, half: bytes) -> bytes:
        """Nothing where the half is one of the few that agree with everything on nothing."""
        try:
            return self._own.exchange(self._read_half(half))
        except ValueError:
            return b""


def mark(half: bytes) -> bytes:
    return hashlib.blake2b(half, digest_size=MARK, person=b"half").digest()
