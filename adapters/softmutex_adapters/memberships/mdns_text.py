"""What a member says of itself in its TXT record, and what is believed of a stranger's.

    v=1  group=<fingerprint>  id=<16 hex digits>  name=ftp1-4711-a0f3  address=10.0.0.1:9431

Anybody on the network can send such a record. So `read` is total: any bytes give an `Announced` or `Unfit`, and what
will be shown to people and dialled by nodes is checked first: no control characters, no multicast address, no port 0.
The group's name is not in it, only its fingerprint; it keeps groups apart, and is no secret.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import NamedTuple

from softmutex.core.events import NodeId
from softmutex.ports import CannotOpen, Member
from softmutex.urls import join_address, split_address

VERSION = "1"
TEXT_MAX = 600  # bytes of a record
NAME_MAX = 64  # characters
VALUE_MAX = 240  # bytes; DNS-SD has 255 for key and value together
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?")
SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,15}://)?(\[[^\]/]+\]:[^/]+|[^/]+)((?:/[!-~]*)?)")


class Announced(NamedTuple):
    address: str
    name: str


class Unfit(Exception):
    """The record is not used. `reason` is the counter under which it is found in the statistics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def fingerprint(group: str) -> str:
    return hashlib.blake2b(group.encode(), digest_size=8, person=b"softmutex mdns").hexdigest()


def label_of(id: NodeId) -> str:
    return f"{id:016x}"


def write(me: Member, group: str) -> dict[str, str]:
    address = dial(me.address)
    if address is None or len(address) > VALUE_MAX:
        raise CannotOpen(
            f"mdns:// cannot announce the address {me.address!r}: others need host:port. Set advertise=host:port."
        )
    name = "".join(letter for letter in me.name if letter.isprintable())[:NAME_MAX]
    while len(name.encode()) > VALUE_MAX:
        name = name[:-1]
    return {"v": VERSION, "group": group, "id": label_of(me.id), "name": name, "address": address}


def read(text: bytes, id: NodeId, group: str) -> Announced:
    if len(text) > TEXT_MAX:
        raise Unfit("garbage")
    said = pairs(text)
    if said.get("v") != VERSION:
        raise Unfit("other_versions" if said.get("v", "").isdecimal() else "garbage")
    if said.get("group") != group:
        raise Unfit("other_groups")
    name, address = said.get("name", ""), dial(said.get("address", ""))
    if address is None or said.get("id") != label_of(id) or len(name) > NAME_MAX or not name.isprintable():
        raise Unfit("garbage")
    return Announced(address, name)


def pairs(text: bytes) -> dict[str, str]:
    """The strings `key=value` of a TXT record. Of a key that comes twice the first one counts (RFC 6763, 6.4)."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        end = at + 1 + text[at]
        try:
            key, _, value = text[at + 1 : end].decode().partition("=")
        except UnicodeDecodeError:
            raise Unfit("garbage") from None
        if end > len(text):
            raise Unfit("garbage")
        found.setdefault(key, value)
        at = end
    return found


def dial(address: str) -> str | None:
    """The address in its normal form if one can send to it, else None. A scope means nothing on another host."""
    try:
        scheme, host, port, path = parts(address)
    except ValueError:
        return None
    return f"{scheme}{join_address(host.partition('%')[0], port)}{path}"


def parts(address: str) -> tuple[str, str, int, str]:
    """scheme with `://` or empty, host, port, path; ValueError where it is no address that one could send to."""
    match = SCHEME.fullmatch(address)
    if match is None:
        raise ValueError(f"{address!r} is no address")
    scheme, place, path = match[1] or "", match[2], match[3]
    host, port = split_address(place)
    if port == 0:
        raise ValueError("port 0, where nobody can be reached")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        if HOST.fullmatch(host) is None or host.replace(".", "").isdecimal():
            raise ValueError(f"{host!r} is no host") from None
    else:
        if ip.is_multicast or ip == ipaddress.IPv4Address(0xFFFFFFFF):
            raise ValueError(f"{host} is not one host")
    return scheme, host, port, path
