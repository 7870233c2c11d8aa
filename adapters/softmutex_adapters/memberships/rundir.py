"""The runtime directory of one group of one user: who is there, who is dead, and the key that they share.

What it decides: a member is alive as long as its process holds a lock, so that the kernel itself says who died, at
once, also after `kill -9`. The naive way, files with process ids in them, takes a reused number for the dead process,
and leaves the dead in the list for as long as nobody dares to remove them.

    /tmp/softmutex-<uid>/<group>/          0700, ours, no symbolic link, or it is refused
        key                                32 random bytes, made by whoever came first
        <pid>-<random>.lock                one a process, locked by it for as long as it lives
        <pid>-<random>.<n>.member          one a member, written aside and renamed: whole or not there

R1  A lock that can be taken belongs to a dead process: its members go first, then the lock itself.
R2  The lock is a POSIX record lock (fcntl), not flock: those are inherited by a forked child, which then keeps its dead
    parent alive. The price: a process must never open its own lock file again, since closing it lets go. So nobody
    ever probes a lock of its own process (`OWN`).
R3  Each process probes only its successor in the order of names, and beyond it while those are dead. Every dead one
    has a living predecessor, so all are found, and a probe costs the same for ten processes and for a thousand.
R4  What was removed under us (by a cleaner of /tmp, or `rm -rf`) is put back, the key as it was.
R5  A directory in which nobody was for a day is removed by whoever joins another group: of a thousand groups with a
    life of a minute nothing is left. Who uses one says so by the time stamp of its key; a wrong guess is put back (R4).
R6  The place depends on nothing but the user. XDG_RUNTIME_DIR and TMPDIR differ between a shell, cron, a systemd
    service and a Slurm job, who would then never meet, and say nothing.

Everything here is synchronous, a few microseconds where nothing changed, and safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import secrets
import threading
import time
from bisect import bisect_left

from softmutex.ports import CannotOpen, Member
from softmutex_adapters.memberships.private import (
    PLACE_OF_YOURS,
    offer_key,
    open_private,
    read_whole,
    remove,
    shared_key,
    write_whole,
)

POLL_S = 0.2
PROBE_S = 0.5
FRESHEN_S = 3600.0  # cleaners of /tmp go by age
RACY_NS = 100_000_000  # a change so young may be followed by another one with the same time stamp
UNUSED_S = 86_400.0  # R5
SWEPT_MOST = 256  # at once
ABANDONED_S = 60.0  # so old is no file that is still being written
RECORD_MAX = 4096
ENTRIES_MAX = 32_768
ENTRY = re.compile(r"(\d+-[0-9a-f]{16})(\.lock|\.\d+\.member)")

# Lock names of this very process, over all directories (R2).
OWN: set[str] = set()


class RunDir:
    """One for all memberships of a group in a process: see `acquire`."""

    def __init__(self, base: str, group: str) -> None:
        self.path = os.path.join(base, group)
        self.version = 0  # grows with each change of the members
        self.counts = dict.fromkeys(["scans", "dead_removed", "failures", "repaired", "garbage"], 0)
        self.users = 0
        self._base, self._group = base, group
        self._mutex = threading.RLock()
        self._directory = -1
        self._identity = (0, 0)
        self._lock = -1
        self._stem = ""
        self._is_abandoned = False
        self._published: dict[str, bytes] = {}
        self._last_number = 0
        self._key: bytes | None = None
        self._locks: list[str] = []
        self._names: list[str] = []
        self._members: tuple[Member, ...] = ()
        self._records: dict[str, Member | None] = {}
        self._seen_mtime_ns = -1
        self._polled_at = self._probed_at = float("-inf")
        self._freshened_at = time.monotonic()

    # --- who is there -----------------------------------------------------------------------------------------------

    def others(self, mine: str) -> tuple[Member, ...]:
        """All members but the one that was published as `mine`."""
        with self._mutex:
            place = bisect_left(self._names, mine)
            if mine in self._names[place : place + 1]:
                return self._members[:place] + self._members[place + 1 :]
            return self._members

    def poll(self) -> None:
        """Looks whether something changed. A directory that fails is silence: what was known stands."""
        with self._mutex:
            now = time.monotonic()
            if now - self._polled_at < POLL_S / 2:  # another loop of this process has just looked
                return
            self._polled_at = now
            try:
                self._poll(now)
            except OSError:
                self.counts["failures"] += 1

    def _poll(self, now: float) -> None:
        changed_ns = self._open().st_mtime_ns
        if changed_ns != self._seen_mtime_ns:
            self._scan()
            is_young = changed_ns > time.time_ns() - RACY_NS
            self._seen_mtime_ns = -1 if is_young else changed_ns
        if now - self._probed_at >= PROBE_S:
            self._probed_at = now
            if self._remove_dead():
                self._scan()
        if now - self._freshened_at >= FRESHEN_S:
            self._freshened_at = now
            self._freshen()

    def _open(self) -> os.stat_result:
        """Opens the directory, also again when another one has taken its place."""
        if self._is_abandoned:
            raise CannotOpen(f"{self.path}: this membership belongs to the parent of this process. Make a new one.")
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self._identity:
                return found
        base = open_private(self._base, self._base)
        try:
            directory = open_private(self._group, self.path, within=base)
        finally:
            os.close(base)
        self._close_directory()
        found = os.fstat(directory)
        self._directory, self._identity = directory, (found.st_dev, found.st_ino)
        self._seen_mtime_ns = -1
        for entry in os.listdir(directory):
            if entry.startswith(".") and self._age_s(entry) > ABANDONED_S:
                remove(directory, entry)
        return found

    def _age_s(self, entry: str) -> float:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - os.stat(entry, dir_fd=self._directory, follow_symlinks=False).st_mtime
        return 0.0

    def _scan(self) -> None:
        self.counts["scans"] += 1
        entries = sorted(os.listdir(self._directory))[:ENTRIES_MAX]
        if self._put_back(set(entries)):
            entries = sorted(os.listdir(self._directory))[:ENTRIES_MAX]
        found = [(entry, match[1]) for entry in entries if (match := ENTRY.fullmatch(entry))]
        self._locks = [stem for entry, stem in found if entry.endswith(".lock")]
        locked = set(self._locks)
        names = [entry for entry, stem in found if entry.endswith(".member") and stem in locked]
        known = self._records  # what a record says never changes under its name, so each is read once
        self._records = {name: known[name] if name in known else self._read_record(name) for name in names}
        read = [(name, member) for name, member in self._records.items() if member is not None]
        names = [name for name, _ in read]
        if names != self._names:
            self._names, self._members = names, tuple(member for _, member in read)
            self.version += 1

    def _read_record(self, name: str) -> Member | None:
        try:
            record = json.loads(read_whole(self._directory, name, RECORD_MAX))
            member = Member(address=record["address"], id=record["id"], name=record["name"])
            if [type(part) for part in (member.address, member.id, member.name)] == [str, int, str]:
                return member
        except FileNotFoundError:
            return None  # it left meanwhile
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # not one of ours: counted as such
        self.counts["garbage"] += 1
        return None

    # --- who is dead (R1, R2, R3) -----------------------------------------------------------------------------------

    def _remove_dead(self) -> bool:
        """Probes the successor of this process, and those after it for as long as they are dead."""
        after_me = bisect_left(self._locks, self._stem) if self._lock >= 0 else 0
        removed = False
        for stem in self._locks[after_me:] + self._locks[:after_me]:
            if stem in OWN:
                continue
            if self._remove_if_dead(stem):
                removed = True
            elif self._lock >= 0:
                break  # the rest is the business of this one; who only looks probes them all
        return removed

    def _remove_if_dead(self, stem: str) -> bool:
        try:
            probe = os.open(f"{stem}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            return True
        try:
            fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for entry in os.listdir(self._directory):
                if entry.startswith(f"{stem}.") and entry.endswith(".member"):
                    self.counts["dead_removed"] += 1
                    remove(self._directory, entry)
            remove(self._directory, f"{stem}.lock")
            return True
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: held, so alive
            return False
        finally:
            os.close(probe)

    # --- me ---------------------------------------------------------------------------------------------------------

    def publish(self, member: Member) -> str:
        """Lets others know of `member`; gives the name under which `withdraw` takes it back."""
        record = {"address": member.address, "id": member.id, "name": member.name}
        content = json.dumps(record | {"pid": os.getpid(), "since": round(time.time(), 3)}).encode()
        with self._mutex:
            try:
                self._open()
                if self._lock < 0:
                    sweep(self._base, self._group)
                    self._take_lock(f"{os.getpid()}-{secrets.token_hex(8)}")
                self._last_number += 1
                name = f"{self._stem}.{self._last_number}.member"
                write_whole(self._directory, name, content)
            except CannotOpen:
                raise
            except OSError as error:
                raise CannotOpen(
                    f"{self.path}: nothing can be written or locked there ({error.strerror}). "
                    f"Make room, {PLACE_OF_YOURS}"
                ) from error
            self._published[name] = content
            self._polled_at = float("-inf")
            return name

    def withdraw(self, name: str) -> None:
        with self._mutex:
            if self._published.pop(name, None) is None:
                return
            with contextlib.suppress(OSError):  # a directory that is gone shows nobody any more
                remove(self._directory, name)
            if name in self._names:
                place = self._names.index(name)
                del self._names[place]
                self._members = self._members[:place] + self._members[place + 1 :]
                self.version += 1
            if not self._published:
                with contextlib.suppress(OSError):
                    remove(self._directory, f"{self._stem}.lock")
                self._let_go()

    def _take_lock(self, stem: str) -> None:
        """The lock is held before others can see its file; else a prober could take it for that of a dead process."""
        aside = f".{stem}.lock"
        lock = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._directory)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            OWN.add(stem)
            os.rename(aside, f"{stem}.lock", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException:
            OWN.discard(stem)
            os.close(lock)
            remove(self._directory, aside)
            raise
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self._stem = lock, stem

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            OWN.discard(self._stem)

    def _put_back(self, entries: set[str]) -> bool:
        """Puts back what of ours somebody removed (R4)."""
        if self._key is not None and "key" not in entries:
            with contextlib.suppress(FileExistsError):
                offer_key(self._directory, self._key)
        missing = [name for name in self._published if name not in entries]
        if self._published and f"{self._stem}.lock" not in entries:
            self._take_lock(self._stem)
        elif not missing:
            return False
        self.counts["repaired"] += 1
        for name in missing:
            write_whole(self._directory, name, self._published[name])
        return True

    def _freshen(self) -> None:
        for entry in ["key" if self._key else "", f"{self._stem}.lock" if self._lock >= 0 else "", *self._published]:
            if entry:
                os.utime(entry, dir_fd=self._directory, follow_symlinks=False)

    def group_key(self) -> bytes:
        with self._mutex:
            try:
                self._open()
                self._key = shared_key(self._directory, self.path)
                os.utime("key", dir_fd=self._directory, follow_symlinks=False)
            except CannotOpen:
                raise
            except OSError as error:
                raise CannotOpen(
                    f"{self.path}/key cannot be made ({error.strerror}). Make room, {PLACE_OF_YOURS}"
                ) from error
            return self._key

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._mutex:
            for name in list(self._published):
                self.withdraw(name)
            self._close_directory()

    def abandon(self) -> None:
        """In a forked child: these files are the parent's. Closing its lock here does not let go of it (R2)."""
        self._mutex = threading.RLock()  # another thread of the parent may have held it
        self._is_abandoned = True
        self._published = {}
        self._let_go()
        self._close_directory()

    def _close_directory(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory, self._identity = -1, (0, 0)


def sweep(base: str, but: str) -> None:
    """R5. What cannot be removed stays: it is tidied, not needed."""
    with contextlib.suppress(OSError), os.scandir(base) as found:
        for entry in itertools.islice(found, SWEPT_MOST):
            if entry.name != but and entry.is_dir(follow_symlinks=False) and is_unused(entry.path):
                with contextlib.suppress(OSError):
                    for left in os.listdir(entry.path):
                        os.unlink(os.path.join(entry.path, left))
                    os.rmdir(entry.path)


def is_unused(path: str) -> bool:
    with contextlib.suppress(OSError):
        before = time.time() - UNUSED_S
        if os.lstat(path).st_mtime >= before:  # so it is with most: no look into each one
            return False
        left = os.listdir(path)
        ours = all(one == "key" or one.startswith(".") or ENTRY.fullmatch(one) for one in left)
        # Members that live make theirs young each hour.
        return ours and all(os.lstat(os.path.join(path, one)).st_mtime < before for one in left)
    return False


# --- one for a process ----------------------------------------------------------------------------------------------

_IN_USE: dict[str, RunDir] = {}
_IN_USE_LOCK = threading.Lock()


def acquire(base: str, group: str) -> RunDir:
    with _IN_USE_LOCK:
        rundir = _IN_USE.setdefault(os.path.join(base, group), RunDir(base, group))
        rundir.users += 1
        return rundir


def release(rundir: RunDir) -> None:
    with _IN_USE_LOCK:
        rundir.users -= 1
        if rundir.users == 0 and _IN_USE.get(rundir.path) is rundir:
            del _IN_USE[rundir.path]
            rundir.close()


def _forget_parent() -> None:
    global _IN_USE_LOCK
    _IN_USE_LOCK = threading.Lock()
    for rundir in _IN_USE.values():
        rundir.abandon()
    _IN_USE.clear()
    OWN.clear()


os.register_at_fork(after_in_child=_forget_parent)
