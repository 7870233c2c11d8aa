"""The one thread of a process that runs the nodes of those who have no loop, or want theirs blocked by nobody.

    sync.SoftMutex, Node(thread=True) --acquire--> a daemon thread with a loop --release, by the last--> stopped

The naive way, a thread for each mutex, is a hundred threads in a program of a hundred mutexes; one that is never
stopped is a leak in every test. In a forked child the thread does not exist any more: the child starts one of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from softmutex.runtime import forks

T = TypeVar("T")

_lock = threading.Lock()
_current: Background | None = None


class Background:
    def __init__(self) -> None:
        self.users = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="softmutex", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it over there, while this loop goes on."""
        return await asyncio.wrap_future(self.submit(work))

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def acquire() -> Background:
    global _current
    with _lock:
        if _current is None:
            _current = Background()
        _current.users += 1
        return _current


def release(background: Background) -> None:
    global _current
    with _lock:
        background.users -= 1
        if background.users or background is not _current:
            return
        _current = None
    background.stop()


def _forget() -> None:
    """In a forked child: the thread stayed behind, and whoever held the lock as well."""
    global _current, _lock
    _current = None
    _lock = threading.Lock()


forks.in_child(_forget)
