"""The bounded queue between a transport's socket and the node's pump. For every transport, also those of third parties.

What it decides: who is too slow loses the oldest datagrams, and they are counted. An unbounded queue turns a paused
reader into a process without memory, and one that refuses the newest hands a reader that comes back nothing but news
of a world that is gone.

B1  `receive` gives all that is there, in order of arrival, at least one.
B2  Cancelling a waiting `receive` loses nothing.
B3  After `close`, `receive` raises `Closed`, also one that waits already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from softmutex.ports import Closed, Datagram

DATAGRAMS_MAX = 2048


class Mailbox:
    def __init__(self, limit: int = DATAGRAMS_MAX) -> None:
        self._limit = limit
        self._waiting: list[Datagram] = []
        self._reader: asyncio.Future[None] | None = None
        self._closed = False
        self.dropped = 0

    def put(self, datagram: Datagram) -> None:
        if self._closed:
            return
        self._waiting.append(datagram)
        if len(self._waiting) >= 2 * self._limit:
            self._trim()  # in one piece now and then, which costs nothing a datagram
        if self._reader is not None:
            self._wake()

    async def receive(self) -> Sequence[Datagram]:
        while not self._waiting and not self._closed:
            if self._reader is not None:
                raise RuntimeError("two tasks wait in receive() of one transport; one alone may")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._closed:
            raise Closed("the transport is closed")
        if len(self._waiting) > self._limit:
            self._trim()
        return self.empty()

    def empty(self) -> list[Datagram]:
        """All that is there, in order of arrival."""
        batch, self._waiting = self._waiting, []
        return batch

    def close(self) -> None:
        self._closed = True
        self._waiting = []
        self._wake()

    def _trim(self) -> None:
        surplus = len(self._waiting) - self._limit
        del self._waiting[:surplus]
        self.dropped += surplus

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
