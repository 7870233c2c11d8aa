"""Nobody without the key changes who holds, whom a node knows, or what is logged of strangers: over any weather that
somebody can make who has the network, and T after he has let go of it everybody is back."""

import asyncio
import logging
from itertools import combinations

import pytest

from softmutex import Hold, Node
from softmutex.ports import Member
from softmutex.testing import in_virtual_time
from tests.runtime.test_peers import Listed
from tests.security.adversary import HostileNetwork

KEY = bytes(range(32))
NAMES = ("a", "b", "c")
HOSTILE_S = 20.0
BACK_S = 70.0  # T: frames that were reflected part two for a minute (`core/group/greeter.py`, OWN_FOR)
OF_STRANGERS = ("speaks version", "in the name of this node", "is a member by the list, and its frames")
ONCE_EACH = len(NAMES) * (len(NAMES) + 2)  # who can send from the address of a member is told of once, by each


class Watch:
    """Sees every hold from outside."""

    def __init__(self) -> None:
        self.inside: list[Hold] = []
        self.met: set[tuple[Hold, Hold]] = set()
        self.turns = 0

    async def work(self, node: Node) -> None:
        while True:
            async with node.mutex("x") as hold:
                self.inside.append(hold)
                self.turns += 1
                self.met |= set(combinations(self.inside, 2))
                await asyncio.sleep(0.1)
                self.inside.remove(hold)


def members(*names: str) -> list[Member]:
    return [Member(name, 0) for name in names]


@pytest.mark.parametrize("seed", [0, 1, pytest.param("many", marks=pytest.mark.slow)])
def test_who_has_the_network_and_not_the_key_moves_nobody(seed, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "softmutex")
    for each in range(2, 42) if seed == "many" else [seed]:
        caplog.clear()
        hostile(each)
        assert all(caplog.text.count(line) <= ONCE_EACH for line in OF_STRANGERS)


@in_virtual_time
async def hostile(seed: int) -> None:
    network = HostileNetwork(seed)
    nodes = [
        Node(transport=network.transport(name), membership=Listed(*members(*NAMES)), key=KEY, name=name)
        for name in NAMES
    ]
    await asyncio.gather(*(node.open() for node in nodes))
    watch = Watch()
    try:
        ids = {node.id for node in nodes}
        works = [asyncio.create_task(watch.work(node)) for node in nodes]
        for _ in range(int(HOSTILE_S / 0.1)):
            await asyncio.sleep(0.1)
            for node in nodes:
                assert {peer.id for peer in node.peers()} <= ids - {node.id}, seed
        assert network.forged > 50
        network.is_hostile = False
        await asyncio.sleep(BACK_S)
        assert all(len(node.peers()) == len(nodes) - 1 for node in nodes), seed
        watch.met.clear()
        before = watch.turns
        await asyncio.sleep(5.0)
        assert not watch.met, (seed, "two hold at once on a fair network")
        assert watch.turns - before > 20, seed
        for work in works:
            work.cancel()
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
