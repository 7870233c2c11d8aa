"""The event sequence of a run as numbers: its digest, its trace file, and the same run again.

Every event that a machine handles becomes a few 64-bit numbers, the digest is SHA-256 over all of them, little-endian:

    when, who << 36 | sender << 8 | what, and then
        a timer       CRC-32 of its name
        a message     its fields; of a token epoch, id, hop and whoever is queued in it
        the rest      the request, or who joined and left

Nothing in there depends on the machine, the Python version or the hash seed: no floats, no `hash()`, no text but as its
CRC-32.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any, get_type_hints
from zlib import crc32

from softmutex.core.events import Instant, NodeId, Token
from softmutex.core.wire import number_of

CHUNK = 1 << 14
MASK = (1 << 64) - 1
# What an event is. Messages follow: 16 + their number on the wire, or 255 and a CRC-32 for those that have none.
FIRED, REQUESTED, WITHDRAWN, RELEASED, STARTED, MEMBERS, LEAVING, SLEPT, SILENCED, REACH, RETURNED = range(11)
MESSAGES, NAMELESS = 16, 255


def code_of(name: object) -> int:
    """A number for a timer's name or a class that has no number on the wire."""
    return crc32(repr(name).encode())


@cache
def numbers_of(kind: type) -> int:
    """How many a tuple of this class has, where it has nothing else; 0 for all other classes."""
    hints = _hints(kind) if issubclass(kind, tuple) and hasattr(kind, "_fields") else []
    return len(hints) if all(hint in (int, bool) for hint in hints) else 0


def numbers_in(value: Any, out: list[int]) -> None:
    """Whatever a message may consist of, as numbers; a sequence tells its length first, so nothing is ambiguous."""
    if isinstance(value, (tuple, list)):
        out.append(len(value))
        for each in value:
            kind: Any = type(each)
            if kind is int or kind is bool:
                out.append(each)
            elif length := numbers_of(kind):
                out += (length, *each)
            else:
                numbers_in(each, out)
    elif isinstance(value, int):  # bool and enumerations too
        out.append(int(value))
    elif isinstance(value, str):
        out.append(crc32(value.encode()))
    elif isinstance(value, bytes):
        out.append(crc32(value))
    elif value is None:
        out += (MASK, 0)
    else:
        raise TypeError(f"a message with a {type(value).__name__} in it ({value!r}) has no place in a trace")


class Recorder:
    """Eats events, yields a digest. `sink` gets the same bytes, for a trace file or a comparison."""

    def __init__(self, sink: Callable[[bytes], None] | None = None) -> None:
        self.words: list[int] = []
        self._hash = sha256()
        self._sink = sink
        self._shapes: dict[type, tuple[int, int, int]] = {}  # class -> its number, where its token is, and its code

    def received(self, at: Instant, node: NodeId, sender: NodeId, message: Any) -> None:
        kind = type(message)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = _shape_of(kind)
        number, where, code = shape
        words = self.words
        if where >= 0:
            token = message[where]
            words += (at, node << 36 | sender << 8 | number, message[0], token[0], token[2], token[3])
            if token[5]:
                words.append(len(token[5]))
                for ticket in token[5]:
                    words += (2, *ticket)
        elif where == PLAIN:
            words += (at, node << 36 | sender << 8 | number, *message)
        else:
            words += (at, node << 36 | sender << 8 | number, code)
            numbers_in(message, words)

    def flush(self) -> None:
        words = self.words
        try:
            numbers = array("Q", words)
        except OverflowError:
            numbers = array("Q", [word & MASK for word in words])  # a clock may show a time before 1970
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


PLAIN, ANYTHING = -1, -2


def _hints(kind: type) -> list[Any]:
    try:
        return list(get_type_hints(kind).values())
    except NameError:  # declared where only the type checker looks
        return [Any]


def _shape_of(kind: type) -> tuple[int, int, int]:
    """Plain numbers and one token are what nearly all messages consist of, and are written without looking twice."""
    on_the_wire, code = number_of(kind), code_of(kind.__name__)
    number = NAMELESS if on_the_wire is None else MESSAGES + on_the_wire
    hints = _hints(kind)
    others = [at for at, hint in enumerate(hints) if hint not in (int, bool)]
    if not others and number != NAMELESS:
        return number, PLAIN, code
    if others and others[0] > 0 and hints[others[0]] is Token and len(others) == 1:
        return number, others[0], code
    return number, ANYTHING, code
