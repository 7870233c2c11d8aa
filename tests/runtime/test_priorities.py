"""Priorities as applications ask for them; the law is `tests/wandering/test_priorities.py`'s. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from softmutex import ConfigError, Node
from softmutex.testing import MemoryNetwork, virtual_time
from tests.runtime.group import node_on
from tests.runtime.test_weights import DELAY_S, in_a_group

AGEING_S = 10.0


async def visit(
    node: Node, order: list[str], name: str, priority: int, slots: int = 1, weight: int | None = None
) -> None:
    async with node.mutex("link", priority=priority, ageing=AGEING_S, slots=slots, weight=weight):
        order.append(name)
        await asyncio.sleep(2.0)


@pytest.mark.parametrize(("slots", "weight"), [(1, None), (2, None), (3, 2)])
def test_the_urgent_ones_come_before_those_who_waited_longer(slots: int, weight: int | None):
    order: list[str] = []

    async def story(nodes: list[Node]) -> None:
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for number in range(24):
                node = nodes[number % (len(nodes) - 1)]
                group.create_task(visit(node, order, f"waits {number}", 0, slots, weight))
            await asyncio.sleep(1.0)
            group.create_task(visit(nodes[-1], order, "urgent", 5, slots, weight))

    in_a_group(4, story)
    assert len(order) == 25
    assert order.index("urgent") <= 12  # in the order in which they asked it would be the last one


def test_newcomers_change_nothing_about_who_comes_first():
    """Each of them may become the home of the mutex, which is handed the register with everybody's due time."""
    order: list[str] = []

    async def joins(network: MemoryNetwork, at_s: float, name: str, priority: int) -> None:
        await asyncio.sleep(at_s)
        async with node_on(network, name=name.replace(" ", "-")) as node:
            await visit(node, order, name, priority)

    async def main() -> None:
        network = MemoryNetwork(seed=1, delay=DELAY_S, jitter=0.002)
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(joins(network, 0.1 * number, f"waits {number}", 0))
            group.create_task(joins(network, 1.0, "urgent", 5))

    with virtual_time() as runner:
        runner.run(main())
    assert order.index("urgent") <= 6  # of eleven: in the order in which they asked it would be the last one


def test_one_that_waits_is_overtaken_only_for_its_steps():
    order: list[str] = []

    async def story(nodes: list[Node]) -> None:
        async def urgent(node: Node) -> None:
            while "patient" not in order:
                await visit(node, order, "urgent", 2)

        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for node in nodes[1:]:
                group.create_task(urgent(node))
            await asyncio.sleep(5.0)
            group.create_task(visit(nodes[0], order, "patient", 0))

    in_a_group(5, story)
    assert 5 <= order.index("patient") <= 25  # of turns of two seconds: two steps of ten are ten of them


def test_what_knows_no_priorities_refuses_them_with_what_to_do():
    async def story(nodes: list[Node]) -> None:
        with pytest.raises(ConfigError, match=r"the algorithm 'central' has no priorities.*'wandering'"):
            await nodes[0].mutex("link", algorithm="central", priority=2, ageing=60).acquire()
        with pytest.raises(ConfigError, match="ageing=60"):
            await nodes[0].mutex("link", priority=2).acquire()
        with pytest.raises(ConfigError, match="from 0 to 9"):
            await nodes[0].mutex("link", priority=10, ageing=60).acquire()

    in_a_group(2, story)
