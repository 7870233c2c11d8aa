"""Somebody inside: has the group's key, and perhaps a certificate; says in anybody's name what the test wants."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from softmutex import Node
from softmutex.core.events import NodeId
from softmutex.core.messages import Message
from softmutex.core.wire import HEADER_SIZE, Frame, write_body
from softmutex.ports import CannotOpen
from softmutex.runtime import keyfile
from softmutex.runtime.identity import Vouching, issue
from softmutex.runtime.keys import group_fingerprint
from softmutex.runtime.sealing import KeyRing, Sealer, key_id, read_keys
from softmutex.testing import MemoryMembership, MemoryNetwork
from tests.wire import by_hand

KEY = bytes(range(32))
AUTHORITY = Vouching(group=0, authority=b"", authority_group="lab", required=False, secret=bytes(range(1, 33)))


def papers(number: int, *, required: bool = True, until_s: int = 3600) -> Vouching:
    """An identity, as the authority of these tests certifies it."""
    vouching = Vouching(
        group=group_fingerprint("default"),
        authority=AUTHORITY.public,
        authority_group="lab",
        required=required,
        secret=bytes([number]) * 32,
    )
    now = int(time.time())
    vouching.adopt(issue(AUTHORITY.prove, f"m{number}", vouching.public, "lab", now - 7200, now + until_s))
    return vouching


def certified(me: NodeId, number: int, **how: bool) -> Sealer:
    """The seal of a life with the identity of that number."""
    sealer = Sealer(KeyRing.of(KEY), "default", me)
    sealer.vouching = papers(number, **how)
    return sealer


class Certifying(MemoryMembership):
    """Shows who is on a network in memory, certifies whoever is not banned, and tells of bans."""

    group = "lab"
    public_key = AUTHORITY.public

    def __init__(self, network: MemoryNetwork, banned: set[bytes]) -> None:
        super().__init__(network)
        self.banned_by_all = banned  # shared by all members

    @property
    def banned(self) -> frozenset[int | bytes]:
        return frozenset(self.banned_by_all)

    async def certify(self, name: str, public: bytes, proof: bytes) -> bytes:
        if public in self.banned_by_all:
            raise CannotOpen("banned.")
        now = int(time.time())
        return issue(AUTHORITY.prove, name, public, "lab", now, now + 86_400)


def member(network: MemoryNetwork, folder: Path, name: str, banned: set[bytes], **options: Any) -> Node:
    """A node with an identity, which takes in only such."""
    file = folder / f"{name}.identity"
    if not file.exists():
        keyfile.make(file)
    membership = Certifying(network, banned)
    given = {"key": KEY, "identity": file, "require_identity": True, "name": name, **options}
    return Node(transport=network.transport(name), membership=membership, **given)


def public_of(folder: Path, name: str) -> bytes:
    [secret] = read_keys(folder / f"{name}.identity")
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def in_the_name_of(
    sender: NodeId, counter: int, receiver: NodeId, message: Message, mutex: str = "", key: bytes = KEY
) -> bytes:
    """What everybody can seal who has the group's key: it is enough for any name and any counter."""
    frame = Frame(sender, receiver, mutex, message)
    return by_hand.seal(write_body(frame), key, key_id(key), sender, counter, "default")


class Insider:
    """With the group's key, on a network in memory."""

    def __init__(self, network: MemoryNetwork, address: str = "insider") -> None:
        self._transport = network.transport(address)

    async def __aenter__(self) -> Insider:
        await self._transport.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._transport.aclose()

    def send(self, to: str, frame: bytes) -> None:
        assert len(frame) > HEADER_SIZE
        self._transport.send(to, frame)
