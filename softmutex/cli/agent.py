"""The agent of `softmutex run`: a node that holds the mutex as long as the front's command runs.

    join --> ask --granted, and the front takes it--> hold --the front says done--> hand on, leave, end
              ^            '--it does not (it is stopped)--> hand on --'              ^
              |                                                |                      |
              '------------- the front is there again <--------'      the front was killed: kill its group first

The naive way, to start the command on the grant alone, lets a front that was stopped while it waited (Ctrl-Z) sit on
the mutex without using it, and start its command whenever it wakes up, long after others were given the mutex.

G1  The mutex is not handed on in good order before the command's group is gone, as far as that can be brought about.
G2  The agent ends: at the latest `LEAVE_MARGIN_S` after what leaving may take, even when its loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from softmutex import AcquireTimeout, ConfigError, Hold, Isolated, Node, SoftMutex, SoftMutexError
from softmutex.cli.command import is_gone
from softmutex.cli.link import Lines, pack
from softmutex.cli.supervise import KILL_PATIENCE_S, NOT_ACQUIRED, NOT_STARTED, SWEEP_EVERY_S, USAGE
from softmutex.runtime.config import Settings

TAKE_PATIENCE_S = 5.0
LEAVE_MARGIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Errand:
    name: str
    settings: Settings  # of the node
    keywords: Mapping[str, Any]  # of the mutex
    timeout_s: float | None
    on_overrun: str  # warn, cancel (the command is ended) or release (others are let in beside it)
    log_level: int


def serve(link: socket.socket, errand: Errand) -> None:
    logging.basicConfig(format="softmutex: %(message)s", level=errand.log_level)
    logging.getLogger("softmutex").addFilter(is_news_to_the_user)
    asyncio.run(Agent(link, errand).attend())


def is_news_to_the_user(record: logging.LogRecord) -> bool:
    """The library's words about lost and overlong holds are for programmers; the front has its own."""
    return record.funcName not in ("_on_lost", "overrun")


class Agent:
    def __init__(self, link: socket.socket, errand: Errand) -> None:
        self._link = link
        self._errand = errand
        self._began_at = time.monotonic()
        self._news = asyncio.Event()
        self._turn = 0  # which grant the front may take
        self._taken = 0  # which it took
        self._asleep = False  # the front is stopped, or seems to be
        self._over = False
        self._killed = False  # the front went without a word
        self._group = 0

    async def attend(self) -> None:
        self._link.setblocking(False)
        listening = asyncio.create_task(self._listen())
        try:
            await self._join_and_hold()
        except ConfigError as error:
            self._tell("failed", code=USAGE, why=str(error))
        except AcquireTimeout:
            limit_s = self._errand.timeout_s
            why = f"not acquired within {limit_s:g} s" if limit_s else "in use, and not waited for"
            self._tell("failed", code=NOT_ACQUIRED, why=f"{why}. See softmutex status -n {self._errand.name}")
        except Isolated as error:
            self._tell("failed", code=NOT_ACQUIRED, why=str(error))
        except (SoftMutexError, OSError) as error:
            self._tell("failed", code=NOT_STARTED, why=f"the node could not start: {error}")
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    # --- the front ---------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, **values: Any) -> None:
        with suppress(OSError):  # that the front is gone is noticed when reading
            self._link.send(pack(kind, **values))

    async def _listen(self) -> None:
        lines, loop = Lines(), asyncio.get_running_loop()
        while True:
            try:
                chunk = await loop.sock_recv(self._link, 65536)
            except ConnectionError:
                chunk = b""
            for message in lines.feed(chunk):
                match message:
                    case {"is": "take", "turn": int(turn)}:
                        self._taken, self._asleep = turn, False
                    case {"is": "running", "group": int(group)}:
                        self._group = group
                    case {"is": "pause"}:
                        self._asleep = True
                    case {"is": "resume"}:
                        self._asleep = False
                    case {"is": "done"}:
                        self._end()
                    case _:
                        pass
            if not chunk:
                self._killed = not self._over
                self._end()
                return
            self._news.set()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            # Not by the loop: that may be what is blocked.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(
                signal.ITIMER_REAL, self._errand.settings["leave_timeout"] + KILL_PATIENCE_S + LEAVE_MARGIN_S
            )
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    # --- the mutex ---------------------------------------------------------------------------------------------------

    async def _join_and_hold(self) -> None:
        errand = self._errand
        node = Node._of(errand.settings)
        on_overrun: Any = "release" if errand.on_overrun == "release" else self._on_overrun
        mutex = node.mutex(errand.name, **errand.keywords, on_lost="continue", on_overrun=on_overrun)
        over = asyncio.create_task(self._until(lambda: self._over))
        joining = asyncio.create_task(self._join(node))
        try:
            await asyncio.wait({joining, over}, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
                return
            joining.result()
            self._tell("said", why=f"joined as {node.name}, {len(node.peers())} others known; asking for {mutex.name}")
            while not self._over:
                await self._ask(mutex)
                await self._until(lambda: self._over or not self._asleep)
        finally:
            over.cancel()
            await node.close()

    async def _join(self, node: Node) -> None:
        limit_s = self._errand.timeout_s or None
        try:
            async with asyncio.timeout(limit_s):
                await node.open()
        except TimeoutError:
            raise AcquireTimeout from None

    async def _ask(self, mutex: SoftMutex) -> None:
        """One hold, or none where the front is stopped or does not want it any more."""
        holding = asyncio.create_task(self._hold(mutex))
        leaving = asyncio.create_task(self._until(lambda: self._over or self._asleep))
        await asyncio.wait({holding, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if self._taken != self._turn or not self._turn:
            holding.cancel()
        leaving.cancel()
        (outcome, _) = await asyncio.gather(holding, leaving, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _hold(self, mutex: SoftMutex) -> None:
        limit_s = self._errand.timeout_s
        if limit_s:
            limit_s = max(0.001, limit_s - (time.monotonic() - self._began_at))
        async with mutex.hold(limit_s) as hold:
            self._turn += 1
            self._tell("granted", turn=self._turn)
            with suppress(TimeoutError):
                async with asyncio.timeout(TAKE_PATIENCE_S):
                    await self._until(lambda: self._taken == self._turn or self._over)
            if self._taken != self._turn:
                self._asleep = True
                return
            self._tell("go", epoch=hold.epoch)
            await self._watch_over(hold)
            if self._killed and self._group:
                await kill_group(self._group)

    async def _watch_over(self, hold: Hold) -> None:
        over = asyncio.create_task(self._until(lambda: self._over))
        lost = asyncio.create_task(hold.lost.wait())
        await asyncio.wait({over, lost}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done() and not self._over:
            why = hold.lost_reason.value if hold.lost_reason else "unknown"
            self._tell("lost", why=f"{hold.name} may be held by others, too, from now on ({why})")
            await over
        over.cancel()
        lost.cancel()
        await asyncio.gather(over, lost, return_exceptions=True)

    def _on_overrun(self, hold: Hold) -> None:
        why = f"{hold.name} is held for longer than --max-hold allows"
        self._tell("overrun", why=why, end=self._errand.on_overrun == "cancel")


async def kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(round(KILL_PATIENCE_S / SWEEP_EVERY_S)):
        if is_gone(group):
            return
        await asyncio.sleep(SWEEP_EVERY_S)
