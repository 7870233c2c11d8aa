"""Every live, allowed member is back within T after any fault has ended: lists that forget members and remember them,
networks that are cut, both at once, with identities and without."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from softmutex import Node
from softmutex.ports import Member
from softmutex.runtime import keyfile
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.security import moving
from tests.security.insider import KEY, Certifying
from tests.security.under_attack import last_seen_apart

T_S = 40.0
FAULTS = 12


class Flapping(Certifying):
    """A list that may leave out whom it has just shown: a registry that is cut off, a name that resolves otherwise."""

    def __init__(self, network: MemoryNetwork, complete: bool) -> None:
        super().__init__(network, set())
        self.complete = complete
        self._left_out: set[str] = set()
        self._changed = asyncio.Event()

    def leave_out(self, *addresses: str) -> None:
        self._left_out = set(addresses)
        self._changed.set()
        self.look_again()

    def ban(self, public: bytes) -> None:
        self.banned_by_all.add(public)
        self._changed.set()
        self.look_again()

    async def watch(self) -> Sequence[Member]:
        coming = asyncio.ensure_future(super().watch())
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((coming, changing), return_when=asyncio.FIRST_COMPLETED)
            self._changed.clear()
            if coming.done():
                self._last = coming.result()
        finally:
            for each in (coming, changing):
                each.cancel()
            await asyncio.gather(coming, changing, return_exceptions=True)
        return [member for member in self._last if member.address not in self._left_out]


@pytest.mark.parametrize("seed", [*range(3), pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("complete", [True, False], ids=["a whole list", "a list that may err"])
@pytest.mark.parametrize("identities", [True, False], ids=["identities", "a key"])
def test_whoever_lives_is_back_in_time(seed, complete: bool, identities: bool, tmp_path: Path):
    for each in range(3, 40) if seed == "many" else [seed]:
        flap(each, complete, identities, tmp_path)


@pytest.mark.parametrize("seed", [0, pytest.param("many", marks=pytest.mark.slow)])
def test_whoever_lives_is_back_in_time_where_addresses_change(seed):
    for each in range(1, 12) if seed == "many" else [seed]:
        moving.move(each)


@in_virtual_time
async def flap(seed: int, complete: bool, identities: bool, folder: Path) -> float:
    """How long after the last fault, in seconds, until all know all."""
    rng, network = random.Random(seed), MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
    names = ("a", "b", "c")
    lists = {name: Flapping(network, complete) for name in names}
    nodes = [open_node(network, lists[name], name, folder, identities) for name in names]
    await asyncio.gather(*(node.open() for node in nodes))
    try:
        await asyncio.sleep(2.0)
        for _ in range(FAULTS):
            name, other = rng.sample(names, 2)
            lists[name].leave_out(*rng.sample(names, rng.randrange(3)))
            if rng.random() < 0.5:
                network.cut(name, other)
            if rng.random() < 0.4:
                network.heal()
            await asyncio.sleep(rng.choice((0.05, 0.5, 3.0, 8.0, 45.0, 200.0)))
        network.heal()
        for each in lists.values():
            each.leave_out()
        back_s = await last_seen_apart(nodes, T_S)
        for node in nodes:
            assert {peer.name for peer in node.peers()} == set(names) - {node.name}, (seed, node.name)
        for node in nodes:
            async with node.mutex("x").hold(timeout=T_S):
                pass
        return back_s
    finally:
        await asyncio.gather(*(node.close() for node in nodes))


def open_node(network: MemoryNetwork, shown: Flapping, name: str, folder: Path, identities: bool) -> Node:
    options: dict[str, Any] = {}
    if identities:
        file = folder / f"{name}.identity"
        if not file.exists():
            keyfile.make(file)
        options = {"identity": file, "require_identity": True}
    return Node(transport=network.transport(name), membership=shown, key=KEY, name=name, **options)
