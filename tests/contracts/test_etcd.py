"""An etcd that is there already keeps M1 to M7 as a membership, through kill -9 and empty disks."""

import pytest
from softmutex_adapters.memberships.etcd import EtcdBoard, EtcdMembership
from softmutex_adapters.registry.etcd_gateway import EtcdPlace, Gateway, plain, under

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import Member, Membership
from tests.contracts.boards import ONE, TWO, BoardContract
from tests.registry.inside import until
from tests.sight import Sight


@pytest.mark.needs("etcd")
class TestEtcd(BoardContract):
    scheme = "etcd"
    kind = "etcd"

    def make_board(self) -> EtcdBoard:
        return EtcdBoard(EtcdPlace([f"http://127.0.0.1:{self.process.port}"], "etcd"), "contract")

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
        async with self.made(2) as (one, two), Sight(two) as sight:
            await one.join(ONE)
            await two.join(TWO)
            await until(lambda: sight.others == (ONE,), "it is there", 100.0)
            gateway = Gateway(EtcdPlace([f"http://127.0.0.1:{self.process.port}"], "etcd"))
            gateway.open()

            async def lease_of(member: Member) -> str:
                rows = (await gateway.call("kv/range", under("roll/contract/"))).get("kvs", [])
                return next((row["lease"] for row in rows if plain(row["key"]).endswith(member.address)), "")

            revoked = await lease_of(ONE)
            await gateway.call("lease/revoke", {"ID": revoked})

            async def has_another_one() -> bool:
                return await lease_of(ONE) not in ("", revoked)

            await until(has_another_one, "it has another one", 100.0)
            await until(lambda: sight.others == (ONE,), "it is there again", 100.0)
            await gateway.aclose()


@pytest.mark.parametrize(
    "url", ["etcd://h:2379", "etcd://h:x/g", "etcd://h/g?ttl=1", "etcd://h/-g", "etcd://h/g?tsl=yes"]
)
def test_a_url_that_cannot_be_meant_is_refused_in_words(url):
    with pytest.raises(ConfigError, match="etcd://h"):
        plugins.membership(url)
