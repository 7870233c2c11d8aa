"""A name server of one test: it answers over UDP and TCP what the test tells it to, and counts the questions."""

import asyncio
import ipaddress
import socket
import struct
from typing import Self

A, AAAA, SRV = 1, 28, 33
UDP_MAX = 512


def name_of(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class NameServer:
    """`addresses`: name -> IP addresses; `services`: name -> (target, port). `works` False: it says nothing."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host, self.port = host, port
        self.addresses: dict[str, list[str]] = {}
        self.services: dict[str, list[tuple[str, int]]] = {}
        self.works = True
        self.code = 0
        self.asked_by_udp = self.asked_by_tcp = 0

    async def __aenter__(self) -> Self:
        server = self
        loop = asyncio.get_running_loop()
        tcp = socket.create_server((self._host, self.port))
        self.port = tcp.getsockname()[1]

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
                server.asked_by_udp += 1
                if server.works:
                    self.transport.sendto(server.answer(data, UDP_MAX), addr)  # type: ignore[attr-defined]

        self._udp, _ = await loop.create_datagram_endpoint(Udp, local_addr=(self._host, self.port))
        self._tcp = await asyncio.start_server(self._serve, sock=tcp)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack(">H", await reader.readexactly(2))
        question = await reader.readexactly(size)
        self.asked_by_tcp += 1
        answer = self.answer(question, 65_535)
        writer.write(struct.pack(">H", len(answer)) + answer)
        await writer.drain()
        writer.close()

    def answer(self, question: bytes, most: int) -> bytes:
        labels, place = [], 12
        while size := question[place]:
            labels.append(question[place + 1 : place + 1 + size].decode())
            place += 1 + size
        (kind,) = struct.unpack_from(">H", question, place + 1)
        name = ".".join(labels).lower()
        records = []
        for text in self.addresses.get(name, []):
            address = ipaddress.ip_address(text)
            if kind == (A if address.version == 4 else AAAA):
                records.append(struct.pack(">H2HIH", 0xC00C, kind, 1, 1, len(address.packed)) + address.packed)
        for target, port in self.services.get(name, []) if kind == SRV else []:
            told = struct.pack(">3H", 0, 0, port) + name_of(target)
            records.append(struct.pack(">H2HIH", 0xC00C, SRV, 1, 1, len(told)) + told)
        is_known = name in self.addresses or name in self.services
        code = self.code or (0 if is_known else 3)
        end = question[: place + 5]
        is_cut = len(end) + sum(map(len, records)) > most
        if is_cut:
            records = []
        flags = 0x8180 | code | (0x0200 if is_cut else 0)
        return end[:2] + struct.pack(">5H", flags, 1, len(records), 0, 0) + end[12:] + b"".join(records)
