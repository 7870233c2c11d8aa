"""An agent's conversation with one job, from the wish until the job is over.

    ask --granted, and the job takes it--> hold --the job says done--> hand on
     ^     '--it does not (it is stopped)--> hand on --'         ^
     |                                           |               |
     '------------- the job is there again <-----'        the job was killed: kill its group first

The naive way, to let the job begin on the grant alone, lets one that was stopped while it waited (Ctrl-Z) sit on the
mutex without using it, and begin whenever it wakes up, long after others were given the mutex.

G1  The mutex is not handed on in good order before the command's group is gone, as far as that can be brought about.
G2  A job that is gone, however it went, holds nothing and waits for nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any

from softmutex import AcquireTimeout, ConfigError, Hold, Isolated, Node, NodeClosed, SoftMutex, SoftMutexError
from softmutex.agent.groups import kill_group, outlast_group
from softmutex.agent.link import NOT_ACQUIRED, NOT_STARTED, USAGE, Lines, NotALink, pack
from softmutex.agent.room import NOBODY, OnOverrun, Rooms
from softmutex.agent.traced import below, is_of_one_trace
from softmutex.agent.users import User
from softmutex.core.events import from_seconds
from softmutex.core.tuples import NamedTuple
from softmutex.runtime.whom import purpose_of, purpose_of_job
from softmutex.saying import logger

TAKE_PATIENCE_S = 5.0
LOOK_S = 0.3  # how long is waited for others to tell who is in the way
PROGRESS_EVERY_S = 1.0
PROCESS_MOST = 2**31 - 1  # what the kernel takes for a number of processes
log = logger("agent")


class JobWish(NamedTuple):
    name: str
    keywords: Mapping[str, Any]  # of the mutex
    timeout_s: float | None
    said_s: float | None = None  # the time limit as the job's user gave it, of which `timeout_s` is left
    on_overrun: str = "warn"  # warn, cancel (the job is asked to end) or release (others are let in beside it)
    trace: Mapping[str, str] = MappingProxyType({})  # of the job's span (traced.py)
    since_s: float | None = None  # since 1970: when the job began to wait, maybe at another agent
    keep_s: float = 0.0  # how long its place is kept when it gives up
    purpose: str | None = None  # what others are shown of it; this process' own where it is not said
    progress: bool = False  # it is to be told who is in the way, while it waits


async def no_more_to_do() -> None:
    """The node is there already."""


async def received(link: socket.socket, most: int) -> bytes:
    """As `loop.sock_recv`, which first looks whether that is a socket of TLS, and loads all of `ssl` in order to."""
    loop, is_there = asyncio.get_running_loop(), asyncio.Event()
    while True:
        with suppress(BlockingIOError):
            return link.recv(most)
        is_there.clear()
        loop.add_reader(link, is_there.set)
        try:
            await is_there.wait()
        finally:
            loop.remove_reader(link)


class JobSession:
    def __init__(
        self,
        link: socket.socket,
        wish: JobWish,
        node: Node,
        *,
        join: Callable[[], Awaitable[None]] = no_more_to_do,
        on_end: Callable[[], None] = lambda: None,
        is_closing: Callable[[], bool] = lambda: False,
        lines: Lines | None = None,
        rooms: Rooms | None = None,
        user: User = NOBODY,
    ) -> None:
        """`is_closing`: who still waits is not told of an end, so that it asks the next agent. `rooms`: those of the
        agent, where there are other jobs. `user`: whose job it is, by the kernel."""
        self._link = link
        self._wish = wish
        self._node = node
        self._join = join
        self._on_end = on_end
        self._is_closing = is_closing
        self._lines = lines or Lines()
        self._rooms = rooms or Rooms()
        self._user = user
        self._began_at = time.monotonic()
        self._since_s = time.time() if wish.since_s is None else wish.since_s
        self._news = asyncio.Event()
        self._turn = 0  # which grant the job may take
        self._taken = 0  # which it took
        self._asleep = False  # the job is stopped, or seems to be
        self._over = False
        self._killed = False  # the job went without a word
        self._group = 0
        self._hold: Hold | None = None
        self._overran: Hold | None = None  # before its command ran

    async def attend(self) -> None:
        self._link.setblocking(False)
        purpose_of_job.set(self._wish.purpose)
        listening = asyncio.create_task(self._listen())
        try:
            with below(self._wish.trace):
                await self._join_and_hold()
        except ConfigError as error:
            self._fail(USAGE, "config", str(error))
        except AcquireTimeout:
            limit_s = self._wish.said_s or self._wish.timeout_s
            why = f"not acquired within {limit_s:g} s" if limit_s else "in use, and not waited for"
            words = await self._in_the_way()
            said = f"{why}{': ' * bool(words)}{words}. See softmutex status -n {self._wish.name}"
            self._fail(NOT_ACQUIRED, "timeout", said)
        except Isolated as error:
            self._fail(NOT_ACQUIRED, "isolated", str(error))
        except (SoftMutexError, OSError) as error:
            if not (isinstance(error, NodeClosed) and self._is_closing()):
                self._fail(NOT_STARTED, "closed", f"the node could not start: {error}")
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    # --- the job -----------------------------------------------------------------------------------------------------

    def _say(self, kind: str, **values: Any) -> None:
        with suppress(OSError):  # that the job is gone is noticed when reading
            self._link.send(pack(kind, **values))

    def _fail(self, code: int, error: str, why: str) -> None:
        self._say("failed", code=code, error=error, why=why)

    async def _in_the_way(self) -> str:
        """Who holds it, and how many wait before this job; empty where that is not known."""
        try:
            seen = await self._node.running().lookout.look(self._wish.name, LOOK_S)
        except SoftMutexError:
            return ""
        return seen.words(self._since_s)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            if not self._asleep and (words := await self._in_the_way()):
                self._say("progress", why=words)

    async def _listen(self) -> None:
        while True:
            try:
                chunk = await received(self._link, self._user.reads_most)
                messages = self._lines.feed(chunk)
            except (OSError, NotALink):
                chunk, messages = b"", []
            for message in messages:
                self._on_message(message)
            if not chunk:
                self._killed = not self._over
                self._end()
                return
            self._news.set()
            await self._user.say(len(messages))

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"is": "take", "turn": int(turn)}:
                self._taken, self._asleep = turn, False
            case {"is": "running", "group": int(group)} if 1 < group <= PROCESS_MOST and group != os.getpgrp():
                self._group = group
            case {"is": "touch"} if self._hold is not None:
                self._hold.touch()
            case {"is": "pause"}:
                self._asleep = True
            case {"is": "resume"}:
                self._asleep = False
            case {"is": "done"}:
                self._end()
            case _:
                pass

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._on_end()
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    # --- the mutex ---------------------------------------------------------------------------------------------------

    async def _join_and_hold(self) -> None:
        wish, node = self._wish, self._node
        over = asyncio.create_task(self._until(lambda: self._over))
        joining = asyncio.ensure_future(self._join())
        try:
            await asyncio.wait({joining, over}, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
                return
            joining.result()
            known = len(node.running().members) - 1
            others = f"{known} other{'' if known == 1 else 's'}"
            self._say("said", why=f"joined as {node.name}, {others} known; asking for {wish.name}")
            while not self._over:
                await self._ask()
                await self._until(lambda: self._over or not self._asleep)
        finally:
            over.cancel()

    async def _ask(self) -> None:
        """One hold, or none where the job is stopped or does not want it any more."""
        holding = asyncio.create_task(self._hold_it())
        leaving = asyncio.create_task(self._until(lambda: self._over or self._asleep))
        try:
            await asyncio.wait({holding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if self._taken != self._turn or not self._turn:
                holding.cancel()
            leaving.cancel()
            outcome, _ = await asyncio.gather(holding, leaving, return_exceptions=True)
        finally:  # the agent ends
            holding.cancel()
            leaving.cancel()
        if isinstance(outcome, Exception):
            raise outcome

    def _make(self, on_overrun: OnOverrun) -> SoftMutex:
        """As all jobs want it that wait in one room; what is this job's own comes with its turn."""
        keywords = {"on_lost": "continue", "on_overrun": on_overrun, **self._terms()}
        return SoftMutex._on(self._node, self._wish.name, keywords)

    def _terms(self) -> dict[str, Any]:
        return {key: value for key, value in self._wish.keywords.items() if key != "max_hold"}

    def _make_mine(self, hold: Hold) -> None:
        policy, said = hold._policy, self._wish.keywords
        if "max_hold" in said:
            limit_s = said["max_hold"]
            policy = policy._replace(max_hold=None if limit_s is None else from_seconds(limit_s))
        if self._wish.on_overrun == "release":
            policy = policy._replace(on_overrun="release")
        hold._purpose = purpose_of(policy.purpose)  # the claim was another job's once
        if policy is not hold._policy and hold._local is not None:
            hold._local.bind(hold, policy)

    @asynccontextmanager
    async def _turn_of(self, limit_s: float | None, telling: asyncio.Task[None] | None) -> AsyncIterator[Hold]:
        """`telling` ends with the wait."""
        try:
            async with self._in_turn(limit_s) as hold:
                if telling is not None:
                    telling.cancel()
                yield hold
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    @asynccontextmanager
    async def _in_turn(self, limit_s: float | None) -> AsyncIterator[Hold]:
        wish = self._wish
        if limit_s == 0:  # a try is no wait
            async with self._user.turn(0), self._make(self._on_overrun).hold(0) as hold:
                self._make_mine(hold)
                yield hold
            return
        key, begun = repr((wish.name, sorted(self._terms().items()))), time.monotonic()
        async with self._user.turn(limit_s), self._rooms.room(key, self._make) as room:
            left_s = limit_s and max(0.001, limit_s - (time.monotonic() - begun))
            async with room.turn(self._since_s, time.time(), left_s, wish.keep_s, self._on_overrun, self._user) as hold:
                self._make_mine(hold)
                yield hold

    async def _hold_it(self) -> None:
        limit_s = self._wish.timeout_s
        if limit_s:
            limit_s = max(0.001, limit_s - (time.monotonic() - self._began_at))
        telling = asyncio.create_task(self._tell_progress()) if self._wish.progress else None
        async with self._turn_of(limit_s, telling) as hold:
            self._turn += 1
            self._say("granted", turn=self._turn)
            with suppress(TimeoutError):
                async with asyncio.timeout(TAKE_PATIENCE_S):
                    await self._until(lambda: self._taken == self._turn or self._over)
            if self._taken != self._turn:
                self._asleep = True
                return
            self._hold = hold
            trace = hold._trace()
            trace = trace if is_of_one_trace(trace, self._wish.trace) else {}  # the claim was another job's once
            self._say("go", **{**described(hold), "waited": time.monotonic() - self._began_at, "trace": trace})
            if self._overran is hold:
                self._on_overrun(hold)
            await self._watch_over(hold)
            self._hold = None
            if self._killed and self._group:
                await (kill_group if self._user.limits is None else outlast_group)(self._group, log.warning)

    async def _watch_over(self, hold: Hold) -> None:
        over = asyncio.create_task(self._until(lambda: self._over))
        lost = asyncio.create_task(hold.lost.wait())
        try:
            await asyncio.wait({over, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not self._over:
                reason = hold.lost_reason.value if hold.lost_reason else "unknown"
                detail = f": {hold.lost_detail}" if hold.lost_detail else ""
                why = f"{hold.name} may be held by others, too, from now on ({reason}{detail})"
                self._say("lost", reason=reason, detail=hold.lost_detail, why=why)
                await over
        finally:
            over.cancel()
            lost.cancel()
            await asyncio.gather(over, lost, return_exceptions=True)

    def _on_overrun(self, hold: Hold) -> None:
        if self._hold is not hold:  # its command does not run yet, and nobody would listen
            self._overran = hold
            return
        why = f"{hold.name} is held for longer than --max-hold allows"
        self._say("overrun", why=why, end=self._wish.on_overrun == "cancel")


def described(hold: Hold) -> dict[str, Any]:
    left_s = None if hold.deadline is None else hold.deadline - asyncio.get_running_loop().time()
    return {
        "epoch": hold.epoch,
        "hop": hold.hop,
        "node": hold.node,
        "peers": hold.peers,
        "waited": hold.waited,
        "left": left_s,
    }
