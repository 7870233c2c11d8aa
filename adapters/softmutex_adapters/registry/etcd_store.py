"""`etcd://host:2379,host2:2379`: several registries on an etcd that is there already, by its JSON gateway over HTTP.

What it decides: a commit is a transaction that holds only while the version is still the one that was read; whoever
comes second reads again.

    softmutex/versions/G          the version; what registries watch
    softmutex/members/G/LEASE     [number, member]; the number is that of joining
    softmutex/instances/I         bound to an etcd lease, so that the dead vanish on etcd's own clock
    softmutex/secrets/NAME

A transaction of etcd has 128 operations at most, so a change of more members is several, each with its own version.
TLS, certificates and users: `etcd_gateway.py`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Self

from softmutex.ending import end
from softmutex.urls import Url
from softmutex_adapters.registry.etcd_gateway import EtcdPlace, Gateway, Json, at, plain, put, read_place, under
from softmutex_adapters.registry.redis_store import from_json, to_json
from softmutex_adapters.registry.store import INSTANCE_LIVES_S, Committed, Entry, Stored, StoreFailed, next_version

CHANGES_MAX = 100
RIVALS_MAX = 100


class EtcdStore:
    shared = True

    def __init__(self, place: EtcdPlace) -> None:
        self._gateway = Gateway(place)
        self._own: deque[tuple[str, int]] = deque(maxlen=1000)
        self._watch: AsyncGenerator[str, None] | None = None
        self._next: asyncio.Future[str] | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        place = read_place(parts, parts.place)
        parts.finish()
        return cls(place)

    async def open(self) -> None:
        self._gateway.open()
        await self.groups()

    async def groups(self) -> list[str]:
        found = await self._gateway.call("kv/range", {**under("versions/"), "keys_only": True})
        return sorted(plain(row["key"]).rpartition("/")[2] for row in found.get("kvs", []))

    async def read(self, group: str) -> Stored | None:
        wanted = [{"request_range": {"key": at(f"versions/{group}")}}, {"request_range": under(f"members/{group}/")}]
        found = await self._gateway.call("kv/txn", {"success": wanted})
        version, rows = (answer["response_range"].get("kvs", []) for answer in found["responses"])
        if not version:
            return None
        numbered = sorted((*json.loads(plain(row["value"])), plain(row["key"]).rpartition("/")[2]) for row in rows)
        entries = {lease: from_json(written) for _, _, written, lease in numbered}
        return Stored(int(plain(version[0]["value"])), entries)

    async def commit(self, group: str, changes: Mapping[str, Entry | None], at_least: int = 0) -> Committed:
        parts = [*pieces(changes)] or [{}]
        first, version = await self._commit(group, parts[0], at_least)
        for part in parts[1:]:
            previous, after = await self._commit(group, part, at_least)
            first, version = (first if previous == version else -1), after  # -1: another registry came between
        return Committed(first, version)

    async def _commit(self, group: str, changes: Mapping[str, Entry | None], at_least: int) -> Committed:
        key = at(f"versions/{group}")
        for _ in range(RIVALS_MAX):
            rows = (await self._gateway.call("kv/range", {"key": key})).get("kvs", [])
            previous, revision = (int(plain(rows[0]["value"])), rows[0]["mod_revision"]) if rows else (0, "0")
            version = next_version(previous, at_least)
            acts: list[Json] = [put(f"versions/{group}", str(version))]
            for number, (lease, entry) in enumerate(changes.items()):
                name = f"members/{group}/{lease}"
                if entry is None:
                    acts.append({"request_delete_range": {"key": at(name)}})
                else:
                    acts.append(put(name, json.dumps([version, number, to_json(entry)])))
            unless = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
            self._own.append((group, version))  # before the watch can tell of it
            if (await self._gateway.call("kv/txn", {"compare": [unless], "success": acts})).get("succeeded"):
                return Committed(previous, version)
            self._own.pop()
        raise StoreFailed(f"etcd at {self._gateway.where}: other registries change {group!r} all the time. Try again.")

    async def forget(self, group: str) -> None:
        empty = {**under(f"members/{group}/"), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        drop = {"request_delete_range": {"key": at(f"versions/{group}")}}
        await self._gateway.call("kv/txn", {"compare": [empty], "success": [drop]})

    async def offer(self, name: str, value: bytes) -> bytes:
        key = at(f"secrets/{name}")
        absent = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        act = {"request_put": {"key": key, "value": base64.b64encode(value).decode()}}
        await self._gateway.call("kv/txn", {"compare": [absent], "success": [act]})
        found = await self._gateway.call("kv/range", {"key": key})
        return base64.b64decode(found["kvs"][0]["value"])

    async def beat(self, instance: str) -> frozenset[str]:
        lease = (await self._gateway.call("lease/grant", {"TTL": str(int(INSTANCE_LIVES_S))}))["ID"]
        await self._gateway.call("kv/put", {**put(f"instances/{instance}", "")["request_put"], "lease": lease})
        found = await self._gateway.call("kv/range", {**under("instances/"), "keys_only": True})
        return frozenset(plain(row["key"]).rpartition("/")[2] for row in found["kvs"])

    async def aclose(self) -> None:
        await self._stop_watching()
        await self._gateway.aclose()

    # --- watching ---------------------------------------------------------------------------------------------------

    async def changed(self) -> str | None:
        if self._watch is None:
            self._watch = self._changes()
            await anext(self._watch)
            return None  # whatever changed before
        self._next = self._next or asyncio.ensure_future(anext(self._watch))
        try:
            group = await asyncio.shield(self._next)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._stop_watching()
            raise StoreFailed(f"etcd: the watch ended ({error or type(error).__name__}). It begins again.") from error
        self._next = None
        return group

    async def _changes(self) -> AsyncGenerator[str, None]:
        """ "" once it watches, then the names of groups that others have changed."""
        async for events in self._gateway.watch(under("versions/")):
            if not events:
                yield ""
            for event in events:
                group = plain(event["kv"]["key"]).rpartition("/")[2]
                version = int(plain(event["kv"].get("value", "")) or 0)
                if (group, version) not in self._own:
                    yield group

    async def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        waiting, self._next = self._next, None
        await end(waiting)
        if watch is not None:
            await watch.aclose()


def pieces(changes: Mapping[str, Entry | None]) -> Iterator[dict[str, Entry | None]]:
    items = list(changes.items())
    for start in range(0, len(items), CHANGES_MAX):
        yield dict(items[start : start + CHANGES_MAX])
