"""Several slots: a node takes as many as its tasks ask for, and the nodes share them. In virtual time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from softmutex import Node, SoftMutex
from softmutex.testing import MemoryNetwork, virtual_time
from tests.runtime.group import node_on


class Ledger:
    """Who is inside, and how many there ever were at once."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most = 0
        self.most_of: Counter[str] = Counter()
        self.ended_at: list[tuple[str, float]] = []

    async def work(self, mutex: SoftMutex, who: str, seconds: float) -> None:
        async with mutex:
            self.inside[who] += 1
            self.most = max(self.most, self.inside.total())
            self.most_of[who] = max(self.most_of[who], self.inside[who])
            await asyncio.sleep(seconds)
            self.inside[who] -= 1
        self.ended_at.append((who, asyncio.get_running_loop().time()))


def in_a_group(of: int, story: Callable[[list[Node]], Awaitable[None]]) -> None:
    async def main() -> None:
        network = MemoryNetwork(seed=of, delay=0.005, jitter=0.002)
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(node_on(network, name=f"n{i}")) for i in range(of)]
            await story(nodes)

    with virtual_time() as runner:
        runner.run(main())


@pytest.mark.parametrize("slots", [2, 5])
@pytest.mark.parametrize("of", [1, 2, 7])
def test_tasks_of_one_node_use_all_slots_at_once(of: int, slots: int):
    ledger = Ledger()

    async def story(nodes: list[Node]) -> None:
        async with nodes[0].mutex("link", slots=slots):
            pass  # all the tokens are there
        await asyncio.sleep(1.0)  # and at rest
        mutex = nodes[-1].mutex("link", slots=slots)
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(ledger.work(mutex, "a", 10.0) for _ in range(2 * slots)))
        assert asyncio.get_running_loop().time() - begun < 21.0, "one after the other would take longer"

    in_a_group(of, story)
    assert ledger.most == slots


def test_a_second_task_that_comes_later_takes_the_second_slot():
    ledger = Ledger()

    async def story(nodes: list[Node]) -> None:
        mutex = nodes[1].mutex("link", slots=2)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(ledger.work(mutex, "a", 20.0))
                await asyncio.sleep(5.0)

    in_a_group(3, story)
    assert ledger.most == 2


def test_the_nodes_share_the_slots_fairly():
    """One task beside forty of another node: its turn comes after the first round, not behind them all."""
    ledger = Ledger()

    async def story(nodes: list[Node]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(40):
                tasks.create_task(ledger.work(nodes[0].mutex("link", slots=2), "many", 1.0))
            await asyncio.sleep(0.5)
            tasks.create_task(ledger.work(nodes[1].mutex("link", slots=2), "one", 1.0))

    in_a_group(3, story)
    assert ledger.most == 2
    place = [who for who, _ in ledger.ended_at].index("one")
    assert place <= 6, f"it came as number {place + 1} of 41"


def test_each_says_how_many_slots_one_node_may_use():
    ledger = Ledger()

    async def story(nodes: list[Node]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                for _ in range(3):
                    mutex = node.mutex("link", slots=2, options={"each": 1})
                    tasks.create_task(ledger.work(mutex, node.name, 1.0))

    in_a_group(2, story)
    assert ledger.most == 2
    assert set(ledger.most_of.values()) == {1}
