"""The event sequence of a run as numbers: its digest, its trace file, and the same run again.

Every event that a machine handles becomes a few 64-bit numbers: when, who, what. The digest is SHA-256 over all
of them, little-endian. Nothing in there depends on the machine, the Python version or the hash seed: no floats, no
`hash()`, no text but as its CRC-32.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from hashlib import sha256
from typing import Any, get_type_hints
from zlib import crc32

from softmutex.core.events import Token
from softmutex.core.messages import KINDS

CHUNK = 1 << 14
MASK = (1 << 64) - 1
# What an event is: the low four bits of its second number. The rest of it is the node.
FIRED, RECEIVED, REQUESTED, WITHDRAWN, RELEASED, STARTED, MEMBERS, LEAVING = range(8)

_NUMBER = {kind: number for number, (_, kind) in KINDS.items()}


def code_of(name: object) -> int:
    """A number for a timer's name or a class that has no number on the wire."""
    return crc32(repr(name).encode())


def numbers_in(value: Any, out: list[int]) -> None:
    """Whatever a message may consist of, as numbers; a sequence tells its length first, so nothing is ambiguous."""
    if isinstance(value, int):
        out.append(value & MASK)
    elif isinstance(value, str):
        out.append(crc32(value.encode()))
    elif isinstance(value, bytes):
        out.append(crc32(value))
    elif isinstance(value, (tuple, list)):
        out.append(len(value))
        for each in value:
            numbers_in(each, out)
    elif value is None:
        out.append(MASK)
    else:
        raise TypeError(f"a message with a {type(value).__name__} in it ({value!r}) has no place in a trace")


class Recorder:
    """Eats events, yields a digest. `sink` gets the same bytes, for a trace file or a comparison."""

    def __init__(self, sink: Callable[[bytes], None] | None = None) -> None:
        self.words: list[int] = []
        self._hash = sha256()
        self._sink = sink
        self._shape: dict[type, tuple[int, int]] = {}  # class -> its number, where its token is (-1 none, -2 unknown)

    def received(self, message: Any) -> None:
        """The content of a message, after its event's first numbers."""
        kind = type(message)
        shape = self._shape.get(kind)
        if shape is None:
            shape = self._shape[kind] = _shape_of(kind)
        number, at = shape
        words = self.words
        words.append(number)
        if at == -1:
            words.extend(message)
        elif at >= 0:
            token = message[at]
            words.extend(message[:at])
            words.extend(token[:5])
            if token[5] or token[6] or token[7]:
                numbers_in(token[5:], words)
            words.extend(message[at + 1 :])
        else:
            numbers_in(tuple(message), words)

    def flush(self) -> None:
        words = self.words
        try:
            numbers = array("Q", words)
        except OverflowError:
            numbers = array("Q", [word & MASK for word in words])
        if sys.byteorder == "big":
            numbers.byteswap()
        data = numbers.tobytes()
        self._hash.update(data)
        if self._sink is not None:
            self._sink(data)
        words.clear()

    def digest(self) -> str:
        self.flush()
        return self._hash.hexdigest()


def _shape_of(kind: type) -> tuple[int, int]:
    """Plain numbers and one token are what nearly all messages consist of, and are written without looking twice."""
    number = _NUMBER.get(kind, 0) or code_of(kind.__name__)
    hints = list(get_type_hints(kind).values())
    others = [at for at, hint in enumerate(hints) if hint not in (int, bool)]
    if not others:
        return number, -1
    if len(others) == 1 and hints[others[0]] is Token:
        return number, others[0]
    return number, -2
