"""What is wrong with a group is told once, to whoever can mend it, and counted; the members that are right go on."""

import asyncio
import logging
import os

import pytest

from softmutex import ConfigError, Node, Timing
from softmutex.core.events import Token
from softmutex.core.messages import Describe, Offer, Withdraw
from softmutex.core.wire import MAGIC, VERSION, Frame
from softmutex.ports import Member
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import node_on, until
from tests.runtime.test_peers import Listed, listed_node
from tests.virtual import no_leaks_in_virtual_time

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=1)


async def goes_on(*nodes: Node) -> None:
    """Nothing is lost for those who are right."""

    async def work(node: Node) -> None:
        for _ in range(3):
            async with node.mutex("x").hold(timeout=60):
                pass

    await asyncio.gather(*map(work, nodes))


def refused(node: Node, *reasons: str) -> int:
    return sum(node.statistics().dropped.get(reason, 0) for reason in reasons)


@pytest.mark.parametrize(
    ("wrong", "reasons"),
    [
        ({"key": os.urandom(32)}, ("unknown_key", "forged")),
        ({"key": KEY, "group": "other"}, ("forged",)),
        ({}, ("not_sealed",)),
    ],
    ids=["another key", "another group", "no key"],
)
@no_leaks_in_virtual_time
async def test_a_member_that_is_listed_and_cannot_be_understood_is_told_of_once(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture, wrong: dict, reasons: tuple[str, ...]
):
    async with (
        node_on(network, key=KEY, name="a") as a,
        node_on(network, key=KEY, name="b") as b,
        node_on(network, name="wrong", **wrong) as stranger,
    ):
        await until(lambda: len(stranger.peers()) == 2)
        tries = [asyncio.create_task(stranger.mutex(f"m{number}").try_acquire()) for number in range(5)]
        await until(lambda: refused(a, *reasons) >= 5)
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
        assert a.statistics().told["other key"] >= 5
        await goes_on(a, b)
    told = [record.message for record in caplog.records if record.message.startswith("a: ")]
    assert [line for line in told if "is a member by the list, and its frames are refused" in line] == told[:1]
    assert "Give all members the same key and group" in told[0]


@no_leaks_in_virtual_time
async def test_frames_of_who_is_not_listed_are_counted_and_not_worth_a_word(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    stranger = network.transport("stranger")
    await stranger.open()
    async with node_on(network, key=KEY) as node:
        sealer = Sealer(KeyRing.of(os.urandom(32)), "default", 4711)
        for _ in range(100):
            stranger.send(node.address, sealer.seal(Frame(4711, node.id, "x", Withdraw(1))))
            stranger.send(node.address, b"\0" + os.urandom(99))  # or one in 65,536 would look like a frame
        await until(lambda: refused(node, "unknown_key", "forged", "malformed") == 200)
        assert node.statistics().told == {}
    assert caplog.text == ""
    await stranger.aclose()


@no_leaks_in_virtual_time
async def test_a_frame_of_another_version_is_told_of_once_a_peer(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    stranger = network.transport("stranger")
    await stranger.open()
    await network.membership().join(Member("stranger", 4711, "old"))
    async with node_on(network, key=KEY) as a, node_on(network, key=KEY) as b:
        for _ in range(5):
            stranger.send(a.address, MAGIC + bytes([VERSION + 1]) + os.urandom(60))
        await until(lambda: refused(a, "version") == 5)
        await goes_on(a, b)
    assert caplog.text.count(f"stranger speaks version {VERSION + 1} of the protocol") == 1
    assert "Update the older side" in caplog.text
    await stranger.aclose()


@no_leaks_in_virtual_time
async def test_who_tells_of_epochs_of_ages_to_come_is_told_of_once(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    liar = network.transport("liar")
    await liar.open()
    async with node_on(network, key=KEY, name="one") as one:
        sealer = Sealer(KeyRing.of(KEY), "default", 4711)
        for _ in range(3):
            liar.send(one.address, sealer.seal(Frame(4711, one.id, "x", Offer(1, Token(2**64 - 1, 0, 1, 1)))))
        await until(lambda: refused(one, "epoch") == 3)
    assert caplog.text.count("liar tells of a token of ages to come") == 1
    await liar.aclose()


@no_leaks_in_virtual_time
async def test_another_process_under_the_id_of_a_node_is_told_to_it_once(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    twin = network.transport("twin")
    await twin.open()
    async with node_on(network, key=KEY, name="a") as a, node_on(network, key=KEY) as b:
        sealer = Sealer(KeyRing.of(KEY), "default", a.id)
        for _ in range(5):
            twin.send(a.address, sealer.seal(Frame(a.id, b.id, "x", Describe(founding=False))))
        await until(lambda: refused(a, "reflected") == 5)
        assert a.statistics().told["own id"] == 5
        await goes_on(a, b)
    assert caplog.text.count("a: twin sends in the name of this node") == 1
    await twin.aclose()


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({"slots": 2}, {"slots": 1}, "slots is 2 there and 1 here"),
        ({"timing": Timing(op=4.0)}, {"timing": Timing(op=5.0)}, r"op is 4\.0 there and 5\.0 here"),
        ({"algorithm": "wandering"}, {"algorithm": "adaptive"}, "algorithm is "),
    ],
)
@no_leaks_in_virtual_time
async def test_who_opens_a_mutex_by_other_settings_is_told_and_the_others_go_on(
    network: MemoryNetwork, there: dict, here: dict, said: str
):
    async with node_on(network) as a, node_on(network) as b:
        async with a.mutex("x", **there).hold(timeout=60):
            pass
        with pytest.raises(ConfigError, match=said):
            async with b.mutex("x", **here).hold(timeout=60):
                raise AssertionError("it was let in")
        async with a.mutex("x", **there).hold(timeout=60):
            pass


@in_virtual_time
async def test_two_groups_that_grew_up_apart_with_other_settings_are_told_once_each_and_both_go_on():
    network = MemoryNetwork(seed=1, delay=0.001)
    network.partition("a", "b")
    async with (
        listed_node(network, Listed(Member("b")), "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
    ):
        mutexes = (a.mutex("x", slots=1), b.mutex("x", slots=2))
        for mutex in mutexes:
            async with mutex.hold(timeout=60):
                pass
        network.heal()
        await asyncio.sleep(60)  # until they greet each other
        for _ in range(5):
            for mutex in mutexes:
                async with mutex.hold(timeout=60):
                    await asyncio.sleep(2)
        told = [node.statistics().told.get("mismatch", 0) for node in (a, b)]
        assert told == [1, 1]
