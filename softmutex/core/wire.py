"""Frames: what travels between two nodes, and nothing else does. This page is enough to implement it from.

What it decides: which bytes are a frame. The naive way (JSON, pickle, "be liberal in what you accept") lets a stranger
choose how much memory and time a node spends, and gives one message many spellings, so that nothing can be compared
or signed. Here a frame has one spelling, every part has a bound, and whatever else arrives is `BadFrame`.

    byte   0       2         3        4        12        20                               (all numbers big-endian)
           +-------+---------+--------+--------+---------+- - - - - - +--------------------------------------+
           | magic | version | key id | sender | counter | tag (16)  | receiver | n | mutex | kind | fields  |
           |  AB 4D|   01    |   u8   |  u64   |   u64   | if sealed |   u64    | u8| n x u8|  u8  |   ...   |
           +-------+---------+--------+--------+---------+- - - - - - +--------------------------------------+
            \\_______________ header, 20 bytes __________/             \\_________________ body ______________/

    magic, version   stand in these three bytes in every version to come. A frame of another version is `OtherVersion`.
    key id           0: not sealed. There is no tag and the counter is 0. 1..255: sealed with the group key of this id
                     (`runtime/sealing.py`); the body is encrypted, the header is not, but nobody can change it unseen.
    sender           the node that sends, never 0.
    counter          of sealed frames: how many frames this sender has sealed before. With bit 63 set a certificate and
                     a signature precede the body (`runtime/identity.py`).
    receiver         the node that is meant, or 0: whoever gets it (greetings).
    mutex            its name in UTF-8, at most 64 bytes; empty: the message concerns the node as a whole.
    kind, fields     which message (`kinds`), then its fields in order of declaration.

How a field is written:

    u64      8 bytes                                i64    8 bytes, two's complement
    varint   0 to 2**64-1, seven bits a byte, the lowest first, bit 7 set on all but the last. The shortest form only
    flag     one byte, 0 or 1                       enum   one byte, one of the values declared
    bytes    varint length, then the bytes          text   the same, and the bytes are UTF-8
    tuple    varint count, then the items           record its fields in order of declaration
    X|None   flag; if 1, X

W1  Total: `decode` gives a `Frame` or raises `BadFrame`, for any bytes, in bounded time.
W2  Canonical: `encode(decode(b)) == b` for all `b` that are accepted, and `decode(encode(f)) == f` for all that fit.
W3  Bounded: no frame is over 1,400 bytes, which passes every common path unfragmented. The bounds of the declarations
    add up to less, or `learn` refuses them: no machine can get into a state that it cannot send.
W4  Nothing may follow the last field: a longer frame is a mistake, not an extension. Extensions change the version.
W5  One number, one message, in the whole process: whoever brings a second one for a number is told whose it is.

Which messages there are is what `messages.py` declares, and what each algorithm does that was loaded (`learn`). Others
may be installed without having been needed yet: the first frame of an unknown kind has them loaded (`when_unknown`).

`tests/wire/vectors.json` has every kind in bytes and in values, and bytes that must be refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from softmutex.core.codec import MISFITS, Read, WireType, Write, explain, record
from softmutex.core.errors import BadFrame, ConfigError, SoftMutexError
from softmutex.core.events import NodeId
from softmutex.core.messages import HANDOVER, OF_ALGORITHMS, OF_NODE, Message, name_of
from softmutex.core.tuples import NamedTuple
from softmutex.core.unrolled import BROKEN, unroll

Bytes: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"\xabM"
VERSION = 1
MAX_FRAME = 1400
MAX_MUTEX = 64
TAG_SIZE = 16
UNSEALED = 0

_PREAMBLE = MAGIC + bytes([VERSION])
_HEADER = struct.Struct(">3sBQQ")
_HEADER_FIELDS = struct.Struct(">3xBQQ")
_ADDRESS = struct.Struct(">QB")
HEADER_SIZE = _HEADER.size
SMALLEST = HEADER_SIZE + _ADDRESS.size + 1


class Frame(NamedTuple):
    sender: NodeId
    receiver: NodeId
    mutex: str
    message: Message


class OtherVersion(BadFrame):
    """A frame of ours in a version that this node does not speak. Worth telling the user once a peer."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version} of the protocol; this node speaks {VERSION}. Update the older side.")
        self.version = version


class UnfitForWire(SoftMutexError, ValueError):
    """This frame cannot be written: a value is out of its range, or longer than declared."""


