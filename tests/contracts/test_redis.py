"""A Redis that is there already keeps M1 to M7 as a membership, through kill -9, empty disks and wrong passwords."""

import pytest
from softmutex_adapters.memberships.redis import RedisBoard

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Membership
from tests.contracts.boards import ONE, TWO, BoardContract


@pytest.mark.needs("redis-server")
class TestRedis(BoardContract):
    scheme = "redis"
    kind = "redis"

    def make_board(self) -> RedisBoard:
        return RedisBoard(f"redis://127.0.0.1:{self.process.port}/0", "contract", ca=None, shown="the board")

    def make_impossible(self) -> Membership:
        return plugins.membership(self.url("somebody:wrong@"))

    async def test_a_wrong_password_is_said_without_the_password(self) -> None:
        membership = plugins.membership(self.url("somebody:secret-word@"))
        with pytest.raises(CannotOpen) as refusal:
            await membership.join(ONE)
        await membership.aclose()
        assert "redis://user:password@host" in str(refusal.value) and "secret-word" not in str(refusal.value)

    async def test_groups_and_data_bases_do_not_see_each_other(self) -> None:
        other = plugins.membership(self.url(db=1))
        async with self.made(1) as (one,):
            await one.join(ONE)
            await other.join(TWO)
            assert await one.watch() == () and await other.watch() == ()
            await other.aclose()


@pytest.mark.parametrize(
    "url", ["redis://h:6379", "redis://h:x/g", "redis://h/g?ttl=0.1", "redis://h/-g", "redis://h/g?tll=4"]
)
def test_a_url_that_cannot_be_meant_is_refused_in_words(url):
    with pytest.raises(ConfigError, match="redis://h"):
        plugins.membership(url)
