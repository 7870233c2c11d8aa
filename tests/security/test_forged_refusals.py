"""Anybody can write "nobody listens at that port" (ICMP) in the name of a host, without having seen what was sent."""

import asyncio
import socket
import struct

import pytest
from softmutex_adapters.transports.udp import UdpTransport

from softmutex.urls import split_address
from tests.runtime.group import until

HOST = "127.0.0.1"


def forge(here: str, there: str, quoted: bytes) -> None:
    """As if a datagram from `here` to `there`, which began like that, had met nobody."""

    def checked(packet: bytes) -> bytes:
        total = sum(struct.unpack(f">{len(packet) // 2}H", packet))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return struct.pack(">H", ~total & 0xFFFF)

    (_, from_port), (_, to_port), address = split_address(here), split_address(there), socket.inet_aton(HOST)
    udp = struct.pack(">HHHH", from_port, to_port, 8 + len(quoted), 0) + quoted
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, socket.IPPROTO_UDP, 0, address, address)
    news = struct.pack(">BB2xI", 3, 3, 0)[:8] + ip + udp
    news += bytes(len(news) % 2)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.sendto(news[:2] + checked(news) + news[4:], (HOST, 0))


@pytest.mark.needs("root")
@pytest.mark.parametrize("is_seen", [False, True], ids=["not seen", "seen"])
async def test_a_refusal_counts_only_if_it_quotes_what_was_sent(no_leaks: None, is_seen: bool):
    """Two of them made a member dead whose answers take more than 50 ms, and its token was made anew."""
    here, there = UdpTransport(HOST), UdpTransport(HOST)
    await here.open()
    await there.open()
    try:
        sent = bytes(range(100))
        here.send(there.address, sent)
        forge(here.address, there.address, sent if is_seen else sent[:10] + bytes(90))
        counted = "refused" if is_seen else "forged_refusals"
        await until(lambda: here.statistics()[counted] == 1)
        if is_seen:
            [refusal] = await asyncio.wait_for(here.receive(), 100)
            assert (refusal.source, refusal.payload) == (there.address, b"")
        assert here.statistics()["refused"] == is_seen
    finally:
        await here.aclose()
        await there.aclose()
