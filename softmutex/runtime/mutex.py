"""`SoftMutex`: what applications import. It asks, waits, and gives the hold to whoever asked.

    async with mutex as hold                 the body is entered with the grant in hand, or not at all
    async with mutex.hold(timeout=30)        AcquireTimeout
    hold = await mutex.acquire(timeout=30)   without a body: await hold.release()
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
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from softmutex.core.events import SECOND
from softmutex.core.names import check_name
from softmutex.front import UNSET, Tasks, Unset, limit_of
from softmutex.runtime import nesting
from softmutex.runtime.claim import Progress
from softmutex.runtime.crossing import Crossing, Host, Loop, cross, see_through
from softmutex.runtime.hold import Hold
from softmutex.runtime.host import OneShot
from softmutex.runtime.node import RunningNode
from softmutex.runtime.options import OneShotOptions, read_one_shot_options
from softmutex.runtime.terms import Plan, plan

if TYPE_CHECKING:
    from softmutex.runtime.statistics import MutexStatistics
    from softmutex.seen import MutexSeen, PastSeen

P = ParamSpec("P")
R = TypeVar("R")

CONTENDED = SECOND // 200  # a mutex of which others spoke less than that ago


class MutexBase:
    """The part that asyncio's and the threads' mutexes share: the name, the settings, where the node comes from."""

    def __init__(self, name: str, host: Host, keywords: Mapping[str, Any]) -> None:
        self.name = check_name(name)
        self._host = host
        self._keywords = keywords
        self._planned: Plan | None = None
        self._crossing: Crossing | None = None

    def _plan(self) -> Plan:
        """What is wanted, by the settings of the node that it is used on; read when it is first needed."""
        if self._planned is None:
            self._planned = plan(self.name, self._host.settings().for_mutex(self.name, self._keywords))
        return self._planned

    def _cross(self, application: Loop | None) -> Crossing:
        """To the node that is there anyway."""
        self._crossing = cross(self._host, self._host.running(), self._plan(), application)
        return self._crossing

    def statistics(self) -> MutexStatistics:
        """What this node saw of the mutex since it was opened."""
        return self._host.mutex_statistics(self.name)


class SoftMutex(MutexBase, Tasks[Hold]):
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

    _me = staticmethod(asyncio.current_task)

    def __init__(self, name: str, **options: Unpack[OneShotOptions]) -> None:
        node, mutex = read_one_shot_options(options)
        self._prepare(name, OneShot(node, options.get("config")), mutex)

    @classmethod
    def _on(cls, host: Host, name: str, keywords: Mapping[str, Any]) -> SoftMutex:
        """A mutex on a node that is there anyway (`Node.mutex`)."""
        mutex = cls.__new__(cls)
        mutex._prepare(name, host, keywords)
        return mutex

    def _prepare(self, name: str, host: Host, keywords: Mapping[str, Any]) -> None:
        MutexBase.__init__(self, name, host, keywords)
        Tasks.__init__(self)

    async def acquire(self, timeout: float | Unset | None = UNSET) -> Hold:
        """A hold without an `async with`: it lasts until `await hold.release()`, by whichever task.

        `AcquireTimeout`, `Isolated` (`when_isolated="raise"`) or `NodeClosed` where it is not granted.
        """
        loop = asyncio.get_running_loop()
        if self._host.lends_for_a_while:
            return await self._acquire_on_a_node_of_its_own(timeout, loop)
        crossing = self._crossing
        if crossing is None or crossing.application is not loop or not crossing.node.is_open:
            crossing = self._cross(loop)
        limit_s = limit_of(timeout, crossing.plan.policy.timeout_s)
        for _ in range(turns_for_others(crossing)):
            await asyncio.sleep(0)
        return await wait_for(crossing, limit_s)

    async def _acquire_on_a_node_of_its_own(self, timeout: float | Unset | None, loop: Loop) -> Hold:
        wanted = self._plan()
        limit_s = limit_of(timeout, wanted.policy.timeout_s)
        begun_s = loop.time()
        node = await self._host.lend_within(self.name, limit_s)
        if limit_s:
            limit_s = max(limit_s - (loop.time() - begun_s), 0.001)
        crossing = cross(self._host, node, wanted, loop)
        try:
            return await wait_for(crossing, limit_s)
        except BaseException as error:
            await crossing.come_back(error)
            raise

    async def look(self) -> MutexSeen:
        """Who holds it, who waits and since when, in the whole group: one round trip, a second at most."""
        return await self._on_node(lambda node: node.lookout.look(self.name))

    async def history(self) -> tuple[PastSeen, ...]:
        """Who held it lately, the oldest first: what the members remember, which is some dozens of holds each."""
        return await self._on_node(lambda node: node.lookout.history(self.name))

    async def evict(self, reason: str) -> int:
        """Takes it from whoever holds it: their holds are lost ("evicted", `lost_detail` has the reason), what they do
        about that is theirs (`on_lost`), and the next one enters. How many holds were ended.

        For a holder that hangs. With `require_identity`, holders obey only those whom their `evictors` names.
        """
        return await self._on_node(lambda node: node.lookout.evict(self.name, reason))

    async def _on_node(self, work: Callable[[RunningNode], Coroutine[Any, Any, R]]) -> R:
        """On the node that is there, or on one that joins for it."""
        node = await self._host.lend_within(self.name, None)
        try:
            if node.loop is asyncio.get_running_loop():
                return await work(node)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(node), node.loop))
        finally:
            if self._host.lends_for_a_while:
                await see_through(self._host.take_back())

    def _guard_plain(self, function: Callable[P, R], timeout: float | Unset | None) -> Callable[P, R]:
        from softmutex.runtime.blocking import BlockingMutex

        return BlockingMutex(self.name, self._host, self._keywords).guard(timeout)(function)


async def wait_for(crossing: Crossing, limit_s: float | None) -> Hold:
    """Asks, and waits for what comes of it."""
    if nesting.of_tasks and (bodies := nesting.of_tasks.get(asyncio.current_task())):  # type: ignore[arg-type]
        nesting.check(bodies, "task", crossing, limit_s)
    hold = Hold(crossing, limit_s)
    observers = crossing.node.observers
    hold._followers = observers.look()
    if hold._followers or observers.plain:
        crossing.notice_wait(hold)
    if not crossing.is_near:
        hold._granted = asyncio.get_running_loop().create_future()
    crossing.ask(hold)
    if hold._progress is Progress.WAITING or not crossing.is_near:
        if hold._granted is None:
            hold._granted = crossing.node.loop.create_future()
        try:
            await hold._granted
        except BaseException:
            crossing.notice_end_of_wait(hold, "cancelled")
            hold._leave()
            crossing.withdraw(hold)
            raise
    hold._is_known = True
    if observers.awake or hold._error is not None:
        crossing.answered(hold)
    if hold._error is not None:
        raise hold._error
    return hold


def turns_for_others(crossing: Crossing) -> int:
    """Turns of the loop. After a release others come before this node asks again: a loop of nothing but `async with
    mutex: ...` would starve them. What they have sent may be in the socket: it takes turns of the loop until that is
    handled. Or it was not sent yet, for their process waits for the core that this one is on: so where a mutex is
    contended, the kernel is told that they may have it. Without that, two processes of a busy host took turns of 5 ms
    instead of 0.5 ms."""
    node = crossing.node
    local = node.mutexes.get(crossing.plan.name)
    if local is not None:
        if not local.machine.may_take_again():
            return 0  # others have it already
        if node.now() - local.heard_at < CONTENDED:
            os.sched_yield()
    return node.turns_to_hear
