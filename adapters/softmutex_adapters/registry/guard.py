"""Who may come in, how often, and how much: tokens, rates and connections.

What it decides: whoever connects has bounded time, bytes and requests, before anything is looked up for him. The naive
way, one shared secret compared with `==` and a server with defaults, tells the secret by its timing, and keeps a socket
for everybody who connects and says nothing.

    --token-file: one line a token. `TOKEN` opens every group, `GROUP TOKEN` that one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from softmutex.core.errors import ConfigError

TOKEN_MIN = 16
BUCKETS_MAX = 65_536
HEADER_S = 10.0
SWEEP_S = 5.0
BODY_MAX = 4096


class Tokens:
    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._tokens: list[tuple[str, bytes]] = []  # the group, or "" for all
        for line in lines:
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 2:
                raise ConfigError(f"the token file has a line of {len(words)} words. Write TOKEN, or GROUP TOKEN.")
            if len(words[-1]) < TOKEN_MIN:
                raise ConfigError(f"the token file has a token of under {TOKEN_MIN} characters: it could be guessed.")
            self._tokens.append((words[0] if len(words) == 2 else "", words[-1].encode()))

    @classmethod
    def from_file(cls, path: str) -> Tokens:
        try:
            tokens = cls(Path(path).read_text().splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {path} cannot be read: {error}.") from None
        if not tokens:
            raise ConfigError(f"the token file {path} holds no token. Write one a line: TOKEN, or GROUP TOKEN.")
        return tokens

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def allow(self, authorization: str, group: str) -> bool:
        """`group` "": all of them. Each token is compared, and each in constant time."""
        kind, _, shown = authorization.partition(" ")
        given = shown.strip().encode("utf-8", "surrogateescape") if kind.lower() == "bearer" else b""
        fits = [
            hmac.compare_digest(given, token)
            for its_group, token in self._tokens
            if not its_group or its_group == group
        ]
        return any(fits) or not self._tokens


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


class Connections(web.Server):
    """Closes who connects and asks nothing within HEADER_S, and who is one too many."""

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
        self._open: dict[RequestHandler, asyncio.Transport] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if len(self._open) > self._most:
            self._counts["connections_refused"] += 1
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._silent[handler] = loop.time()
        self._timer = self._timer or loop.call_later(SWEEP_S, self._sweep)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)
        self._silent.pop(handler, None)

    def spoke(self, handler: RequestHandler) -> None:
        self._silent.pop(handler, None)

    @property
    def number(self) -> int:
        return len(self._open)

    def _sweep(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for handler in [one for one, since in self._silent.items() if since + HEADER_S < loop.time()]:
            self._counts["connections_closed"] += 1
            self._open[handler].abort()
        if self._silent:
            self._timer = loop.call_later(SWEEP_S, self._sweep)

    async def shutdown(self, timeout: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().shutdown(timeout)
