"""Virtual time: a time-out of an hour is tested in a millisecond, and the same way each time.

What it decides: an event loop whose clock stands still while anything can run, and jumps to the next timer when
nothing can. The naive ways, `sleep` in a test or a patched `time`, are slow, or lie to half of the code.

    ready callbacks? --yes--> run them, the clock stands
          | no
    a thread of the executor still works? --yes--> wait for it, the clock stands
          | no
    a timer? --yes--> the clock jumps to it        (a month costs as much as a second)
          | no
    nothing can ever happen again: RuntimeError after PATIENCE_S of real time, where another loop would hang

All code that asks `loop.time()` and sleeps by the loop lives in virtual time. What reads `time.monotonic` or talks to
another process does not: use `MemoryNetwork`, not sockets.

>>> import asyncio
>>> async def main() -> float:
...     start = asyncio.get_running_loop().time()
...     await asyncio.sleep(3600)
...     return asyncio.get_running_loop().time() - start
>>> with virtual_time() as runner:
...     runner.run(main())
3600.0
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, Unpack

START_S = 1_000.0
PATIENCE_S = 5.0
RESOLUTION_S = 1e-6

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.threads_at_work = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None and not self.threads_at_work:
            self.now_s += timeout
            return []
        ready = super().select(PATIENCE_S)
        if not ready and not self.threads_at_work:
            raise RuntimeError(
                "virtual time stands still for ever: no timer is set, nothing is ready, and every task waits. "
                "Something awaited here is never going to be done."
            )
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time: `asyncio.Runner(loop_factory=VirtualLoop)`, or simply `virtual_time()`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A loop fires what is due within its clock's resolution. The default, a nanosecond, is lost in the rounding of
        # a float after some months of virtual time, and the timer that is due then would never fire.
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self._jumping.now_s

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """What has not come yet comes later. Else a nanosecond that is lost in the rounding of a large time would never
        come, and who waits for it by the clock is called without end while that stands."""
        return super().call_later(max(delay, RESOLUTION_S) if delay > 0 else delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads_at_work += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _future: asyncio.Future[Any]) -> None:
        self._jumping.threads_at_work -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # Python 3.12 bounds this by a time-out, which virtual time would reach at once.
        self._jumping.threads_at_work += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._jumping.threads_at_work -= 1


def virtual_time() -> asyncio.Runner:
    """`with virtual_time() as runner: runner.run(main())`"""
    return asyncio.Runner(loop_factory=VirtualLoop)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Makes a plain test function of an `async def` one, which runs in virtual time. For pytest and unittest alike.

    >>> @in_virtual_time
    ... async def test_a_day_is_long() -> str:
    ...     try:
    ...         async with asyncio.timeout(86_400):
    ...             await asyncio.Event().wait()
    ...     except TimeoutError:
    ...         return "over"
    ...     return "never"
    >>> test_a_day_is_long()
    'over'
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with virtual_time() as runner:
            return runner.run(test(*args, **kwargs))

    return run
