"""S1 to S8 of `softmutex_adapters.registry.store.Store`. A subclass supplies the way to make one and to let it fail."""

import asyncio
import time
from typing import Any

import pytest
from softmutex_adapters.registry.store import Entry, Store, StoreFailed

from softmutex.ports import Member
from tests.registry.inside import until

ONE = Entry(Member("10.0.0.1:1", 1, "one"), "a")
TWO = Entry(Member("10.0.0.1:2", 2, "zwei – 二"), "a", "5a" * 16)


class StoreContract:
    shared = True  # several stores on one place at once

    def make(self) -> Store:
        raise NotImplementedError

    async def fail(self, store: Store) -> None:
        """Lets the place behind the store fail."""
        raise NotImplementedError

    async def mend(self, store: Store) -> None:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, no_leaks: None) -> Any:
        store = self.make()
        await store.open()
        yield store
        await store.aclose()

    def owned(self, entry: Entry) -> Entry:
        return entry if self.shared else Entry(entry.member, "", entry.proof)

    async def test_s1_what_was_committed_is_there_for_the_next_one_in_the_order_of_joining(self, store: Store) -> None:
        await store.commit("g", {"lease-b": self.owned(TWO)})
        await store.commit("g", {"lease-a": self.owned(ONE)})
        await store.commit("other", {"lease-c": self.owned(ONE)})
        _, version = await store.commit("g", {"lease-b": None, "lease-d": self.owned(TWO), "never-there": None})
        await store.aclose()
        again = self.make()
        try:
            await again.open()
            stored = await again.read("g")
            assert stored is not None
            assert stored.version == version
            assert list(stored.entries.items()) == [("lease-a", self.owned(ONE)), ("lease-d", self.owned(TWO))]
            assert await again.groups() == ["g", "other"]
        finally:
            await again.aclose()

    async def test_s1_a_change_of_hundreds_is_one_change(self, store: Store) -> None:
        many = {f"lease-{n}": self.owned(Entry(Member(f"10.0.0.1:{n}", n, ""), "a")) for n in range(1, 700)}
        _, version = await store.commit("g", many)
        stored = await store.read("g")
        assert stored is not None
        assert (stored.version, stored.entries) == (version, many)

    async def test_s2_versions_grow_whatever_was_before(self, store: Store) -> None:
        seen = [0]
        for at_least in (0, 0, 0, seen[-1] + 10**15, 0):
            previous, version = await store.commit("g", {"lease-a": self.owned(ONE)}, at_least)
            assert previous == seen[-1]
            assert version > max(seen[-1], at_least)
            seen.append(version)
        await store.commit("g", {"lease-a": None})
        await store.forget("g")
        assert await store.read("g") is None
        await until(lambda: time.time_ns() // 1_000_000 > seen[3], "a group is forgotten after a minute, not at once")
        _, version = await store.commit("g", {"lease-a": self.owned(ONE)})
        assert version > seen[3], "a group that was forgotten began again behind what it had"

    async def test_s2_versions_of_commits_at_once_are_all_different(self, store: Store) -> None:
        commits = [store.commit("g", {f"lease-{n}": self.owned(ONE)}) for n in range(20)]
        versions = [version for _, version in await asyncio.gather(*commits)]
        assert len(set(versions)) == 20

    async def test_a_group_with_members_is_not_forgotten(self, store: Store) -> None:
        await store.commit("g", {"lease-a": self.owned(ONE)})
        await store.forget("g")
        assert await store.read("g") is not None

    async def test_s4_a_failure_is_told_with_a_remedy_and_the_next_call_works_again(self, store: Store) -> None:
        await store.commit("g", {"lease-a": self.owned(ONE)})
        await self.fail(store)
        async with asyncio.timeout(60):
            with pytest.raises(StoreFailed, match=r"\.$"):
                await store.commit("g", {"lease-b": self.owned(TWO)})
        await self.mend(store)
        await store.commit("g", {"lease-c": self.owned(TWO)})
        stored = await store.read("g")
        assert stored is not None
        assert {"lease-a", "lease-c"} <= stored.entries.keys()

    async def test_s5_another_registrys_change_is_told(self, store: Store) -> None:
        if not self.shared:
            return  # there is no other registry
        other = self.make()
        await other.open()
        waiting = asyncio.ensure_future(store.changed())
        try:
            for _ in range(3):
                told = asyncio.ensure_future(store.changed())
                await asyncio.sleep(0)
                told.cancel()  # cancelling loses nothing
                await asyncio.wait([told])
            _, version = await other.commit("g", {"lease-a": ONE})
            async with asyncio.timeout(60):
                while await waiting not in ("g", None):
                    waiting = asyncio.ensure_future(store.changed())
            stored = await store.read("g")
            assert stored is not None
            assert stored.version == version
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await other.aclose()

    async def test_s6_the_first_offer_wins(self, store: Store) -> None:
        assert await store.offer("key", b"\x00first\xff") == b"\x00first\xff"
        assert await store.offer("key", b"second") == b"\x00first\xff"
        assert await store.offer("other", b"second") == b"second"

    async def test_s7_who_beats_lives(self, store: Store) -> None:
        assert "me" in await store.beat("me")
        if self.shared:
            assert await store.beat("you") == {"me", "you"}

    async def test_s8_after_aclose_it_fails_and_may_be_closed_again(self, store: Store) -> None:
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreFailed):
            await store.commit("g", {"lease-a": self.owned(ONE)})
