"""A Redis that is there already keeps M1 to M7 as a membership, through kill -9, empty disks and wrong passwords."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import redis.asyncio
from softmutex_adapters.memberships.leased import LeasedMembership
from softmutex_adapters.memberships.redis import RedisBoard
from softmutex_adapters.registry.redis_place import RedisPlace

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Member, Membership
from softmutex.testing import MembershipContract
from tests.contracts.boards import ONE, TWO, BoardContract, a_process, beats_of
from tests.registry.inside import until
from tests.registry.test_locked_stores import Locked
from tests.registry.test_locked_stores import url as url_of

# All that is dated is so many seconds older: as if the clock of Redis was set forward by them.
STEP = """
for i, one in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZINCRBY', KEYS[1], -ARGV[1], one) end
for i, name in ipairs({'at', 'spared'}) do
    local at = redis.call('HGET', KEYS[2], name)
    if at then redis.call('HSET', KEYS[2], name, string.format('%.0f', at - ARGV[1])) end
end
"""
FIVE = [Member(f"10.0.0.1:{number}", number) for number in range(1, 6)]


Process = subprocess.Popen[bytes]


class Onlooker:
    """Every list that a membership shows."""

    def __init__(self, membership: LeasedMembership) -> None:
        self.membership = membership
        self.seen: list[Sequence[Member]] = []

    async def look(self) -> None:
        while True:
            self.seen.append(await self.membership.watch())

    async def some_beats_later(self, count: int) -> None:
        beats = beats_of(self.membership)
        await until(lambda: beats_of(self.membership) >= beats + count, "it goes on", 100.0)


@pytest.mark.needs("redis-server")
class TestRedis(BoardContract):
    scheme = "redis"
    kind = "redis"

    def make_board(self) -> RedisBoard:
        place = f"redis://127.0.0.1:{self.process.port}"
        return RedisBoard(RedisPlace(f"{place}/0", place, {}, ""), "contract")

    def make_impossible(self) -> Membership:
        return plugins.membership(self.url("somebody:wrong@"))

    async def test_a_wrong_password_is_said_without_the_password(self) -> None:
        membership = plugins.membership(self.url("somebody:secret-word@"))
        with pytest.raises(CannotOpen) as refusal:
            await membership.join(ONE)
        await membership.aclose()
        assert "redis://user:password@host" in str(refusal.value) and "secret-word" not in str(refusal.value)

    @contextlib.asynccontextmanager
    async def five(self) -> AsyncIterator[tuple[Sequence[Process], Onlooker]]:
        """Five members: one here, the others each in a process of its own. Another one looks on."""
        async with self.made(2) as (member, watcher):
            await member.join(FIVE[0])
            processes = await asyncio.gather(*(asyncio.to_thread(a_process, self.url(), me) for me in FIVE[1:]))
            onlooker = Onlooker(watcher)
            looking = asyncio.ensure_future(onlooker.look())
            try:
                await until(lambda: onlooker.seen and list(onlooker.seen[-1]) == FIVE, "it sees all", 100.0)
                await onlooker.some_beats_later(6)  # by then all are well, and may sweep
                yield processes, onlooker
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
                for process in processes:
                    process.kill()
                    process.wait()

    async def step(self, seconds: float) -> None:
        async with redis.asyncio.Redis.from_url(self.process.url) as client:
            keys = [f"softmutex:{what}:{{contract}}" for what in ("leases", "page")]
            await client.eval(STEP, 2, *keys, round(seconds * 1000))

    @pytest.mark.parametrize("step_s", [10.0, -10.0, 3600.0])
    async def test_l1_a_clock_of_redis_that_is_set_ends_nobody(self, step_s: float) -> None:
        async with self.five() as (_, onlooker):
            before = len(onlooker.seen)
            for _ in range(3):
                await self.step(step_s)
                await onlooker.some_beats_later(6)
            assert onlooker.seen[before:] == [], "at no time was one of them missing"

    async def test_l1_who_dies_after_the_clock_was_set_back_is_gone_in_time(self) -> None:
        async with self.five() as (_, onlooker):
            kill = await self.join_elsewhere(Member("10.0.0.2:1", 77, "mortal"))
            await until(lambda: len(onlooker.seen[-1]) == 6, "it is seen", 100.0)
            await self.step(-3600.0)
            await onlooker.some_beats_later(3)
            kill()
            await until(lambda: list(onlooker.seen[-1]) == FIVE, "and gone, and not in an hour", 100.0)

    async def test_l2_when_most_fall_silent_at_once_it_is_a_lost_list_and_they_have_a_lease_more(self) -> None:
        """The network between most of them and Redis broke: they live, and who is still there is not alone."""
        async with self.five() as (processes, onlooker):
            before = len(onlooker.seen)
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            await until(lambda: onlooker.membership.statistics()["lost_lists"], "it is doubted", 100.0)
            for process in processes:
                process.send_signal(signal.SIGCONT)
            await onlooker.some_beats_later(8)
            assert onlooker.seen[before:] == []

    async def test_l2_most_of_them_that_have_died_are_gone_after_that(self) -> None:
        async with self.five() as (processes, onlooker):
            for process in processes:
                process.kill()
            await until(lambda: list(onlooker.seen[-1]) == FIVE[:1], "they are gone", 100.0)

    async def test_groups_and_data_bases_do_not_see_each_other(self) -> None:
        other = plugins.membership(self.url(db=1))
        async with self.made(1) as (one,):
            await one.join(ONE)
            await other.join(TWO)
            assert await one.watch() == () and await other.watch() == ()
            await other.aclose()


@pytest.mark.needs("redis-server")
class TestRedisOverTls(MembershipContract):
    """With certificates on both sides, and a user."""

    scheme = "rediss"
    patience_s = 60.0

    @pytest.fixture(autouse=True)
    async def begin(self, tmp_path: Path) -> AsyncIterator[None]:
        self.process = Locked("redis", tmp_path)
        (tmp_path / "redis").mkdir()
        self.process.begin()
        await until(lambda: asyncio.to_thread(self.process.answers), "it does not start", 100.0)
        yield
        await asyncio.to_thread(self.process.stop)

    def make(self) -> Membership:
        return plugins.membership(url_of(self.process, "contract"))


@pytest.mark.parametrize(
    "url", ["redis://h:6379", "redis://h:x/g", "redis://h/g?ttl=0.1", "redis://h/-g", "redis://h/g?tll=4"]
)
def test_a_url_that_cannot_be_meant_is_refused_in_words(url):
    with pytest.raises(ConfigError, match="redis://h"):
        plugins.membership(url)
