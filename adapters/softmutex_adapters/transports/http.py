"""HTTP and HTTPS, for sites where nothing else passes: each node is a small web server, and posts to the others.

What it decides: `send` only queues, and one task for each peer that is owed something posts what has piled up, several
frames in one request, over a connection that stays open. A request for each frame would cost a round trip of TCP and
of TLS for each, and a peer that does not answer would hold up all others.

    send --> queue of the peer (bounded, the oldest go) --> its courier: POST, as much as fits --> gone when empty
    POST --> frames.unpack --> mailbox (bounded, the oldest go) --> receive
    POST from an address that is not known --> the reply is the answer (`visits.py`)

H1  A peer owns a task and a queue only while something is on its way to it.
H2  Any answer but 2xx, and any failure, is so many lost datagrams, and counted.
H3  Redirects are not followed, proxies of the environment are not used. Of an answer no more is read than was posted.
H4  `aclose` gives what is queued a moment to leave: the last message of a node is often the one that hands over.
H5  Where an address names no scheme (host:port), this node's own is meant.
H6  An address is known when this node was told to send to it, not by a caller's header alone, or when it has taken a
    body. To the others couriers go only STRANGERS_MAX at a time, over connections of their own: who makes a node post
    to black holes does not hold up what it posts to members.
H7  A connection that is refused is told of (transport.T7); a proxy that answers for a node behind it refuses nothing.
H8  Where TLS fails, it is told why (transport.T9): silence would be taken for a host that is down.

Behind a reverse proxy: `http://127.0.0.1:9431?advertise=https://public.example/prefix`. The proxy may keep the prefix
or take it off, if the URL says it too: `http://127.0.0.1:9431/prefix?advertise=...`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from softmutex.core.errors import ConfigError
from softmutex.ending import end
from softmutex.mailbox import DATAGRAMS_MAX, Mailbox
from softmutex.ports import CannotOpen, Datagram
from softmutex.urls import Url, join_address, split_address
from softmutex_adapters.transports.addressing import bind, is_on_this_host, reachable_address
from softmutex_adapters.transports.frames import (
    BODY_TYPE,
    MAX_BODY,
    MAX_FRAME,
    PATH,
    SENDER_HEADER,
    VISITOR,
    pack,
    read_base,
    unpack,
)
from softmutex_adapters.transports.visits import Visits

if TYPE_CHECKING:
    import aiohttp

    from softmutex_adapters.transports.http_server import FrameServer

QUEUE_MAX = 1024
PEERS_MAX = 4096
STRANGERS_MAX = 32
KNOWN_MAX = 8192
TROUBLES_MAX = 256
RESET = (
    "it ends each connection. Does it want a certificate of its own authority (mutual=true), and is this node's one?"
)
CONNECT_S = 3.0
REQUEST_S = 10.0
STRANGER_S = 3.0
KEEP_OPEN_S = 30.0
CONNECTIONS_MAX = 512
FLUSH_S = 1.0
RESOLVED_FOR_S = 30
COUNTERS_OUT = ("sent", "answered", "requests", "refused", "unresolved", "send_failed", "send_overflow", "send_refused")
COUNTERS_IN = ("received", "refused_requests", "connections_closed")


class HttpTransport:
    """`http://host:port/prefix?advertise=URL` or `https://host:port?cert=FILE&key=FILE&ca=FILE&mutual=true`

    `ca` is what certificates of peers are checked with, instead of those of the system. With `mutual`, a peer must show
    one itself, signed by `ca`. Behind a proxy that does TLS, say `http://` and advertise `https://`.
    """

    max_datagram = MAX_FRAME

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        prefix: str = "",
        tls: bool = False,
        advertise: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        ca: str | None = None,
        mutual: bool = False,
        queue: int = DATAGRAMS_MAX,
    ) -> None:
        self._scheme = "https" if tls else "http"
        if advertise is not None and read_base(advertise) is None:
            raise ConfigError(
                f"advertise={advertise}: give the URL under which others reach this node, http(s)://host/…"
            )
        if tls and not (cert and key):
            raise ConfigError(
                "https:// needs cert and key: https://host:port?cert=cert.pem&key=key.pem. "
                "Behind a proxy that does TLS: http://host:port?advertise=https://public.example/prefix"
            )
        if mutual and not (tls and ca):
            raise ConfigError("mutual=true wants https:// and ca=, with which the certificates of peers are checked.")
        self._host, self._port = host, port
        self._prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
        self._advertise = read_base(advertise) if advertise else None
        self._cert, self._key, self._ca, self._mutual = cert, key, ca, mutual
        self._mailbox = Mailbox(queue)
        self._address = ""
        self._on_this_host = False
        self._opened = self._closed = False
        self._server: FrameServer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._to_strangers: aiohttp.ClientSession | None = None
        self._known: OrderedDict[str, None] = OrderedDict()  # addresses (H6), the one that was used last at the end
        self._visits = Visits()
        self._queues: dict[str, deque[bytes]] = {}
        self._strangers = 0  # couriers to them
        self._couriers: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys((*COUNTERS_OUT, *COUNTERS_IN), 0)
        self._troubles: dict[str, str] = {}
        self._resets: dict[str, int] = {}  # in a row

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        place, _, prefix = parts.place.partition("/")
        try:
            host, port = split_address(place, default_host="127.0.0.1", default_port=0)
        except ValueError as error:
            parts.refuse(str(error))
        options: dict[str, Any] = {name: parts.text(name) for name in ("advertise", "cert", "key", "ca")}
        mutual = parts.flag("mutual")
        queue = parts.integer("queue", DATAGRAMS_MAX, low=16, high=1 << 20)
        parts.finish()
        return cls(host, port, prefix=prefix, tls=parts.scheme == "https", mutual=mutual, queue=queue, **options)

    @property
    def address(self) -> str:
        return self._address

    @property
    def on_this_host(self) -> bool:
        return self._on_this_host

    async def open(self) -> None:
        if self._opened or self._closed:
            raise RuntimeError("this transport was opened before; make a new one")
        self._opened = True
        from softmutex_adapters.transports.http_server import FrameServer

        serve_tls, call_tls = self._read_certificates()
        what = f"{self._scheme}://{join_address(self._host, self._port)}"
        bound = await bind(self._host, self._port, socket.SOCK_STREAM, what)
        self._address = self._advertise or f"{self._scheme}://{reachable_address(bound, None)}{self._prefix}"
        self._on_this_host = is_on_this_host(bound, self._address)
        self._server = FrameServer(frozenset({PATH, self._prefix + PATH}), self._take, self._counts)
        await self._server.start(bound, serve_tls)
        self._session = self._make_session(call_tls, CONNECTIONS_MAX, REQUEST_S)
        self._to_strangers = self._make_session(call_tls, STRANGERS_MAX, STRANGER_S)

    def _make_session(self, tls: ssl.SSLContext | None, connections: int, within_s: float) -> aiohttp.ClientSession:
        import aiohttp  # here, since it costs more time than all the rest

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, keepalive_timeout=KEEP_OPEN_S, ttl_dns_cache=RESOLVED_FOR_S, ssl=tls or True
            ),
            timeout=aiohttp.ClientTimeout(total=within_s, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={SENDER_HEADER: self._address, "Content-Type": BODY_TYPE},
            auto_decompress=False,
        )

    def _read_certificates(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        """What this node shows and asks for as a server, and as a client; None where the default will do."""
        serve = call = None
        try:
            if self._scheme == "https":
                serve = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                serve.load_cert_chain(self._cert or "", self._key)
            if self._ca or serve:
                call = ssl.create_default_context(cafile=self._ca)
            if self._mutual and serve and call:
                serve.load_verify_locations(self._ca)
                serve.verify_mode = ssl.CERT_REQUIRED
                call.load_cert_chain(self._cert or "", self._key)
        except OSError as error:  # ssl.SSLError is one
            raise CannotOpen(
                f"the certificates (cert={self._cert}, key={self._key}, ca={self._ca}) cannot be used: {error}. "
                "Name readable PEM files, a certificate and the key that belongs to it."
            ) from error
        return serve, call

    async def aclose(self) -> None:
        self._closed = True
        self._mailbox.close()
        if self._couriers:
            await asyncio.wait(self._couriers, timeout=FLUSH_S)
        await end(*self._couriers)
        self._visits.close()
        for session in (self._session, self._to_strangers):
            if session is not None:
                await session.close()
        if self._server is not None:
            await self._server.stop()

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "queue_overflow": self._mailbox.dropped}

    def troubles(self) -> Mapping[str, str]:
        return dict(self._troubles)

    # --- in ---------------------------------------------------------------------------------------------------------

    async def receive(self) -> Sequence[Datagram]:
        self._visits.node_asks()
        try:
            batch = await self._mailbox.receive()
        except BaseException:
            self._visits.is_receiving = False
            raise
        self._visits.node_has()
        return batch

    async def _take(self, sender: str, frames: list[bytes], size: int) -> deque[bytes] | None:
        if sender in self._known:
            self._put(sender, frames)
            return deque()
        visit = self._visits.begin(sender, size)
        if visit is None:
            return None
        self._put(sender + VISITOR, frames)
        return await self._visits.answer(visit)

    def _put(self, source: str, frames: Sequence[bytes]) -> None:
        self._counts["received"] += len(frames)
        for frame in frames:
            self._mailbox.put(Datagram(source, frame))

    # --- out --------------------------------------------------------------------------------------------------------

    def send(self, address: str, payload: bytes) -> None:
        if len(payload) > MAX_FRAME:
            raise ValueError(f"a frame of {len(payload)} bytes is over the {MAX_FRAME} that one HTTP body may have")
        if not payload:
            return  # nothing to carry, and a body could not tell it from garbage
        given = address
        if "://" not in address:  # H5
            address = f"{self._address.partition('://')[0]}://{address}"
        if address.endswith(VISITOR):
            base = address.removesuffix(VISITOR)
            if base in self._known:
                address = base
            elif self._visits.offer(base, payload):
                self._counts["answered"] += 1
                return
        queue = self._queues.get(address)
        if queue is None and (queue := self._start_courier(address, given)) is None:
            return
        if len(queue) >= QUEUE_MAX:
            queue.popleft()
            self._counts["send_overflow"] += 1
        queue.append(payload)

    def _start_courier(self, address: str, given: str) -> deque[bytes] | None:
        is_stranger = address.endswith(VISITOR)
        base = read_base(address.removesuffix(VISITOR))
        session = self._to_strangers if is_stranger else self._session
        if base is None:
            self._counts["unresolved"] += 1
        elif session is None or self._closed or len(self._queues) >= PEERS_MAX:
            self._counts["send_failed"] += 1
        elif is_stranger and self._strangers >= STRANGERS_MAX:
            self._counts["send_refused"] += 1
        else:
            if not is_stranger:
                self._know(base)
            queue: deque[bytes] = deque()
            self._queues[address] = queue
            self._strangers += is_stranger
            courier = asyncio.get_running_loop().create_task(
                self._carry(address, given, base, queue, session), name=f"softmutex http: to {address}"
            )
            self._couriers.add(courier)
            courier.add_done_callback(self._couriers.discard)
            return queue
        return None

    def _know(self, base: str) -> None:
        self._known[base] = None
        self._known.move_to_end(base)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    async def _carry(
        self, address: str, given: str, base: str, queue: deque[bytes], session: aiohttp.ClientSession
    ) -> None:
        import aiohttp

        is_stranger = address.endswith(VISITOR)
        try:
            while queue:
                body, frames = pack(queue)
                self._counts["requests"] += 1
                arrived = False
                try:
                    async with session.post(base + PATH, data=body, allow_redirects=False) as answer:
                        arrived = 200 <= answer.status < 300
                        if arrived:
                            self._know(base)
                            self._troubles.pop(given, None)
                            self._resets.pop(given, None)
                        if answer.status == 200 and answer.content_type == BODY_TYPE:
                            self._put(base, await read_answer(answer, len(body)))
                except (aiohttp.ClientError, OSError, ValueError) as error:  # a time-out is an OSError
                    if not is_stranger:
                        self._explain(given, error)
                self._counts["sent" if arrived else "send_failed"] += frames
        finally:
            del self._queues[address]
            self._strangers -= is_stranger

    def _explain(self, given: str, error: Exception) -> None:
        """T7, T9."""
        import aiohttp

        cause = getattr(error, "os_error", None)  # aiohttp 3.11 has none for a certificate that is not believed
        if isinstance(error, aiohttp.ClientConnectorError) and getattr(cause, "errno", None) == errno.ECONNREFUSED:
            self._counts["refused"] += 1
            self._mailbox.put(Datagram(given, b""))
            self._troubles.pop(given, None)
            return
        why = explain_tls(error)
        is_reset = getattr(error, "errno", None) == errno.ECONNRESET or isinstance(
            error, aiohttp.ServerDisconnectedError
        )
        if not why and is_reset and self._scheme == "https":  # one of them may be chance
            if given in self._resets or len(self._resets) < TROUBLES_MAX:
                self._resets[given] = self._resets.get(given, 0) + 1
            why = RESET if self._resets.get(given, 0) > 1 else ""
        if why and (given in self._troubles or len(self._troubles) < TROUBLES_MAX):
            self._troubles[given] = why


def explain_tls(error: BaseException) -> str:
    """What is wrong between the two, where that is TLS; else empty."""
    wrong: BaseException | None = error
    while wrong is not None and not (isinstance(wrong, ssl.SSLError) and hasattr(wrong, "reason")):  # not a wrapper
        wrong = getattr(wrong, "certificate_error", None) or getattr(wrong, "os_error", None) or wrong.__cause__
    if not isinstance(wrong, ssl.SSLError):
        return ""
    if isinstance(wrong, ssl.SSLCertVerificationError):
        said = wrong.verify_message.rstrip(".")
        return f"its certificate is not trusted: {said}. See the how-to on certificates: names, addresses, ca=."
    said = (wrong.reason or str(wrong)).lower().replace("_", " ")
    if "alert" in said:
        return (
            f"it does not trust the certificate of this node: {said}. Give all members certificates of one authority."
        )
    return f"that port speaks no TLS, or another one: {said}. Is it https:// there, too?"


async def read_answer(answer: aiohttp.ClientResponse, most: int) -> list[bytes]:
    body = bytearray()
    while chunk := await answer.content.readany():
        body += chunk
        if len(body) > min(most, MAX_BODY):
            return []
    return unpack(bytes(body)) or []