# --- one table of the messages --------------------------------------------------------------------------------------


class _Kind:
    """One message. How it is written and read is worked out when one is: a command that finds nobody sends none."""

    __slots__ = ("_wire_type", "byte", "cls", "name", "number", "owner", "read", "write")

    def __init__(self, number: int, cls: type[Message], owner: str) -> None:
        self.name = name_of(cls)
        self.number = number
        self.byte = bytes([number])
        self.cls = cls
        self.owner = owner  # whose message it is, for a person
        self._wire_type: WireType | None = None
        self.write: Write = self._write_first
        self.read: Read = self._read_first

    @property
    def wire_type(self) -> WireType:
        if self._wire_type is None:
            self._wire_type = record(self.cls)
        return self._wire_type

    def _unroll(self) -> None:
        self.write, self.read = unroll(self.wire_type)

    def _write_first(self, message: Any) -> bytes:
        self._unroll()
        return self.write(message)

    def _read_first(self, data: bytes, at: int) -> tuple[Any, int]:
        self._unroll()
        return self.read(data, at)


_BY_NUMBER: dict[int, _Kind] = {}
_BY_CLASS: dict[type[Message], _Kind] = {}
_CHECKED_BY_TESTS = "softmutex."  # messages of this package: `tests/wire` sees that each fits
_ROOM = MAX_FRAME - TAG_SIZE - SMALLEST - MAX_MUTEX


def learn(algorithm: str, messages: Mapping[int, type[Message]]) -> None:
    """The messages of an algorithm, by their numbers. To learn the same ones again changes nothing."""
    for number, cls in messages.items():
        known = _BY_NUMBER.get(number)
        if known is not None and known.cls is cls:
            continue
        if not any(number in numbers for numbers in OF_ALGORITHMS):
            raise ConfigError(
                f"the algorithm {algorithm!r} gives its message {cls.__name__} the number {number}, which is "
                f"{f'that of {known.name}, {known.owner}' if known else 'not for algorithms'}. Those of "
                "other packages than this are 192 to 223; of this one, `softmutex/core/messages.py` has the table."
            )
        _learn(f"of the algorithm {algorithm!r}", number, cls)


def _learn(owner: str, number: int, cls: type[Message]) -> None:
    kind = _Kind(number, cls, owner)
    for known in (_BY_NUMBER.get(number), _BY_CLASS.get(cls)):
        if known is not None:
            raise ConfigError(
                f"{kind.name} {owner} ({cls.__module__}) has the number {number}, and {known.name} {known.owner} "
                f"({known.cls.__module__}) has the number {known.number}: a number "
                "belongs to one message, and a message to one number. Give it a range that is nobody else's."
            )
    if not cls.__module__.startswith(_CHECKED_BY_TESTS):
        _check(kind)
    _BY_NUMBER[number] = _BY_CLASS[cls] = kind


def _check(kind: _Kind) -> None:
    try:
        largest = kind.wire_type.largest
    except (TypeError, NameError, AttributeError) as error:
        raise ConfigError(f"{kind.name} {kind.owner} cannot travel: {error}") from error
    if largest > _ROOM:
        raise ConfigError(
            f"{kind.name} {kind.owner} may take {largest} bytes, {_ROOM} fit a frame. Lower a bound in it."
        )


for _number, _cls in {**HANDOVER, **OF_NODE}.items():
    _learn("of the hand-over" if _number in HANDOVER else "of the node", _number, _cls)


def kinds() -> dict[int, type[Message]]:
    """Every message that is known by now, by its number."""
    return {kind.number: cls for cls, kind in sorted(_BY_CLASS.items(), key=lambda item: item[1].number)}


def number_of(cls: type[Message]) -> int | None:
    kind = _BY_CLASS.get(cls)
    return None if kind is None else kind.number


def _nobody() -> None:
    """Nobody else knows more messages."""


_load_more: Callable[[], object] = _nobody


def when_unknown(load: Callable[[], object]) -> None:
    """`load` is called when a frame of an unknown kind arrives, each time: it lets all learn that can be learnt."""
    global _load_more
    _load_more = load


def _late(number: int) -> _Kind:
    if any(number in numbers for numbers in OF_ALGORITHMS):
        _load_more()
    if number not in _BY_NUMBER:
        raise BadFrame(f"a message of unknown kind {number}")
    return _BY_NUMBER[number]


# --- whole frames, unsealed -----------------------------------------------------------------------------------------


