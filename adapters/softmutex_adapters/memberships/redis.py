"""`redis://host:6379/group`: members meet on a Redis that is there already. Extra `softmutex[redis]`.

`redis://[user:password@]host:6379/group?db=0&password_file=PATH&ttl=4`, and with TLS
`rediss://host:6379/group?ca=FILE&cert=FILE&key=FILE`

What it decides: a beat is one script, which Redis runs alone, with its own clock: my line and my lease in, whose lease
is over out, the list back, if it is another one than I have. The naive way, a key with a time to live for each member
and SCAN to find them, costs the whole data base at each look, and loses everybody when Redis was away for a while, or
its clock was set.

B1  Time in which nobody has written, or that the clock has jumped over, is no time: all leases move along.
B2  When one is over and more than half have been silent for half of a lease, the way to Redis broke: theirs is a lost
    list (L2), and they have a whole lease more, once. Who has died all the same is gone after that.

    softmutex:roll:{G}     hash: address -> line, and how many there were       softmutex:said:{G}    channel
    softmutex:leases:{G}   sorted set: address, by when its lease is over
    softmutex:page:{G}     hash: history (made anew when it was lost), number (of changes), at (the last beat),
                           spared (when more than half were over)

All of it is dropped by Redis a day after the last beat. The braces keep a group on one node of a Redis Cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from softmutex.core.errors import ConfigError
from softmutex.urls import Url
from softmutex_adapters.memberships.leased import TTL_S, BoardFailed, LeasedMembership, Page
from softmutex_adapters.registry.redis_place import RedisPlace, read_place
from softmutex_adapters.registry.redis_store import connect, remedy

T = TypeVar("T")
KEPT_S = 86_400
BEAT = """
local roll, leases, page, said = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local address, line, ttl, may_sweep, fresh, known = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changed = false
redis.call('HSETNX', page, 'history', fresh)
local gap = now - tonumber(redis.call('HGET', page, 'at') or now)
if gap < 0 or gap > ttl / 2 then
    for _, one in ipairs(redis.call('ZRANGE', leases, 0, -1)) do redis.call('ZINCRBY', leases, gap, one) end
    local spared = redis.call('HGET', page, 'spared')
    if spared then redis.call('HSET', page, 'spared', spared + gap) end
end
redis.call('HSET', page, 'at', now)
if line ~= '' then
    changed = redis.call('HGET', roll, address) ~= line
    redis.call('HSET', roll, address, line)
    redis.call('ZADD', leases, now + ttl, address)
end
if may_sweep == '1' then
    local over = redis.call('ZRANGEBYSCORE', leases, '-inf', now)
    local spared = tonumber(redis.call('HGET', page, 'spared') or -math.huge)
    local silent = #over > 0 and redis.call('ZRANGEBYSCORE', leases, '-inf', now + ttl / 2) or {}
    if #silent > 1 and #silent * 2 > redis.call('ZCARD', leases) and now - spared > 2 * ttl then
        for _, one in ipairs(silent) do redis.call('ZADD', leases, now + ttl, one) end
        redis.call('HSET', page, 'spared', now, 'history', fresh)
        over = {}
    end
    for _, one in ipairs(over) do
        redis.call('HDEL', roll, one)
        redis.call('ZREM', leases, one)
        changed = true
    end
end
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[7]) end
if changed then
    redis.call('HINCRBY', page, 'number', 1)
    redis.call('PUBLISH', said, '')
end
local state = redis.call('HMGET', page, 'history', 'number')
local version = state[1] .. ' ' .. (state[2] or '0')
if version == known then return {state[1], version} end
return {state[1], version, redis.call('HGETALL', roll)}
"""
DROP = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
    redis.call('HINCRBY', KEYS[3], 'number', 1)
    redis.call('PUBLISH', KEYS[4], '')
end
"""


class RedisMembership(LeasedMembership):
    def __init__(self, place: RedisPlace, group: str, *, ttl: float = TTL_S) -> None:
        if importlib.util.find_spec("redis") is None:  # or the first beat would find out, again and again
            raise ConfigError(f"{place.shown}: No module named 'redis'. Run: pip install 'softmutex[redis]'.")
        super().__init__(RedisBoard(place, group), group, ttl=ttl)

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        place = read_place(parts)
        ttl = parts.number("ttl", TTL_S, low=1.0, high=3600.0)
        parts.finish()
        return cls(place, place.tail.removesuffix("/"), ttl=ttl)


class RedisBoard:
    def __init__(self, place: RedisPlace, group: str) -> None:
        self.where = place.shown
        self._place = place
        self._keys = [f"softmutex:{what}:{{{group}}}" for what in ("roll", "leases", "page", "said")]
        self._redis: Any = None
        self._channel: Any = None
        self._known = ""

    async def beat(self, address: str, line: str, ttl_s: float, *, may_sweep: bool) -> Page:
        words = [address, line, round(ttl_s * 1000), int(may_sweep), secrets.token_hex(8), self._known, KEPT_S]
        history, version, *rest = await self._do(lambda redis: redis.eval(BEAT, 4, *self._keys, *words))
        self._known = version.decode()
        if not rest:
            return Page(history.decode(), None)
        texts = [raw.decode("utf-8", "replace") for raw in rest[0]]
        return Page(history.decode(), dict(zip(texts[::2], texts[1::2], strict=True)))

    async def drop(self, address: str, line: str) -> None:
        await self._do(lambda redis: redis.eval(DROP, 4, *self._keys, address, line))

    async def changed(self) -> None:
        if self._channel is None:
            await self._do(self._subscribe)
            return  # whatever was said before is lost
        try:
            while await self._do(lambda redis: self._channel.get_message(True, timeout=None)) is None:
                pass
        except (BoardFailed, asyncio.CancelledError):
            await self._drop_channel()
            raise

    async def _subscribe(self, redis: Any) -> None:
        channel = redis.pubsub(ignore_subscribe_messages=True)
        try:
            await channel.subscribe(self._keys[3])
        except BaseException:
            await channel.aclose()
            raise
        self._channel = channel

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(Exception):  # its connection is broken, which is why it is dropped
                await channel.aclose()

    async def aclose(self) -> None:
        await self._drop_channel()
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()

    async def _do(self, work: Callable[[Any], Awaitable[T]]) -> T:
        from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

        try:
            if self._redis is None:
                self._redis = connect(self.where, self._place)
            return await work(self._redis)
        except (RedisError, OSError, ssl.SSLError) as error:
            said = str(error).rstrip(".") or type(error).__name__
            is_final = isinstance(error, AuthenticationError | NoPermissionError) or any(
                word in said for word in ("NOAUTH", "certificate verify failed")
            )
            raise BoardFailed(f"Redis at {self.where}: {said}. {remedy(said)}", is_final=is_final) from error
