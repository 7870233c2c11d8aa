"""UDP: one socket, many datagrams a wake-up, and no error of the network that reaches the node.

What it decides: the socket is its own, not asyncio's datagram endpoint. That one calls back once a datagram, keeps what
the kernel cannot take in a buffer without bound, and waits in `send` for a name server. Here:

    loop: readable -- drain, up to BATCH datagrams --> whom they are handed to (T10), one after the other
                                                   '-> mailbox (bounded) -- one list --> receive
    send -- address known --> sendto, at once       \\
         -- a name, known --> sendto, at once        >  every error: a counter, and a lost datagram
         -- a name, new   --> look it up off the loop, holding the last few datagrams

U1  `send` never waits and never raises, but for a datagram that is larger than `max_datagram`.
U2  Every datagram that is not delivered by this end, or not accepted by it, is in `statistics`.
U3  State a peer could grow is bounded: the mailbox, known addresses, known names, datagrams held for a look-up.
U4  A name is looked up again after REFRESH_S, and sooner when sending to its address fails.
U5  A port at which nobody listens is told of under the address that it was sent to (transport.T7, `refusals.py`), if
    the news of it quotes what was sent there: strangers can forge it, and have not seen that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from softmutex.ending import end
from softmutex.mailbox import DATAGRAMS_MAX, Mailbox
from softmutex.ports import Datagram
from softmutex.urls import Url, join_address, split_address
from softmutex_adapters.transports import refusals
from softmutex_adapters.transports.addressing import (
    bind,
    check_advertised,
    is_on_this_host,
    reachable_address,
    socket_address,
)

MAX_DATAGRAM = 1400  # fits an Ethernet frame, with room for a tunnel or two
BATCH = 64
KNOWN_MAX = 8192
NAMES_MAX = 1024
HELD_MAX = 8
LOOKUPS_AT_ONCE = 4  # a dead name server must not take all threads of the application's executor
REFRESH_S = 30.0
RETRY_S = 2.0
RECEIVE_BUFFER = 1 << 20
SENT_MAX = 1024  # datagrams that were sent last, by their beginnings: what is said of older ones comes too late

COUNTERS = (
    "sent",
    "received",
    "refused",
    "forged_refusals",
    "oversized",
    "empty",
    "receive_failed",
    "unresolved",
    "send_failed",
)

# What an error of the kernel means for the reader of the statistics. Whatever is not here is `send_failed`.
CAUSES = {
    errno.EAGAIN: "send_buffer_full",
    errno.ENOBUFS: "send_buffer_full",
    errno.ENOMEM: "send_buffer_full",
    errno.EPERM: "send_forbidden",
    errno.EACCES: "send_forbidden",
    errno.ECONNREFUSED: "send_refused",
    errno.EMSGSIZE: "send_too_large_for_path",
    errno.ENETUNREACH: "send_unreachable",
    errno.EHOSTUNREACH: "send_unreachable",
    errno.EADDRNOTAVAIL: "send_unreachable",
    errno.ENETDOWN: "send_unreachable",
}


class _Name:
    """A host name and what is known of it. `held` are the datagrams that wait for the first look-up."""

    __slots__ = ("held", "looked_up_at", "looking", "sockaddr")

    def __init__(self) -> None:
        self.sockaddr: Any = None
        self.looked_up_at = float("-inf")
        self.looking = False
        self.held: deque[bytes] = deque(maxlen=HELD_MAX)


class UdpTransport:
    """`udp://host:port?advertise=host:port&receive_buffer=bytes&queue=datagrams`

    Port 0 takes any free port; `udp://[::]:9431` takes IPv4 too. `advertise` is what others are told, where that
    differs from what this host can see of itself (behind NAT or port forwarding); its port may be left out.

    >>> import asyncio
    >>> async def main() -> bytes:
    ...     here, there = UdpTransport(), UdpTransport()
    ...     await here.open()
    ...     await there.open()
    ...     here.send(there.address, b"hello")
    ...     [datagram] = await there.receive()
    ...     await here.aclose()
    ...     await there.aclose()
    ...     return datagram.payload
    >>> asyncio.run(main())
    b'hello'
    """

    max_datagram = MAX_DATAGRAM

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        receive_buffer: int = RECEIVE_BUFFER,
        queue: int = DATAGRAMS_MAX,
    ) -> None:
        if advertise is not None:
            check_advertised(advertise)
        self._host, self._port = host, port
        self._advertise = advertise
        self._receive_buffer = receive_buffer
        self._mailbox = Mailbox(queue)
        self._give: Callable[[Datagram], None] = self._mailbox.put
        self._socket: socket.socket | None = None
        self._closed = False
        self._address = ""
        self._on_this_host = False
        self._known: dict[str, Any] = {}  # literal address -> what the kernel wants to hear
        self._sources: dict[Any, str] = {}  # and back
        self._written: dict[Any, str] = {}  # and as they were given to `send`: a name, mostly
        self._sent: deque[tuple[Any, bytes]] = deque(maxlen=SENT_MAX)
        self._names: dict[str, _Name] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(
            [*COUNTERS, *CAUSES.values()],
            0,
        )

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        host, port = parts.host_and_port()
        advertise = parts.text("advertise")
        receive_buffer = parts.integer("receive_buffer", RECEIVE_BUFFER, low=2048, high=1 << 30)
        queue = parts.integer("queue", DATAGRAMS_MAX, low=16, high=1 << 20)
        parts.finish()
        return cls(host, port, advertise=advertise, receive_buffer=receive_buffer, queue=queue)

    @property
    def address(self) -> str:
        return self._address

    @property
    def on_this_host(self) -> bool:
        return self._on_this_host

    async def open(self) -> None:
        if self._socket is not None or self._closed:
            raise RuntimeError("this transport was opened before; make a new one")
        what = f"udp://{join_address(self._host, self._port)}"
        bound = await bind(self._host, self._port, socket.SOCK_DGRAM, what)
        if self._closed:  # while the name was looked up
            bound.close()
            return
        with contextlib.suppress(OSError):  # a hint: the kernel's own limit stands above it
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        refusals.ask_for(bound)
        self._socket = bound
        self._address = reachable_address(bound, self._advertise)
        self._on_this_host = is_on_this_host(bound, self._address)
        asyncio.get_running_loop().add_reader(bound.fileno(), self._drain)

    async def aclose(self) -> None:
        self._closed = True
        self._give = self._mailbox.put
        self._mailbox.close()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        await end(*self._lookups)

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "queue_overflow": self._mailbox.dropped}

    # --- in ---------------------------------------------------------------------------------------------------------

    async def receive(self) -> Sequence[Datagram]:
        return await self._mailbox.receive()

    def hand_to(self, take: Callable[[Datagram], None] | None) -> None:
        self._give = take or self._mailbox.put
        self._pass_on()

    def _pass_on(self) -> None:
        for datagram in self._mailbox.empty():
            self._give(datagram)

    def _drain(self) -> None:
        """What comes while one is dealt with is read, too: a request that follows a token finds its holder here."""
        if self._socket is None:
            return
        receive, counts, sources = self._socket.recvfrom, self._counts, self._sources
        for _ in range(BATCH):
            try:
                # One byte more than may come: the kernel cuts off the rest, and what fills all of it was too long.
                payload, source = receive(MAX_DATAGRAM + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if self._closed:
                    return
                if error.errno != errno.ECONNREFUSED:
                    counts["receive_failed"] += 1
                self._hear_refusals()
                continue  # that was of an earlier datagram, and more may have come
            if not payload:
                counts["empty"] += 1
            elif len(payload) > MAX_DATAGRAM:
                counts["oversized"] += 1
            else:
                counts["received"] += 1
                self._give(Datagram(sources.get(source) or self._remember_source(source), payload))

    def _hear_refusals(self) -> None:
        """And goes on listening: a loop of uvloop's stops where there was an error."""
        if self._socket is None:
            return
        for sockaddr, quoted in refusals.heard(self._socket):
            if (sockaddr[:2], quoted) not in self._sent:
                self._counts["forged_refusals"] += 1
                continue
            self._counts["refused"] += 1
            address = self._written.get(sockaddr) or self._sources.get(sockaddr) or self._remember_source(sockaddr)
            self._mailbox.put(Datagram(address, b""))
        loop = asyncio.get_running_loop()
        if self._give != self._mailbox.put:
            loop.call_soon(self._pass_on)  # this may be within `send`
        loop.remove_reader(self._socket.fileno())
        loop.add_reader(self._socket.fileno(), self._drain)

    def _remember_source(self, sockaddr: Any) -> str:
        address = socket_address(sockaddr)
        make_room(self._sources, KNOWN_MAX)
        self._sources[sockaddr] = address
        return address

    # --- out --------------------------------------------------------------------------------------------------------

    def send(self, address: str, payload: bytes) -> None:
        if len(payload) > MAX_DATAGRAM:
            raise ValueError(f"a datagram of {len(payload)} bytes is over the {MAX_DATAGRAM} that UDP frames may have")
        sockaddr = self._known.get(address)
        if sockaddr is not None:
            self._put_on_wire(sockaddr, payload)
        elif self._socket is None:
            self._counts["send_failed"] += 1
        elif (sockaddr := self._read_literal(address)) is not None:
            make_room(self._known, KNOWN_MAX)
            self._known[address] = sockaddr
            self._remember_as_written(sockaddr, address)
            self._put_on_wire(sockaddr, payload)
        else:
            self._send_by_name(address, payload)

    def _put_on_wire(self, sockaddr: Any, payload: bytes) -> bool:
        if self._socket is None:
            self._counts["send_failed"] += 1
            return False
        self._sent.append((sockaddr[:2], payload[: refusals.QUOTED]))
        try:
            try:
                self._socket.sendto(payload, sockaddr)
            except ConnectionRefusedError:  # an earlier datagram was refused; this one has not been sent
                self._hear_refusals()
                self._socket.sendto(payload, sockaddr)
        except OSError as error:
            self._counts[CAUSES.get(error.errno or 0, "send_failed")] += 1
            return False
        self._counts["sent"] += 1
        return True

    def _read_literal(self, address: str) -> Any:
        """The kernel's form of an address that is written in numbers, else None. Asks no name server."""
        try:
            host, port = split_address(address)
            return self._resolve_with(socket.getaddrinfo, host, port, socket.AI_NUMERICHOST)[0][4]
        except (OSError, ValueError, UnicodeError):
            return None

    def _resolve_with(self, getaddrinfo: Any, host: str, port: int, flags: int = 0) -> Any:
        """Addresses that this very socket can send to: one of IPv6 reaches IPv4 too, in its own notation."""
        assert self._socket is not None
        family = self._socket.family
        if family == socket.AF_INET6 and not self._socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            flags |= socket.AI_V4MAPPED | socket.AI_ALL
        return getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM, flags=flags)

    def _send_by_name(self, address: str, payload: bytes) -> None:
        name = self._names.get(address)
        if name is None:
            make_room(self._names, NAMES_MAX)
            name = self._names[address] = _Name()
        loop = asyncio.get_running_loop()
        wait_s = REFRESH_S if name.sockaddr is not None else RETRY_S
        if not name.looking and loop.time() - name.looked_up_at >= wait_s:
            self._start_lookup(address, name)
        if name.sockaddr is not None:
            if not self._put_on_wire(name.sockaddr, payload):
                name.looked_up_at = min(name.looked_up_at, loop.time() - REFRESH_S + RETRY_S)
        elif name.looking:
            if len(name.held) == HELD_MAX:
                self._counts["unresolved"] += 1
            name.held.append(payload)
        else:
            self._counts["unresolved"] += 1

    def _remember_as_written(self, sockaddr: Any, address: str) -> None:
        make_room(self._written, KNOWN_MAX)
        self._written[sockaddr] = address

    def _start_lookup(self, address: str, name: _Name) -> None:
        if len(self._lookups) >= LOOKUPS_AT_ONCE:
            return
        name.looking = True
        lookup = asyncio.get_running_loop().create_task(self._look_up(address, name), name=f"softmutex udp: {address}?")
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)

    async def _look_up(self, address: str, name: _Name) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(address)
            found = await self._resolve_with(loop.getaddrinfo, host, port)
            name.sockaddr = found[0][4]
            self._remember_as_written(name.sockaddr, address)
        except (OSError, ValueError, UnicodeError):
            self._counts["unresolved"] += max(1, len(name.held))
            name.held.clear()  # an address known from before stays in use
        finally:
            name.looking = False
            name.looked_up_at = loop.time()
        while name.held:
            self._put_on_wire(name.sockaddr, name.held.popleft())


def make_room(table: dict[Any, Any], limit: int) -> None:
    """Forgets the oldest entry of a full table. What was forgotten is found out again when it is needed."""
    if len(table) >= limit:
        del table[next(iter(table))]
