"""Who may come in, how often, and how much: hosts, rates and connections. `tokens.py`: and what they may do.

What it decides: whoever connects has bounded time, bytes and requests, before anything is looked up for him. The naive
way, a server with defaults, keeps a socket for everybody who connects and says nothing, until there is none left.

A request that names another host than this registry's comes from a page that was brought here by a name of its own
(DNS rebinding), and one that names another origin from a page of elsewhere: neither is answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from softmutex.urls import host_of

BUCKETS_MAX = 65_536
HEADER_S = 10.0
SWEEP_S = 5.0
BODY_MAX = 4096
STRANGERS_EACH_MAX = 256  # connections of one address on which no right token was shown


def source_of(address: str) -> str:
    """Who may have as many addresses as it likes counts as one: of IPv6, a network of 64 bits."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return address


class Hosts:
    """What this registry may be called: by any address, as localhost, and by `names`, of which `*.lab` is one."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}

    def allow(self, header: str) -> bool:
        host = host_of(f"//{header}")
        if host is None:
            return False
        try:
            ipaddress.ip_address(host.partition("%")[0])
            return True
        except ValueError:
            return host in self._names or f"*.{host.partition('.')[2]}" in self._names

    def is_elsewhere(self, origin: str, header: str) -> bool:
        """A page of `origin` asks. Only our own asks here, and browsers tell the origin of all others."""
        try:
            place = urlsplit(origin).netloc
        except ValueError:  # "http://["
            return True
        return place.lower() != header.lower() and not self._is_own_name(origin)

    def _is_own_name(self, origin: str) -> bool:
        """A proxy may have changed the header `Host`."""
        return host_of(origin) in self._names - {"localhost"}


class Rates:
    """So many requests a second for each key, and a burst of some seconds' worth."""

    BURST_S = 10.0

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when it was so

    def wait_s(self, key: str, now: float) -> float:
        """0 where one more may come now; otherwise how long it should stay away."""
        full = self._per_second * self.BURST_S
        left, at = self._buckets.pop(key, (full, now))
        left = min(full, left + (now - at) * self._per_second)
        is_over = left < 1.0
        self._buckets[key] = (left if is_over else left - 1.0, now)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
        return (1.0 - left) / self._per_second if is_over else 0.0


class Caller:
    """One connection."""

    __slots__ = ("is_busy", "is_known", "source", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.source = source_of(str(name[0])) if name else ""
        self.is_known = False  # it has shown a right token
        self.is_busy = False  # with a request


class Connections(web.Server):
    """Closes who connects and asks nothing within HEADER_S, and who is one too many: the idlest, strangers first."""

    def __init__(self, handler: Any, counts: Counter[str], most: int) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,  # a watcher that is gone is to be noticed at once
            access_log=None,
            keepalive_timeout=75.0,
            lingering_time=0.0,
            auto_decompress=False,  # a small body must not become a large one
        )
        self._counts, self._most = counts, most
        self._silent: dict[RequestHandler, float] = {}  # which owe their first request, and since when
        self._open: dict[RequestHandler, Caller] = {}  # each of these in the order of their last word
        self._strangers: dict[RequestHandler, None] = {}
        self._strangers_of: defaultdict[str, dict[RequestHandler, None]] = defaultdict(dict)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        caller = self._open[handler] = Caller(transport)
        of_source = self._strangers_of[caller.source]
        self._strangers[handler] = of_source[handler] = None
        if len(of_source) > STRANGERS_EACH_MAX:
            self._crowd_out(next(iter(of_source)))
        elif len(self._open) > self._most:
            self._crowd_out(self._idlest(handler))
        loop = asyncio.get_running_loop()
        self._silent[handler] = loop.time()
        self._timer = self._timer or loop.call_later(SWEEP_S, self._sweep)

    def _idlest(self, newcomer: RequestHandler) -> RequestHandler:
        idlest = next(iter(self._strangers))
        if idlest is not newcomer:
            return idlest
        return next((one for one, caller in self._open.items() if not caller.is_busy), newcomer)

    def _crowd_out(self, handler: RequestHandler) -> None:
        self._counts["connections_refused"] += 1
        caller = self._open[handler]
        self._is_no_stranger(handler, caller)
        caller.transport.abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        caller = self._open.pop(handler, None)
        self._silent.pop(handler, None)
        if caller is not None:
            self._is_no_stranger(handler, caller)

    def _is_no_stranger(self, handler: RequestHandler, caller: Caller) -> None:
        self._strangers.pop(handler, None)
        of_source = self._strangers_of.get(caller.source)
        if of_source is not None:
            of_source.pop(handler, None)
            if not of_source:
                del self._strangers_of[caller.source]

    def asks(self, handler: RequestHandler) -> None:
        self._silent.pop(handler, None)
        caller = self._open.get(handler)
        if caller is not None:
            caller.is_busy = True

    def is_known(self, handler: RequestHandler) -> None:
        caller = self._open.get(handler)
        if caller is not None and not caller.is_known:
            caller.is_known = True
            self._is_no_stranger(handler, caller)

    def was_answered(self, handler: RequestHandler) -> None:
        caller = self._open.pop(handler, None)
        if caller is None:
            return
        caller.is_busy = False
        self._open[handler] = caller
        if handler in self._strangers:
            of_source = self._strangers_of[caller.source]
            del self._strangers[handler], of_source[handler]
            self._strangers[handler] = of_source[handler] = None

    @property
    def number(self) -> int:
        return len(self._open)

    def _sweep(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for handler in [one for one, since in self._silent.items() if since + HEADER_S < loop.time()]:
            self._counts["connections_closed"] += 1
            self._open[handler].transport.abort()
        if self._silent:
            self._timer = loop.call_later(SWEEP_S, self._sweep)

    async def shutdown(self, timeout: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().shutdown(timeout)
