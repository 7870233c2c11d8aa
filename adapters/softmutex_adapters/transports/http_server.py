"""The receiving half of the HTTP transport: an aiohttp server that nobody can hold on to.

What it decides: who connects has bounded time and bounded bytes for each thing. The naive way, a web application with
defaults, waits for ever for a header that comes a byte a minute, unpacks a kilobyte into a gigabyte, and dies of
descriptors long before its application notices.

    connect -- HEADER_S --> first request -- BODY_S, MAX_BODY --> answer -- IDLE_S --> next request
               too late, too much, too many: closed and counted

Imported by `HttpTransport.open` only, since aiohttp takes longer to import than the rest of the library together.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from socket import socket

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from softmutex_adapters.transports.frames import BODY_TYPE, MAX_BODY, SENDER_HEADER, pack, read_base, unpack

HEADER_S = 10.0
BODY_S = 10.0
IDLE_S = 75.0  # longer than our own client keeps a connection, so that it never writes into one that closes
SWEEP_S = 5.0
CONNECTIONS_MAX = 1024
STOP_S = 0.5
BACKLOG = 1024

# The sender, its frames, and how many bytes they were in all; gives the frames that are its answer, None: too many ask.
TakeFrames = Callable[[str, list[bytes], int], Awaitable[deque[bytes] | None]]


class FrameServer:
    """Calls `take` for each body of frames that is posted to one of `paths`."""

    def __init__(self, paths: frozenset[str], take: TakeFrames, counts: dict[str, int]) -> None:
        self._paths, self._take, self._counts = paths, take, counts
        self._server: asyncio.Server | None = None
        self._web: _Connections | None = None

    async def start(self, bound: socket, tls: ssl.SSLContext | None) -> None:
        self._web = _Connections(self._answer, self._counts)
        self._server = await asyncio.get_running_loop().create_server(
            self._web, sock=bound, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=HEADER_S if tls else None
        )
        self._web.sweep()

    async def stop(self) -> None:
        if self._server is None or self._web is None:
            return
        self._server.close()
        await self._web.stop()
        await self._server.wait_closed()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._web is not None
        try:
            return await self._read(request)
        finally:
            self._web.was_heard(request.protocol)

    async def _read(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in self._paths:
            return self._refuse(404, "there is nothing here; frames of softmutex go to .../softmutex")
        if request.method != "POST":
            return self._refuse(405, "this is a member of a softmutex group; frames come by POST")
        try:
            async with asyncio.timeout(BODY_S):
                body = await self._read_body(request)
        except TimeoutError:
            return self._refuse(408, f"the body took more than {BODY_S:g} s")
        if body is None:
            return self._refuse(413, f"a body may have {MAX_BODY} bytes")
        frames = unpack(body)
        sender = read_base(request.headers.get(SENDER_HEADER, ""))
        if frames is None or sender is None:
            return self._refuse(400, f"the body is a list of frames, and {SENDER_HEADER} an http(s) address")
        answer = await self._take(sender, frames, len(body))
        if answer is None:
            return self._refuse(503, "too many strangers ask at once; try again")
        if not answer:
            return web.Response(status=204)
        return web.Response(body=pack(answer)[0], content_type=BODY_TYPE)

    @staticmethod
    async def _read_body(request: web.BaseRequest) -> bytes | None:
        if (request.content_length or 0) > MAX_BODY:
            return None
        body = bytearray()
        while chunk := await request.content.readany():
            body += chunk
            if len(body) > MAX_BODY:
                return None
        return bytes(body)

    def _refuse(self, status: int, why: str) -> web.StreamResponse:
        self._counts["refused_requests"] += 1
        answer = web.Response(status=status, text=f"{why}\n")
        answer.force_close()  # also throws away the rest of a body that is too long
        return answer


class _Connections(web.Server):
    """Knows since when each connection owes a request, and closes those that owe it for too long."""

    def __init__(self, answer: Callable[[web.BaseRequest], object], counts: dict[str, int]) -> None:
        # A packed body is not unpacked: its limit is that of the bytes on the line.
        super().__init__(answer, auto_decompress=False, access_log=None, lingering_time=0, keepalive_timeout=IDLE_S)  # type: ignore[arg-type]
        self._counts = counts
        self._deadlines: dict[RequestHandler, float] = {}
        self._open: dict[RequestHandler, asyncio.Transport] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport
        self._deadlines[handler] = asyncio.get_running_loop().time() + HEADER_S + BODY_S
        if len(self._open) > CONNECTIONS_MAX:
            self._close_one(min(self._deadlines, key=self._deadlines.__getitem__))

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)
        self._deadlines.pop(handler, None)

    def was_heard(self, handler: RequestHandler) -> None:
        if handler in self._open:
            self._deadlines[handler] = asyncio.get_running_loop().time() + IDLE_S

    def sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for handler in [handler for handler, deadline in self._deadlines.items() if deadline < now]:
            self._close_one(handler)
        self._timer = loop.call_later(SWEEP_S, self.sweep)

    def _close_one(self, handler: RequestHandler) -> None:
        self._counts["connections_closed"] += 1
        self._deadlines.pop(handler, None)
        self._open[handler].abort()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.pre_shutdown()
        await self.shutdown(STOP_S)