def encode(frame: Frame) -> bytes:
    return write_header(UNSEALED, frame.sender, 0) + write_body(frame)


def decode(data: Bytes) -> Frame:
    data = admit(data)
    key, sender, counter = read_header(data)
    if key != UNSEALED:
        raise BadFrame(f"sealed with key {key}, and expected to be unsealed")
    if counter:
        raise BadFrame(f"unsealed with counter {counter}, which must be 0")
    return read_body(sender, data, HEADER_SIZE)


# --- header and body, for those who seal ----------------------------------------------------------------------------


def admit(data: Bytes) -> bytes:
    """The cheapest checks, before anything is computed: ours, of this version, of a possible size."""
    if type(data) is not bytes:
        data = bytes(data[: MAX_FRAME + 1])
    if data[:3] != _PREAMBLE:
        if data[:2] == MAGIC and len(data) > 2:
            raise OtherVersion(data[2])
        raise BadFrame("does not begin as a frame does")
    if not SMALLEST <= len(data) <= MAX_FRAME:
        size = f"over {MAX_FRAME}" if len(data) > MAX_FRAME else len(data)
        raise BadFrame(f"{size} bytes, where a frame has {SMALLEST} to {MAX_FRAME}")
    return data


def write_header(key: int, sender: NodeId, counter: int) -> bytes:
    try:
        header = _HEADER.pack(_PREAMBLE, key, sender, counter)
    except struct.error:
        header = b""
    if not header or not sender:
        raise UnfitForWire(
            f"key id {key!r:.80}, sender {sender!r:.80}, counter {counter!r:.80}: one is out of range "
            "(key id 0 to 255, sender 1 to 2**64-1, counter 0 to 2**64-1)."
        )
    return header


def read_header(data: bytes) -> tuple[int, NodeId, int]:
    """Key id, sender and counter of what `admit` let in."""
    header: tuple[int, NodeId, int] = _HEADER_FIELDS.unpack_from(data)
    if not header[1]:
        raise BadFrame("sender 0, which is nobody")
    return header


def write_body(frame: Frame) -> bytes:
    _, receiver, mutex, message = frame
    try:
        name = mutex.encode()
        kind = _BY_CLASS[type(message)]
        body = b"".join((_ADDRESS.pack(receiver, len(name)), name, kind.byte, kind.write(message)))
    except MISFITS:
        raise UnfitForWire(_misfit(frame)) from None
    if len(name) > MAX_MUTEX:
        raise UnfitForWire(_misfit(frame))
    return body


def _misfit(frame: Frame) -> str:
    kind = _BY_CLASS.get(type(frame.message))
    if kind is None:
        return f"{type(frame.message).__name__} is no message: no algorithm that is known here declares it."
    try:
        kind.write(frame.message)
    except MISFITS:
        return explain(kind.wire_type, frame.message, kind.name)
    return (
        f"to {frame.receiver!r:.80}, mutex {frame.mutex!r:.80}: the receiver must be a whole number from 0 to 2**64-1, "
        f"the mutex text of at most {MAX_MUTEX} bytes of UTF-8."
    )


def read_body(sender: NodeId, data: bytes, at: int) -> Frame:
    """The frame whose body begins at `at` and ends where `data` ends."""
    try:
        receiver, size = _ADDRESS.unpack_from(data, at)
        at += _ADDRESS.size
        if size > MAX_MUTEX:
            raise BadFrame(f"a mutex name of {size} bytes, {MAX_MUTEX} at most")
        mutex = data[at : at + size].decode()
        at += size
        number = data[at]
    except (IndexError, struct.error):
        raise BadFrame("cut off before the kind of its message") from None
    except UnicodeDecodeError:
        raise BadFrame("a mutex name that is not UTF-8") from None
    kind = _BY_NUMBER.get(number) or _late(number)
    try:
        message, end = kind.read(data, at + 1)
    except BROKEN:
        message, end = _read_slowly(kind, data, at + 1)
    if end < len(data):
        raise BadFrame(f"{kind.name} ends after {end} of {len(data)} bytes")
    return tuple.__new__(Frame, (sender, receiver, mutex, message))


def _read_slowly(kind: _Kind, data: bytes, at: int) -> tuple[Message, int]:
    """What cannot be read quickly cannot be read; this says where and why."""
    try:
        message: tuple[Message, int] = kind.wire_type.read(data, at)
        return message
    except BadFrame as error:
        raise BadFrame(f"{kind.name}{error}") from None
