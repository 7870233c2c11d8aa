"""Redis and etcd, the real ones, each in a directory of one test: S1 to S8, and two registries that share one."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry import redis_store
from softmutex_adapters.registry.store import Store, StoreFailed, open_store

from softmutex.ports import Member, Observation
from tests.registry.inside import Inside, inside, signer_of, unhurried, until
from tests.registry.serving import Served
from tests.registry.store_contract import StoreContract
from tests.registry.store_process import Process
from tests.sight import Sight

ONE, TWO, THREE = (Member(f"10.0.0.1:{number}", number) for number in (1, 2, 3))


class SharedStore(StoreContract):
    kind = ""

    @pytest.fixture(autouse=True)
    async def server(self, no_leaks: None, tmp_path: Path) -> AsyncIterator[None]:
        self.process = Process(self.kind, tmp_path)
        await asyncio.to_thread(self.process.start)
        yield
        await asyncio.to_thread(self.process.stop)

    def make(self) -> Store:
        return open_store(self.process.url)

    async def fail(self, store: Store) -> None:
        await asyncio.to_thread(self.process.stop)

    async def mend(self, store: Store) -> None:
        await asyncio.to_thread(self.process.start)

    async def test_s4_a_store_that_is_not_there_is_said_at_open(self, no_leaks: None) -> None:
        await asyncio.to_thread(self.process.stop)
        store = self.make()
        with pytest.raises(StoreFailed, match=str(self.process.port)):
            await store.open()
        await store.aclose()

    async def test_s5_after_a_restart_of_the_store_changes_are_told_again(self, store: Store) -> None:
        await store.changed()
        await asyncio.to_thread(self.process.stop)
        with pytest.raises(StoreFailed):
            await store.changed()
        await asyncio.to_thread(self.process.start)
        assert await store.changed() is None, "any group may have changed meanwhile"

    async def test_two_registries_on_one_store_show_one_list_and_either_may_die(
        self, no_leaks: None, tmp_path: Path
    ) -> None:
        """A registry is killed, then the store is restarted; members come back by themselves, and nobody is lost."""
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder in folders:
            folder.mkdir()
        key = tmp_path / "signing.key"
        registries = [Served(folder, "--ttl", "6", store=self.process.url, signing_key=key) for folder in folders]
        for registry in registries:
            await asyncio.to_thread(registry.start)
        assert registries[0].public_key == registries[1].public_key
        try:
            async with contextlib.AsyncExitStack() as stack:

                async def member(me: Member, *served: Served) -> RegistryMembership:
                    one = RegistryMembership([registry.base for registry in served], "lab")
                    stack.push_async_callback(one.aclose)
                    await one.join(me)
                    return one

                one = await member(ONE, registries[0])
                two = await member(TWO, registries[1])
                both = await member(THREE, *registries)
                everybody = {ONE.address, TWO.address, THREE.address}

                sights = [await stack.enter_async_context(Sight(each)) for each in (one, two, both)]

                def all_see_all() -> bool:
                    them = zip((ONE, TWO, THREE), sights, strict=True)
                    return all(sight.addresses() == everybody - {me.address} for me, sight in them)

                await until(all_see_all, "what one registry hears the other one tells")
                await asyncio.to_thread(registries[0].kill)
                await asyncio.to_thread(self.process.stop)
                await until(lambda: registries[1].get("/healthz")["status"] == "degraded", "it says so")
                assert {entry[1] for entry in registries[1].get("/v1/groups/lab/members")["joined"]} == everybody
                await asyncio.to_thread(self.process.start)
                await until(lambda: registries[1].get("/healthz")["status"] == "ok", "it works again")
                await asyncio.to_thread(registries[0].start)
                await until(lambda: one.statistics()["sessions"] >= 2, "it comes back")
                await both.leave()
                everybody.discard(THREE.address)
                wanted = [{TWO.address}, {ONE.address}]
                await until(lambda: [each.addresses() for each in sights[:2]] == wanted, "the leaver is gone")
        finally:
            for registry in registries:
                await asyncio.to_thread(registry.stop)


@pytest.mark.needs("redis-server")
class TestRedis(SharedStore):
    kind = "redis"

    async def test_a_redis_that_stood_still_is_followed_on(
        self, no_leaks: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another command notices, and drops the connection by which changes are told."""
        monkeypatch.setattr(redis_store, "PATIENCE_S", 0.2)
        store, other = self.make(), self.make()
        await store.open()
        await other.open()
        try:
            await store.changed()
            follows = asyncio.create_task(store.changed())
            assert self.process.process is not None
            self.process.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(StoreFailed):
                    await store.beat("one")
            finally:
                self.process.process.send_signal(signal.SIGCONT)
            with contextlib.suppress(StoreFailed):
                assert await follows is None, "any group may have changed meanwhile"
            assert await store.changed() is None
            await other.commit("lab", {})
            assert await store.changed() == "lab"
        finally:
            await store.aclose()
            await other.aclose()

    async def test_the_page_of_either_registry_shows_the_whole_group(
        self, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unhurried(monkeypatch)
        async with contextlib.AsyncExitStack() as stack:
            folders = [tmp_path / "a", tmp_path / "b"]
            for folder in folders:
                folder.mkdir()
            registries = [
                await stack.enter_async_context(inside(folder, store=self.make(), signer=signer_of(tmp_path)))
                for folder in folders
            ]

            async def mutexes(at: Inside) -> dict[str, int]:
                _, told, _ = await at.call("GET", "/v1/groups/lab/picture")
                return {each["name"]: each["overruns"] for each in told["mutexes"]}

            members = [RegistryMembership([each.base for each in registries], "lab") for _ in range(4)]
            for number, member in enumerate(members):
                stack.push_async_callback(member.aclose)
                await member.join(Member(f"10.0.0.1:{number}", number + 1))
                assert member.observer is not None
                member.observer.notice(Observation(f"m{number}", 1, "overrun", {"request": 1}))
            everything = {f"m{number}": 1 for number in range(4)}
            for at in registries:
                await until(lambda at=at: is_so(mutexes(at), everything), "each shows what all have told")
            members[0].observer.notice(Observation("m0", 1, "overrun", {"request": 2}))  # on its way out
            await members[0].aclose()
            for at in registries:
                await until(lambda at=at: is_so(mutexes(at), everything | {"m0": 2}), "its last word is heard")


async def is_so(found: Awaitable[dict[str, int]], wanted: dict[str, int]) -> bool:
    return await found == wanted


@pytest.mark.needs("etcd")
class TestEtcd(SharedStore):
    kind = "etcd"
