"""etcd by its JSON gateway over HTTP: no client library. Keys and values are base 64, revisions and ids are text.

Of several endpoints the first one is asked; who fails goes to the end. Users and passwords of etcd are not supported:
let the network or certificates decide.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import aiohttp

from softmutex_adapters.registry.store import StoreFailed

PREFIX = "softmutex/"
PATIENCE_S = 3.0
Json = dict[str, Any]


class Gateway:
    """Made anywhere, opened on the loop that uses it."""

    def __init__(self, endpoints: list[str], *, ca: str | None = None) -> None:
        self._endpoints = endpoints
        self._ca = ca
        self._session: aiohttp.ClientSession | None = None

    @property
    def where(self) -> str:
        return self._endpoints[0]

    def open(self) -> None:
        """StoreFailed where the authority's file cannot be used."""
        try:
            trusted = ssl.create_default_context(cafile=self._ca) if self._ca else True
        except OSError as error:
            raise StoreFailed(f"ca={self._ca} cannot be used ({error}). Name a PEM file.") from None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted), timeout=aiohttp.ClientTimeout(total=PATIENCE_S)
        )

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, what: str, body: Json) -> Json:
        """Of the first endpoint that answers. A commit that was made though its answer was lost is found by reading."""
        session = self._opened()
        for is_last in [False] * (len(self._endpoints) - 1) + [True]:
            with contextlib.suppress(*() if is_last else (StoreFailed,)), self._explained():
                async with session.post(f"{self.where}/v3/{what}", json=body) as answer:
                    told: Json = await answer.json()
                    if answer.status == 200:
                        return told
                    said = str(told.get("message") or told.get("error"))[:200]
                    raise StoreFailed(f"etcd at {self.where}: {said}. {remedy(said)}")
        raise StoreFailed("etcd: no endpoint answers.")

    async def watch(self, keys: Json) -> AsyncGenerator[list[Json], None]:
        """[] once it watches, then the events of a change. StoreFailed when it is over."""
        session, body = self._opened(), {"create_request": keys}
        patience = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE_S)
        with self._explained():
            async with session.post(f"{self.where}/v3/watch", json=body, timeout=patience) as answer:
                rest = b""
                async for data in answer.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        told = json.loads(line).get("result", {})
                        if told.get("created") or told.get("events"):
                            yield told.get("events", [])

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise StoreFailed("etcd is not open.")
        return self._session

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        where = self.where
        try:
            yield
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            self._endpoints.append(self._endpoints.pop(0))
            if isinstance(error, StoreFailed):
                raise
            said = str(error) or type(error).__name__
            raise StoreFailed(f"etcd at {where}: {said}. Start it, or see what is between.") from error


def remedy(said: str) -> str:
    if "space exceeded" in said:
        return "Compact and defragment it, or raise its quota."
    if "auth" in said or "permission" in said:
        return "Users of etcd are not supported; let its network or certificates decide."
    return "Its log says more; it is tried again."


def at(name: str) -> str:
    return base64.b64encode(f"{PREFIX}{name}".encode()).decode()


def under(name: str) -> Json:
    """The range of all keys that begin with `name`, which ends with a slash; '0' comes after it."""
    return {"key": at(name), "range_end": at(f"{name[:-1]}0")}


def put(name: str, value: str) -> Json:
    return {"request_put": {"key": at(name), "value": base64.b64encode(value.encode()).decode()}}


def plain(text: str) -> str:
    return base64.b64decode(text).decode()
