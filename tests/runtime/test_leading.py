"""`node.lead(...)`: one leads, the others know who, and when it goes another one does."""

from __future__ import annotations

import asyncio

import pytest

from softmutex import ConfigError, Node, sync
from tests.runtime.group import until


def member(name: str, where: str) -> Node:
    return Node(name=name, transport=f"memory://{where}", membership=f"memory://{where}")


@pytest.mark.parametrize("election", ["bully", "ring"])
async def test_one_leads_the_others_know_who_and_the_next_one_follows(no_leaks: None, election: str):
    where = f"lead-{election}"
    async with member("one", where) as one, member("two", where) as two, member("three", where) as three:
        heard: list[str | None] = []
        three.on_leader("indexer", heard.append)
        async with one.lead("indexer", algorithm=election) as lease:
            await until(lambda: three.leader("indexer") == "one" == two.leader("indexer") == one.leader("indexer"))
            assert not lease.lost.is_set() and lease.peers == 2
            waiting = asyncio.ensure_future(two.lead("indexer", algorithm=election).acquire())
            await asyncio.sleep(0)
            assert not waiting.done()
        async with await waiting:
            await until(lambda: three.leader("indexer") == "two" and heard[-1] == "two")
        await until(lambda: three.leader("indexer") is None)
        await until(lambda: heard[-1] is None)
        assert heard[0] == "one" and heard.count("two") == 1


async def test_a_leader_and_a_mutex_of_one_name_have_nothing_to_do_with_each_other(no_leaks: None):
    async with member("one", "lead-names") as one, one.lead("x"), one.mutex("x") as hold:
        assert hold.name == "x"
        assert one.leader("x") == "one" and one.leader("y") is None


async def test_a_name_that_is_none_is_refused(no_leaks: None):
    async with member("one", "lead-bad") as one:
        with pytest.raises(ConfigError, match="1 to 64 bytes"):
            one.lead("")


async def test_what_elects_nobody_is_refused(no_leaks: None):
    async with member("one", "lead-turns") as one:
        with pytest.raises(ConfigError, match="elects no leader: give bully or ring"):
            one.lead("x", algorithm="token-ring")


def test_a_thread_may_lead_too():
    node = sync.Node(name="one", transport="memory://lead-sync", membership="memory://lead-sync")
    with node, node.lead("x") as lease:
        assert node.leader("x") == "one" and not lease.lost.is_set()
