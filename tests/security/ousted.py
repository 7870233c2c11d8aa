"""A member is banned that keeps all it has and goes on: its node heeds no ban, its sessions and its certificate stand,
it may hold at that moment, be the home of the name, or have the token parked; and it lies to all whom it knows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from softmutex import Node
from softmutex.runtime import keyfile
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import until
from tests.security.insider import KEY, public_of
from tests.security.liar import Liar
from tests.security.test_flaps import Flapping
from tests.security.under_attack import reproducible

OUST_S = 15.0  # T; for a member that has told the truth until it was banned
LIED_S = 60.0  # ... for one that has lied before
OWN = "by the banned one only"
TURN_S = 0.05
PAUSE_S = 1.0  # so long nobody has a turn where somebody still has an effect
LIES = 100


class Unheeding(Flapping):
    @property
    def banned(self) -> frozenset[int | bytes]:
        return frozenset()


class Turns:
    """Of those who are allowed: when each began, and when two held at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inside = 0
        self.began: list[float] = []
        self.at_once: list[float] = []

    async def work(self, node: Node) -> None:
        now = asyncio.get_running_loop().time
        while True:
            async with node.mutex(self.name, on_lost="continue").hold(timeout=300):
                self.inside += 1
                self.began.append(now())
                try:
                    await asyncio.sleep(TURN_S)
                    if self.inside > 1:
                        self.at_once.append(now())
                finally:
                    self.inside -= 1

    def troubled_until(self, since: float) -> float:
        """The end of the last pause, or of the last moment in which two held at once."""
        times = [since, *(began for began in self.began if began > since)]
        pauses = [end for begin, end in pairwise(times) if end - begin > PAUSE_S]
        return max((since, *pauses, *(moment for moment in self.at_once if moment > since)))


@contextmanager
def seals_known() -> Iterator[dict[int, Sealer]]:
    """Of each life: what it can say."""
    made: dict[int, Sealer] = {}
    with pytest.MonkeyPatch.context() as patch:
        make = lambda keys, group, me: made.setdefault(me, Sealer(KeyRing.of(*keys), group, me))  # noqa: E731
        patch.setattr("softmutex.runtime.keys.seal_with", make)
        yield made


def oust(seed: int, folder: Path) -> float:
    """How long after the ban, in seconds, it had an effect: on who is a member, on who holds, on when they do."""
    with reproducible(seed), seals_known() as seals:
        return ousted(seed, folder, seals)


def a_member(network: MemoryNetwork, name: str, folder: Path, shown: Flapping) -> Node:
    file = folder / f"{name}.identity"
    if not file.exists():
        keyfile.make(file)
    given: dict[str, Any] = {"key": KEY, "identity": file, "require_identity": True, "name": name}
    return Node(transport=network.transport(name), membership=shown, **given)


@in_virtual_time
async def ousted(seed: int, folder: Path, seals: dict[int, Sealer]) -> float:
    rng, network = random.Random(seed), MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
    is_complete, role, lied = rng.random() < 0.5, rng.choice(("waits", "holds", "parked")), rng.random() < 0.3
    names = ("a", "b", "c", "d")[: rng.choice((2, 3, 4))]
    lists = {name: Flapping(network, is_complete) for name in names} | {"bad": Unheeding(network, is_complete)}
    everybody = {name: a_member(network, name, folder, shown) for name, shown in lists.items()}
    bad, nodes = everybody["bad"], [everybody[name] for name in names]
    await asyncio.gather(*(node.open() for node in everybody.values()))
    mouth = network.transport("mouth")
    await mouth.open()
    turns = Turns(f"x{rng.randrange(8)}")
    works: list[asyncio.Task[None]] = []
    now = asyncio.get_running_loop().time
    try:
        await until(lambda: all(len(node.peers()) == len(names) for node in everybody.values()))
        if role != "parked":
            works += [asyncio.create_task(turns.work(node)) for node in nodes]
        liar = Liar(seals[bad.id], seed, [node.id for node in everybody.values()])

        async def lie(count: int) -> None:
            for number in range(count):
                to = nodes[number % len(nodes)]
                mouth.send(to.address, liar.lie(bad.id, to.id, [turns.name, turns.name, ""]))
                await asyncio.sleep(0.01)

        hold = bad.mutex(turns.name, on_lost="continue").hold(timeout=300)
        if role == "waits":
            works.append(asyncio.create_task(Turns(turns.name).work(bad)))
        else:
            await hold.__aenter__()
            if role == "parked":
                await hold.__aexit__(None, None, None)
        async with bad.mutex(OWN, slots=2):  # a name that nobody else has used
            pass
        if lied:
            await lie(LIES)
        await asyncio.sleep(3 * rng.random())
        began = now()
        for shown in lists.values():
            shown.ban(public_of(folder, "bad"))
        if role == "parked":
            works += [asyncio.create_task(turns.work(node)) for node in nodes]
        await until(lambda: all(peer.id != bad.id for node in nodes for peer in node.peers()))
        out_s = now() - began
        await lie(LIES)
        bound_s = LIED_S if lied else OUST_S
        for node in nodes:  # its settings are nobody's any more
            async with node.mutex(OWN).hold(timeout=bound_s):
                pass
        await asyncio.sleep(bound_s + 5.0 - (now() - began))
        took_s = max(out_s, turns.troubled_until(began) - began)
        story = (seed, role, names, is_complete, lied, out_s, took_s)
        assert all({peer.name for peer in node.peers()} == set(names) - {node.name} for node in nodes), story
        assert took_s < bound_s, story
        assert len([each for each in turns.began if each > began + took_s]) > 20, story
        return took_s
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in everybody.values()))
        await mouth.aclose()
