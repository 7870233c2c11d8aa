"""What zeroconf does for one membership: the sockets of the chosen interfaces, announcing, asking, and hearing.

What it decides: zeroconf's own browser is not used. That one believes a pointer for 1,125 s at least after the last
word, asks before it resolves, and forgets whom a flood pushed out of its cache. A member says all of itself in one
record, so hearing that record is enough: every one that passes goes straight into the `Roll`.

Nothing but `Air` knows zeroconf, and this module is imported when the first membership opens, not before.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from zeroconf import (  # type: ignore[attr-defined]  # the record types are public, and not in its __all__
    DNSAddress,
    DNSOutgoing,
    DNSPointer,
    DNSQuestion,
    DNSText,
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    Zeroconf,
)
from zeroconf.asyncio import AsyncZeroconf

from softmutex.core.events import NodeId
from softmutex.ending import end
from softmutex.urls import split_address
from softmutex_adapters.memberships.mdns_places import Places
from softmutex_adapters.memberships.mdns_roll import Roll

SERVICE = "_softmutex._udp.local."
HOST_PREFIX = "softmutex-"
LABEL = re.compile("[0-9a-f]{16}")
QUERY = 0
POINTER, TEXT, INTERNET = 12, 16, 1
ASK_AGAIN_S = 0.08
SETTLE_S = 0.25  # so long a newcomer waits for those who are there already


class Air(RecordUpdateListener):
    def __init__(self, roll: Roll, places: Places, on_news: Callable[[], None]) -> None:
        """Opens the sockets: OSError where the system refuses."""
        self._roll = roll
        self._places = places
        self._on_news = on_news
        self._info: ServiceInfo | None = None
        self._announcing: asyncio.Future[Any] | None = None
        self._azc = AsyncZeroconf(interfaces=sockets_of(places))
        self._zc = self._azc.zeroconf
        self._zc.async_add_listener(self, None)

    async def start(self) -> None:
        await self._zc.async_wait_for_start()

    async def close(self) -> None:
        await self._stop_announcing()
        await self._azc.async_close()

    # --- announcing -------------------------------------------------------------------------------------------------

    async def announce(self, label: str, said: dict[str, str], address: str, ttl_s: int) -> None:
        """The name is this life's alone, so nobody is asked first whether it is taken (`cooperating_responders`)."""
        self._info = ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=split_address((address.partition("://")[2] or address).partition("/")[0])[1],
            properties=said,
            server=f"{HOST_PREFIX}{label}.local.",  # not the host's own name: another responder may own that one
            addresses=packed(self._places.announced),
            host_ttl=ttl_s,
            other_ttl=ttl_s,
        )
        self._announcing = asyncio.ensure_future(
            await self._azc.async_register_service(self._info, cooperating_responders=True)
        )

    async def announce_again(self) -> None:
        if self._info is not None:
            await self._stop_announcing()
            self._announcing = asyncio.ensure_future(await self._azc.async_update_service(self._info))

    async def say_goodbye(self) -> None:
        await self._stop_announcing()
        if self._info is not None:
            info, self._info = self._info, None
            await (await self._azc.async_unregister_service(info))  # the first one only registers the second

    async def _stop_announcing(self) -> None:
        await end(self._announcing)
        self._announcing = None

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask_all(self, known: Iterable[tuple[str, int]]) -> None:
        """All but the known ones answer by multicast, within 1.3 s."""
        self._zc.async_send(question_to_all(known))

    def ask(self, labels: Iterable[str]) -> None:
        out = DNSOutgoing(QUERY)
        for label in labels:
            out.add_question(DNSQuestion(f"{label}.{SERVICE}", TEXT, INTERNET))
        self._zc.async_send(out)

    async def look_around(self) -> None:
        """Who is there now? Asked from a port of its own, so that each one answers at once, and to us.

        On the common port an answer waits for others, up to 1.3 s where it was given a moment before; and answers to
        one of several processes of a host would reach any of them.
        """
        once = AsyncZeroconf(interfaces=sockets_of(self._places), unicast=True)
        try:
            once.zeroconf.async_add_listener(self, None)
            await once.zeroconf.async_wait_for_start()
            before = self._roll.counts["heard"]
            once.zeroconf.async_send(question_of_newcomer())
            await asyncio.sleep(ASK_AGAIN_S)
            if self._roll.counts["heard"] == before:
                once.zeroconf.async_send(question_of_newcomer())
            await asyncio.sleep(SETTLE_S - ASK_AGAIN_S)
        finally:
            closing = asyncio.ensure_future(once.async_close())
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:  # a node that leaves just now would leave these sockets open
                await closing
                raise

    # --- the interfaces ---------------------------------------------------------------------------------------------

    async def move(self, places: Places) -> None:
        """To the interfaces that are there now. One that was made anew under its old address is joined anew, too."""
        kept = self._places.sockets & places.sockets
        stale = {one for one, _ in self._places.sockets - kept} & {one for one, _ in places.sockets}
        if stale:
            await self._azc.async_update_interfaces([one for one in sockets_of(places) if one not in stale])
        await self._azc.async_update_interfaces(sockets_of(places))
        if self._info is not None and places.announced != self._places.announced:
            self._info.addresses = packed(places.announced)
            await self.announce_again()
        self._places = places

    # --- hearing ----------------------------------------------------------------------------------------------------

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        """All records of one packet. `now` and what zeroconf calls expired are its own affair: TTL 0 is a goodbye."""
        roll, before = self._roll, self._roll.version
        now_s = asyncio.get_running_loop().time()
        for update in records:
            record = update.new
            if isinstance(record, DNSText):
                id = id_of(record.name, SERVICE)
                if id and not record.ttl:
                    roll.goodbye(id, now_s)
                elif id and not record.is_expired(now):
                    roll.hear(id, record.text, float(record.ttl), now_s)
            elif isinstance(record, DNSPointer) and not record.ttl and record.name.lower() == SERVICE:
                roll.goodbye(id_of(record.alias, SERVICE), now_s)
        addresses: dict[NodeId, list[str]] = defaultdict(list)
        for update in records:
            record = update.new
            if isinstance(record, DNSAddress) and record.ttl and not record.is_expired(now):
                id = id_of(record.name.lower().removeprefix(HOST_PREFIX), "local.")
                address = address_of(record) if id else None
                if address is not None:
                    addresses[id].append(address)
        for id, heard in addresses.items():
            roll.hear_addresses(id, heard)
        if roll.version != before:
            self._on_news()

    def async_update_records_complete(self) -> None:
        """Nothing waits for zeroconf's cache."""


