"""UDP beyond the contract: names, both kinds of IP, the kernel's errors, and people who send rubbish."""

import asyncio
import errno
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from softmutex_adapters.transports import addressing, udp
from softmutex_adapters.transports.udp import UdpTransport

from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Datagram
from softmutex.testing.contracts.checks import eventually, repeating
from softmutex.urls import split_address
from tests.faults.lan import lan
from tests.footprint import kept_by
from tests.limits import lower

Open = Callable[..., Any]


@pytest.fixture
async def opened(no_leaks: None) -> AsyncIterator[Open]:
    made: list[UdpTransport] = []

    async def open_one(*args: Any, **options: Any) -> UdpTransport:
        transport = UdpTransport(*args, **options)
        made.append(transport)
        await transport.open()
        return transport

    yield open_one
    for transport in made:
        await transport.aclose()


async def payloads(transport: UdpTransport) -> list[bytes]:
    return [datagram.payload for datagram in await asyncio.wait_for(transport.receive(), 60)]


# --- where it is -----------------------------------------------------------------------------------------------------


async def test_a_node_on_all_interfaces_tells_an_address_that_others_can_send_to(opened: Open) -> None:
    there, here = await opened("0.0.0.0"), await opened("0.0.0.0")
    host, port = split_address(there.address)
    assert host != "0.0.0.0" and port != 0
    here.send(there.address, b"found you")
    assert await payloads(there) == [b"found you"]


async def test_one_socket_serves_both_kinds_of_ip_and_replies_in_the_kind_it_was_asked_in(opened: Open) -> None:
    both = await opened("::")
    _, port = split_address(both.address)
    for host, at in (("127.0.0.1", f"127.0.0.1:{port}"), ("::1", f"[::1]:{port}")):
        asker = await opened(host)
        asker.send(at, b"question")
        [question] = await both.receive()
        assert question.source == asker.address
        both.send(question.source, b"answer")
        assert await payloads(asker) == [b"answer"]


async def test_what_is_advertised_is_what_others_are_told(opened: Open) -> None:
    assert (await opened("127.0.0.1", advertise="ftp1.example:7000")).address == "ftp1.example:7000"
    without_port, there = await opened("127.0.0.1", advertise="[fd00::7]"), await opened()
    without_port.send(there.address, b"from where?")
    [datagram] = await there.receive()
    bound_to = split_address(datagram.source)[1]
    assert without_port.address == f"[fd00::7]:{bound_to}"


SHOW = """
import asyncio
from softmutex_adapters.transports.udp import UdpTransport

async def main():
    for host in ("0.0.0.0", "::"):
        transport = UdpTransport(host)
        await transport.open()
        print(transport.address.rpartition(":")[0], transport.on_this_host)
        await transport.aclose()

asyncio.run(main())
"""


@pytest.mark.needs("netns")
def test_without_a_default_route_others_are_shown_the_address_of_an_interface() -> None:
    with lan(1) as net:
        command = [*net.prefix(1), sys.executable, "-c", SHOW]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert shown.splitlines() == ["10.77.0.1 False", "[fd77::1] False"]


def test_a_wildcard_cannot_be_advertised() -> None:
    with pytest.raises(ConfigError, match="nobody can send to"):
        UdpTransport(advertise="0.0.0.0:9431")


async def test_a_port_that_is_taken_is_named_with_the_remedy(opened: Open) -> None:
    host, port = split_address((await opened()).address)
    with pytest.raises(CannotOpen, match=rf"cannot bind to 127.0.0.1:{port} .*free port, or port 0"):
        await opened(host, port)


async def test_a_host_that_is_not_this_one_is_named_with_the_remedy(opened: Open) -> None:
    with pytest.raises(CannotOpen, match="Name an address of this host"):
        await opened("203.0.113.7")


def test_a_misspelled_option_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"no option 'recieve_buffer'\. Did you mean 'receive_buffer'"):
        UdpTransport.from_url("udp://127.0.0.1:0?recieve_buffer=9")


# --- names -----------------------------------------------------------------------------------------------------------


