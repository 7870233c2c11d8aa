"""Names are forgotten when there is no room for another one: a group has as many in its life as it likes."""

import asyncio

import pytest

from softmutex import ConfigError, Hold, Node
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import limit, lower
from tests.runtime.group import node_on, until

KEY = bytes(range(32))
NAMES = "mutexes of a node"


@in_virtual_time
async def test_who_holds_or_waits_is_not_forgotten_and_a_name_that_was_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
):
    lower(NAMES, 4, monkeypatch)
    network = MemoryNetwork(seed=2, delay=0.001)
    inside: list[Hold] = []
    async with node_on(network, name="a") as a, node_on(network, name="b") as b, node_on(network, name="c") as c:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))

        async def long_turn(node: Node) -> None:
            async with node.mutex("long").hold(timeout=3600) as hold:
                inside.append(hold)
                assert len(inside) == 1
                await asyncio.sleep(600)
                assert not hold.lost.is_set()
                inside.remove(hold)

        turns = [asyncio.create_task(long_turn(node)) for node in (a, b)]
        for number in range(20):
            async with c.mutex(f"day {number}").hold(timeout=30):
                pass
            await asyncio.sleep(61)
        await asyncio.gather(*turns)
        for node in (a, b, c):
            async with node.mutex("day 0").hold(timeout=30):
                pass
            async with node.mutex("long").hold(timeout=30):
                pass


@in_virtual_time
async def test_where_nothing_has_rested_a_new_name_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    lower(NAMES, 3, monkeypatch)
    assert limit(NAMES) == 4096  # as the page says
    async with node_on(MemoryNetwork(seed=3)) as one:
        for number in range(3):
            async with one.mutex(str(number)):
                pass
        with pytest.raises(ConfigError, match="Name what is shared, not each use of it"):
            async with one.mutex("one more"):
                raise AssertionError("entered")
        await asyncio.sleep(60)
        async with one.mutex("one more"):
            pass
