"""Where the jobs of one agent wait for one mutex: who began to wait first comes first, also after a pause.

    job (since) --enters--> [waiting, by `since`]          a claim for each of them, and for each place that is kept
                                   ^--- the next one --- granted: a claim, whichever

What it decides: a place in the group's queue belongs to the agent, and the jobs share their agent's places by how long
they wait. The naive way, a claim for each visit of a job, sends a job that asks again (a task that its scheduler tries
again later, a job whose agent was restarted) behind everybody who came meanwhile.
How long it waits is what the job says. So among the users of a host the turns go round, and it counts among the jobs
of one user only.

R1  As many claims as jobs that wait here, and as places that are kept. An excess is withdrawn at the young end.
R2  A job that gives up in time may have its place kept for a while: its claim goes on. Where the turn comes and nobody
    is here, it is handed on at once, and the place is gone.
R3  Of N users with jobs that wait here each is served within N turns of this agent, whatever the others say or do.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from softmutex import AcquireTimeout, Hold, SoftMutex
from softmutex.agent.users import User

NOBODY = User(-1)  # of a room whose jobs are all one user's

OnOverrun: TypeAlias = Callable[[Hold], object]


class WaitingJob:
    def __init__(self, since_s: float, number: int, user: User) -> None:
        self.since_s = since_s
        self.number = number
        self.granted: asyncio.Future[tuple[Any, Hold]] = asyncio.get_running_loop().create_future()
        self.user = user

    def __lt__(self, other: WaitingJob) -> bool:
        return (self.since_s, self.number) < (other.since_s, other.number)


class KeptHold:
    def __init__(self, left_s: float, timer: asyncio.TimerHandle, user: User) -> None:
        self.left_s = left_s  # when its job gave up; since 1970, as `since_s`
        self.timer = timer
        self.user = user


class Room:
    """`make` gives the mutex; it is called with what its holds do when they overrun."""

    def __init__(self, make: Callable[[OnOverrun], SoftMutex]) -> None:
        self._mutex = make(self._overran)
        self._numbers = itertools.count()
        self._waiting: list[WaitingJob] = []
        self._kept: list[KeptHold] = []
        self._served: dict[User, int] = {}  # the last turn of each, by number
        self._turns = itertools.count(1)
        self._claims: list[asyncio.Task[None]] = []  # those that are not granted yet, the oldest first
        self._inside: dict[Hold, OnOverrun] = {}

    @property
    def is_empty(self) -> bool:
        return not (self._waiting or self._kept or self._claims or self._inside)

    @asynccontextmanager
    async def turn(
        self,
        since_s: float,
        now_s: float,
        limit_s: float | None,
        keep_s: float,
        on_overrun: OnOverrun,
        user: User = NOBODY,
    ) -> AsyncIterator[Hold]:
        """`AcquireTimeout`, and what a claim ends with: `Isolated`, `NodeClosed`."""
        waiter = WaitingJob(min(since_s, now_s), next(self._numbers), user)
        self._come_back(waiter)
        bisect.insort(self._waiting, waiter)
        self._settle()
        try:
            async with asyncio.timeout(limit_s):
                holding, hold = await waiter.granted
        except BaseException as error:
            await self._leave(waiter)
            if isinstance(error, TimeoutError) and not isinstance(error, AcquireTimeout):
                if keep_s > 0 and user.may_keep:
                    self._keep(now_s + (limit_s or 0.0), keep_s, user)
                raise AcquireTimeout(f"the mutex {self._mutex.name!r} was not granted within {limit_s:g} s.") from None
            raise
        finally:
            self._settle()
        self._inside[hold] = on_overrun
        try:
            yield hold
        finally:
            del self._inside[hold]
            await holding.__aexit__(None, None, None)

    def close(self) -> None:
        while self._kept:
            self._drop(self._kept[0])
        self._settle()

    # --- places -------------------------------------------------------------------------------------------------------

    def _keep(self, left_s: float, keep_s: float, user: User) -> None:
        self._kept.append(KeptHold(left_s, asyncio.get_running_loop().call_later(keep_s, self._expire, left_s), user))
        user.kept += 1

    def _drop(self, kept: KeptHold) -> None:
        kept.timer.cancel()
        kept.user.kept -= 1
        self._kept.remove(kept)

    def _expire(self, left_s: float) -> None:
        self._drop(next(kept for kept in self._kept if kept.left_s == left_s))
        self._settle()

    def _come_back(self, waiter: WaitingJob) -> None:
        """Whoever began to wait before a place was left may have it: it is the same job, or one that waits longer."""
        for kept in self._kept:
            if kept.user is waiter.user and waiter.since_s < kept.left_s:
                self._drop(kept)
                return

    def _next(self) -> WaitingJob:
        """R3. Of the user whose last turn is the longest ago, the job that waits longest."""
        waiter = min(self._waiting, key=lambda waiter: (self._served.get(waiter.user, 0), waiter))
        self._waiting.remove(waiter)
        self._served[waiter.user] = next(self._turns)
        return waiter

    def _settle(self) -> None:
        wanted = len(self._waiting) + len(self._kept)
        while len(self._claims) > wanted:
            self._claims.pop().cancel()
        while len(self._claims) < wanted:
            self._claims.append(asyncio.create_task(self._claim(), name=f"a place for {self._mutex.name}"))

    async def _leave(self, waiter: WaitingJob) -> None:
        """It gives up. A grant that crosses that is the next one's."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
            await self._give(*waiter.granted.result())
        waiter.granted.cancel()

    # --- claims -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        holding = self._mutex.hold(None)
        try:
            hold = await holding.__aenter__()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._claims.remove(me)
            self._fail(error)
            return
        if me in self._claims:
            self._claims.remove(me)
        await self._give(holding, hold)

    async def _give(self, holding: Any, hold: Hold) -> None:
        while self._waiting:
            waiter = self._next()
            if not waiter.granted.done():
                waiter.granted.set_result((holding, hold))
                return
        if self._kept:
            self._drop(self._kept[0])
        await holding.__aexit__(None, None, None)

    def _fail(self, error: Exception) -> None:
        while self._waiting:
            waiter = self._waiting.pop(0)
            if not waiter.granted.done():
                waiter.granted.set_exception(error)
                return
        if self._kept:
            self._drop(self._kept[0])

    def _overran(self, hold: Hold) -> None:
        if hold in self._inside:
            self._inside[hold](hold)


class Rooms:
    """Of one agent: one for each mutex and each terms on which it is wanted."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}

    @asynccontextmanager
    async def room(self, key: str, make: Callable[[OnOverrun], SoftMutex]) -> AsyncIterator[Room]:
        room = self._rooms.setdefault(key, Room(make))
        try:
            yield room
        finally:
            for each in [each for each, found in self._rooms.items() if found.is_empty]:
                del self._rooms[each]

    def close(self) -> None:
        for room in self._rooms.values():
            room.close()
