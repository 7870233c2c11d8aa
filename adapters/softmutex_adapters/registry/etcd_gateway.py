"""etcd by its JSON gateway over HTTP: no client library. Keys and values are base 64, revisions and ids are text.

    etcd://host:2379,host2:2379...?tls=yes&ca=FILE&cert=FILE&key=FILE&user=NAME&password_file=PATH

Of several endpoints the first one is asked; who fails goes to the end. A user's password is exchanged for a token. That
etcd forgets after minutes, and when it is restarted: then it is asked for another one, and the call is made again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

import aiohttp

from softmutex.files import read_secret
from softmutex.urls import Url, join_address, split_address
from softmutex_adapters.registry.store import StoreFailed

PREFIX = "softmutex/"
PATIENCE_S = 3.0
Json = dict[str, Any]


class BadToken(StoreFailed):
    """It was forgotten there."""


class EtcdPlace(NamedTuple):
    endpoints: list[str]  # http(s)://host:port
    shown: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str = ""


def read_place(parts: Url, places: str) -> EtcdPlace:
    """Takes what it knows out of `parts`. `places`: what is written before the group."""
    is_tls = parts.flag("tls")
    ca, cert, key, user = (parts.text(name) for name in ("ca", "cert", "key", "user"))
    file = parts.text("password_file")
    try:
        found = [join_address(*split_address(place.strip(), default_port=2379)) for place in places.split(",")]
    except ValueError as error:
        parts.refuse(f"{error}; write etcd://host:2379,host2:2379")
    if (ca or cert or key) and not is_tls:
        parts.refuse("ca, cert and key are for TLS. Say tls=yes, too")
    if bool(cert) != bool(key) or bool(user) != bool(file):
        parts.refuse("cert and key belong together, and so do user and password_file")
    password = read_secret(file, "password file").decode("utf-8", "replace").strip() if file else ""
    endpoints = [f"{'https' if is_tls else 'http'}://{place}" for place in found]
    return EtcdPlace(endpoints, f"etcd://{','.join(found)}", ca, cert, key, user, password)


class Gateway:
    """Made anywhere, opened on the loop that uses it."""

    def __init__(self, place: EtcdPlace) -> None:
        self._place = place
        self._endpoints = list(place.endpoints)
        self._token = ""
        self._session: aiohttp.ClientSession | None = None

    @property
    def where(self) -> str:
        return self._endpoints[0]

    def open(self) -> None:
        """StoreFailed where a file of the certificates cannot be used."""
        ca, cert, key = self._place.ca, self._place.cert, self._place.key
        try:
            trusted: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca or cert else True
            if isinstance(trusted, ssl.SSLContext) and cert:
                trusted.load_cert_chain(cert, key)
        except OSError as error:
            raise StoreFailed(f"ca={ca}, cert={cert}, key={key} cannot be used ({error}). Name a PEM file.") from None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted), timeout=aiohttp.ClientTimeout(total=PATIENCE_S)
        )

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, what: str, body: Json) -> Json:
        """Of the first endpoint that answers. A commit that was made though its answer was lost is found by reading."""
        for is_last in [False] * (len(self._endpoints) - 1) + [True]:
            with contextlib.suppress(*() if is_last else (StoreFailed,)), self._explained():
                try:
                    return await self._call_once(what, body)
                except BadToken:
                    self._token = ""
                    return await self._call_once(what, body)
        raise StoreFailed("etcd: no endpoint answers.")

    async def _call_once(self, what: str, body: Json) -> Json:
        return await self._post(what, body, await self._headers())

    async def _headers(self) -> dict[str, str]:
        if self._place.user is None:
            return {}
        if not self._token:
            login = {"name": self._place.user, "password": self._place.password}
            self._token = str((await self._post("auth/authenticate", login, {}))["token"])
        return {"Authorization": self._token}

    async def _post(self, what: str, body: Json, headers: dict[str, str]) -> Json:
        async with self._opened().post(f"{self.where}/v3/{what}", json=body, headers=headers) as answer:
            if answer.status == 200:
                told: Json = await answer.json()
                return told
            said = reason(await answer.text())
            if "invalid auth token" in said and headers:
                raise BadToken(f"etcd at {self.where}: {said}.")
            raise StoreFailed(f"etcd at {self.where}: {said}. {remedy(said)}")

    async def watch(self, keys: Json) -> AsyncGenerator[list[Json], None]:
        """[] once it watches, then the events of a change. StoreFailed when it is over."""
        session, body = self._opened(), {"create_request": keys}
        patience = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE_S)
        with self._explained():
            headers = await self._headers()
            url = f"{self.where}/v3/watch"
            async with session.post(url, json=body, headers=headers, timeout=patience) as answer:
                rest = b""
                async for data in answer.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        found = json.loads(line)
                        told = found.get("result", {})
                        if "error" in found or told.get("canceled"):
                            self._token = ""
                            why = str(told.get("cancel_reason") or found.get("error"))[:200]
                            raise StoreFailed(f"etcd at {self.where} ends the watch: {why}. {remedy(why)}")
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


def reason(text: str) -> str:
    """What etcd says is JSON; what its gateway says of itself is plain."""
    with contextlib.suppress(ValueError, AttributeError):
        told = json.loads(text)
        text = str(told.get("message") or told.get("error"))
    return " ".join(text.split())[:200].rstrip(".")


def remedy(said: str) -> str:
    if "CommonName" in said:
        return (
            "Where etcd has users, its gateway takes only certificates without a common name (CN): give one of those."
        )
    if "space exceeded" in said:
        return "Compact and defragment it, or raise its quota."
    if "auth" in said or "permission" in said or "user name is empty" in said:
        return "Give user= and password_file= of one who may read and write what begins with softmutex/."
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
