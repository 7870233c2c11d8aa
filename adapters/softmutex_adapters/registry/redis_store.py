"""`redis://host:6379/0`: several registries on a Redis that is there already. Extra `softmutex[redis]`.

`redis://[user:password@]host:6379/0?password_file=PATH`, and with TLS `rediss://...?ca=FILE&cert=FILE&key=FILE`

What it decides: a commit is one script, which Redis runs alone; a version is given where the change is made. The naive
way, reading the version, adding one and writing it back, gives one version to the changes of two registries.

    softmutex:group:G    hash: lease -> "number JSON"; the number is that of joining
    softmutex:versions   hash: group -> version            softmutex:secrets    hash
    softmutex:instances  sorted set: registries, by when they were heard last, on Redis's own clock
    softmutex:changed    channel: "who group"

What Redis keeps over its own restart is what it was told to keep: `appendonly yes` is what this wants. What is lost all
the same, members put back with their next heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

from softmutex.core.errors import ConfigError
from softmutex.ending import end
from softmutex.ports import Member
from softmutex.urls import Url
from softmutex_adapters.registry.redis_place import RedisPlace, read_place
from softmutex_adapters.registry.store import INSTANCE_LIVES_S, Committed, Entry, Stored, StoreFailed

T = TypeVar("T")
PREFIX = "softmutex:"
PATIENCE_S = 2.0
CHANGED = f"{PREFIX}changed"
COMMIT = """
local previous = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
local version = math.max(previous, tonumber(ARGV[2]), tonumber(ARGV[3]) - 1) + 1
local written = string.format('%.0f', version)
redis.call('HSET', KEYS[2], ARGV[1], written)
for i = 5, #ARGV, 2 do
    redis.call('HDEL', KEYS[1], ARGV[i])
    if ARGV[i + 1] ~= '' then
        redis.call('HSET', KEYS[1], ARGV[i], string.format('%s.%06d %s', written, i, ARGV[i + 1]))
    end
end
redis.call('PUBLISH', KEYS[3], ARGV[4] .. ' ' .. ARGV[1])
return {string.format('%.0f', previous), written}
"""
FORGET = "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HDEL', KEYS[2], ARGV[1]) end"
BEAT = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class RedisStore:
    shared = True

    def __init__(self, place: RedisPlace) -> None:
        self._place = place
        self._where = place.shown
        self._who = secrets.token_hex(8)
        self._redis: Any = None
        self._channel: Any = None
        self._next: asyncio.Future[Any] | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        place = read_place(parts, database_is_tail=True)
        parts.finish()
        return cls(place)

    async def open(self) -> None:
        self._redis = connect(f"--store {self._where}", self._place)
        await self._do(lambda redis: redis.ping())

    async def groups(self) -> list[str]:
        found = await self._do(lambda redis: redis.hkeys(f"{PREFIX}versions"))
        return sorted(name.decode() for name in found)

    async def read(self, group: str) -> Stored | None:
        async def both(redis: Any) -> Any:
            async with redis.pipeline(transaction=True) as together:
                together.hget(f"{PREFIX}versions", group)
                together.hgetall(f"{PREFIX}group:{group}")
                return await together.execute()

        version, rows = await self._do(both)
        if version is None:
            return None
        numbered = sorted((row.split(b" ", 1), lease.decode()) for lease, row in rows.items())
        return Stored(int(version), {lease: from_json(written) for (_, written), lease in numbered})

    async def commit(self, group: str, changes: Mapping[str, Entry | None], at_least: int = 0) -> Committed:
        keys = [f"{PREFIX}group:{group}", f"{PREFIX}versions", CHANGED]
        words: list[str | int] = [group, at_least, time.time_ns() // 1_000_000, self._who]
        for lease, entry in changes.items():
            words += [lease, "" if entry is None else to_json(entry)]
        previous, version = await self._do(lambda redis: redis.eval(COMMIT, len(keys), *keys, *words))
        return Committed(int(previous), int(version))

    async def forget(self, group: str) -> None:
        keys = [f"{PREFIX}group:{group}", f"{PREFIX}versions"]
        await self._do(lambda redis: redis.eval(FORGET, len(keys), *keys, group))

    async def offer(self, name: str, value: bytes) -> bytes:
        await self._do(lambda redis: redis.hsetnx(f"{PREFIX}secrets", name, value))
        return bytes(await self._do(lambda redis: redis.hget(f"{PREFIX}secrets", name)))

    async def beat(self, instance: str) -> frozenset[str]:
        key = f"{PREFIX}instances"
        found = await self._do(lambda redis: redis.eval(BEAT, 1, key, instance, int(INSTANCE_LIVES_S)))
        return frozenset(name.decode() for name in found)

    async def changed(self) -> str | None:
        if self._channel is None:
            await self._do(self._subscribe)
            return None  # whatever was said before is lost
        while self._channel is not None:
            waiting = self._next = self._next or asyncio.ensure_future(self._channel.get_message(True, timeout=None))
            await asyncio.wait((waiting,))
            if waiting.cancelled():
                break
            said = await self._do(lambda redis, waiting=waiting: waiting)  # type: ignore[misc]
            self._next = None
            who, _, group = said["data"].decode().partition(" ") if said else ("", "", "")
            if group and who != self._who:
                return str(group)
        return None  # another command found the connection broken, and dropped the channel

    async def _subscribe(self, redis: Any) -> None:
        channel = redis.pubsub(ignore_subscribe_messages=True)
        await channel.subscribe(CHANGED)
        self._channel = channel

    async def aclose(self) -> None:
        await self._drop_channel()
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        waiting, self._next = self._next, None
        await end(waiting)
        if channel is not None:
            with contextlib.suppress(Exception):  # its connection is broken, which is why it is dropped
                await channel.aclose()

    async def _do(self, work: Callable[[Any], Awaitable[T]]) -> T:
        from redis.exceptions import RedisError

        if self._redis is None:
            raise StoreFailed(f"Redis at {self._where} is not open.")
        try:
            return await work(self._redis)
        except (RedisError, OSError) as error:
            await self._drop_channel()
            raise StoreFailed(
                f"Redis at {self._where}: {error or type(error).__name__}. {remedy(str(error))}"
            ) from error


def connect(asked: str, place: RedisPlace) -> Any:
    """A client of redis-py. `asked`: what the user wrote, for errors."""
    try:
        import redis.asyncio as client
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigError(f"{asked}: {error}. Run: pip install 'softmutex[redis]'.") from None
    try:
        return client.Redis.from_url(
            place.url,
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 1),
            decode_responses=False,
            **place.options,
        )
    except ValueError as error:
        raise ConfigError(f"{asked}: {error}. Write redis://host:6379/0.") from None


def remedy(said: str) -> str:
    if "OOM" in said or "MISCONF" in said:
        return "Give it more memory or disk."
    if "certificate verify failed" in said:
        return "Give its authority: ca=FILE, and use the name that is in its certificate."
    if "READONLY" in said:
        return "This is a replica: name the one that takes writes."
    if "auth" in said.lower() or "NOPERM" in said or "password" in said:
        return "Write redis://user:password@host:6379/0."
    return "Start it, or see what is between; it is tried again."


def to_json(entry: Entry) -> str:
    one = entry.member
    return json.dumps([one.address, f"{one.id:x}", one.name, entry.owner, *([entry.proof] if entry.proof else [])])


def from_json(written: bytes | str) -> Entry:
    address, id, name, owner, *proof = json.loads(written)
    return Entry(Member(address, int(id, 16), name), owner, *proof)
