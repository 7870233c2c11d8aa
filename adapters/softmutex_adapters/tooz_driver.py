"""tooz: its locks, leaders and groups, on a soft mutex. `tooz.coordination.get_coordinator("softmutex://nightly", id)`.

    softmutex://GROUP?transport=udp://0.0.0.0:9431&membership=static://a:9431,b:9431&key_file=/etc/softmutex/group.key

What the URL does not say, the environment and `softmutex.toml` do; without anything the processes of one user on one
host meet. A coordinator is one node, named after its member. `is_still_owner` is False as soon as the hold is lost, and
`break_` ends the hold of whoever has the lock (`softmutex evict`). Who watches to be elected runs for it whenever it
runs its watchers, by `Node.lead`; it leads until it stands down, stops or dies.

What it decides: a lock here is soft, and a lock of tooz does not say what it is. Where an overlap would corrupt data,
use a backend with consensus. Shared locks are `tooz.NotImplemented`. Groups are what their members tell
(`tooz_groups`): each call asks all coordinators that are there, a round trip; who makes or deletes one does so under a
soft mutex. No heartbeat is wanted: a member is in a group until it leaves, or its node is gone or silent.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult

import tooz
from tooz import coordination, locking, utils

from softmutex import AcquireTimeout, ConfigError, SoftMutexError, sync
from softmutex.core.events import LostReason
from softmutex.runtime.blocking import BlockingMutex
from softmutex_adapters.tooz_groups import GROUPS_MAX, Register

NAME_MAX: Final = 64
HEARTBEAT_S: Final = 60.0  # the node lives on a thread of its own and needs none; each spreads what groups there are
GROUPS: Final = "tooz groups"  # the topic of their notes, and the mutex of who makes or deletes one
PATIENCE_S: Final = 30.0  # with that mutex: what its users do takes milliseconds


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
    """What was done when it was asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: tooz.ToozError | None = None
        try:
            self._value = work()
        except tooz.ToozError as error:
            self._error = error
        except SoftMutexError as error:
            self._error = coordination.ToozConnectionError(str(error))

    def get(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
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


class SoftMutexDriver(coordination.CoordinationDriverCachedRunWatchers):  # type: ignore[misc]
    CHARACTERISTICS = (
        coordination.Characteristics.NON_TIMEOUT_BASED,
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
        self._member_id = member_id.encode() if isinstance(member_id, str) else member_id
        self._name = self._member_id.decode(errors="replace")[:NAME_MAX]
        self._mistaken = parsed_url.port is not None or parsed_url.path not in ("", "/")
        self._node = sync.Node(**{"name": self._name, **said})
        self._locks: list[SoftMutexLock] = []
        self._leases: dict[bytes, sync.Hold] = {}
        self._one_at_a_time = threading.RLock()
        self._register = Register(text_of(self._member_id))

    def _start(self) -> None:
        if self._mistaken:
            raise coordination.ToozConnectionError(
                "softmutex:// names a group of members, and no server with a port or a path. Where the members meet is "
                "in its query: softmutex://GROUP?membership=...&transport=..."
            )
        try:
            self._node.open()
        except (SoftMutexError, OSError) as error:
            raise coordination.ToozConnectionError(str(error)) from error
        self._register = Register(text_of(self._member_id))
        self._read()

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

    # --- groups -----------------------------------------------------------------------------------------------------

    def _read(self) -> Register:
        with self._one_at_a_time:
            self._register.merge(self._node.notes(GROUPS).values())
            self._write()
            return self._register

    def _write(self) -> None:
        self._node.note(GROUPS, self._register.note())

    def _existing(self, group_id: bytes | str) -> Register:
        register = self._read()
        if not register.exists(text_of(group_id)):
            raise coordination.GroupNotCreated(group_id)
        return register

    def _stays(self, group_id: bytes | str, member_id: bytes | str) -> str:
        """The capabilities of a member."""
        there = self._existing(group_id).members_of(text_of(group_id))
        if text_of(member_id) not in there:
            raise coordination.MemberNotJoined(group_id, member_id)
        return there[text_of(member_id)].capabilities

    def _change(self, work: Callable[[], None]) -> Done:
        """One coordinator at a time, as far as a soft mutex goes."""

        def alone() -> None:
            with self._one_at_a_time, self._node.mutex(GROUPS).hold(timeout=PATIENCE_S):
                work()
                self._write()

        return Done(alone)

    def create_group(self, group_id: bytes) -> Done:
        def create() -> None:
            if self._read().exists(text_of(group_id)):
                raise coordination.GroupAlreadyExist(group_id)
            if len(self._register.groups) >= GROUPS_MAX:
                raise tooz.ToozError(f"there are {GROUPS_MAX} groups, and no room for more")
            self._register.turn_group(text_of(group_id))

        return self._change(create)

    def delete_group(self, group_id: bytes) -> Done:
        def delete() -> None:
            if self._existing(group_id).members_of(text_of(group_id)):
                raise coordination.GroupNotEmpty(group_id)
            self._register.turn_group(text_of(group_id))

        return self._change(delete)

    def get_groups(self) -> Done:
        return Done(lambda: [bytes_of(name) for name in self._read().groups if self._register.exists(name)])

    def join_group(self, group_id: bytes, capabilities: Any = None) -> Done:
        def join() -> None:
            there = self._existing(group_id).members_of(text_of(group_id))
            if text_of(self._member_id) in there:
                raise coordination.MemberAlreadyExist(group_id, self._member_id)
            self._tell(group_id, capabilities)
            self._joined_groups.add(group_id)

        return self._change(join)

    def leave_group(self, group_id: bytes) -> Done:
        def leave() -> None:
            with self._one_at_a_time:
                self._stays(group_id, self._member_id)
                self._register.stay(text_of(group_id), False)
                self._write()
                self._joined_groups.discard(group_id)

        return Done(leave)

    def update_capabilities(self, group_id: bytes, capabilities: Any) -> Done:
        def update() -> None:
            with self._one_at_a_time:
                self._stays(group_id, self._member_id)
                self._tell(group_id, capabilities)

        return Done(update)

    def _tell(self, group_id: bytes | str, capabilities: Any) -> None:
        """That it is in the group. Where that does not fit into a note, all is as it was."""
        before = dict(self._register.stays)
        self._register.stay(text_of(group_id), True, packed(capabilities))
        try:
            self._write()
        except ConfigError as error:
            self._register.stays = before
            self._write()
            raise tooz.ToozError(f"the capabilities of {self._name} in all its groups are too long: {error}") from error

    def get_members(self, group_id: bytes) -> Done:
        return Done(lambda: {bytes_of(member) for member in self._existing(group_id).members_of(text_of(group_id))})

    def get_member_capabilities(self, group_id: bytes, member_id: bytes) -> Done:
        return Done(lambda: unpacked(self._stays(group_id, member_id)))

    def get_member_info(self, group_id: bytes, member_id: bytes) -> Done:
        return Done(lambda: {"capabilities": unpacked(self._stays(group_id, member_id))})

    def get_members_with_capabilities(self, group_id: bytes) -> Done:
        def found() -> dict[bytes, Any]:
            there = self._existing(group_id).members_of(text_of(group_id))
            return {bytes_of(member): unpacked(stay.capabilities) for member, stay in there.items()}

        return Done(found)

    # --- elections --------------------------------------------------------------------------------------------------

    def watch_elected_as_leader(self, group_id: bytes, callback: Any) -> None:
        if self._member_id != self._name.encode():
            raise tooz.ToozError(
                f"the id {self._member_id!r:.100} is no name of a leader: take at most {NAME_MAX} letters of UTF-8"
            )
        super().watch_elected_as_leader(group_id, callback)

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        return [*super().run_watchers(timeout), *self._run_for_election()]

    def _run_for_election(self) -> list[Any]:
        found: list[Any] = []
        for group_id in list(self._hooks_elected_leader):
            if self._is_elected(group_id):
                event = coordination.LeaderElected(group_id, self._member_id)
                found += self._hooks_elected_leader[group_id].run(event)
        return found

    def run_elect_coordinator(self) -> None:
        self._run_for_election()

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
        return Done(lambda: None if leader is None else leader.encode())

    def heartbeat(self) -> float:
        self._read()
        return HEARTBEAT_S


def text_of(id: bytes | str) -> str:
    """Of bytes, whichever they are, and back."""
    return (id.encode() if isinstance(id, str) else bytes(id)).decode("latin-1")


def bytes_of(text: str) -> bytes:
    return text.encode("latin-1", errors="replace")


def packed(capabilities: Any) -> str:
    return base64.b64encode(utils.dumps(capabilities)).decode()


def unpacked(capabilities: str) -> Any:
    try:
        return utils.loads(base64.b64decode(capabilities))
    except ValueError as error:
        raise coordination.SerializationError(str(error)) from error
