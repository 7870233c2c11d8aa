"""As much of DNS as is needed to ask for A, AAAA and SRV records (RFC 1035, 2782). Pure.

What it decides: any bytes give records or `BadAnswer`, in bounded time. The naive way, following compression pointers
wherever they lead, goes in circles for ever on 20 bytes of a stranger; here a name only ever points backwards.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import NamedTuple

A, AAAA, SRV = 1, 28, 33
INTERNET = 1
RECORDS_MAX = 4096
LABEL = re.compile(rb"[A-Za-z0-9_-]{1,63}")
NAME_MAX = 255
TRUNCATED, RECURSE = 0x0200, 0x0100
NXDOMAIN = 3
ERRORS = {1: "the question was not understood", 2: "the server failed", 3: "there is no such name", 5: "refused"}


class BadAnswer(ValueError):
    """The text says what is wrong with it."""


class NoSuchName(BadAnswer):
    """Nothing is wrong with the answer: nobody is there."""


class Record(NamedTuple):
    """`text`: an address (A, AAAA), or where the service is (SRV, with its port)."""

    name: str
    kind: int
    text: str
    port: int = 0


class Answer(NamedTuple):
    records: list[Record]  # of all sections; of other kinds and classes none
    is_truncated: bool


def question(number: int, name: str, kind: int) -> bytes:
    """ValueError where `name` is none."""
    labels = name.rstrip(".").encode("ascii").split(b".")
    if not all(LABEL.fullmatch(label) for label in labels) or sum(map(len, labels)) + len(labels) > NAME_MAX:
        raise ValueError(f"{name!r} is no name of the DNS")
    written = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">6H", number, RECURSE, 1, 0, 0, 0) + written + struct.pack(">2H", kind, INTERNET)


def read(data: bytes, asked: bytes) -> Answer:
    """What answers the question `asked`."""
    try:
        return _read(data, asked)
    except (struct.error, IndexError, UnicodeDecodeError, ipaddress.AddressValueError) as error:
        raise BadAnswer(f"no answer of the DNS ({error})") from None


def _read(data: bytes, asked: bytes) -> Answer:
    number, flags, questions, *counts = struct.unpack_from(">6H", data)
    if (number, questions) != (struct.unpack_from(">H", asked)[0], 1) or not flags & 0x8000:
        raise BadAnswer("the answer to another question")
    if data[12 : len(asked)].lower() != asked[12:].lower():
        raise BadAnswer("the answer to a question about something else")
    if code := flags & 15:
        raise (NoSuchName if code == NXDOMAIN else BadAnswer)(ERRORS.get(code, f"error {code}"))
    if sum(counts) > RECORDS_MAX:
        raise BadAnswer(f"an answer of {sum(counts)} records")
    records, place = [], len(asked)
    try:
        for _ in range(sum(counts)):
            name, place = _name(data, place)
            kind, in_class, _, size = struct.unpack_from(">2HIH", data, place)
            place += 10
            if place + size > len(data):
                raise IndexError("a record goes beyond the end")
            if in_class == INTERNET:
                records += _record(data, name, kind, place, size)
            place += size
    except (struct.error, IndexError):
        if not flags & TRUNCATED:  # where it is cut off, what is whole counts
            raise
    return Answer(records, bool(flags & TRUNCATED))


def _record(data: bytes, name: str, kind: int, place: int, size: int) -> list[Record]:
    if kind == A:
        return [Record(name, kind, str(ipaddress.IPv4Address(data[place : place + size])))]
    if kind == AAAA:
        return [Record(name, kind, str(ipaddress.IPv6Address(data[place : place + size])))]
    if kind == SRV:
        (port,) = struct.unpack_from(">H", data, place + 4)
        target, _ = _name(data, place + 6)
        return [Record(name, kind, target, port)]
    return []


def _name(data: bytes, place: int) -> tuple[str, int]:
    """The name there, in lower case and without the last dot, and what comes after it."""
    labels: list[str] = []
    after, limit, length = 0, place + 1, 0
    while size := data[place]:
        if size >= 0xC0:
            target = struct.unpack_from(">H", data, place)[0] & 0x3FFF
            after = after or place + 2
            if target >= limit - 1:
                raise BadAnswer("a name that points forward")
            place, limit = target, target + 1
            continue
        if size >= 0x40:
            raise BadAnswer("a label of an unknown kind")
        label = data[place + 1 : place + 1 + size]
        length += size + 1
        if len(label) < size or length > NAME_MAX:
            raise BadAnswer("a name without an end")
        labels.append(label.decode("ascii").lower())
        place += 1 + size
    return ".".join(labels), after or place + 1
