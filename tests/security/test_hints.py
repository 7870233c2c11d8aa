"""Who has a wrong key learns it, and nobody else learns, moves or spends anything by it."""

import asyncio
import logging

import pytest

from softmutex import Node
from softmutex.core.hint import HINT_SIZE, Why, read_hint, write_hint
from softmutex.core.messages import Withdraw
from softmutex.core.wire import MAGIC, SMALLEST, VERSION, Frame
from softmutex.ports import CannotOpen, Datagram, Member
from softmutex.runtime.doorstep import HINTS_A_SECOND, TOLD_MAX, host_of
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, MemoryTransport, in_virtual_time
from tests.runtime.test_peers import Listed, listed_node

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Static(Listed):
    """A list that nobody writes but the operator: whole from the beginning."""

    pending = ()


def node_of(network: MemoryNetwork, address: str, *others: str, mdns: bool = False, **options) -> Node:
    kind = Listed if mdns else Static
    return listed_node(network, kind(*map(Member, others)), address, **{"key": KEY, **options})


def garbage(sender: int = 4711) -> bytes:
    """A frame by the looks of it, with a key that nobody has."""
    return Sealer(KeyRing.of(OTHER), "default", sender).seal(Frame(sender, 0, "x", Withdraw(1)))


async def opened(network: MemoryNetwork, address: str) -> MemoryTransport:
    transport = network.transport(address)
    await transport.open()
    return transport


async def heard(transport: MemoryTransport, for_s: float = 1.0) -> list[Datagram]:
    """All that comes within that time; the transport is closed then."""
    found: list[Datagram] = []
    try:
        async with asyncio.timeout(for_s):
            while True:
                found += await transport.receive()
    except TimeoutError:
        return found
    finally:
        await transport.aclose()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"key": OTHER}, r"cannot open what is sealed with key \d+ for the group 'default'"),
        ({"group": "other"}, "for the group 'other'"),
        ({"key": None}, "cannot open what is not sealed"),
    ],
    ids=["another key", "another group", "no key"],
)
@in_virtual_time
async def test_the_one_that_is_wrong_is_told_why_and_does_not_work_alone(wrong: dict, why: str):
    network = MemoryNetwork(seed=1)
    async with node_of(network, "a", "b", "c") as a, node_of(network, "b", "a", "c") as b:
        async with a.mutex("x"), node_of(network, "c", "a", "b", **wrong) as c:
            began = asyncio.get_running_loop().time()
            with pytest.raises(CannotOpen, match=why):
                async with c.mutex("x"):
                    raise AssertionError("it runs alone, beside a")
            assert asyncio.get_running_loop().time() - began < 1.0  # with the first refusal
            began = asyncio.get_running_loop().time()
            with pytest.raises(CannotOpen, match=why):
                await c.mutex("y").acquire()
            assert asyncio.get_running_loop().time() - began < 0.01  # it is known by now
            assert c.statistics().told["turned away"] >= 1
        async with b.mutex("x").hold(timeout=30):
            assert {peer.name for peer in b.peers()} == {"a"}


@in_virtual_time
async def test_a_member_that_is_down_makes_the_wrong_one_no_more_right():
    network = MemoryNetwork(seed=1)
    network.partition("c", "b")
    async with node_of(network, "a", "b", "c"), node_of(network, "c", "a", "b", key=OTHER) as c:
        with pytest.raises(CannotOpen, match="a is there and refuses this node"):
            async with c.mutex("x"):
                raise AssertionError("it runs alone, beside a")


@in_virtual_time
async def test_who_said_that_it_goes_on_alone_does():
    network = MemoryNetwork(seed=1)
    async with node_of(network, "a", "b"), node_of(network, "b", "a", key=OTHER) as b:
        mutex = b.mutex("x", when_isolated="proceed")
        async with mutex.hold(timeout=30):
            assert b.statistics().told["turned away"] >= 1


@in_virtual_time
async def test_where_neighbours_can_write_the_list_all_of_it_must_refuse_who_does_not_work_alone():
    network = MemoryNetwork(seed=1)
    async with node_of(network, "a", "b", mdns=True), node_of(network, "b", "a", mdns=True, key=OTHER) as b:
        with pytest.raises(CannotOpen, match="a is there and refuses this node"):
            async with b.mutex("x"):
                raise AssertionError("it runs alone, beside a")
        async with b.mutex("y", when_isolated="proceed"):
            assert b.statistics().told["turned away"] >= 1


@in_virtual_time
async def test_a_neighbour_that_refuses_keeps_nobody_from_working_where_another_one_is_listed_that_does_not():
    network = MemoryNetwork(seed=1)
    network.partition("c", "b")
    async with (
        node_of(network, "a", "b", mdns=True),
        node_of(network, "b", "a", "c", mdns=True, key=OTHER) as b,
        b.mutex("x").hold(timeout=30),
    ):
        assert b.statistics().told["turned away"] >= 1


