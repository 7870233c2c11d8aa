"""A softmutex transport over Unix datagram sockets: the processes of one host, without IP.

What it decides: an address is the path of a socket. Who sends must be bound to a path too, or nobody could reply.
A path that a crash left behind is taken over; one at which somebody answers is not.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from typing import Self

from softmutex.mailbox import Mailbox
from softmutex.ports import CannotOpen, Datagram
from softmutex.urls import Url

MAX_DATAGRAM = 1400
BATCH = 64


class UnixTransport:
    """`unix:///path/to/node.sock`, or `unix://` for a path of its own choice."""

    max_datagram = MAX_DATAGRAM
    on_this_host = True  # T8: so a node needs no key

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._socket: socket.socket | None = None
        self._mailbox = Mailbox()
        self._counts = dict.fromkeys(["sent", "received", "oversized", "send_failed"], 0)

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        parts.finish()
        return cls(parts.place)

    @property
    def address(self) -> str:
        return self._path

    async def open(self) -> None:
        if not self._path:
            self._folder = tempfile.TemporaryDirectory(prefix="softmutex-unix-")
            self._path = os.path.join(self._folder.name, "node.sock")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)
            self._remove_leftover()
            bound.bind(self._path)
        except OSError as error:
            bound.close()
            raise CannotOpen(
                f"unix://{self._path} cannot be had ({error}). Name a path that is free, in a directory that you may "
                "write to, of at most 107 bytes; or none, for one of its own choice."
            ) from error
        self._socket = bound
        asyncio.get_running_loop().add_reader(bound.fileno(), self._drain)

    def _remove_leftover(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(self._path)
            except ConnectionRefusedError:  # a socket without a process
                os.unlink(self._path)
            except FileNotFoundError:
                pass
            else:
                raise OSError(errno.EADDRINUSE, "somebody answers there")

    def send(self, address: str, payload: bytes) -> None:
        if len(payload) > MAX_DATAGRAM:
            raise ValueError(f"a datagram of {len(payload)} bytes is over the {MAX_DATAGRAM} of this transport")
        try:
            if self._socket is None or not address:
                raise OSError
            self._socket.sendto(payload, address)
            self._counts["sent"] += 1
        except (OSError, ValueError):  # nobody there, a full buffer, no path at all: a lost datagram (T1)
            self._counts["send_failed"] += 1

    def _drain(self) -> None:
        for _ in range(BATCH):
            try:
                if self._socket is None:
                    return
                payload, source = self._socket.recvfrom(MAX_DATAGRAM + 1)
            except OSError:
                return
            if len(payload) > MAX_DATAGRAM:
                self._counts["oversized"] += 1
            elif payload:  # an empty one says nothing
                self._counts["received"] += 1
                self._mailbox.put(Datagram(source or "", payload))

    async def receive(self) -> Sequence[Datagram]:
        return await self._mailbox.receive()

    async def aclose(self) -> None:
        self._mailbox.close()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            os.unlink(self._path)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "queue_overflow": self._mailbox.dropped}
