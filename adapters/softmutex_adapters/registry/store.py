"""What a store of the registry must promise: the members of each group, a version for each group, a few secrets.

What it decides: a store is asked when something changes, and at no other time. The naive way, a key with a time to live
for each member that every heartbeat renews, makes the store the busiest part of the house and its outage everybody's.
Leases are counted by the registry that hears the heartbeats (`owner`); a store only knows which registries live.

    join, leave, expiry --commit--> store --version--> the registry that asked tells its watchers
                                      `--changed--> other registries read, and tell theirs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.ports import Member
from softmutex.urls import without_secrets

DEFAULT = "sqlite:softmutex-registry.db"
INSTANCE_LIVES_S = 10.0  # a registry that does not `beat` for so long is dead to the others
BEAT_S = 2.5
# These begin the lease of an entry that is no member but a note of the registry's own; no member can have such a lease.
BAN = "!ban:"  # `bans.py`
ENROLLED = "!id:"  # an identity that may be certified, `enrolment.py`
INVITED = "!in:"  # one that may enrol itself
NOTES = (BAN, ENROLLED, INVITED)
ALONE = ""  # the owner, where a store belongs to one registry
# scheme -> module, class, how it is written; each class has a classmethod `from_url`
STORES = {
    "sqlite": ("sqlite_store", "SqliteStore", "sqlite:PATH"),
    "redis": ("redis_store", "RedisStore", "redis://host:6379/0"),
    "rediss": ("redis_store", "RedisStore", "rediss://host:6379/0"),
    "etcd": ("etcd_store", "EtcdStore", "etcd://host:2379,host2:2379"),
}
FORMS = [form for _, _, form in STORES.values()]


class StoreFailed(SoftMutexError, OSError):
    """The store cannot do what it was asked; the message is for the operator, and names the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    member: Member
    owner: str  # the registry that hears this member's heartbeats
    proof: str = ""  # of the group's key; only its members can tell whether it is one


class Stored(NamedTuple):
    version: int
    entries: dict[str, Entry]  # by lease, in the order of joining


class Committed(NamedTuple):
    previous: int  # the version that was changed: another than expected where another registry was faster
    version: int


class Store(Protocol):
    """S1  What `commit` returned for is there after a kill -9 of the registry, whole.
    S2  A version is larger than all that this group had, than `at_least`, and than those of any lost store (W2).
    S3  `read` shows a group as it was at the version that it tells: all commits up to it, none after it.
    S4  Whatever goes wrong is `StoreFailed`, within seconds, and the next call may work again.
    S5  `changed` waits until another registry changed a group and names it; None: any of them may have changed.
        Cancelling it loses nothing.
    S6  Of several `offer`s of one name the first one wins, and all are given its value.
    S7  `beat` says that `instance` lives, and tells which do.
    S8  After `aclose` no task, thread or socket of its own is left.

    Prove it: subclass `StoreContract` in tests/registry/store_contract.py.
    """

    shared: bool  # several registries may use it at once

    async def open(self) -> None: ...

    async def groups(self) -> list[str]: ...

    async def read(self, group: str) -> Stored | None: ...

    async def commit(self, group: str, changes: Mapping[str, Entry | None], at_least: int = 0) -> Committed: ...

    async def forget(self, group: str) -> None:
        """Drops a group, if it has no members."""
        ...

    async def offer(self, name: str, value: bytes) -> bytes: ...

    async def beat(self, instance: str) -> frozenset[str]: ...

    async def changed(self) -> str | None: ...

    async def aclose(self) -> None: ...


def open_store(url: str) -> Store:
    """The store that `url` stands for, not yet opened."""
    scheme = url.partition(":")[0]
    if scheme not in STORES:
        raise ConfigError(
            f"--store {without_secrets(url)}: there is no store {scheme!r}. Write one of {', '.join(FORMS)}."
        )
    module, name, _ = STORES[scheme]
    found: Any = getattr(import_module(f"softmutex_adapters.registry.{module}"), name)
    return cast("Callable[[str], Store]", found.from_url)(url)


def next_version(previous: int, at_least: int) -> int:
    """Grows by one at least, and outruns whatever was handed out before the store was lost (S2, W2)."""
    return max(previous + 1, at_least + 1, time.time_ns() // 1_000_000)
