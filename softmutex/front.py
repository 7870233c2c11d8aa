"""What everything that can be held looks like, whoever grants it: `with`, `hold`, `try_acquire`, `guard`.

    acquire(timeout) --> a hold        the one thing that a mutex has to know; all the rest follows from it, here

`Tasks` is for `async with`, `Threads` for `with`. `softmutex.SoftMutex`, `softmutex.sync`, `softmutex.client` and the
`NullMutex` of tests derive from them, so that none of them can forget what the others refuse. There is no loop here and
nothing that is slow to import: a program that only asks an agent needs neither.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from softmutex.core.errors import AcquireTimeout, ConfigError

P = ParamSpec("P")
R = TypeVar("R")


class Unset:
    """What stands where no time limit was given: None is one."""

    def __repr__(self) -> str:
        return "..."


UNSET: Final = Unset()


def limit_of(timeout: float | Unset | None, otherwise: float | None) -> float | None:
    """The time limit in force, in seconds: what was said last, else what the mutex was made with."""
    if isinstance(timeout, Unset):
        return otherwise
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0):
        raise ConfigError(f"timeout={timeout!r}: give seconds as a number, 0 to try, or None to wait for ever.")
    return timeout


class _ThreadHold(Protocol):
    def _enter(self) -> None:
        """The body begins. Raises where this hold is over."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class _TaskHold(Protocol):
    def _enter(self) -> None:
        """The body begins, in the current task. Raises where this hold is over."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


H = TypeVar("H")
ThreadHold = TypeVar("ThreadHold", bound=_ThreadHold)
TaskHold = TypeVar("TaskHold", bound=_TaskHold)


def take_own(entered: list[tuple[Hashable, H]], who: Hashable) -> H:
    """Of the holds whose bodies run by way of `with mutex`, the one that `who` entered last."""
    for at in range(len(entered) - 1, -1, -1):
        if entered[at][0] == who:
            return entered.pop(at)[1]
    return entered.pop()[1]  # a body that somebody else ends: a generator, the teardown of a test


# --- threads ---------------------------------------------------------------------------------------------------------


class Threads(Generic[ThreadHold]):
    def __init__(self) -> None:
        self._entered: list[tuple[Hashable, ThreadHold]] = []

    def acquire(self, timeout: float | Unset | None = UNSET) -> ThreadHold:
        """A hold without a `with`: it lasts until its `release()`, by whichever thread. `AcquireTimeout` otherwise."""
        raise NotImplementedError

    def __enter__(self) -> ThreadHold:
        hold = self.acquire()
        hold._enter()
        self._entered.append((get_ident(), hold))
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        take_own(self._entered, get_ident()).__exit__(kind, error, traceback)

    def hold(self, timeout: float | Unset | None = UNSET) -> ThreadHolding[ThreadHold]:
        """`with mutex.hold(timeout=30) as hold`. None: wait for ever; 0: try; not given: as the mutex is set."""
        return ThreadHolding(self, timeout)

    def try_acquire(self) -> ThreadHold | None:
        """A hold where nobody has it now, else None: `if hold := mutex.try_acquire(): with hold: ...`"""
        try:
            return self.acquire(0)
        except AcquireTimeout:
            return None

    def guard(self, timeout: float | Unset | None = UNSET) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a plain function, which then runs only while the mutex is held."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if is_coroutine(function):
                raise ConfigError(
                    f"guard: {function.__qualname__} is a coroutine function, whose body runs after the call. "
                    "Guard it by softmutex.SoftMutex, or put an `async with` into it."
                )

            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.hold(timeout):
                    return function(*args, **kwargs)

            return guarded

        return decorate


class ThreadHolding(Generic[ThreadHold]):
    """`with mutex.hold(timeout=30)`: acquires when it is entered. Each one is for one use."""

    def __init__(self, mutex: Threads[ThreadHold], timeout: float | Unset | None) -> None:
        self._mutex = mutex
        self._timeout = timeout
        self._hold: ThreadHold | None = None

    def __enter__(self) -> ThreadHold:
        hold = self._hold = self._mutex.acquire(self._timeout)
        hold._enter()
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._hold is not None:
            self._hold.__exit__(kind, error, traceback)


# --- tasks -----------------------------------------------------------------------------------------------------------


class Tasks(Generic[TaskHold]):
    def __init__(self) -> None:
        self._entered: list[tuple[Hashable, TaskHold]] = []

    @staticmethod
    def _me() -> Hashable:
        import asyncio  # it runs already

        return asyncio.current_task()

    async def acquire(self, timeout: float | Unset | None = UNSET) -> TaskHold:
        """A hold without an `async with`: it lasts until `await hold.release()`. `AcquireTimeout` otherwise."""
        raise NotImplementedError

    async def __aenter__(self) -> TaskHold:
        hold = await self.acquire()
        hold._enter()
        self._entered.append((self._me(), hold))
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entered = self._entered
        own = entered.pop()[1] if len(entered) == 1 else take_own(entered, self._me())
        await own.__aexit__(kind, error, traceback)

    def hold(self, timeout: float | Unset | None = UNSET) -> TaskHolding[TaskHold]:
        """`async with mutex.hold(timeout=30) as hold`. None: wait for ever; 0: try; not given: as the mutex is set."""
        return TaskHolding(self, timeout)

    async def try_acquire(self) -> TaskHold | None:
        """A hold where nobody has it now, else None: `if hold := await mutex.try_acquire(): async with hold: ...`"""
        try:
            return await self.acquire(0)
        except AcquireTimeout:
            return None

    def guard(self, timeout: float | Unset | None = UNSET) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function, which then runs only while the mutex is held.

        A plain function blocks its thread meanwhile; it cannot be called on the loop that the node lives on.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if not is_coroutine(function):
                return self._guard_plain(function, timeout)

            @functools.wraps(function)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self.hold(timeout):
                    return await cast(Any, function)(*args, **kwargs)

            return cast(Callable[P, R], guarded)

        return decorate

    def _guard_plain(self, function: Callable[P, R], timeout: float | Unset | None) -> Callable[P, R]:
        raise ConfigError(f"guard: {function.__qualname__} is a plain function: use the mutex for threads.")


class TaskHolding(Generic[TaskHold]):
    """`async with mutex.hold(timeout=30)`: acquires when it is entered. Each one is for one use."""

    def __init__(self, mutex: Tasks[TaskHold], timeout: float | Unset | None) -> None:
        self._mutex = mutex
        self._timeout = timeout
        self._hold: TaskHold | None = None

    async def __aenter__(self) -> TaskHold:
        hold = self._hold = await self._mutex.acquire(self._timeout)
        hold._enter()
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._hold is not None:
            await self._hold.__aexit__(kind, error, traceback)


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether it is one; a generator is neither that nor plain, and cannot be guarded."""
    import inspect  # slow to import

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"guard: {function.__qualname__} is a generator, whose body runs after the call.")
    return inspect.iscoroutinefunction(function)
