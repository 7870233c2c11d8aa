"""`etcd://host:2379,host2:2379/group?ttl=4`: members meet on an etcd that is there already.

`?tls=yes&ca=FILE`, `&cert=FILE&key=FILE` where it wants to know who we are, `&user=NAME&password_file=PATH` where it
has users: `softmutex_adapters.registry.etcd_gateway`.

What it decides: a line is bound to a lease of etcd, so etcd itself ends it, and gives everybody a whole lease more
after it was restarted or has a new leader. By the JSON gateway, with nothing to install.

    softmutex/roll/G/ADDRESS = line          bound to the lease; a watch on all of them says when to look again

A lease that is over while the line is still wanted is taken anew, with the same line. The list is read when the watch
told of a change, and now and then; a beat is otherwise no more than the renewal of the lease.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from math import ceil
from typing import Any, Self

from softmutex.urls import Url
from softmutex_adapters.memberships.leased import TTL_S, BoardFailed, LeasedMembership, Page
from softmutex_adapters.registry.etcd_gateway import EtcdPlace, Gateway, plain, put, read_place, under
from softmutex_adapters.registry.store import StoreFailed

READ_EVERY = 8  # beats


class EtcdMembership(LeasedMembership):
    def __init__(self, place: EtcdPlace, group: str, *, ttl: float = TTL_S) -> None:
        super().__init__(EtcdBoard(place, group), group, ttl=ttl)

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        places, _, group = parts.place.partition("/")
        place, ttl = read_place(parts, places), parts.number("ttl", TTL_S, low=2.0, high=3600.0)
        parts.finish()
        return cls(place, group.removesuffix("/"), ttl=ttl)


class EtcdBoard:
    def __init__(self, place: EtcdPlace, group: str) -> None:
        self.where = place.shown
        self._gateway = Gateway(place)
        self._is_open = False
        self._roll = f"roll/{group}/"
        self._lease = ""
        self._seen = (0, "")  # the last revision and the cluster that had it
        self._lost = 0
        self._unread = 0  # beats until the list is read again
        self._watch: AsyncGenerator[list[Any], None] | None = None

    async def beat(self, address: str, line: str, ttl_s: float, *, may_sweep: bool) -> Page:
        try:
            self._open()
            if line and not await self._is_alive():
                granted = await self._gateway.call("lease/grant", {"TTL": str(ceil(ttl_s))})
                self._lease = granted["ID"]
                await self._write(address, line)
            if self._unread > 0:
                self._unread -= 1
                return Page(str(self._lost), None)
            self._unread = READ_EVERY
            lines = await self._read()
            if line and lines.get(address) != line:
                await self._write(address, line)
                lines = await self._read()
        except StoreFailed as error:
            self._unread = 0
            raise BoardFailed(str(error), is_final=is_final(str(error))) from error
        return Page(str(self._lost), lines)

    async def _is_alive(self) -> bool:
        if not self._lease:
            return False
        told = await self._gateway.call("lease/keepalive", {"ID": self._lease})
        return int(told.get("result", {}).get("TTL", 0)) > 0

    async def _write(self, address: str, line: str) -> None:
        self._unread = 0
        written = put(f"{self._roll}{address}", line)["request_put"]
        try:
            await self._gateway.call("kv/put", {**written, "lease": self._lease})
        except StoreFailed as error:
            if "lease not found" not in str(error):
                raise
            self._lease = ""  # it ended in between; the next beat takes a new one
            raise

    async def _read(self) -> dict[str, str]:
        found = await self._gateway.call("kv/range", under(self._roll))
        revision, cluster = int(found["header"]["revision"]), str(found["header"]["cluster_id"])
        if cluster != self._seen[1] or revision < self._seen[0]:
            self._lost += 1
        self._seen = (revision, cluster)
        return {plain(row["key"]).partition(self._roll)[2]: text(row.get("value", "")) for row in found.get("kvs", [])}

    async def drop(self, address: str, line: str) -> None:
        """The line goes with its lease, and only where it is bound to this one (L4)."""
        lease, self._lease = self._lease, ""
        if lease:
            try:
                await self._gateway.call("lease/revoke", {"ID": lease})
            except StoreFailed as error:
                raise BoardFailed(str(error)) from error

    async def changed(self) -> None:
        try:
            self._open()
            if self._watch is None:
                self._watch = self._gateway.watch(under(self._roll))
            await anext(self._watch)
            self._unread = 0
        except BaseException as error:
            watch, self._watch = self._watch, None
            if watch is not None:
                await watch.aclose()
            if isinstance(error, StoreFailed | StopAsyncIteration):
                raise BoardFailed(str(error) or f"{self.where}: the watch ended. It begins again.") from error
            raise

    def _open(self) -> None:
        if not self._is_open:
            self._gateway.open()
            self._is_open = True

    async def aclose(self) -> None:
        await self._gateway.aclose()
        self._is_open = False


def is_final(said: str) -> bool:
    refused = (
        "Name a PEM file",
        "certificate verify failed",
        "authentication failed",
        "permission denied",
        "user name is empty",
    )
    return any(word in said for word in refused)


def text(value: str) -> str:
    return base64.b64decode(value).decode("utf-8", "replace")
