"""Asks name servers: over UDP, again, the next one; over TCP where the answer was cut off.

What it decides: an answer counts where it comes from who was asked (the socket is connected), to a port that was chosen
for this question, with its number, and to its words. The naive way takes what arrives first, from whomever.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path

from softmutex_adapters.memberships import dns_wire
from softmutex_adapters.memberships.dns_wire import Answer, BadAnswer, NoSuchName

ANSWER_S = 1.5
TRIES = 2
RESOLV_CONF = Path("/etc/resolv.conf")
Server = tuple[str, int]


async def ask_within(servers: Sequence[Server], name: str, kind: int, domains: Sequence[str]) -> Answer:
    """The first of `name` in each of the `domains` that has a record of that kind; "" stands for the name as it is."""
    trouble: Exception = NoSuchName("there is no such name")
    for domain in domains:
        try:
            answer = await ask(servers, f"{name}.{domain}" if domain else name, kind)
            if any(one.kind == kind for one in answer.records):
                return answer
        except BadAnswer as error:
            trouble = error
    raise trouble


async def ask(servers: Sequence[Server], name: str, kind: int) -> Answer:
    """OSError where nobody answers, BadAnswer where nobody knows."""
    trouble: Exception = OSError("no name server is known")
    for _ in range(TRIES):
        for host, port in servers:
            asked = dns_wire.question(secrets.randbits(16), name, kind)
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = dns_wire.read(await _by_udp(host, port, asked), asked)
                    return dns_wire.read(await _by_tcp(host, port, asked), asked) if answer.is_truncated else answer
            except TimeoutError:
                trouble = OSError(f"the name server {host}:{port} does not answer")
            except (OSError, EOFError) as error:
                trouble = OSError(f"the name server {host}:{port} cannot be asked ({error})")
            except BadAnswer as error:
                trouble = type(error)(f"the name server {host}:{port} says: {error}")
        if isinstance(trouble, BadAnswer):
            break  # they answer, and it will be the same again
    raise trouble


class Question(asyncio.DatagramProtocol):
    def __init__(self, asked: bytes) -> None:
        self._asked = asked
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data[:2] == self._asked[:2] and not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _by_udp(host: str, port: int, asked: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(lambda: Question(asked), remote_addr=(host, port))
    try:
        transport.sendto(asked)
        return await protocol.answer
    finally:
        transport.close()


async def _by_tcp(host: str, port: int, asked: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(struct.pack(">H", len(asked)) + asked)
        (size,) = struct.unpack(">H", await reader.readexactly(2))
        return await reader.readexactly(size)
    finally:
        writer.close()


def read_resolv_conf(path: Path) -> tuple[list[Server], list[str]]:
    """The name servers of the system, and the domains in which it looks for a name; the name as it is comes first."""
    servers: list[Server] = []
    domains = [""]
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match line.split():
            case ["nameserver", address, *_]:
                servers.append((address, 53))
            case ["search" | "domain", *names]:
                domains = ["", *(name.strip(".") for name in names if name.strip("."))]
            case _:
                pass
    return servers or [("127.0.0.1", 53)], domains
