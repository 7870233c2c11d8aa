"""`softmutex.client` under asyncio: the same talk, carried by the running loop.

A hold watches its link as long as it lives, so that `hold.lost` is set, and the task cancelled where that was asked for
(`on_lost="cancel"`), while the body runs.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

from softmutex.agent.link import NotALink
from softmutex.agent.place import NoAgent
from softmutex.client import CALL_EVERY_S, GrantedTalk, SoftMutex, Talk
from softmutex.core.events import LostReason
from softmutex.front import UNSET, Tasks, Unset, limit_of


class AsyncHold(GrantedTalk):
    """The right to run, until the `async with` is over or `release()` was awaited."""

    def __init__(self, talk: Talk, link: socket.socket) -> None:
        super().__init__(talk, link)
        self.lost = asyncio.Event()
        self.task = asyncio.current_task()
        self._cancels_before = self.task.cancelling() if self.task else 0
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(link.fileno(), self._read)

    @property
    def lost_reason(self) -> LostReason | None:
        return self._talk.lost_reason

    def _read(self) -> None:
        try:
            chunk = self._link.recv(65536)
            self._talk.feed(chunk)
        except BlockingIOError:
            return
        except (OSError, NotALink):
            chunk = b""
            self._talk.feed(chunk)
        if not chunk:
            self._loop.remove_reader(self._link.fileno())
        if self._talk.lost_reason is not None:
            self.lost.set()
        if self._talk.to_raise_afterwards() is not None and self.task is not None and not self._cancelled:
            self._cancelled = True
            self.task.cancel()

    async def __aenter__(self) -> AsyncHold:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.release()
        if not self._cancelled or self.task is None:
            return
        cancelled_by_others = self.task.uncancel() > self._cancels_before
        afterwards = self._talk.to_raise_afterwards()
        if afterwards and not cancelled_by_others and (error is None or isinstance(error, asyncio.CancelledError)):
            raise afterwards from error

    async def release(self) -> None:
        """Hands the mutex on. It may be called again, and raises nothing."""
        if not self._over:
            self._loop.remove_reader(self._link.fileno())
            self._let_go()


class TaskMutex(Tasks[AsyncHold]):
    """The same mutex for tasks."""

    def __init__(self, mutex: SoftMutex) -> None:
        super().__init__()
        self._mutex = mutex

    async def acquire(self, timeout: float | Unset | None = UNSET) -> AsyncHold:
        mutex = self._mutex
        talk = Talk(mutex, limit_of(timeout, mutex._timeout))
        while True:
            try:
                link = await call(mutex, talk)
                break
            except NoAgent:
                if not mutex._may_come_back(talk):
                    raise
                await asyncio.sleep(CALL_EVERY_S)
        try:
            while not talk.is_settled():
                link = await listen(mutex, talk, link)
        except BaseException:
            link.close()
            raise
        if talk.error is not None:
            link.close()
            raise talk.error
        return AsyncHold(talk, link)


async def call(mutex: SoftMutex, talk: Talk) -> socket.socket:
    """In a thread: an agent that is stuck is waited for some seconds, and this loop is not to be.

    Nobody may want the link any more when the thread has it, and the loop may have ended: whoever of the two comes
    second hangs up.
    """
    lock, links, is_wanted = threading.Lock(), [], True

    def calling() -> None:
        found = mutex._call(talk)
        with lock:
            links.append(found)
            if not is_wanted:
                found.close()

    try:
        await asyncio.to_thread(calling)
    except asyncio.CancelledError:
        with lock:
            is_wanted = False
            for each in links:
                each.close()
        raise
    links[0].setblocking(False)
    return links[0]


async def listen(mutex: SoftMutex, talk: Talk, link: socket.socket) -> socket.socket:
    """The link to go on with: another one after the agent hung up."""
    loop = asyncio.get_running_loop()
    with suppress(OSError, NotALink):
        chunk = await loop.sock_recv(link, 65536)
        if chunk:
            await loop.sock_sendall(link, talk.feed(chunk))
            return link
    link.close()
    since = time.monotonic()
    while True:
        try:
            return await call(mutex, talk)
        except NoAgent:
            if not talk.may_call_again(since):
                if talk.error is None:
                    raise
                return link
            await asyncio.sleep(CALL_EVERY_S)
