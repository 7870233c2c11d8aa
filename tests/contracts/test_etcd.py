"""An etcd that is there already keeps M1 to M7 as a membership, through kill -9 and empty disks."""

import pytest
from softmutex_adapters.memberships.etcd import EtcdMembership

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import Membership
from tests.contracts.boards import ONE, TWO, BoardContract
from tests.registry.inside import until


@pytest.mark.needs("etcd")
class TestEtcd(BoardContract):
    scheme = "etcd"
    kind = "etcd"

    def make_impossible(self) -> Membership:
        return plugins.membership(self.url(tls="yes", ca="/nowhere/authority.pem"))

    async def test_an_endpoint_that_is_gone_is_passed_over(self) -> None:
        there = f"127.0.0.1:{self.process.port}"
        membership = EtcdMembership.from_url(f"etcd://127.0.0.1:1,{there}/contract")
        async with self.made(1) as (one,):
            await one.join(TWO)
            await membership.join(ONE)
            assert await membership.watch() == (TWO,)
            await membership.aclose()

    async def test_a_lease_that_was_ended_by_somebody_is_taken_anew(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(ONE)
            await two.join(TWO)
            await self.until_sees(two, ONE)
            revoked = one._board._lease
            await one._board._gateway.call("lease/revoke", {"ID": revoked})
            await until(lambda: one._board._lease not in ("", revoked), "it has another one", 15.0)
            await self.until_sees(two, ONE)


@pytest.mark.parametrize(
    "url", ["etcd://h:2379", "etcd://h:x/g", "etcd://h/g?ttl=1", "etcd://h/-g", "etcd://h/g?tsl=yes"]
)
def test_a_url_that_cannot_be_meant_is_refused_in_words(url):
    with pytest.raises(ConfigError, match="etcd://h"):
        plugins.membership(url)
