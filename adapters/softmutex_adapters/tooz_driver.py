"""tooz: its locks and leaders, on a soft mutex. `tooz.coordination.get_coordinator("softmutex://nightly", member_id)`.

    softmutex://GROUP?transport=udp://0.0.0.0:9431&membership=static://a:9431,b:9431&key_file=/etc/softmutex/group.key

What the URL does not say, the environment and `softmutex.toml` do; without anything the processes of one user on one
host meet. A coordinator is one node, named after its member. `is_still_owner` is False as soon as the hold is lost, and
`break_` ends the hold of whoever has the lock (`softmutex evict`). Who watches to be elected runs for it whenever it
runs its watchers, by `Node.lead`; it leads until it stands down, stops or dies.

What it decides: a lock here is soft, and a lock of tooz does not say what it is. Where an overlap would corrupt data,
use a backend with consensus. Shared locks are `tooz.NotImplemented`, and so is what a group has members for: that wants
a store that outlives them. A group is the name of an election and no more, so `create_group` stores nothing, and may be
called or not, once or by all; what a caller would have to believe (who joined, that a group is new) is refused.
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


def election_name(group_id: bytes | str) -> str:
    """A leader's name is as long as a mutex's, less the word for it."""
    name = mutex_name(group_id)
    return name if len(name.encode()) <= NAME_MAX - 8 else hashlib.blake2b(name.encode(), digest_size=20).hexdigest()


class Done(coordination.CoordAsyncResult):  # type: ignore[misc]
    """What needed no waiting."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: float | None = None) -> Any:
        return self._value

    def done(self) -> bool:
        return True


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
        self._member, self._name = member_id, name[:NAME_MAX]
        self._locks: list[SoftMutexLock] = []
        self._leases: dict[bytes, sync.Hold] = {}

    def _start(self) -> None:
        try:
            self._node.open()
        except (SoftMutexError, OSError) as error:
            raise coordination.ToozConnectionError(str(error)) from error

    def _stop(self) -> None:
        for group_id in list(self._leases):
            self._stand_down(group_id)
        for lock in self._locks:
            lock.release()
        self._node.close()

    def get_lock(self, name: bytes) -> SoftMutexLock:
        lock = SoftMutexLock(name, self._node.mutex(mutex_name(name)))
        self._locks.append(lock)
        return lock

    # --- elections --------------------------------------------------------------------------------------------------

    def create_group(self, group_id: bytes) -> Done:
        """There is nothing to create."""
        return Done(None)

    def watch_elected_as_leader(self, group_id: bytes, callback: Any) -> None:
        if self._member not in (self._name, self._name.encode()):
            raise coordination.ToozError(
                f"the id {self._member!r:.100} cannot be shown as a leader's: take at most {NAME_MAX} letters of UTF-8"
            )
        super().watch_elected_as_leader(group_id, callback)

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        found = []
        for group_id in list(self._hooks_elected_leader):
            if self._is_elected(group_id):
                event = coordination.LeaderElected(group_id, self._member)
                found += self._hooks_elected_leader[group_id].run(event)
        return found

    def run_elect_coordinator(self) -> None:
        self.run_watchers()

    def _is_elected(self, group_id: bytes) -> bool:
        """Now, and was not before."""
        lease = self._leases.get(group_id)
        if lease is not None and not lease.lost.is_set():
            return False
        self._stand_down(group_id)
        try:
            lease = self._leadership(group_id).try_acquire()
        except SoftMutexError as error:
            raise coordination.ToozConnectionError(str(error)) from error
        if lease is not None:
            self._leases[group_id] = lease
        return lease is not None

    def _leadership(self, group_id: bytes) -> BlockingMutex:
        return self._node.lead(election_name(group_id))

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        return self._stand_down(group_id)

    def _stand_down(self, group_id: bytes) -> bool:
        lease = self._leases.pop(group_id, None)
        if lease is None:
            return False
        lease.release()
        return True

    def get_leader(self, group_id: bytes) -> Done:
        """Its id; None where nobody leads, or this coordinator has not run for it."""
        leader = self._node.leader(election_name(group_id))
        return Done(None if leader is None else leader.encode())

    def heartbeat(self) -> float:
        return HEARTBEAT_S
