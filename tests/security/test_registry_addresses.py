"""Who has the registry's token, and not the group's key, takes nobody's place: an address is its lease's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry.group import DROPPED_S

from softmutex.ports import Member
from tests.registry.inside import Inside, body, inside, later, lease, until

GROUP = "/v1/groups/g/members"
VICTIM = Member("10.0.0.1:1", 1, "node-1")


@contextlib.asynccontextmanager
async def member(registry: Inside, me: Member) -> AsyncIterator[RegistryMembership]:
    membership = RegistryMembership([registry.base], "g", report=False)
    await membership.join(me)
    try:
        yield membership
    finally:
        await membership.aclose()


@contextlib.asynccontextmanager
async def follows(registry: Inside, number: int) -> AsyncIterator[None]:
    """A member's stream: it lives as long as this is open, and breaks as that of a killed process."""
    async with registry.session.get(f"{registry.base}/v1/groups/g/events?lease={lease(number)}") as answer:
        await answer.content.readany()
        yield
        answer.close()
    await until(lambda: lease(number) not in registry.hub.groups["g"].standing, "it broke")


async def ids(registry: Inside) -> dict[str, str]:
    _, told, _ = await registry.call("GET", GROUP)
    return {address: id for _, address, id, _ in told["joined"]}


async def put(registry: Inside, number: int, **other: str) -> tuple[int, str]:
    status, told, _ = await registry.call("PUT", registry.path("g", number), json=body(number, **other))
    return status, told.get("error", "")


@pytest.mark.parametrize("same", ["address", "id"])
async def test_a_living_member_is_not_evicted_by_who_puts_its_address_or_its_id(
    no_leaks: None, tmp_path: Path, same: str
):
    async with inside(tmp_path) as registry, member(registry, VICTIM):
        status, why = await put(registry, 99, **{same: body(1)[same]})
        assert status == 409
        assert "another member" in why
        assert await ids(registry) == {VICTIM.address: f"{VICTIM.id:016x}"}
        assert registry.hub.counts["addresses_refused"] == 1


async def test_of_two_that_come_to_an_address_at_once_one_is_listed(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        taken = await asyncio.gather(*(put(registry, number, address="10.0.0.1:1") for number in range(1, 9)))
        assert sorted(status for status, _ in taken) == [200] + [409] * 7
        assert len(await ids(registry)) == 1


async def test_whoever_restarts_in_place_after_a_kill_is_in_at_once(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        async with follows(registry, 1):
            await registry.join("g", 1)
        assert await put(registry, 99, address="10.0.0.1:1") == (200, "")
        assert await ids(registry) == {"10.0.0.1:1": f"{99:016x}"}


async def test_who_took_an_address_while_its_members_stream_was_broken_gives_it_back(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        async with follows(registry, 1):
            await registry.join("g", 1)
        assert await put(registry, 99, address="10.0.0.1:1") == (200, "")
        async with follows(registry, 99):
            assert await put(registry, 1) == (200, ""), "it was there first, and its lease is not over"
            async with follows(registry, 1):
                assert await ids(registry) == {"10.0.0.1:1": f"{1:016x}"}
                assert (await put(registry, 99, address="10.0.0.1:1"))[0] == 409


async def is_taken_in(registry: Inside, number: int, address: str) -> bool:
    return await put(registry, number, address=address) == (200, "")


async def test_an_address_is_free_when_its_lease_is_over_or_was_ended(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        assert (await put(registry, 99, address="10.0.0.1:1"))[0] == 409, "it follows no stream, and may live"
        later(monkeypatch, registry.hub.ttl_s, registry.hub)
        await until(lambda: registry.hub.counts["expired"], "its lease is over")
        await until(lambda: is_taken_in(registry, 99, "10.0.0.1:1"), "what is over is committed a moment later")
        await registry.call("DELETE", registry.path("g", 99))
        assert await put(registry, 98, address="10.0.0.1:1") == (200, "")


async def test_a_registry_that_starts_leaves_members_time_to_come_back_and_then_gives_their_addresses(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a power cut everybody is back in place under other leases; until the list has settled nobody can say."""
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        await registry.join("g", 2)
    async with inside(tmp_path) as registry:
        assert (await put(registry, 99, address="10.0.0.1:1"))[0] == 409
        await registry.join("g", 2)
        later(monkeypatch, registry.hub.settle_s, registry.hub)  # in half of a lease
        assert await put(registry, 99, address="10.0.0.1:1") == (200, "")
        assert (await put(registry, 98, address="10.0.0.1:2"))[0] == 409, "this one has come back"


async def test_a_second_node_at_the_address_of_a_living_one_is_told_so(
    no_leaks: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    from softmutex_adapters.memberships import registry as memberships

    monkeypatch.setattr(memberships, "JOIN_S", 0.3)
    async with inside(tmp_path) as registry, member(registry, VICTIM), member(registry, Member(VICTIM.address, 2)):
        await until(lambda: "another member lives at 10.0.0.1:1" in caplog.text, "it is told")
        assert await ids(registry) == {VICTIM.address: f"{VICTIM.id:016x}"}
        assert DROPPED_S > 1
