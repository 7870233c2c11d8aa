"""Priorities as applications ask for them; the law is `tests/wandering/test_priorities.py`'s. In virtual time."""

from __future__ import annotations

import asyncio
import random

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


def test_whoever_does_not_say_what_a_step_is_worth_does_not_go_past_those_who_do():
    async def story(nodes: list[Node]) -> None:
        for slots in (1, 3):
            name = f"link {slots}"
            async with nodes[0].mutex(name, slots=slots, ageing=AGEING_S):
                for other in (None, 2 * AGEING_S):
                    with pytest.raises(ConfigError, match="ageing"):
                        await nodes[1].mutex(name, slots=slots, ageing=other).acquire()

    in_a_group(2, story)


@pytest.mark.parametrize("slots", [2, 4])
def test_of_several_slots_only_who_collects_and_those_on_their_way_come_before_who_counts_as_older(slots: int):
    asked: dict[int, tuple[float, float]] = {}  # when, and as what it counts
    entered: list[tuple[float, int]] = []

    async def story(nodes: list[Node]) -> None:
        rng, loop = random.Random(slots), asyncio.get_running_loop()

        async def task(number: int, after_s: float, priority: int) -> None:
            await asyncio.sleep(after_s)
            asked[number] = loop.time(), loop.time() - priority * AGEING_S
            mutex = nodes[number % len(nodes)].mutex("link", slots=slots, ageing=AGEING_S, priority=priority)
            async with mutex:
                entered.append((loop.time(), number))
                await asyncio.sleep(2.0)

        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for number in range(48):
                group.create_task(task(number, rng.uniform(0, 28.8 / slots), rng.choice((0, 0, 0, 1, 2, 5, 9))))

    in_a_group(6, story)
    assert len(entered) == 48
    overtaken = [
        sum(asked[one][0] < then < at and asked[other][1] > asked[one][1] + 0.25 for then, other in entered)
        for at, one in entered
    ]
    assert max(overtaken) <= 12  # in the order in which they asked it would be more than twenty


def test_what_knows_no_priorities_refuses_them_with_what_to_do():
    async def story(nodes: list[Node]) -> None:
        with pytest.raises(ConfigError, match=r"the algorithm 'central' has no priorities.*'wandering'"):
            await nodes[0].mutex("link", algorithm="central", priority=2, ageing=60).acquire()
        with pytest.raises(ConfigError, match="ageing=60"):
            await nodes[0].mutex("link", priority=2).acquire()
        with pytest.raises(ConfigError, match="from 0 to 9"):
            await nodes[0].mutex("link", priority=10, ageing=60).acquire()

    in_a_group(2, story)
