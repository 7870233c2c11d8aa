"""Members on a network in the hands of somebody without the key, held to the laws, and how long until they are back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from softmutex import Hold, Node
from softmutex.ports import CannotOpen, Member
from softmutex.runtime import keyfile
from softmutex.runtime import node as node_module
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import node_on
from tests.runtime.test_peers import Listed
from tests.security.adversary import HostileNetwork
from tests.security.insider import KEY, Certifying, member

HOSTILE_S = 20.0
BACK_S = 20.0  # T: frames that were reflected part two for ten seconds (`core/group/greeter.py`, OWN_FOR)
FAIR_S = 5.0
CLONES_S = 10.0
TURN_S = 0.1
OF_STRANGERS = ("speaks version", "in the name of this node", "is a member by the list, and its frames")
ONCE_EACH = 4 * (4 + 2)  # who can send from the address of a member is told of once, by each


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Nodes that are opened meanwhile draw their ids, and all that they decide by lot, from the seed."""
    ids, lots = random.Random(f"ids {seed}"), random.Random(f"lots {seed}")
    before = node_module.secrets, node_module.random
    drawn: Any = SimpleNamespace(randbits=ids.getrandbits), SimpleNamespace(Random=lambda: random.Random(lots.random()))
    node_module.secrets, node_module.random = drawn
    try:
        yield
    finally:
        node_module.secrets, node_module.random = before


class Watch:
    """Sees every hold from outside."""

    def __init__(self) -> None:
        self.may_work = asyncio.Event()
        self.may_work.set()
        self.inside: list[Hold] = []
        self.met: set[tuple[Hold, Hold]] = set()
        self.turns = 0
        self.acquainted: set[str] = set()

    def has_met(self, node: Node) -> bool:
        return node.address in self.acquainted

    async def work(self, node: Node) -> None:
        while True:
            await self.may_work.wait()
            try:
                async with node.mutex("x") as hold:
                    self.inside.append(hold)
                    self.turns += 1
                    self.met |= set(combinations(self.inside, 2))
                    await asyncio.sleep(TURN_S)
                    self.inside.remove(hold)
            except CannotOpen:  # he says that the others refuse it, and none of them has got through to it ever
                assert not self.has_met(node), "who was heard by others is not told that its key is wrong"
                await asyncio.sleep(1.0)


class Shown(Listed, Certifying):
    """A list that may err, and an authority."""

    def __init__(self, *members: Member) -> None:
        Listed.__init__(self, *members)
        self.banned_by_all: set[bytes] = set()


def a_member(network: HostileNetwork, names: tuple[str, ...], name: str, folder: Path | None) -> Node:
    options: dict[str, Any] = {"transport": network.transport(name), "key": KEY, "name": name}
    listed = [Member(each, 0) for each in names]
    if folder is None:
        return Node(membership=Listed(*listed), **options)
    file = folder / f"{name}.identity"
    if not file.exists():
        keyfile.make(file)
    return Node(membership=Shown(*listed), identity=file, require_identity=True, **options)