class NameServer:
    """Stands in for the system's resolver, which literal addresses never ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.answer: int | None = None  # the port at which 127.0.0.1 is the answer, None for no answer
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str | bytes, port: int, *args: Any, **options: Any) -> Any:
        if options.get("flags", 0) & socket.AI_NUMERICHOST or isinstance(host, bytes) or not host.endswith(".test"):
            return self._real(host, port, *args, **options)
        self.asked += 1
        assert self.may_answer.wait(100)
        if self.answer is None:
            raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
        return self._real("127.0.0.1", self.answer, *args, **options)


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    return NameServer(monkeypatch)


async def test_what_is_sent_while_a_name_is_looked_up_arrives_afterwards(opened: Open, name_server: NameServer) -> None:
    here, there = await opened(), await opened()
    name_server.answer = split_address(there.address)[1]
    name_server.may_answer.clear()
    for number in range(udp.HELD_MAX + 2):
        here.send("node.test:1", b"%d" % number)  # returns, though the name server does not
    await eventually(lambda: name_server.asked == 1, "nobody asked the name server")
    name_server.may_answer.set()
    arrived: list[bytes] = []
    while len(arrived) < udp.HELD_MAX:
        arrived += await payloads(there)
    assert arrived == [b"%d" % number for number in range(2, udp.HELD_MAX + 2)]
    assert here.statistics()["unresolved"] == 2


async def test_a_name_is_asked_for_once_and_then_known(opened: Open, name_server: NameServer) -> None:
    here, there = await opened(), await opened()
    name_server.answer = split_address(there.address)[1]
    for _ in range(50):
        here.send("node.test:1", b"hello")
        await payloads(there)
    assert name_server.asked == 1


async def test_a_name_that_moved_is_found_at_its_new_address(
    opened: Open, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "REFRESH_S", 0.02)
    here, before, after = await opened(), await opened(), await opened()
    name_server.answer = split_address(before.address)[1]
    here.send("node.test:1", b"hello")
    await payloads(before)
    name_server.answer = split_address(after.address)[1]

    async with repeating(lambda: here.send("node.test:1", b"hello")):
        assert b"hello" in await payloads(after)


async def test_a_name_server_that_fails_leaves_the_known_address_in_use(
    opened: Open, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "REFRESH_S", 0.0)
    here, there = await opened(), await opened()
    name_server.answer = split_address(there.address)[1]
    here.send("node.test:1", b"hello")
    await payloads(there)
    name_server.answer = None
    for _ in range(5):
        here.send("node.test:1", b"still")
        assert await payloads(there) == [b"still"]
    await eventually(lambda: here.statistics()["unresolved"] > 0, "the failed look-up is not counted")


async def test_a_dead_name_server_takes_few_threads_and_no_time(opened: Open, name_server: NameServer) -> None:
    here, there = await opened(), await opened()
    name_server.may_answer.clear()
    for number in range(100):
        here.send(f"node-{number}.test:1", b"hello")
    here.send(there.address, b"quick")
    assert await payloads(there) == [b"quick"]
    assert name_server.asked <= udp.LOOKUPS_AT_ONCE
    name_server.may_answer.set()
    await eventually(lambda: here.statistics()["unresolved"] == 100, "not all losses are counted")


# --- what the kernel says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [*udp.CAUSES, errno.EIO], ids=errno.errorcode.get)
async def test_whatever_the_kernel_refuses_is_a_counted_loss(
    opened: Open, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, "as the kernel says it")

    here, there = await opened(), await opened()
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "sendto", refuse)
        here.send(there.address, b"refused")
    assert here.statistics()[udp.CAUSES.get(number, "send_failed")] == 1
    here.send(there.address, b"taken")
    assert await payloads(there) == [b"taken"]


async def test_empty_and_oversized_datagrams_are_counted_and_dropped(opened: Open) -> None:
    there = await opened()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for size in (0, udp.MAX_DATAGRAM + 1, 65_507, udp.MAX_DATAGRAM):
            stranger.sendto(bytes(size), split_address(there.address))
    assert [len(payload) for payload in await payloads(there)] == [udp.MAX_DATAGRAM]
    statistics = there.statistics()
    assert (statistics["empty"], statistics["oversized"], statistics["received"]) == (1, 2, 1)


async def test_an_address_of_the_other_kind_of_ip_is_a_counted_loss(opened: Open) -> None:
    here = await opened("127.0.0.1")
    here.send("[::1]:9", b"nowhere")
    await eventually(lambda: here.statistics()["unresolved"] == 1, "the loss is not counted")


async def test_a_flood_of_rubbish_stops_neither_the_valid_stream_nor_fills_memory(opened: Open) -> None:
    here, there = await opened(), await opened(queue=256)
    stop = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            while not stop.is_set():
                for size in (0, 1, 700, 1400, 9000):
                    stranger.sendto(b"\xff" * size, split_address(there.address))

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        for number in range(100):  # stop and wait: each is sent again until it is there
            wanted, arrived = b"valid %d" % number, False
            while not arrived:
                here.send(there.address, wanted)
                batch = await payloads(there)
                assert len(batch) <= 256
                arrived = wanted in batch
    finally:
        stop.set()
        await asyncio.to_thread(flooding.join)


async def test_what_is_remembered_of_strangers_is_bounded(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    lower("sources that UDP remembers", 8, monkeypatch)
    lower("datagrams that UDP remembers to have sent", 8, monkeypatch)
    monkeypatch.setattr(udp, "NAMES_MAX", 8)
    here, there = await opened(), await opened()

    async def meets(strangers: range) -> None:
        for number in strangers:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
                stranger.sendto(b"hello", split_address(there.address))
            datagram = Datagram("", b"")
            while not datagram.payload:  # that a stranger before this one is gone is told, too
                datagram = (await there.receive())[-1]
            there.send(datagram.source, b"whoever you are")
            here.send(f"no-such-host-{number}:x", b"hello")

    with kept_by(udp, addressing) as kept:
        await meets(range(100))
        few = kept()
        await meets(range(100, 2000))
        assert kept() < few + 20_000  # 10 bytes each: none of them has even its address


async def test_a_transport_is_opened_once() -> None:
    transport = UdpTransport()
    await transport.open()
    await transport.aclose()
    with pytest.raises(RuntimeError, match="make a new one"):
        await transport.open()
