"""tooz: its locks, on a soft mutex. `tooz.coordination.get_coordinator("softmutex://nightly", member_id)`.

    softmutex://GROUP?transport=udp://0.0.0.0:9431&membership=static://a:9431,b:9431&key_file=/etc/softmutex/group.key

What the URL does not say, the environment and `softmutex.toml` do; without anything the processes of one user on one
host meet. A coordinator is one node, named after its member. `is_still_owner` is False as soon as the hold is lost, and
`break_` ends the hold of whoever has the lock (`softmutex evict`).

What it decides: a lock here is soft, and a lock of tooz does not say what it is. Where an overlap would corrupt data,
use a backend with consensus. Shared locks, and groups, which want a store that outlives their members, are
`tooz.NotImplemented`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult

import tooz
from tooz import coordination, locking

from softmutex import AcquireTimeout, SoftMutexError, sync
from softmutex.core.events import LostReason
from softmutex.runtime.blocking import BlockingMutex

NAME_MAX: Final = 64
HEARTBEAT_S: Final = 60.0  # the node lives on a thread of its own, and needs none


def mutex_name(name: bytes | str) -> str:
    """The same for all members; names that are too long, or no text, by their digest."""
    raw = name.encode() if isinstance(name, str) else bytes(name)
    try:
        if len(raw) <= NAME_MAX:
            return raw.decode()
    except UnicodeDecodeError:
        pass
    return hashlib.blake2b(raw, digest_size=20).hexdigest()


class SoftMutexLock(locking.Lock):  # type: ignore[misc]
    def __init__(self, name: bytes, mutex: BlockingMutex) -> None:
        super().__init__(name)
        self._mutex = mutex
        self._hold: sync.Hold | None = None
        self._guard = threading.Lock()

    def acquire(self, blocking: bool | float = True, shared: bool = False, timeout: float | None = None) -> bool:
        if shared:
            raise tooz.NotImplemented("a soft mutex has no shared locks; slots= lets several in")
        limit_s = timeout if blocking is True else float(blocking)
        try:
            hold = self._mutex.acquire(limit_s)
        except AcquireTimeout:
            return False
        except SoftMutexError as error:
            raise coordination.ToozConnectionError(str(error)) from error
        with self._guard:
            self._hold = hold
        return True

    def release(self) -> bool:
        with self._guard:
            hold, self._hold = self._hold, None
        if hold is None:
            return False
        was_broken = hold.lost_reason is LostReason.EVICTED
        hold.release()
        return not was_broken

    def is_still_owner(self) -> bool:
        hold = self._hold
        return hold is not None and not hold.lost.is_set()

    @property
    def acquired(self) -> bool:
        return self._hold is not None

    def break_(self) -> bool:
        return self._mutex.evict("broken by way of tooz") > 0


class SoftMutexDriver(coordination.CoordinationDriver):  # type: ignore[misc]
    CHARACTERISTICS = (
        coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS,
        coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS,
    )

    def __init__(
        self, member_id: bytes, parsed_url: SplitResult, options: Mapping[str, Sequence[str]], *more: Any
    ) -> None:
        super().__init__(member_id, parsed_url, options, *more)
        said: dict[str, Any] = {name: values[-1] for name, values in options.items()}
        if parsed_url.netloc:
            said["group"] = parsed_url.netloc
        name = member_id.decode(errors="replace") if isinstance(member_id, bytes) else str(member_id)
        self._node = sync.Node(**{"name": name[:NAME_MAX], **said})
        self._locks: list[SoftMutexLock] = []

    def _start(self) -> None:
        try:
            self._node.open()
        except (SoftMutexError, OSError) as error:
            raise coordination.ToozConnectionError(str(error)) from error

    def _stop(self) -> None:
        for lock in self._locks:
            lock.release()
        self._node.close()

    def get_lock(self, name: bytes) -> SoftMutexLock:
        lock = SoftMutexLock(name, self._node.mutex(mutex_name(name)))
        self._locks.append(lock)
        return lock

    def heartbeat(self) -> float:
        return HEARTBEAT_S
