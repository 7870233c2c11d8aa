"""One watcher's stream of server-sent events, in two gears.

    catching up: its own task writes what it lacks, at most CATCHING_UP_MAX of them at once, and waits for the reader
         | it has all                                  ^ the next piece is large, or the reader is slow
         v                                             |
    following: the hub writes the same bytes to all of them in one go

What it decides: a change for 10,000 watchers is made, signed and framed once, and written without waking a task each.
And a list of a megabyte is never in 10,000 buffers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aiohttp import web

SMALL_BYTES = 32 << 10
OWED_MAX = 128 << 10
CATCHING_UP_MAX = 64
READ_S = 20.0  # a reader that has not taken a list by then is cut off; it comes back for what it lacks
KEEP_S = 10.0
COMMENT = b": here\n\n"


class Stream:
    Frame: TypeAlias = bytes | None

    def __init__(self, response: web.StreamResponse, transport: asyncio.WriteTransport, version: int) -> None:
        self._response = response
        self._transport = transport
        self.version = version  # what the watcher has
        self._woken: asyncio.Future[None] | None = None

    @staticmethod
    def frame(event: bytes) -> bytes:
        """As a chunk of a chunked answer, which is what `StreamResponse` began."""
        return b"%x\r\n%b\r\n" % (len(event), event)

    def tell(self, frame: Frame, version: int) -> None:
        if frame is None:
            return
        if len(frame) > SMALL_BYTES or self._transport.get_write_buffer_size() > OWED_MAX:
            self.wake()
            return
        self._transport.write(frame)
        self.version = version

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def follow(
        self,
        here: dict[Stream, None],
        lacks: Callable[[int], tuple[int, bytes] | None],
        turns: asyncio.Semaphore,
        is_closing: Callable[[], bool],
    ) -> None:
        """Until the registry closes; cancelled when the connection is gone. `here`: the streams that the hub writes."""
        await self._response.write(COMMENT)
        while not is_closing():
            async with turns:
                lacking = lacks(self.version)
                if lacking is not None:
                    version, event = lacking
                    try:
                        async with asyncio.timeout(READ_S):
                            await self._response.write(event)
                    except TimeoutError:
                        self._transport.abort()
                        return
                    self.version = version
                    continue
            self._woken = asyncio.get_running_loop().create_future()
            here[self] = None
            try:
                async with asyncio.timeout(KEEP_S):
                    await self._woken
            except TimeoutError:
                self._transport.write(self.frame(COMMENT))
            finally:
                here.pop(self, None)
