"""The one thread of a process that runs the nodes of those who have no loop, or want theirs blocked by nobody.

    sync.SoftMutex, Node(thread=True) --acquire--> a daemon thread with a loop --release, by the last--> stopped

The naive way, a thread for each mutex, is a hundred threads in a program of a hundred mutexes; one that is never
stopped is a leak in every test. In a forked child the thread does not exist any more: the child starts one of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

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
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            loop = runner.get_loop()
            loop.run_forever()

    def _start(self, work: Coroutine[Any, Any, T], done: Callable[[asyncio.Task[T]], object]) -> Errand[T]:
        errand: Errand[T] = Errand(self.loop)

        def begin() -> None:
            errand.task = self.loop.create_task(work)
            errand.task.add_done_callback(done)

        self.loop.call_soon_threadsafe(begin)
        return errand

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it over there, while this loop goes on. A cancellation is passed on, and its end is awaited."""
        here = asyncio.get_running_loop()
        over: asyncio.Future[asyncio.Task[T]] = here.create_future()
        errand = self._start(work, lambda task: here.call_soon_threadsafe(over.set_result, task))
        cancelled: asyncio.CancelledError | None = None
        while not over.done():
            try:
                await asyncio.shield(over)
            except asyncio.CancelledError as error:
                cancelled = error
                errand.cancel()
        task = over.result()
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # asyncio complains of one that nobody looked at
            raise cancelled
        return task.result()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it over there, while this thread waits. An interrupt is passed on, and its end is awaited."""
        over = threading.Event()
        errand = self._start(work, lambda task: over.set())
        try:
            over.wait()
        except BaseException:
            errand.cancel()
            over.wait()
            if errand.task is not None and not errand.task.cancelled():
                errand.task.exception()
            raise
        assert errand.task is not None
        return errand.task.result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Errand(Generic[T]):
    """What was begun over there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.task: asyncio.Task[T] | None = None

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self.task and self.task.cancel())


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