@in_virtual_time
async def test_whom_a_member_understands_a_hint_keeps_from_nothing():
    network = MemoryNetwork(seed=1)
    async with (
        node_of(network, "wrong", "a", key=OTHER),
        node_of(network, "a", "b", "wrong") as a,
        node_of(network, "b", "a", "wrong"),
        a.mutex("x").hold(timeout=30),
    ):
        assert [peer.name for peer in a.peers()] == ["b"]


@in_virtual_time
async def test_a_hint_is_smaller_than_what_it_answers_and_is_not_answered():
    network = MemoryNetwork(seed=1)
    stranger = await opened(network, "host:2")
    async with node_of(network, "host:1", "host:3"):
        stranger.send("host:1", garbage())
        stranger.send("host:1", write_hint(Why.KEY, garbage()))
        stranger.send("host:1", MAGIC + bytes([VERSION + 1]) + garbage()[3:])
        hints = [read_hint(datagram.payload) for datagram in await heard(stranger)]
    assert [hint and (hint.why, hint.version, hint.sender) for hint in hints] == [
        (Why.KEY, VERSION, 4711),
        (Why.VERSION, VERSION, 4711),
    ]
    assert HINT_SIZE < SMALLEST


@in_virtual_time
async def test_no_hint_goes_to_a_host_that_no_list_names_and_a_second_has_no_more_than_so_many():
    network = MemoryNetwork(seed=1)
    elsewhere, flood = await opened(network, "elsewhere:2"), await opened(network, "host:2")
    async with node_of(network, "host:1", "host:3"):
        await asyncio.sleep(1 - asyncio.get_running_loop().time() % 1)
        for _ in range(10 * HINTS_A_SECOND):
            elsewhere.send("host:1", garbage())
            flood.send("host:1", garbage())
        assert len(await heard(flood, 0.5)) == HINTS_A_SECOND
        assert await heard(elsewhere, 0.1) == []


@in_virtual_time
async def test_a_hint_of_who_has_not_seen_our_frame_or_is_not_listed_is_refused_and_says_nothing():
    network = MemoryNetwork(seed=1)
    listed, stranger = await opened(network, "listed"), await opened(network, "stranger")
    async with node_of(network, "a", "listed", "wrong") as a:
        listed.send("a", write_hint(Why.KEY, garbage(a.id ^ 1)))
        stranger.send("a", write_hint(Why.KEY, garbage(a.id)))
        await asyncio.sleep(0.1)
        assert a.statistics().told == {}
        assert a.statistics().dropped == {"version": 2}
    await listed.aclose()
    await stranger.aclose()


@in_virtual_time
async def test_hints_of_many_addresses_are_noted_up_to_a_bound():
    network = MemoryNetwork(seed=1)
    many = [f"s{number}" for number in range(TOLD_MAX + 10)]
    liars = [await opened(network, address) for address in many]
    async with node_of(network, "a", *many) as a:
        for liar in liars:
            liar.send("a", write_hint(Why.KEY, garbage(a.id)))
        await asyncio.sleep(0.1)
        assert a.statistics().told["turned away"] == TOLD_MAX
    for liar in liars:
        await liar.aclose()


@pytest.mark.parametrize("data", [b"", MAGIC, garbage()[:10], garbage()[:HINT_SIZE], write_hint(Why.KEY, garbage())])
def test_what_is_no_frame_brings_no_hint(data: bytes):
    assert write_hint(Why.KEY, data) == b""


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:9431", "10.0.0.1"),
        ("[::1]:9431", "[::1]"),
        ("https://a.lab:8443/prefix#visitor", "a.lab"),
        ("plain", "plain"),
    ],
)
def test_hosts_are_compared_without_ports(address: str, host: str):
    assert host_of(address) == host


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "softmutex")


@in_virtual_time
async def test_a_forged_hint_keeps_nobody_from_working_for_longer_than_it_counts():
    """Whoever sees the frames of a node can make one up, once, in the name of a member that is down."""
    network = MemoryNetwork(seed=1, delay=0.001)
    forger = network.transport("ghost")
    await forger.open()
    listed = Listed(Member("a"), Member("ghost"), complete=True)
    async with Node(transport=network.transport("a"), membership=listed, key=bytes(range(32)), name="a") as a:
        begun = MAGIC + bytes([VERSION, 7]) + a.id.to_bytes(8) + bytes(40)
        forger.send("a", write_hint(Why.KEY, begun))
        await asyncio.sleep(1.0)
        with pytest.raises(CannotOpen, match="ghost is there and refuses"):
            await a.mutex("x").acquire(timeout=60)
        await asyncio.sleep(20.0)
        async with a.mutex("x").hold(timeout=60):
            pass
    await forger.aclose()