class Said(logging.Handler):
    """How often each line was logged that is about strangers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.count.update(line for line in OF_STRANGERS if line in text)

    def __enter__(self) -> Counter[str]:
        logging.getLogger("softmutex").addHandler(self)
        return self.count

    def __exit__(self, *_: object) -> None:
        logging.getLogger("softmutex").removeHandler(self)


def attack(seed: int, folder: Path) -> float:
    """Two to four members, one time in four with identities. How long after it, in seconds, until all know all."""
    names = ("a", "b", "c", "d")[: 2 + seed % 3]
    with reproducible(seed), Said() as said:
        back_s = under_attack(seed, names, folder if seed % 4 == 3 else None)
    assert all(count <= ONCE_EACH for count in said.values()), (seed, said)
    return back_s


@in_virtual_time
async def under_attack(seed: int, names: tuple[str, ...], folder: Path | None) -> float:
    network = HostileNetwork(seed)
    nodes = [a_member(network, names, name, folder) for name in names]
    await asyncio.gather(*(node.open() for node in nodes))
    watch = Watch()
    works = [asyncio.create_task(watch.work(node)) for node in nodes]
    try:
        ids = {node.id for node in nodes}
        for _ in range(int(HOSTILE_S / 0.1)):
            await asyncio.sleep(0.1)
            for node in nodes:
                assert {peer.id for peer in node.peers()} <= ids - {node.id}, seed
                if node.peers():
                    watch.acquainted.add(node.address)
        assert network.forged > 5, seed
        network.is_hostile = False
        watch.may_work.clear()
        back_s = await last_seen_apart(nodes, BACK_S)
        assert back_s < BACK_S, (seed, "not all know all")
        watch.may_work.set()
        await asyncio.sleep(1.0)
        watch.met.clear()
        before = watch.turns
        await asyncio.sleep(FAIR_S)
        assert not watch.met, (seed, "two hold at once on a fair network")
        assert watch.turns - before > 20, seed
        assert ids == {node.id for node in nodes}, (seed, "strangers took a life")
        return back_s
    finally:
        for work in works:
            work.cancel()
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        await asyncio.gather(*(node.close() for node in nodes))


async def last_seen_apart(nodes: list[Node], within_s: float) -> float:
    """How long until all hear all, for good."""
    apart_s, step_s = 0.0, 0.1
    for number in range(1, round(within_s / step_s) + 1):
        await asyncio.sleep(step_s)
        if any(sum(not peer.silent for peer in node.peers()) != len(nodes) - 1 for node in nodes):
            apart_s = number * step_s
    return apart_s


# --- clones ----------------------------------------------------------------------------------------------------------


class Turns:
    def __init__(self, *nodes: Node) -> None:
        self.inside: list[Hold] = []
        self.most = self.count = 0
        self.tasks = [asyncio.create_task(self._work(node)) for node in nodes]

    async def _work(self, node: Node) -> None:
        while True:
            async with node.mutex("x", on_lost="continue").hold(timeout=60) as hold:
                self.inside.append(hold)
                self.most = max(self.most, len(self.inside))
                self.count += 1
                await asyncio.sleep(0.05)
                self.inside.remove(hold)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


def clones(seed: int, folder: Path | None) -> float:
    """Two members of one id, one key and the counter 0, beside a third. How long until three lives know all of them."""
    with pytest.MonkeyPatch.context() as patch:
        ids = itertools.chain([0xC10AF], itertools.repeat(0xC10AE))
        patch.setattr("softmutex.runtime.node.secrets", SimpleNamespace(randbits=lambda _: next(ids)))
        cloned, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        later = (X25519PrivateKey.generate() for _ in itertools.count())
        halves = itertools.chain([other, cloned, cloned], later)
        drawn = SimpleNamespace(generate=lambda: next(halves))
        patch.setattr("cryptography.hazmat.primitives.asymmetric.x25519.X25519PrivateKey", drawn)
        return two_clones(seed, folder)


@in_virtual_time
async def two_clones(seed: int, folder: Path | None) -> float:
    network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)

    def one(name: str) -> Node:
        if folder is None:
            return node_on(network, key=KEY, name=name)
        options = {"identity": folder / "a.identity"} if name == "clone" else {}
        return member(network, folder, name, set(), **options)

    async with one("b") as b, one("a") as a, one("clone") as clone:
        nodes = (a, b, clone)
        turns = Turns(*nodes)
        try:
            back_s = await last_seen_apart(list(nodes), CLONES_S)
            assert len({node.id for node in nodes}) == 3
            known = {node.id: sorted(peer.id for peer in node.peers()) for node in nodes}
            assert known == {id: sorted(known.keys() - {id}) for id in known}
            turns.most, turns.count = 0, 0
            await asyncio.sleep(5.0)
            assert (turns.most, turns.count > 20) == (1, True)
            return back_s
        finally:
            await turns.stop()
