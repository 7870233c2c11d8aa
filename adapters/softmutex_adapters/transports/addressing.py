"""Under which address do others reach a socket that was bound to a wildcard?

The naive way, giving out `0.0.0.0:9431`, sends every peer to itself. The host's own name is no better: Debian lets it
point to 127.0.1.1. So the kernel is asked which of its addresses it would use towards the rest of the world; the
socket that asks sends nothing. A host of a laboratory has no way to there: then an address of one of its interfaces.
"""

from __future__ import annotations

import asyncio
import os
import socket
from ipaddress import ip_address
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen
from softmutex.urls import host_of, is_loopback, join_address, split_address

WILDCARDS = frozenset({"0.0.0.0", "::"})
# Addresses that documentation reserves: routed by default, owned by nobody.
ELSEWHERE = {socket.AF_INET: ("203.0.113.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}
VERSIONS: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 6}
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def reachable_address(bound: socket.socket, advertise: str | None) -> str:
    """What to tell others: `advertise` where given (its port may be left out), else where `bound` can be reached."""
    host, port = bound.getsockname()[:2]
    if advertise is not None:
        return join_address(*check_advertised(advertise, default_port=port))
    if host not in WILDCARDS:
        return socket_address(bound.getsockname())
    families = [bound.family]
    if bound.family == socket.AF_INET6 and not bound.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        families.append(socket.AF_INET)
    for family in families:
        if own := address_towards_the_world(family) or address_of_an_interface(family):
            return join_address(own, port)
    return join_address(LOOPBACK[bound.family], port)


def is_on_this_host(bound: socket.socket, address: str) -> bool:
    """T8: neither where it listens nor what it shows concerns another host. A wildcard may show a loopback address
    where there is no network, and behind a loopback address that shows another one there is somebody who forwards."""
    return is_loopback(bound.getsockname()[0]) and is_loopback(
        host_of(f"//{address.partition('://')[2] or address}") or ""
    )


def address_towards_the_world(family: int) -> str | None:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(ELSEWHERE[socket.AddressFamily(family)])
            return str(probe.getsockname()[0])
    except OSError:
        return None  # no route in this family


def address_of_an_interface(family: int) -> str | None:
    """The first that others can reach; where there are several networks, `advertise` says which is meant."""
    import ifaddr  # comes with zeroconf; costs a few milliseconds

    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            own = each.ip if isinstance(each.ip, str) else each.ip[0]
            found = ip_address(own)
            if found.version == VERSIONS[family] and not (found.is_loopback or found.is_link_local):
                return own
    return None


def check_advertised(advertise: str, *, default_port: int = 0) -> tuple[str, int]:
    try:
        host, port = split_address(advertise, default_port=default_port)
    except ValueError as error:
        raise ConfigError(f"advertise: {error}. Give the host:port under which others reach this node.") from None
    if host in WILDCARDS:
        raise ConfigError(f"advertise={advertise} is a wildcard, which nobody can send to. Give the address itself.")
    return host, port or default_port


def socket_address(sockaddr: Any) -> str:
    """A socket's address as one string. IPv4 within IPv6 is written as IPv4; a link-local one keeps its interface."""
    host, port = sockaddr[:2]
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    elif len(sockaddr) == 4 and sockaddr[3] and "%" not in host:
        host = f"{host}%{sockaddr[3]}"
    return join_address(host, port)


def by_number(host: str, port: int, kind: socket.SocketKind) -> list[Any]:
    """Where the host is an address there is nothing to wait for, and so no thread for it. As bytes: of a text Python
    makes a name of any language first, and loads what it takes for that."""
    try:
        flags = socket.AI_PASSIVE | socket.AI_NUMERICHOST
        return socket.getaddrinfo(host.encode("ascii"), port, type=kind, flags=flags)
    except (OSError, UnicodeError):
        return []


async def bind(host: str, port: int, kind: socket.SocketKind, what: str) -> socket.socket:
    """A non-blocking socket of `kind` bound to host:port; `::` takes IPv4 too, where the platform can."""
    loop = asyncio.get_running_loop()
    try:
        found = by_number(host, port, kind) or await loop.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotOpen(
            f"{what}: the host {host!r} cannot be resolved ({error}). Bind to an address of this host."
        ) from None
    # A name with both kinds of address stands for the older one, which everybody has.
    family, _, _, _, sockaddr = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    bound = None
    try:
        bound = socket.socket(family, kind)
        bound.setblocking(False)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        if kind == socket.SOCK_STREAM:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(sockaddr)
        if kind == socket.SOCK_STREAM:
            bound.listen()  # only this tells whether another server has the port
        return bound
    except OSError as error:
        if bound is not None:
            bound.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise CannotOpen(
            f"{what}: cannot bind to {join_address(host, port)} ({reason}). "
            "Name an address of this host and a free port, or port 0 for any."
        ) from None
