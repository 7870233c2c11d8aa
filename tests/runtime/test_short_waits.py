"""Who waits for a moment only, and asks again and again, as tasks of schedulers do, still misses a silent holder."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from softmutex import AcquireTimeout, Node
from softmutex.testing import MemoryNetwork, virtual_time
from tests.runtime.group import node_on

SOON_S = 30.0  # 2.9 to 7.5 s in 90 runs


async def comes_in(node: Node, wait_s: float, pause_s: float) -> None:
    while True:
        try:
            async with node.mutex("x").hold(timeout=wait_s):
                return
        except AcquireTimeout:
            await asyncio.sleep(pause_s)


@pytest.mark.parametrize(("wait_s", "pause_s"), [(0.3, 0.3), (0.5, 2.0), (1.0, 5.0)])
def test_a_holder_that_falls_silent_is_followed_though_nobody_waits_for_long(wait_s: float, pause_s: float):
    async def main() -> None:
        network = MemoryNetwork(seed=1, delay=0.002)
        async with AsyncExitStack() as stack:
            holder, *others = [await stack.enter_async_context(node_on(network)) for _ in range(5)]
            await asyncio.sleep(2.0)
            stack.push_async_callback((await holder.mutex("x").acquire()).release)
            tasks = [asyncio.create_task(comes_in(node, wait_s, pause_s)) for node in others]
            await asyncio.sleep(5.0)
            assert not any(task.done() for task in tasks)
            network.partition(holder.address, [node.address for node in others])
            async with asyncio.timeout(SOON_S):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            network.heal()
            await asyncio.gather(*tasks)

    with virtual_time() as runner:
        runner.run(main())
