"""Who has no key and one recorded greeting: the HTTP transport posts nowhere for it, and turns go on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from softmutex_adapters.transports import http, visits
from softmutex_adapters.transports.frames import PATH, SENDER_HEADER
from softmutex_adapters.transports.http import HttpTransport

from softmutex import Node
from softmutex.cli.survey import Survey
from softmutex.core.messages import Challenge, Hello
from softmutex.core.wire import Frame
from softmutex.runtime.config import resolve, with_places
from softmutex.runtime.keys import group_fingerprint
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork
from softmutex.testing.contracts.checks import eventually
from tests.runtime.group import until

KEY = bytes(range(32))
SOMEBODY = 4711


def recorded_greeting(node: Node, group: str = "default") -> bytes:
    """What anybody on the way sees: the first HELLO of a member, sealed, meant for nobody in particular."""
    sealer = Sealer(KeyRing.of(KEY), group, SOMEBODY)
    frame = sealer.seal(Frame(SOMEBODY, 0, "", Hello(1, 0, group_fingerprint(group), False, "recorded")))
    return len(frame).to_bytes(2, "big") + frame


class Trap:
    """Takes connections, and says nothing: as a firewall that swallows everything, or a victim."""

    def __init__(self) -> None:
        self.connections = 0
        self.address = ""
        self.over = asyncio.Event()

    async def swallow(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self.over.wait()
        writer.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def set(cls) -> AsyncIterator["Trap"]:
        trap = cls()
        server = await asyncio.start_server(trap.swallow, "127.0.0.1", 0, backlog=1024)
        trap.address = "http://{}:{}".format(*server.sockets[0].getsockname())
        try:
            yield trap
        finally:
            trap.over.set()
            server.close()
            await server.wait_closed()


def couriers_to(trap: Trap) -> list[str]:
    return [name for task in asyncio.all_tasks() if trap.address in (name := task.get_name())]


@contextlib.asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Node, Node, HttpTransport]]:
    network, transport = MemoryNetwork(), HttpTransport()
    async with (
        Node(transport=transport, name="a", key=KEY, membership=network.membership()) as a,
        Node(transport="http://127.0.0.1:0", name="b", key=KEY, membership=network.membership()) as b,
    ):
        await until(lambda: a.peers() and b.peers())
        yield a, b, transport


async def turns(a: Node, b: Node, count: int) -> float:
    """Seconds for so many hand-overs to and fro."""

    async def work(node: Node) -> None:
        for _ in range(count):
            async with node.mutex("x").hold(timeout=60):
                pass

    began = time.monotonic()
    await asyncio.gather(work(a), work(b))
    return time.monotonic() - began


async def replay(session: aiohttp.ClientSession, node: Node, body: bytes, sender: str) -> bytes:
    async with session.post(node.address + PATH, data=body, headers={SENDER_HEADER: sender}) as answer:
        return await answer.read()


async def test_a_recorded_greeting_makes_a_node_post_to_nobody_and_holds_up_no_turn(no_leaks: None):
    async with Trap.set() as trap, two_nodes() as (a, b, _), aiohttp.ClientSession() as session:
        await turns(a, b, 5)
        quiet_s = await turns(a, b, 20)
        body = recorded_greeting(a)
        for portion in range(0, 600, 50):
            senders = [f"{trap.address}/{number}" for number in range(portion, portion + 50)]
            await asyncio.gather(*(replay(session, a, body, sender) for sender in senders))
        attacked_s = min([await turns(a, b, 20) for _ in range(3)])  # a machine has its moments
        assert trap.connections == 0
        assert couriers_to(trap) == []
        assert attacked_s < max(10 * quiet_s, 10.0)


async def test_a_greeting_from_an_unproven_address_is_challenged_in_the_answer_and_with_no_more_bytes(no_leaks: None):
    async with Trap.set() as trap, two_nodes() as (a, _, _), aiohttp.ClientSession() as session:
        body = recorded_greeting(a)
        answer = await replay(session, a, body, trap.address)
        assert 0 < len(answer) <= len(body)
        opened = Sealer(KeyRing.of(KEY), "default", SOMEBODY).open(answer[2:])
        assert isinstance(opened, Frame) and isinstance(opened.message, Challenge)
        assert trap.connections == 0


async def test_who_hangs_up_before_the_answer_is_not_called_back(no_leaks: None):
    async with Trap.set() as trap, two_nodes() as (a, b, transport):
        body = recorded_greeting(a)
        place = a.address.removeprefix("http://")
        host, port = place.split(":")
        for number in range(50):
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{SENDER_HEADER}: {trap.address}/{number}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            writer.transport.abort()
        before = transport.statistics()["received"]
        await turns(a, b, 10)
        assert transport.statistics()["received"] > before
        assert trap.connections == 0


async def test_an_address_that_only_members_name_is_posted_to_within_a_quota_of_its_own(
    no_leaks: None, monkeypatch: pytest.MonkeyPatch
):
    """A key holder may make a node post to strange places; members that are known have their couriers all the same."""
    monkeypatch.setattr(http, "STRANGERS_MAX", 3)
    async with Trap.set() as trap, two_nodes() as (a, b, transport):
        for number in range(50):
            transport.send(f"{trap.address}/{number}{http.VISITOR}", b"for whom?")
        assert transport.statistics()["send_refused"] == 47
        assert await turns(a, b, 10) < 60.0
        await eventually(lambda: 0 < trap.connections <= 3, "the quota is used")


async def test_members_that_know_each_other_by_greetings_alone_meet(no_leaks: None):
    """Only one of them is in a list: its address is all that the other one has, and a header."""
    network, transport = MemoryNetwork(), HttpTransport()
    async with Node(transport=transport, membership=network.membership(), name="one", key=KEY) as one:
        listed = f"static://{transport.address}"
        async with Node(transport="http://127.0.0.1:0", membership=listed, name="two", key=KEY) as two:
            await until(lambda: one.peers() and two.peers())
            await turns(one, two, 10)
            assert {peer.address for peer in one.peers()} == {two.address}, "it is known by now"


async def test_whoever_has_the_key_may_look_from_an_address_that_nobody_knows(no_leaks: None):
    transport = HttpTransport()
    membership = MemoryNetwork().membership()
    async with (
        Node(transport=transport, membership=membership, name="one", key=KEY) as one,
        one.mutex("x"),
    ):
        where = {"transport": "http://127.0.0.1:0", "membership": f"static://{transport.address}", "key": KEY}
        async with Survey(with_places(resolve(where))) as survey:
            for _ in range(3):
                answers = await survey.ask(60.0)
                assert [each.document["mutexes"][0]["name"] for each in answers if each.document] == ["x"]


async def test_strangers_that_ask_at_once_are_bounded_and_wait_a_bounded_time(
    no_leaks: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(visits, "VISITS_MAX", 2)
    transport = HttpTransport()
    await transport.open()
    reader = asyncio.ensure_future(transport.receive())  # takes what there is, and never comes back
    await asyncio.sleep(0)

    async def ask(session: aiohttp.ClientSession, number: int) -> int:
        headers = {SENDER_HEADER: f"http://stranger-{number}"}
        async with session.post(transport.address + PATH, data=b"\0\1x", headers=headers) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        for answer_s in (0.2, 2.0, 20.0):  # where this machine stands still for longer, two are over before others come
            monkeypatch.setattr(visits, "ANSWER_S", answer_s)
            answers = sorted(await asyncio.gather(*(ask(session, number) for number in range(5))))
            if answers == [204, 204, 503, 503, 503]:
                break
        assert answers == [204, 204, 503, 503, 503]
        assert await ask(session, 6) == 204
    await reader
    await transport.aclose()


async def test_addresses_that_are_known_are_bounded(no_leaks: None, monkeypatch: pytest.MonkeyPatch):
    """Who is known has its frames taken at once, with no answer in them; a stranger waits for one."""
    monkeypatch.setattr(http, "KNOWN_MAX", 3)
    monkeypatch.setattr(visits, "ANSWER_S", 0.05)
    transport = HttpTransport()
    await transport.open()

    async def is_known(session: aiohttp.ClientSession, peer: str) -> bool:
        headers = {SENDER_HEADER: peer}
        async with session.post(transport.address + PATH, data=b"\0\1x", headers=headers) as answer:
            assert answer.status == 204
        [datagram] = await transport.receive()
        return datagram.source == peer

    async with Trap.set() as trap, aiohttp.ClientSession() as session:
        peers = [f"{trap.address}/{number}" for number in range(10)]
        for peer in peers:
            transport.send(peer, b"hello")
        assert [peer for peer in peers if await is_known(session, peer)] == peers[-3:]
        await transport.aclose()
