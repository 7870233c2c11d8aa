"""Nodes that come, take one turn and go, again and again: whole nodes in virtual time, with each algorithm.

As `softmutex run` has it in a loop. The members change several times while each of them lives.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import statistics

import pytest

from softmutex import Node
from softmutex.testing import MemoryNetwork, virtual_time

NODES, TURNS, HOLD_S, REST_S = 5, 20, 0.012, 0.03
STANDSTILL_S = 60.0
ALGORITHMS = (
    "central",
    "ricart-agrawala",
    "token-ring",
    "suzuki-kasami",
    "raymond",
    "ring-search",
    "binary-search",
    "sigma",
    "e2e",
    "non-e2e",
)


class Chance(random.Random):
    """What the nodes draw, from one seed: who they are decides where the replicas are."""

    def __init__(self, *seed: int) -> None:
        super().__init__(*(seed or (secrets.randbits(64),)))


async def live(algorithm: str, seed: int) -> list[float]:
    """How long each waited."""
    network = MemoryNetwork(seed=seed, delay=0.0005, jitter=0.0003)
    rests, clock = Chance(seed), asyncio.get_running_loop().time
    inside: list[int] = []
    waits: list[float] = []

    async def come_and_go(me: int) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(REST_S * (0.5 + rests.random()))
            async with Node(transport=network.transport(), membership=network.membership()) as node:
                since = clock()
                async with asyncio.timeout(STANDSTILL_S), node.mutex("x", algorithm=algorithm):
                    waits.append(clock() - since)
                    inside.append(me)
                    assert inside == [me], f"{inside} run at once"
                    await asyncio.sleep(HOLD_S)
                    inside.remove(me)

    async with asyncio.TaskGroup() as group:
        for number in range(NODES):
            group.create_task(come_and_go(number))
    return waits


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (4, 6))])
def test_who_comes_for_one_turn_gets_it_alone_and_nobody_waits_for_long(
    algorithm: str, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """They stood still for ever: who began while others came and went did not know them, and nobody yielded."""
    ids = random.Random(seed)
    monkeypatch.setattr(secrets, "randbits", ids.getrandbits)
    monkeypatch.setattr(random, "Random", Chance)
    with virtual_time() as runner:
        waits = runner.run(live(algorithm, seed))
    assert len(waits) == NODES * TURNS
    assert statistics.median(waits) < 0.1
