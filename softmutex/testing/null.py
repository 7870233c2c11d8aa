"""A mutex for the tests of applications: no node, no network, and each hold does what the test says.

    free (as it is made)         granted at once, to any number of holders
    mutex.busy = True            as if others had it: tries fail, waits last to their time limit or until it is free
    mutex.lose()                 all holds are told that they may not be the only one
    mutex.fails = SomeError()    raised instead of a grant: `NodeClosed()`, `Isolated()`

The naive fake, `contextlib.nullcontext`, never times out and never loses: so the code for that is tested in production.
`NullMutex` stands in for `SoftMutex`, `NullSyncMutex` for `sync.SoftMutex`. Of their options only `timeout` counts;
what the others do is tested with `MemoryNetwork`.

>>> import asyncio
>>> async def upload(mutex):
...     async with mutex.hold(timeout=30) as hold:
...         mutex.lose()
...         return "interrupted" if hold.lost.is_set() else "done"
>>> asyncio.run(upload(NullMutex()))
'interrupted'
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from softmutex.core.errors import AcquireTimeout, SoftMutexError
from softmutex.core.events import LostReason
from softmutex.front import UNSET, Tasks, Threads, Unset, limit_of
from softmutex.seen import HolderSeen, MutexSeen, PastSeen

P = ParamSpec("P")
R = TypeVar("R")

LOOK_AGAIN_S = 0.002


class _Null:
    """`grants` counts them; `holds` are those that are held now."""

    def __init__(self, name: str = "null", *, timeout: float | None = None, **_options: Any) -> None:
        self.name = name
        self.busy = False
        self.fails: SoftMutexError | None = None
        self.grants = 0
        self.holds: list[NullHold | NullSyncHold] = []
        self._timeout = timeout

    def lose(self, reason: LostReason = LostReason.OVERLAP) -> None:
        for hold in self.holds:
            hold.lost_reason = hold.lost_reason or reason
            hold.lost.set()

    def _seen(self) -> MutexSeen:
        here = [
            HolderSeen(hold.node, "", "", "", time.time(), hold.waited, hold.epoch, hold.hop, 1, number)
            for number, hold in enumerate(self.holds, 1)
        ]
        return MutexSeen(self.name, time.time(), 1, 1, tuple(here), (), 0, ())

    def _evict(self, reason: str) -> int:
        evicted, self.holds = self.holds, []
        for hold in evicted:
            hold.lost_reason, hold.lost_detail = hold.lost_reason or LostReason.EVICTED, reason
            hold.lost.set()
        return len(evicted)

    def _is_granted(self, begun_s: float, timeout: float | None) -> bool:
        if self.fails is not None:
            raise self.fails
        if not self.busy:
            self.grants += 1
            return True
        if timeout is not None and time.monotonic() - begun_s >= timeout:
            raise AcquireTimeout(
                f"the mutex {self.name!r} was not granted within {timeout:g} s ({type(self).__name__})."
            )
        return False


class _NullClaim:
    """What a `Hold` shows, as far as it can be known without a node. `touches` counts."""

    def __init__(self, mutex: _Null, begun_s: float) -> None:
        self.name = mutex.name
        self.node = "null"
        self.epoch = 1
        self.hop = mutex.grants
        self.waited = time.monotonic() - begun_s
        self.deadline: float | None = None
        self.peers = 0
        self.lost_reason: LostReason | None = None
        self.lost_detail = ""
        self.touches = 0
        self._mutex = mutex

    def touch(self) -> None:
        self.touches += 1

    def _enter(self) -> None:
        """It may be entered again and again."""

    def _end(self) -> None:
        self._mutex.holds = [hold for hold in self._mutex.holds if hold is not self]


# --- as SoftMutex ---------------------------------------------------------------------------------------------------


class NullHold(_NullClaim):
    def __init__(self, mutex: _Null, begun_s: float) -> None:
        super().__init__(mutex, begun_s)
        self.lost = asyncio.Event()

    async def release(self) -> None:
        self._end()

    async def __aenter__(self) -> NullHold:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._end()


class NullMutex(_Null, Tasks[NullHold]):
    def __init__(self, name: str = "null", *, timeout: float | None = None, **options: Any) -> None:
        _Null.__init__(self, name, timeout=timeout, **options)
        Tasks.__init__(self)

    async def acquire(self, timeout: float | Unset | None = UNSET) -> NullHold:
        limit_s, begun_s = limit_of(timeout, self._timeout), time.monotonic()
        while not self._is_granted(begun_s, limit_s):  # noqa: ASYNC110 it may be set free in any thread
            await asyncio.sleep(LOOK_AGAIN_S)
        hold = NullHold(self, begun_s)
        self.holds.append(hold)
        return hold

    async def look(self) -> MutexSeen:
        return self._seen()

    async def history(self) -> tuple[PastSeen, ...]:
        return ()

    async def evict(self, reason: str) -> int:
        return self._evict(reason)

    def _guard_plain(self, function: Callable[P, R], timeout: float | Unset | None) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with in_thread(self, timeout):
                return function(*args, **kwargs)

        return guarded


# --- as sync.SoftMutex ----------------------------------------------------------------------------------------------


class NullSyncHold(_NullClaim):
    def __init__(self, mutex: _Null, begun_s: float) -> None:
        super().__init__(mutex, begun_s)
        self.lost = threading.Event()

    def release(self) -> None:
        self._end()

    def __enter__(self) -> NullSyncHold:
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()


class NullSyncMutex(_Null, Threads[NullSyncHold]):
    def __init__(self, name: str = "null", *, timeout: float | None = None, **options: Any) -> None:
        _Null.__init__(self, name, timeout=timeout, **options)
        Threads.__init__(self)

    def acquire(self, timeout: float | Unset | None = UNSET) -> NullSyncHold:
        return in_thread(self, timeout)

    def look(self) -> MutexSeen:
        return self._seen()

    def history(self) -> tuple[PastSeen, ...]:
        return ()

    def evict(self, reason: str) -> int:
        return self._evict(reason)


def in_thread(mutex: _Null, timeout: float | Unset | None) -> NullSyncHold:
    limit_s, begun_s = limit_of(timeout, mutex._timeout), time.monotonic()
    while not mutex._is_granted(begun_s, limit_s):
        time.sleep(LOOK_AGAIN_S)
    hold = NullSyncHold(mutex, begun_s)
    mutex.holds.append(hold)
    return hold
