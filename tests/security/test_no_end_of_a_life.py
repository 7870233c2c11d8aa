"""A life has no end: any number of others come and go, and a node needs the same memory, hears whoever is there, and
nobody of whom only a recording is left."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softmutex import Node
from softmutex.core.messages import Withdraw
from softmutex.core.wire import Frame
from softmutex.ports import Member
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.runtime.status import Visitor
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import limit, lower
from tests.runtime.group import node_on, until
from tests.security import endless

ROOT = Path(__file__).parent.parent.parent
KEY = bytes(range(32))
SENDERS = "senders whose counters are remembered"


@pytest.fixture(scope="module", params=[0.001, pytest.param(0.01, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def grown(request: pytest.FixtureRequest) -> dict[str, float]:
    """By how many per cent the memory has grown meanwhile: of a process of its own, in which nothing else lives."""
    command = [sys.executable, "-m", "tests.security.endless", "--share", str(request.param)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    found = re.findall(r"^(\w+): .* bytes, ([-+][\d.]+)%;", done.stdout, re.MULTILINE)
    assert len(found) == len(endless.ALL), done.stdout + done.stderr
    return {what: float(percent) for what, percent in found}


def test_any_number_of_peers_takes_the_same_memory(grown: dict[str, float]):
    assert grown["peers"] <= 1


def test_any_number_of_names_takes_the_same_memory(grown: dict[str, float]):
    assert grown["names"] <= 1


def test_any_number_of_changes_of_the_key_takes_the_same_memory(grown: dict[str, float]):
    assert grown["keys"] <= 1


def test_a_year_of_beats_takes_the_same_memory_as_far_as_it_was_seen(grown: dict[str, float]):
    assert grown["beats"] <= 1
    assert grown["days"] <= 1


def test_what_is_kept_is_seen():
    """Or none of this would show anything."""
    scales, kept = endless.Scales(), []
    for is_late in (False, True):
        kept.append(bytes(10_000_000))
        scales.weigh(is_late)
    assert 0.8 < scales.memory().growth < 1.2


@in_virtual_time
async def test_one_shots_without_number_get_their_turn_and_their_recordings_bring_nobody_back(
    monkeypatch: pytest.MonkeyPatch,
):
    """65,536 lives filled the table; newcomers were refused from then on, and both sides held."""
    lower(SENDERS, 4, monkeypatch)
    network = MemoryNetwork(seed=1, delay=0.001)
    recorded: list[tuple[str, bytes]] = []
    inside = 0
    async with node_on(network, key=KEY, name="old") as old, node_on(network, key=KEY, name="other") as other:
        network.tap = lambda _source, to, payload: recorded.append((to, payload))

        async def turn(node: Node) -> None:
            nonlocal inside
            async with node.mutex("x").hold(timeout=60):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

        for number in range(20):
            async with node_on(network, key=KEY, name=f"one shot {number}") as guest:
                await asyncio.gather(turn(guest), turn(old), turn(other))
        await until(lambda: len(old.peers()) == len(other.peers()) == 1)
        genuine: list[str] = []
        network.tap = lambda source, to, _payload: genuine.append(to) if source != "tape" else None
        await asyncio.sleep(0.1)  # what is under way arrives
        genuine.clear()
        before = sum(old.mutex("x").statistics().received.values())
        tape = network.transport("tape")
        await tape.open()
        for to, payload in recorded:
            tape.send(to, payload)
            await asyncio.sleep(0.001)
        assert [peer.name for peer in old.peers()] == ["other"]
        assert sum(old.mutex("x").statistics().received.values()) <= before + genuine.count(old.address)
        network.tap = None
        await tape.aclose()
        await asyncio.gather(turn(old), turn(other))


@in_virtual_time
async def test_a_node_that_has_forgotten_still_answers_visitors(monkeypatch: pytest.MonkeyPatch):
    lower(SENDERS, 1, monkeypatch)
    network = MemoryNetwork(seed=1, delay=0.001)
    async with node_on(network, key=KEY, name="one") as one:
        for number in range(3):
            async with node_on(network, key=KEY, name=f"guest {number}"):
                await asyncio.sleep(0.1)
        transport = network.transport("visitor")
        await transport.open()
        visitor = Visitor(transport, Sealer(KeyRing.of(KEY), "default", 4711), 4711)
        listening = asyncio.create_task(visitor.listen())
        document = await visitor.ask(Member(one.address, one.id))
        assert document is not None
        assert document["name"] == "one"
        await transport.aclose()
        await listening


@in_virtual_time
async def test_proofs_that_are_asked_for_in_a_second_are_bounded(monkeypatch: pytest.MonkeyPatch):
    lower(SENDERS, 1, monkeypatch)
    lower("answers a second to who has to prove that it is there", 5, monkeypatch)
    network = MemoryNetwork(seed=1)
    ring, answers = KeyRing.of(KEY), 0
    async with node_on(network, key=KEY) as one:
        insider = network.transport("insider")
        await insider.open()

        def count(_source: str, to: str, _payload: bytes) -> None:
            nonlocal answers
            answers += to == "insider"

        network.tap = count
        await asyncio.sleep(0.5)
        assert limit("answers a second to who has to prove that it is there") == 1000  # as the page says
        for number in range(100, 150):
            insider.send(one.address, Sealer(ring, "default", number).seal(Frame(number, one.id, "m", Withdraw(1))))
        await until(lambda: one.statistics().dropped.get("unproven", 0) > 40)
        assert 0 < answers <= 10
        await insider.aclose()