def question_of_newcomer() -> DNSOutgoing:
    """With a number: the same packet within 0.8 s, from the next newcomer, would be taken for a copy."""
    out = DNSOutgoing(QUERY, multicast=False, id_=random.getrandbits(16))
    out.add_question(DNSQuestion(SERVICE, POINTER, INTERNET))
    return out


def question_to_all(known: Iterable[tuple[str, int]]) -> DNSOutgoing:
    out = DNSOutgoing(QUERY)
    out.add_question(DNSQuestion(SERVICE, POINTER, INTERNET))
    for label, left_s in known:
        out.add_answer_at_time(DNSPointer(SERVICE, POINTER, INTERNET, left_s, f"{label}.{SERVICE}"), 0)
    return out


def sockets_of(places: Places) -> list[str | int]:
    if not places.sockets:
        raise OSError("no interface with an address is up")
    return sorted({one for one, _ in places.sockets}, key=str)


def packed(addresses: Iterable[str]) -> list[bytes]:
    return [socket.inet_pton(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in addresses]


def id_of(name: str, domain: str) -> NodeId:
    """0 where the name is not one of ours."""
    label, _, rest = name.lower().partition(".")
    return int(label, 16) if rest == domain and LABEL.fullmatch(label) else 0


def address_of(record: DNSAddress) -> str | None:
    try:
        if len(record.address) == 4:
            return socket.inet_ntop(socket.AF_INET, record.address)
        address = socket.inet_ntop(socket.AF_INET6, record.address)
    except ValueError:
        return None
    is_link_local = record.address[0] == 0xFE and record.address[1] & 0xC0 == 0x80
    return f"{address}%{record.scope_id}" if is_link_local and record.scope_id else address
