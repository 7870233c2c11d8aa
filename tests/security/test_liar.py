"""A member that lies: whatever it says breaks no machine, and nothing of it is left soon after it was shut out."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from softmutex import Node
from softmutex.core.algorithms.wandering.messages import Feed, Ticket, Want
from softmutex.core.messages import PastHold, Remember
from softmutex.core.wire import Frame
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, MemoryTransport, in_virtual_time
from tests.depth import DEEP
from tests.runtime.group import node_on, until
from tests.security.insider import KEY
from tests.security.liar import Liar
from tests.security.under_attack import reproducible

FORGOTTEN_S = 60.0  # T
LIES = 500
FOUND = (
    15,  # a token that was doubted, and met a copy of itself, was doubted for ever
    36,  # a copy of the token: neither of its two holders ever gave way
)


@pytest.fixture
def seals(monkeypatch: pytest.MonkeyPatch) -> dict[int, Sealer]:
    """Of each life: what a member can say."""
    made: dict[int, Sealer] = {}
    make = lambda keys, group, me: made.setdefault(me, Sealer(KeyRing.of(*keys), group, me))  # noqa: E731
    monkeypatch.setattr("softmutex.runtime.keys.seal_with", make)
    return made


class Turns:
    def __init__(self, *nodes: Node) -> None:
        self.count: Counter[str] = Counter()
        self.inside = self.most = 0
        self._tasks = {node: asyncio.create_task(self._work(node)) for node in nodes}

    async def _work(self, node: Node) -> None:
        while True:
            async with node.mutex("x", on_lost="continue").hold(timeout=300):
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.count[node.name] += 1
                try:
                    await asyncio.sleep(0.05)
                finally:
                    self.inside -= 1

    async def stop(self, *nodes: Node) -> None:
        tasks = [self._tasks.pop(node) for node in nodes or list(self._tasks)]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


@contextlib.asynccontextmanager
async def group(seed: int) -> AsyncIterator[tuple[MemoryTransport, Node, Node, Node]]:
    network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
    a, b, bad = (node_on(network, key=KEY, name=name) for name in ("a", "b", "bad"))
    mouth = network.transport("mouth")
    await mouth.open()
    async with a, b, bad:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, bad)))
        yield mouth, a, b, bad
    await mouth.aclose()


async def fair_again(a: Node, b: Node, turns: Turns) -> None:
    await asyncio.sleep(FORGOTTEN_S)
    turns.count.clear()
    turns.most = 0
    await asyncio.sleep(10.0)
    assert turns.most == 1
    assert min(turns.count[node.name] for node in (a, b)) > 40, turns.count


@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 20 if DEEP else 8), marks=pytest.mark.slow)])
def test_invented_requests_keep_nobody_waiting_for_long(seed, seals: dict[int, Sealer]):
    """They stayed in the token's queue, which nobody empties of whom nobody knows, and in the register of the home."""
    for each in seed if isinstance(seed, range) else [seed]:
        with reproducible(each):
            invented(each, seals)


@in_virtual_time
async def invented(seed: int, seals: dict[int, Sealer]) -> None:
    async with group(seed) as (mouth, a, b, bad):
        turns = Turns(a, b)
        seal, me = seals[bad.id], bad.id
        for number in range(100):
            tickets = tuple(Ticket(10_000 + 100 * number + each, 7) for each in range(30))
            for to in (a, b):
                mouth.send(to.address, seal.seal(Frame(me, to.id, "x", Feed(0, tickets, True, 3))))
                for node, request in tickets:
                    mouth.send(to.address, seal.seal(Frame(me, to.id, "x", Want(node, request, False, 3))))
            await asyncio.sleep(0.05)
        await bad.close()
        await fair_again(a, b, turns)
        await turns.stop()


@in_virtual_time
async def test_a_request_with_an_impossible_number_breaks_no_machine(seals: dict[int, Sealer], caplog):
    """The answer to it was a number that no frame can carry."""
    async with group(1) as (mouth, a, b, bad):
        turns = Turns(a, b)
        seal, me = seals[bad.id], bad.id
        for number in range(40):
            for to in (a, b):
                mouth.send(to.address, seal.seal(Frame(me, to.id, "x", Want(me, 2**64 - 1 - number, False, 3))))
            await asyncio.sleep(0.05)
        await bad.close()
        await fair_again(a, b, turns)
        await turns.stop()
    assert "broke down" not in caplog.text


@in_virtual_time
async def test_a_hold_before_all_time_is_told_on_when_a_node_leaves(seals: dict[int, Sealer]):
    """... which could not leave in good order: the time since then was a number that no frame can carry."""
    async with group(1) as (mouth, a, b, bad):
        for node in (a, b):
            async with node.mutex("x").hold(timeout=60):
                pass
        long_ago = PastHold("x", "x", "", "", 1, 1, 2**64 - 1, 0, 0)
        mouth.send(a.address, seals[bad.id].seal(Frame(bad.id, a.id, "x", Remember((long_ago,)))))
        await asyncio.sleep(1.0)
        await a.close()


@pytest.mark.parametrize("seed", [*FOUND, pytest.param(range(1, 40 if DEEP else 14), marks=pytest.mark.slow)])
def test_whatever_a_member_says_breaks_no_machine_and_is_forgotten(seed, seals: dict[int, Sealer], caplog):
    for each in seed if isinstance(seed, range) else [seed]:
        with reproducible(each):
            lied_to(each, seals)
        assert "broke down" not in caplog.text
        assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR], each


@in_virtual_time
async def lied_to(seed: int, seals: dict[int, Sealer]) -> None:
    async with group(seed) as (mouth, a, b, bad):
        turns = Turns(a, b, bad)
        await asyncio.sleep(2.0)
        liar = Liar(seals[bad.id], seed, [node.id for node in (a, b, bad)])
        for number in range(LIES):
            to = (a, b)[number % 2]
            mouth.send(to.address, liar.lie(bad.id, to.id, ["x", "x", "", "y"]))
            await asyncio.sleep(0.005)
        assert a.statistics().mutexes <= 2
        await turns.stop(bad)
        await bad.close()
        await fair_again(a, b, turns)
        await turns.stop()
