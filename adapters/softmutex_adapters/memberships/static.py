"""A fixed list of addresses: `static://ftp1:9431,ftp2:9431`. For sites where multicast and registries are not wanted.

What it decides: host names are looked up here, again and again, and a name that gives several addresses gives several
members. The naive way, looking up once at start, talks for ever to the address that a restarted container had before;
and one dead name server at start would keep a node from starting at all.

So: literal addresses are shown at once, names as soon as they are known, and until then they are `pending`
(membership.M8): whoever is new makes no token before. A name that cannot be looked up keeps the addresses it had, and
is tried again after RETRY_S, 2 RETRY_S, ... up to `refresh`.

There is no `complete` (membership.M7): an address that a name no longer has says nothing of the node that was there.

An entry with `://` in it (the address of an HTTP transport) is passed on as it is. Where this node's own address is
such a one, so are all: `ftp1:9431` is read as `https://ftp1:9431`, and that name is looked up by the transport, which
has to find it in the certificate. Passed on bare, the list would name nobody whom that transport can reach.

A name that nobody knows leaves a node alone in the end, as if it were meant to be: so that is told, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from softmutex.core.errors import ConfigError
from softmutex.ports import Member
from softmutex.saying import logger
from softmutex.urls import Url, host_of, is_loopback, join_address, split_address
from softmutex_adapters.memberships.looked_up import LookedUpMembership

log = logger("membership")

REFRESH_S = 30.0
RETRY_S = 1.0
LOOKUP_S = 10.0
LOOKUPS_AT_ONCE = 4  # a dead name server must not take all threads of the application's executor


class StaticMembership(LookedUpMembership):
    """`static://a:9431,b:9431,[fd00::1]:9431?refresh=seconds`

    Every member may be given the same list: a node's own address is left out where it is told by `join`, and what
    else turns out to be the node itself (another name of it) it finds out by greeting itself.
    """

    def __init__(self, addresses: Iterable[str], *, refresh: float = REFRESH_S) -> None:
        super().__init__(refresh, RETRY_S, ["lookups", "lookups_failed"])
        self._found: dict[str, tuple[str, ...]] = {}
        for entry in addresses:
            address, is_name = read_entry(entry)
            self._found[address] = () if is_name else (address,)
        if not self._found:
            raise ConfigError("static:// names no address. Write static://host1:9431,host2:9431.")
        self._names = [address for address, found in self._found.items() if not found]
        self._asked: set[str] = set()  # names that were looked up, with or without success

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        refresh = parts.number("refresh", REFRESH_S, low=0.1)
        parts.finish()
        return cls([entry.strip() for entry in parts.place.split(",") if entry.strip()], refresh=refresh)

    async def join(self, me: Member) -> None:
        scheme, is_url, _ = me.address.partition("://")
        if is_url:
            await self._stop_looking_up()
            entries = [entry if "://" in entry else f"{scheme}://{entry}" for entry in self._found]
            self._found, self._names = {entry: (entry,) for entry in entries}, []
        await super().join(me)

    @property
    def pending(self) -> Sequence[str]:
        """M8: names that are being looked up for the first time."""
        return tuple(name for name in self._names if name not in self._asked)

    @property
    def unresolved(self) -> tuple[str, ...]:
        return tuple(name for name in self._names if name in self._asked and not self._found[name])

    @property
    def on_this_host(self) -> bool:
        """M9: nothing else is in the list. (Of a name nothing is known before it is looked up.)"""
        return all(is_loopback(host_of(f"//{entry.partition('://')[2] or entry}") or "") for entry in self._found)

    def _shown_as(self) -> Mapping[str, str]:
        return {address: entry for entry, found in self._found.items() for address in found}

    def _needs_looking_up(self) -> bool:
        return bool(self._names)

    async def _look_up_all(self) -> bool:
        at_once = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        well = await asyncio.gather(*(self._look_up(name, at_once) for name in self._names))
        self._tell()
        return all(well)

    def _tell(self) -> None:
        """Once, and once again when all names are known. A name that keeps its old addresses is no news."""
        unknown = [name for name in self._names if not self._found[name]]
        if unknown and not self._is_told:
            if any(self._found.values()):
                what, so = f"{', '.join(unknown)} cannot be resolved", "this node goes on without who is there"
            else:
                what, so = f"no name of static://{','.join(unknown)} can be resolved", "this node is alone"
            log.warning("%s; %s until it can. Does `getent hosts` know the name?", what, so)
        elif not unknown and self._is_told:
            log.warning("all names of static://%s can be resolved now", ",".join(self._found))
        self._is_told = bool(unknown)

    async def _look_up(self, name: str, at_once: asyncio.Semaphore) -> bool:
        host, port = split_address(name)
        async with at_once:
            self._counts["lookups"] += 1
            with contextlib.suppress(OSError, UnicodeError):  # TimeoutError is an OSError
                async with asyncio.timeout(LOOKUP_S):
                    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
                self._found[name] = tuple(sorted({join_address(str(entry[4][0]), port) for entry in found}))
                self._has_asked(name)
                return True
            self._counts["lookups_failed"] += 1
            self._has_asked(name)
            return False

    def _has_asked(self, name: str) -> None:
        """The others may take their time."""
        if name not in self._asked:
            self._asked.add(name)
            self._changed.set()


def read_entry(entry: str) -> tuple[str, bool]:
    """An entry of the list in its normal form, and whether it has to be looked up."""
    if "://" in entry:
        return entry, False
    try:
        host, port = split_address(entry)
        if port == 0:
            raise ValueError(f"{entry!r} has port 0, where nobody can be reached")
    except ValueError as error:
        raise ConfigError(f"static://: {error}. Write static://host1:9431,host2:9431.") from None
    try:
        return join_address(str(ipaddress.ip_address(host)), port), False
    except ValueError:
        return join_address(host, port), True
