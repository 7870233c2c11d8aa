"""Nodes with the rules of a group behind them: who may make a token, who is told what, and how soon they meet again.

The rules themselves are tested in `tests/group`; here it is shown that nodes keep them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from softmutex import AcquireTimeout, ConfigError, Isolated, Node
from softmutex.core.events import Suspect
from softmutex.ports import CannotOpen, Member
from softmutex.testing import MemoryNetwork, in_virtual_time, virtual_time
from tests.runtime.group import node_on, puppet_mutex, puppet_of, until
from tests.runtime.test_peers import Listed, listed_node

SEEDS = range(2)


class Named(Listed):
    """As `static://` with names: each leads to its address when the name server has answered."""

    def __init__(self, answers_s: dict[str, float]) -> None:
        super().__init__()
        self._answers_s = answers_s
        self._found: list[Member] = []
        self.pending: Sequence[str] = tuple(answers_s)
        self.unresolved: Sequence[str] = ()
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, me: Member) -> None:
        self._answers_s.pop(me.address, None)
        self.pending = tuple(self._answers_s)
        self._tasks = [asyncio.create_task(self._resolve(*each)) for each in self._answers_s.items()]

    async def _resolve(self, name: str, within_s: float) -> None:
        await asyncio.sleep(min(within_s, 10.0))
        self.pending = tuple(each for each in self.pending if each != name)
        if within_s > 10:  # not at once: the name server gave up, and is asked again
            self.unresolved = (*self.unresolved, name)
            self.show(*self._found)
            await asyncio.sleep(within_s - 10)
            self.unresolved = tuple(each for each in self.unresolved if each != name)
        self._found.append(Member(name, label=name))
        self.show(*self._found)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Company:
    """Nodes that know each other only by the addresses in a list."""

    def __init__(self, network: MemoryNetwork, nodes: dict[str, Node]) -> None:
        self.network, self.nodes = network, nodes

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def cut(self, some: str, others: str) -> None:
        self.network.partition(list(some), list(others))


@asynccontextmanager
async def company(names: str, seed: int = 0, **options: Any) -> AsyncIterator[Company]:
    network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
    addresses = [Member(name) for name in names]
    async with AsyncExitStack() as stack:
        nodes = {name: listed_node(network, Listed(*addresses), name, **options) for name in names}
        await asyncio.gather(*(stack.enter_async_context(node) for node in nodes.values()))
        await until(lambda: all(len(node.peers()) == len(names) - 1 for node in nodes.values()))
        yield Company(network, nodes)


# --- one token --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@in_virtual_time
async def test_a_batch_of_newcomers_is_granted_nothing_while_one_holds(seed: int):
    """Issue 12a: above 32 members nobody was asked, and all of fifty were granted at once."""
    network = MemoryNetwork(seed=seed, delay=0.001, jitter=0.0009)
    async with node_on(network) as holder, AsyncExitStack() as stack:
        async with holder.mutex("x"):
            nodes = [node_on(network, leave_timeout=1.0) for _ in range(50)]
            await asyncio.gather(*(stack.enter_async_context(node) for node in nodes))
            tries = await asyncio.gather(*(outcome_of(node, 2.0) for node in nodes))
        assert set(tries) == {"timeout"}


async def test_a_batch_of_newcomers_on_one_host_is_granted_nothing_while_one_holds(no_leaks: None, tmp_path: Path):
    where = {"membership": f"local://?directory={tmp_path}"}
    async with Node(**where) as holder, AsyncExitStack() as stack:
        async with holder.mutex("x"):
            nodes = [Node(**where, leave_timeout=0.2) for _ in range(20)]
            await asyncio.gather(*(stack.enter_async_context(node) for node in nodes))
            tries = await asyncio.gather(*(outcome_of(node, 0.5) for node in nodes))
        assert set(tries) == {"timeout"}


@pytest.mark.parametrize("seed", SEEDS)
@in_virtual_time
async def test_a_newcomer_that_knows_one_who_never_heard_of_the_token_makes_no_other(seed: int):
    """Issue 12e."""
    network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
    async with (
        listed_node(network, Listed(), "holder") as holder,
        listed_node(network, Listed(Member("holder")), "other") as other,
    ):
        await until(lambda: holder.peers() and other.peers())
        async with holder.mutex("x"), listed_node(network, Listed(Member("other")), "newcomer") as newcomer:
            assert await outcome_of(newcomer, 5.0) == "timeout"
            assert len(newcomer.peers()) == 2, "it was told of the holder"


@pytest.mark.parametrize("seed", range(10))
def test_names_that_resolve_slowly_or_late_let_in_no_second_holder(seed: int):
    """Issue 12f."""

    async def main() -> None:
        dice = random.Random(seed)
        network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)

        def node(name: str) -> Node:
            late_s = [dice.uniform(0, 3) for _ in range(3)]
            if dice.random() < 0.3:
                late_s[dice.randrange(3)] = dice.uniform(11, 14)
            return listed_node(network, Named(dict(zip("abc", late_s, strict=True))), name)  # type: ignore[arg-type]

        inside: list[str] = []

        async def use(name: str, begin_s: float, hold_s: float) -> None:
            await asyncio.sleep(begin_s)
            async with node(name) as one, one.mutex("x").hold(timeout=60):
                inside.append(name)
                assert inside == [name], "two holders"
                await asyncio.sleep(hold_s)
                inside.remove(name)

        await asyncio.gather(use("a", 0, 1.4), *(use(name, dice.uniform(0, 8), 1.0) for name in "bc"))

    with virtual_time() as runner:
        runner.run(main())


@pytest.mark.parametrize("seed", range(10))
def test_who_has_other_slots_is_told_and_takes_no_part(seed: int):
    """Issue 12g: in two of four tries it ran beside the holder."""

    async def main() -> None:
        network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
        places = [Member("a"), Member("b")]
        lag_s = random.Random(seed).choice([0, 0, 0.01, 0.5, 3.0])
        told: list[str] = []

        async def use(name: str, slots: int, begin_s: float) -> None:
            await asyncio.sleep(begin_s)
            async with listed_node(network, Listed(*places), name) as node:
                try:
                    async with node.mutex("x", slots=slots).hold(timeout=20):
                        told.append("in")
                        await asyncio.sleep(10)
                except ConfigError as error:
                    told.append("refused" if "slots is" in str(error) else str(error))
                await asyncio.sleep(12)

        await asyncio.gather(use("a", 1, 0), use("b", 2, lag_s))
        assert sorted(told) == ["in", "refused"]

    with virtual_time() as runner:
        runner.run(main())


# --- who reaches nobody -----------------------------------------------------------------------------------------------


@in_virtual_time
async def test_where_all_ports_refuse_a_newcomer_starts_alone_at_once():
    network = MemoryNetwork(delay=0.001)
    async with listed_node(network, Listed(Member("b"), Member("c")), "a") as a:
        begun = asyncio.get_running_loop().time()
        async with a.mutex("x"):
            assert asyncio.get_running_loop().time() - begun < 3  # the list may be late


@in_virtual_time
async def test_where_one_is_silent_a_newcomer_waits_for_a_stated_while_and_says_so(caplog: pytest.LogCaptureFixture):
    network = MemoryNetwork(delay=0.001)
    network.switch_off("c.lab")
    places = [Member("b", label="b.lab"), Member("c.lab")]
    async with listed_node(network, Listed(*places), "a") as a:
        begun = asyncio.get_running_loop().time()
        async with a.mutex("x"):
            assert 4 <= asyncio.get_running_loop().time() - begun <= 6
    assert "starting alone: 0 of 2 reachable: b.lab refused, c.lab silent" in caplog.text


@in_virtual_time
async def test_a_name_that_leads_nowhere_is_waited_for_as_one_that_is_silent(caplog: pytest.LogCaptureFixture):
    network = MemoryNetwork(delay=0.001)
    async with listed_node(network, Named({"b": 10_000.0}), "a") as a:
        begun = asyncio.get_running_loop().time()
        async with a.mutex("x"):
            assert 4 <= asyncio.get_running_loop().time() - begun <= 6
    assert "starting alone: 0 of 1 reachable: b not resolved" in caplog.text


@in_virtual_time
async def test_a_membership_that_cannot_be_read_is_an_error_after_a_stated_while():
    class Unreadable(Listed):
        pending = ("the list of redis://nowhere",)

    node = listed_node(MemoryNetwork(), Unreadable(), "a")
    begun = asyncio.get_running_loop().time()
    with pytest.raises(CannotOpen, match=r"could not be read for 11 s.*the list of redis://nowhere"):
        await node.open()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(11, abs=0.1)


@in_virtual_time
async def test_nobody_is_granted_before_min_members_are_there(caplog: pytest.LogCaptureFixture):
    network = MemoryNetwork(delay=0.001)
    async with node_on(network) as a, node_on(network) as b:
        assert await outcome_of(a, 5.0, min_members=3) == "timeout"
        assert "2 of at least 3 members are there (min_members)" in caplog.text
        with pytest.raises(Isolated, match="2 of at least 3 members"):
            async with b.mutex("y", min_members=3, when_isolated="raise"):
                raise AssertionError("entered")
        async with node_on(network), a.mutex("x", min_members=3).hold(timeout=2):
            pass


# --- cuts -------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_two_halves_that_can_talk_again_meet_within_seconds():
    """Issue 12k: who was silent was greeted at 3 to 30 s each."""
    took: list[float] = []
    for seed in range(2):
        async with company("abcdefg", seed) as seven:
            for node in seven.nodes.values():
                async with puppet_mutex(node, node.name):
                    pass
            await asyncio.sleep(1)
            seven.cut("abc", "defg")
            for node in seven.nodes.values():
                for other in seven.nodes.values():
                    if other is not node:
                        puppet_of(node).pull(Suspect(other.id))
            await asyncio.sleep(25)
            assert sum(peer.silent for peer in seven["a"].peers()) == 4
            seven.network.heal()
            begun = asyncio.get_running_loop().time()
            across = [(node, other) for node in "abc" for other in "defg"]
            while not any(is_heard(seven, *pair) for pair in across):  # noqa: ASYNC110 virtual time
                await asyncio.sleep(0.05)
            took.append(asyncio.get_running_loop().time() - begun)
    assert statistics.median(took) <= 3.0
    assert max(took) <= 10.0


def is_heard(company: Company, here: str, there: str) -> bool:
    return any(peer.name == there and not peer.silent for peer in company[here].peers())


async def outcome_of(node: Node, timeout_s: float, **options: Any) -> str:
    try:
        async with node.mutex("x", **options).hold(timeout=timeout_s):
            return "granted"
    except AcquireTimeout:
        return "timeout"


# --- the end ----------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_short_lives_beside_an_idle_member_end_soon():
    """Issue 12r: `Leaving` never reached a mutex that started while the node closed, and 5 s were waited out."""
    took: list[float] = []
    for seed in range(5):
        network = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001)
        async with node_on(network):
            for _ in range(20):
                node = node_on(network)
                await node.open()
                async with node.mutex("x").hold(timeout=5):
                    pass
                begun = asyncio.get_running_loop().time()
                await node.close()
                took.append(asyncio.get_running_loop().time() - begun)
    assert statistics.quantiles(took, n=100)[98] <= 0.3


@in_virtual_time
async def test_a_node_that_closes_while_others_speak_of_a_new_mutex_ends_soon():
    network = MemoryNetwork(delay=0.05)
    async with node_on(network) as other:
        node = node_on(network)
        await node.open()
        await asyncio.sleep(0.2)
        using = asyncio.create_task(outcome_of(other, 5.0))
        await asyncio.sleep(0.04)
        begun = asyncio.get_running_loop().time()
        await node.close()
        assert asyncio.get_running_loop().time() - begun < 0.3
        assert await using == "granted"


@in_virtual_time
async def test_who_closes_the_node_in_the_body_of_its_own_hold_does_not_wait_for_itself():
    """Issue 17.5."""
    network = MemoryNetwork(delay=0.002)
    async with node_on(network) as other:
        node = node_on(network)
        await node.open()
        begun = asyncio.get_running_loop().time()
        async with node.mutex("x") as hold:
            await node.close()
            assert hold.lost.is_set()
            assert asyncio.get_running_loop().time() - begun < 1
        async with other.mutex("x").hold(timeout=1) as next_hold:
            assert next_hold.epoch == 1, "it was handed on"


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "softmutex")
