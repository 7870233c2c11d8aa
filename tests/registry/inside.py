"""A registry in the process of the test, and a bare HTTP client: what is on the line, and nothing else."""

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from softmutex_adapters.memberships import registry
from softmutex_adapters.registry import client, wire
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.server import RegistryServer
from softmutex_adapters.registry.sqlite_store import SqliteStore
from softmutex_adapters.registry.store import Store
from softmutex_adapters.registry.tokens import Tokens

LEASE = "lease-of-number-"


class Inside:
    """`call` gives status, JSON and headers."""

    def __init__(self, hub: Hub, server: RegistryServer, session: aiohttp.ClientSession, port: int) -> None:
        self.hub, self.server, self.session, self.port = hub, server, session, port
        self.base = f"http://127.0.0.1:{port}"

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
        async with self.session.request(method, self.base + path, **options) as answer:
            body = await answer.read()
            told = json.loads(body) if body and "json" in answer.content_type else body.decode()
            return answer.status, told, answer.headers

    async def join(self, group: str, number: int, **options: Any) -> int:
        status, told, _ = await self.call("PUT", self.path(group, number), json=body(number), **options)
        assert status == 200, told
        return int(told["version"])

    async def listed(self, group: str) -> list[str]:
        _, told, _ = await self.call("GET", f"/v1/groups/{group}/members")
        return [address for _, address, _, _ in told["joined"]] if told else []

    def path(self, group: str, number: int) -> str:
        return f"/v1/groups/{group}/members/{lease(number)}"


def signer_of(folder: Path) -> wire.Signer:
    """The same for all registries of one directory."""
    return wire.Signer(hashlib.sha256(str(folder).encode()).digest())


def lease(number: int) -> str:
    return f"{LEASE}{number}"


def body(number: int, **other: Any) -> dict[str, Any]:
    return {"address": f"10.0.0.1:{number}", "id": f"{number:016x}", "name": f"node-{number}", **other}


@contextlib.asynccontextmanager
async def inside(
    folder: Path,
    *,
    store: Store | None = None,
    tokens: Tokens | None = None,
    hub: Any = None,
    signer: wire.Signer | None = None,
    port: int = 0,
    **limits: Any,
) -> AsyncIterator[Inside]:
    hub = Hub(store or SqliteStore(str(folder / "registry.db")), signer or signer_of(folder), **(hub or {}))
    server = RegistryServer(hub, tokens=tokens, **limits)
    bound = socket.create_server(("127.0.0.1", port), reuse_port=True)  # of `kept_port`
    bound.setblocking(False)
    port = bound.getsockname()[1]
    await hub.open()
    await server.start(bound)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Inside(hub, server, session, port)
    finally:
        await server.stop()


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[wire.MemberList]:
    reader = wire.EventReader()
    public = answer.headers[wire.KEY_HEADER]
    async for data in answer.content.iter_any():
        for line, signature in reader.feed(data):
            assert wire.is_signed_by(public, line, signature)
            yield wire.read(line)


def unhurried(patch: pytest.MonkeyPatch) -> None:
    """Who leaves says so within a second, or its lease ends by itself: here it has the time of a busy machine."""
    patch.setattr(client, "LEAVE_S", 60.0)
    patch.setattr(registry, "LAST_REPORT_S", 60.0)


def later(patch: pytest.MonkeyPatch, seconds: float, hub: Hub) -> None:
    """So much time has passed on the loop's clock: what is due now happens."""
    loop = asyncio.get_running_loop()
    before = loop.time
    patch.setattr(loop, "time", lambda: before() + seconds)
    hub.now = loop.time


async def until(condition: Any, otherwise: str, within_s: float = 100.0) -> None:
    """Waits for the condition; it may be a coroutine function."""
    async with asyncio.timeout(within_s):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.01)
