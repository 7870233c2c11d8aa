"""A reverse proxy as sites have them: one public port, a prefix for each node behind it, which it takes off."""

import itertools
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.ports import free_ports

BACKENDS = 16


class ReverseProxy:
    """`new_backend` gives a free port for a node to listen on, and the public URL under which it will be reached."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._free = free_ports(BACKENDS)  # taken before a test counts descriptors
        self._names = (f"node-{number}" for number in itertools.count(1))

    async def __aenter__(self) -> Self:
        # Nothing stays open between requests: what a node leaves behind must not be taken for the proxy's.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        self._runner = web.ServerRunner(web.Server(self._pass_on, keepalive_timeout=0))
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._session.close()
        await self._runner.cleanup()

    def new_backend(self) -> tuple[int, str]:
        port = self._free.pop()
        name = next(self._names)
        self._ports[name] = port
        return port, f"http://127.0.0.1:{self._port}/site/{name}"

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        _, _, name, rest = request.path.split("/", 3)
        url = f"http://127.0.0.1:{self._ports[name]}/{rest}"
        headers = {"Softmutex-From": request.headers.get("Softmutex-From", "")}
        try:
            async with self._session.request(request.method, url, data=await request.read(), headers=headers) as answer:
                return web.Response(status=answer.status, body=await answer.read())
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=str(error))
