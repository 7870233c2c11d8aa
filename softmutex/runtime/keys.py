"""Which key seals the frames of a node, and whether it may do without one.

    key= or key_file=  ->  the group's key; from a file several, one a line: the first one seals, all of them open
    none, and the membership has one (local://)  ->  that one
    none at all  ->  only on this host, or with insecure=True and a warning

`keyfile.py` tells how keys are changed while everybody works.

The naive way, sealing where there is a key and plain text where there is none, lets one member that lost its key file
talk in plain text to the network, and nobody notices. There is no such fall-back: a node without a key does not start
where others could hear it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softmutex.core.errors import ConfigError
from softmutex.core.events import NodeId
from softmutex.ports import Membership, Transport, is_on_this_host
from softmutex.runtime.config import Settings, meets_nobody_else
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.runtime.identity import Identity
    from softmutex.runtime.keyfile import KeysInForce
    from softmutex.runtime.node import RunningNode
    from softmutex.runtime.sealing import Seal

log = logger("keys")


def group_keys(settings: Settings, membership: Membership) -> Sequence[bytes]:
    """The keys of the group, the one that seals first; none where the group has none."""
    given = settings["key"]
    if isinstance(given, bytes):
        return [given]
    file = key_file(settings)
    if file is not None:
        from softmutex.runtime.sealing import read_keys

        return read_keys(file, of_group=settings["key_group"])
    key = membership.group_key()
    return [] if key is None else [key]


def key_file(settings: Settings) -> Path | None:
    given: Path | bytes | None = settings["key"]
    file: Path | None = settings["key_file"] if given is None else None
    return given if isinstance(given, Path) else file


def seal_with(keys: Sequence[bytes], group: str, me: NodeId) -> Seal:
    from softmutex.runtime.sealing import KeyRing, Sealer, Unsealed  # brings `cryptography` along

    return Sealer(KeyRing.of(*keys), group, me) if keys else Unsealed(me)


def seal_again(node: RunningNode) -> None:
    """For another life: by the keys that are in force. What was refused goes on being counted."""
    before = node.seal
    node.seal = seal_with(() if node.keys is None else node.keys.in_use, node.settings["group"], node.id)
    node.seal.refusals = before.refusals
    if node.keys is not None and node.vouching is not None:
        node.vouching.begin_anew()
        node.seal.vouching = node.vouching  # type: ignore[union-attr]
    if node.keys is not None:
        node.keys.serve(node.seal)  # type: ignore[arg-type]


def in_force(node: RunningNode, keys: Sequence[bytes]) -> KeysInForce | None:
    """What changes the keys of a node that seals. Whether it does so at all does not change while it runs."""
    from softmutex.runtime.keyfile import KeysInForce
    from softmutex.runtime.sealing import Sealer

    if not isinstance(node.seal, Sealer):
        return None
    found = KeysInForce(node, node.seal, keys, key_file(node.settings))
    if (prove_by := getattr(node.membership, "prove_by", None)) is not None:
        prove_by(found)
    return found


def identify(node: RunningNode) -> Identity | None:
    """Whom a node believes, and what it signs with (`identity.py`). The papers of its own are still to come."""
    settings = node.settings
    if settings["identity"] is None and settings["authority"] is None and not settings["require_identity"]:
        return None
    from softmutex.runtime import identity

    return identity.load(node)


def check_reach(settings: Settings, transport: Transport, keys: Sequence[bytes]) -> None:
    """Refuses a node without a key where strangers could send to it, and warns of one that meets nobody."""
    if why := meets_nobody_else(settings):
        log.warning("%s", why)
    if keys or is_on_this_host(transport):
        return
    if settings["insecure"]:
        log.warning(
            "insecure=True: whoever reaches %s can take part in the group, or break it. Set SOFTMUTEX_KEY_FILE.",
            transport.address,
        )
        return
    raise ConfigError(
        f"no group key, and {transport.address} can be reached from other hosts. Give all members the same key: "
        "SOFTMUTEX_KEY_FILE=path or key=path (softmutex key new path). Or insecure=True."
    )


def fingerprint(kind: str, text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=kind.encode()).digest()
    return int.from_bytes(digest, "big")


def group_fingerprint(group: str) -> int:
    return fingerprint("group", group)


def place_of(mutex: str) -> int:
    """Where on the ring of nodes the homes of this mutex are."""
    return fingerprint("place", mutex)
