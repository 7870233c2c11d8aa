"""Members are who a name in the DNS stands for, as headless services give it.

    dns://softmutex.default.svc:9431?refresh=5        A and AAAA records, each at that port
    dns://_softmutex._udp.example.com                 SRV records, which name the port of each
    ...&server=10.0.0.2:53                            ask this one, and not those of the system

What it decides: whoever keeps the name decides who is in it; this node writes nothing. The naive way, to look up once,
or to believe an empty answer, loses the group to one failing name server. So names are asked for again every `refresh`
seconds, and where nothing comes, or no address, the last list stands.

Addresses come from the system's resolver (with its files and search paths); SRV records, which that cannot ask for, and
everything with `server`, by a small one of its own: UDP, then TCP where the answer was cut off.

There is no `complete` (membership.M7): a name server may be a minute behind. Until it has said something, if only that
there is no such name, the list is `pending` (M8).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Self

from softmutex.core.errors import ConfigError
from softmutex.saying import logger
from softmutex.urls import Url, join_address, split_address
from softmutex_adapters.memberships import dns_wire
from softmutex_adapters.memberships.dns_resolver import RESOLV_CONF, ask, ask_within, read_resolv_conf
from softmutex_adapters.memberships.dns_wire import AAAA, SRV, A, BadAnswer, NoSuchName
from softmutex_adapters.memberships.looked_up import LookedUpMembership

log = logger("membership")

REFRESH_S = 5.0
RETRY_S = 0.5
LOOKUP_S = 10.0
FIRST_LIST_S = 0.5
MEMBERS_MAX = 10_000
TARGETS_AT_ONCE = 8
NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


class DnsMembership(LookedUpMembership):
    def __init__(
        self, name: str, port: int | None = None, *, refresh: float = REFRESH_S, server: tuple[str, int] | None = None
    ) -> None:
        super().__init__(refresh, RETRY_S, ["lookups", "lookups_failed"])
        self._name, self._port, self._server = name, port, server
        try:
            dns_wire.question(0, name, A)
        except (ValueError, UnicodeEncodeError):
            raise ConfigError(f"dns://{name}: {name!r} is no name of the DNS. Write dns://name:port.") from None
        if (port is None) is not name.startswith("_"):
            raise ConfigError(
                f"dns://{name}: write dns://name:port for addresses, or dns://_service._udp.name, whose SRV records "
                "name the ports."
            )
        self._found: tuple[str, ...] = ()
        self._targets: dict[tuple[str, int], list[str]] = {}  # of SRV records
        self._is_read = False
        self._listed = asyncio.Event()

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        refresh = parts.number("refresh", REFRESH_S, low=0.1, high=86_400.0)
        asked = parts.text("server")
        parts.finish()
        place = parts.place.removesuffix("/")
        try:
            server = split_address(asked, default_port=53) if asked else None
            if place.startswith("_"):
                return cls(place, refresh=refresh, server=server)
            name, port = split_address(place)
        except ValueError as error:
            parts.refuse(f"{error}; write dns://name:port, or dns://_service._udp.name")
        return cls(name, port, refresh=refresh, server=server)

    async def _before_first_list(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST_S):
                await self._listed.wait()

    async def aclose(self) -> None:
        self._listed.set()
        await super().aclose()

    @property
    def pending(self) -> Sequence[str]:
        """M8."""
        return () if self._is_read else (f"dns://{self._name}",)

    def _shown_as(self) -> Mapping[str, str]:
        return {self._as_mine(address): "" for address in self._found}

    def _as_mine(self, address: str) -> str:
        """As the addresses of this node's transport are written: a name server knows no `http://`."""
        scheme, is_url, _ = self._me.partition("://")
        return f"{scheme}://{address}" if is_url else address

    # --- looking up -------------------------------------------------------------------------------------------------

    def _needs_looking_up(self) -> bool:
        return True

    async def _look_up_all(self) -> bool:
        self._counts["lookups"] += 1
        try:
            async with asyncio.timeout(LOOKUP_S):
                port = self._port
                found = await self._services() if port is None else await self._resolve(self._name, port)
            if not found:
                raise NoSuchName("it has no address")
            self._is_read = True
            self._found = tuple(sorted(set(found))[:MEMBERS_MAX])
        except (OSError, UnicodeError, BadAnswer) as error:  # TimeoutError is an OSError
            self._is_read = self._is_read or is_nobody(error)
            self._counts["lookups_failed"] += 1
            self._tell(str(error) or "no answer")
            return False
        else:
            self._tell("")
            return True
        finally:
            self._listed.set()

    def _tell(self, trouble: str) -> None:
        """Once, and once again when all is well."""
        if trouble and not self._is_told:
            known = len(self._found)
            stands = f"the last list ({known} members) stands" if known else "this node is alone until there is one"
            log.warning("dns://%s: %s; %s. Does `getent hosts` or `dig` know the name?", self._name, trouble, stands)
        elif not trouble and self._is_told:
            log.warning("dns://%s: answers again (%d members)", self._name, len(self._found))
        self._is_told = bool(trouble)

    async def _resolve(self, name: str, port: int) -> list[str]:
        if self._server is None:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
            return [join_address(str(entry[4][0]), port) for entry in found]
        answers = await asyncio.gather(*(ask([self._server], name, kind) for kind in (A, AAAA)))
        return [join_address(one.text, port) for answer in answers for one in answer.records if one.kind in (A, AAAA)]

    async def _services(self) -> list[str]:
        servers, domains = ([self._server], [""]) if self._server else read_resolv_conf(RESOLV_CONF)
        answer = await ask_within(servers, self._name, SRV, domains)
        told: dict[str, list[str]] = {}
        for one in answer.records:
            if one.kind in (A, AAAA):
                told.setdefault(one.name, []).append(one.text)
        at_once = asyncio.Semaphore(TARGETS_AT_ONCE)

        async def resolve(target: str, port: int) -> list[str]:
            """A target that cannot be looked up keeps the addresses that it had."""
            if target in told:
                return [join_address(text, port) for text in told[target]]
            with contextlib.suppress(OSError, UnicodeError, BadAnswer):
                async with at_once:
                    return await self._resolve(target, port)
            return self._targets.get((target, port), [])

        services = list(dict.fromkeys((one.text, one.port) for one in answer.records if one.kind == SRV))
        found = await asyncio.gather(*(resolve(*service) for service in services[:MEMBERS_MAX]))
        self._targets = dict(zip(services, found, strict=False))
        return [address for addresses in found for address in addresses]


def is_nobody(error: Exception) -> bool:
    """Whether that is an answer: nobody has this name, for now."""
    return isinstance(error, NoSuchName) or (isinstance(error, socket.gaierror) and error.errno in NO_SUCH_NAME)
