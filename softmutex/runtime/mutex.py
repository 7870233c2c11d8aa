"""`SoftMutex`: what applications import. It asks, waits, and gives the hold to whoever asked.

    async with mutex as hold                 the body is entered with the grant in hand, or not at all
    async with mutex.hold(timeout=30)        AcquireTimeout
    hold = await mutex.try_acquire()         a Hold or None
    @mutex.guard()                           around a function

Where a wait may end, and how:

    asked --granted--> Hold
      |--time limit--> AcquireTimeout     |--cancelled--> withdrawn; a grant that crosses that is handed on at once
      '--isolated--> Isolated             '--node closed--> NodeClosed

What it decides: nothing loop-bound is made before the first use. So a `SoftMutex` may be made when a module is imported
and used in any loop that runs later, in several after each other, or in several at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

from softmutex.core.errors import AcquireTimeout, ConfigError
from softmutex.core.events import SECOND
from softmutex.core.names import check_name
from softmutex.runtime import nesting
from softmutex.runtime.claim import Stage
from softmutex.runtime.config import Settings
from softmutex.runtime.hold import Hold
from softmutex.runtime.host import OneShot
from softmutex.runtime.options import OneShotOptions, read_one_shot_options
from softmutex.runtime.statistics import MutexStatistics
from softmutex.runtime.terms import Plan, plan
from softmutex.runtime.use import Host, Use

if TYPE_CHECKING:
    from softmutex.runtime.node import Life

P = ParamSpec("P")
R = TypeVar("R")


TURNS = 3  # of about 2 us each
CONTENDED = SECOND // 200  # a mutex of which others spoke less than that ago


async def let_others_speak(life: Life, name: str) -> None:
    """After a release others come before this node asks again: a loop of nothing but `async with mutex: ...` would
    starve them. What they have sent may be in the socket: it takes one turn of the loop to be read, one to wake the
    pump, one to be handled. Or it was not sent yet, for their process waits for the core that this one is on: so where
    a mutex is contended, the kernel is told that they may have it. Without that, two processes of a busy host took
    turns of 5 ms instead of 0.5 ms."""
    seat = life.seats.get(name)
    if seat is not None and not seat.machine.may_take_again():
        return  # others have it already
    if seat is not None and life.now() - seat.heard_at < CONTENDED:
        os.sched_yield()
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Unset:
    """What stands where no time limit was given: None is one."""

    def __repr__(self) -> str:
        return "..."


UNSET = Unset()


class MutexBase:
    """The part that asyncio's and the threads' mutexes share: the name, the settings, where the node comes from."""

    def __init__(self, name: str, host: Host, keywords: Mapping[str, Any]) -> None:
        self.name = check_name(name)
        self._host = host
        self._keywords = keywords
        self._planned: tuple[Settings, Plan] | None = None

    def _plan(self) -> Plan:
        """What is wanted, by the settings of the node that it is used on."""
        settings = self._host.settings()
        if self._planned is None or self._planned[0] is not settings:
            self._planned = (settings, plan(self.name, settings.for_mutex(self.name, self._keywords)))
        return self._planned[1]

    def statistics(self) -> MutexStatistics:
        """What this node saw of the mutex since it was opened."""
        return self._host.mutex_statistics(self.name)


def limit_of(timeout: float | Unset | None, wanted: Plan) -> float | None:
    """The time limit in force, in seconds: what was said last, else what the mutex was made with."""
    if isinstance(timeout, Unset):
        return wanted.policy.timeout_s
    if timeout is not None and not timeout >= 0:
        raise ConfigError(f"timeout={timeout!r}: give seconds, 0 to try, or None to wait for ever.")
    return timeout


class SoftMutex(MutexBase):
    """A soft mutex: while nothing goes wrong exactly one holder at a time in the whole group.

    *Soft*: when nodes die, pause or are cut off, two may overlap for a bounded while, and both are told (`hold.lost`).
    It protects capacity (links, FTP servers, tape drives, databases under bulk load), not correctness.

    Without transport and membership, and with none configured, the processes of this user on this host find each other.
    It joins when it is first entered and leaves after the last exit:

    >>> import asyncio
    >>> from softmutex import SoftMutex
    >>> async def main():
    ...     async with SoftMutex("nightly-ftp", transport="memory://doc", membership="memory://doc") as hold:
    ...         return hold.name, hold.peers
    >>> asyncio.run(main())
    ('nightly-ftp', 0)

    Several hosts need a transport that they can reach and a membership by which they find each other:
    `transport="udp://0.0.0.0:9431", membership="mdns://lab"`. Many mutexes share one node: `Node.mutex`.
    """

    def __init__(self, name: str, **options: Unpack[OneShotOptions]) -> None:
        node, mutex = read_one_shot_options(options)
        super().__init__(name, OneShot(node, options.get("config")), mutex)
        self._prepare()

    @classmethod
    def _on(cls, host: Host, name: str, keywords: Mapping[str, Any]) -> SoftMutex:
        """A mutex on a node that is there anyway (`Node.mutex`)."""
        mutex = cls.__new__(cls)
        MutexBase.__init__(mutex, name, host, keywords)
        mutex._prepare()
        return mutex

    def _prepare(self) -> None:
        self._use: Use | None = None
        self._entered: dict[asyncio.Task[Any] | None, list[Hold]] = {}

    # --- the ways to hold it ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Hold:
        hold = await self._acquire(UNSET)
        task = asyncio.current_task()
        hold._enter(task)
        self._entered.setdefault(task, []).append(hold)
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        holds = self._entered[task]
        hold = holds.pop()
        if not holds:
            del self._entered[task]
        await hold.__aexit__(kind, error, traceback)

    def hold(self, timeout: float | Unset | None = UNSET) -> Holding:
        """`async with mutex.hold(timeout=30) as hold`. None: wait for ever; 0: try; not given: as the mutex is set."""
        return Holding(self, timeout)

    async def try_acquire(self) -> Hold | None:
        """A hold where nobody has it now, else None: `if hold := await mutex.try_acquire(): async with hold: ...`"""
        try:
            return await self._acquire(0)
        except AcquireTimeout:
            return None

    def guard(self, timeout: float | Unset | None = UNSET) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function, which then runs only while the mutex is held.

        A plain function blocks its thread meanwhile; it cannot be called on the loop that the node lives on.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ConfigError(f"guard: {function.__qualname__} is a generator, whose body runs after the call.")
            if not inspect.iscoroutinefunction(function):
                from softmutex.runtime.blocking import BlockingMutex

                plain: Callable[P, R] = function
                return BlockingMutex(self.name, self._host, self._keywords).guard(timeout)(plain)

            @functools.wraps(function)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self.hold(timeout):
                    return await function(*args, **kwargs)

            return cast(Callable[P, R], guarded)

        return decorate

    # --- how it is done ---------------------------------------------------------------------------------------------

    async def _acquire(self, timeout: float | Unset | None) -> Hold:
        host, wanted = self._host, self._plan()
        limit_s = limit_of(timeout, wanted)
        loop = asyncio.get_running_loop()
        if host.lends_for_a_while:
            begun_s = loop.time()
            life = await host.lend_within(self.name, limit_s)
            if limit_s:
                limit_s = max(limit_s - (loop.time() - begun_s), 0.001)
        else:
            life = host.life()
            await let_others_speak(life, self.name)
        use = self._use
        if use is None or use.life is not life or use.application is not loop or use.plan is not wanted:
            use = Use(host, life, wanted, loop)
            if not host.lends_for_a_while:
                self._use = use
        try:
            return await self._wait(use, limit_s)
        except BaseException as error:
            await use.come_back(error)
            raise

    async def _wait(self, use: Use, timeout_s: float | None) -> Hold:
        nesting.check(asyncio.current_task(), "task", use, timeout_s)
        hold = Hold(use, timeout_s)
        claim = hold._claim
        use.tell_waiting(claim)
        if not use.direct:
            hold._granted = asyncio.get_running_loop().create_future()
        use.ask(claim)
        if claim.stage is Stage.WAITING or not use.direct:
            if hold._granted is None:
                hold._granted = asyncio.get_running_loop().create_future()
            try:
                await hold._granted
            except BaseException:
                use.tell_waited(claim, "cancelled")
                hold._leave()
                use.withdraw(claim)
                raise
        use.tell_waited(claim)
        if claim.error is not None:
            raise claim.error
        return hold


class Holding:
    """`async with mutex.hold(timeout=30)`: acquires when it is entered. Each one is for one use."""

    def __init__(self, mutex: SoftMutex, timeout: float | Unset | None) -> None:
        self._mutex = mutex
        self._timeout = timeout
        self._hold: Hold | None = None

    async def __aenter__(self) -> Hold:
        hold = await self._mutex._acquire(self._timeout)
        hold._enter(asyncio.current_task())
        self._hold = hold
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            await hold.__aexit__(kind, error, traceback)
