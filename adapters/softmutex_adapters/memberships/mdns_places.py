"""The interfaces of this host, which of them are used, and under which address another member is reached from here.

What it decides: a node that is bound to a wildcard cannot know which of its addresses others see, and where there is no
default route it may even announce a loopback address. The naive way, taking the announced address as it is, then sends
everybody to himself. So a member announces the addresses of its interfaces, too, and whoever reads it chooses:

    announced                       it shares an address with this host    it is another host
    10.0.0.1:9431, ftp1:9431        as it is                               as it is
    127.0.0.1:9431, 0.0.0.0:9431    on loopback                            the best of its record's addresses, port 9431
    [fe80::1]:9431                  the same address, with the scope of the interface here through which it was heard

Who has announced no address but loopback ones was heard on loopback, so it is on this host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import ifaddr  # comes with zeroconf, which cannot do without it

from softmutex.ports import CannotOpen
from softmutex.urls import join_address
from softmutex_adapters.memberships.mdns_text import parts

ADDRESSES_MAX = 8  # that one member announces, or is believed to have

Socket = tuple[str | int, int]  # what zeroconf wants, an IPv4 address or (for IPv6) an interface's index; and the index
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Places:
    """What there is now."""

    sockets: frozenset[Socket] = frozenset()
    announced: tuple[str, ...] = ()  # addresses for the record
    own: frozenset[str] = frozenset()  # every address of this host
    networks: tuple[Network, ...] = ()  # that are reached without a router


def look(chosen: Sequence[str], ip: str) -> Places:
    """`chosen` names interfaces or addresses; empty for all. OSError where the system does not tell."""
    adapters = [adapter for adapter in ifaddr.get_adapters() if adapter.ips]
    sockets: set[Socket] = set()
    announced: list[str] = []
    networks: list[Network] = []
    for adapter in adapters:
        addresses = [(text_of(one.ip), one.network_prefix) for one in adapter.ips]
        used = [one for one in addresses if is_chosen(adapter.name, one[0], chosen)]
        v4 = [text for text, _ in used if ":" not in text]
        v6 = [text for text, _ in used if ":" in text]
        index = adapter.index or 0
        if v4 and ip != "6":
            sockets.add((v4[0], index))
        if v6 and ip != "4" and (ip == "6" or chosen or not is_loopback(v6[0])):  # IPv4 does for loopback
            sockets.add((index, index))
        announced += [text for text, _ in used if not is_loopback(text)]
        networks += [ipaddress.ip_network(f"{text}/{bits}", strict=False) for text, bits in used]
    own = frozenset(text_of(one.ip) for adapter in adapters for one in adapter.ips)
    return Places(frozenset(sockets), tuple(announced[:ADDRESSES_MAX] or ["127.0.0.1"]), own, tuple(networks))


def check_chosen(chosen: Sequence[str]) -> None:
    """An interface that is not there is most likely a typing error. Only `join` says so: `watch` waits for it."""
    adapters = ifaddr.get_adapters()
    for one in chosen:
        if not any(is_chosen(adapter.name, text_of(ip.ip), [one]) for adapter in adapters for ip in adapter.ips):
            names = ", ".join(dict.fromkeys(adapter.name for adapter in adapters if adapter.ips)) or "none"
            raise CannotOpen(
                f"mdns://: there is no interface, and no address of one, {one!r} (with an address: {names}). "
                "Write interfaces=name,address or leave it out for all."
            )


def is_chosen(interface: str, address: str, chosen: Sequence[str]) -> bool:
    return not chosen or interface in chosen or address in chosen


def text_of(ip: str | tuple[str, int, int]) -> str:
    return ip if isinstance(ip, str) else ip[0].partition("%")[0]


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_v6_link_local(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.version == 6 and ip.is_link_local


def reachable(address: str, of_record: Iterable[str], here: Places) -> str | None:
    """Where to send to the member that announced `address` in a record with these addresses. None: nowhere."""
    scheme, host, port, path = parts(address)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return address
    is_v6_link = is_v6_link_local(host)
    if not (ip.is_loopback or ip.is_unspecified or is_v6_link):
        return address
    elsewhere = [other for other in of_record if not is_loopback(other)]
    usable = [other for other in elsewhere if "%" in other or not is_v6_link_local(other)]
    chosen: str | None
    if is_v6_link:
        chosen = next((other for other in usable if other.partition("%")[0] == host), None)
    elif not elsewhere or any(other.partition("%")[0] in here.own for other in elsewhere):
        chosen = host if ip.is_loopback else ("127.0.0.1" if ip.version == 4 else "::1")
    else:
        chosen = min(usable, key=lambda other: remoteness(other, ip.version, here), default=None)
    return None if chosen is None else f"{scheme}{join_address(chosen, port)}{path}"


def remoteness(address: str, version: int, here: Places) -> tuple[bool, bool, bool, str]:
    ip = ipaddress.ip_address(address.partition("%")[0])
    is_near = any(ip in network for network in here.networks)
    return ip.version != version, not is_near, ip.is_link_local, address
