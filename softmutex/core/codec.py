"""How one field becomes bytes: from the annotation of a field, the two functions that write and read it.

The naive way, a pair of functions by hand for every message, drifts apart: one side gets the new field, one bound
is checked on one side only, and the mistake is found by a peer. Here the declaration is the only place.

    Annotated[int, "varint"]  --wire_type_of-->  WireType(write, read, largest, means)
    class Token(NamedTuple)   --wire_type_of-->  the same, made of its fields' in order

C1  Total: `read` gives a value or raises `BadFrame`, `IndexError` or `struct.error` (the bytes end too early; a
    record turns both into a `BadFrame` that names the field). The time is bounded by the bounds declared.
C2  Canonical: a value has one encoding, and `read` refuses every other. So bytes may be compared and signed.
C3  Bounded: `largest` is the size of the longest encoding. `wire.py` adds these up before a message is ever sent.

What is right is said here, once, in plain closures: visible to coverage, to mutation testing, and to the fuzzer, which
must see a branch to look for its other side. `unrolled.py` does the same sooner, and comes back here for the words.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import call
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from softmutex.core.errors import BadFrame
from softmutex.core.tuples import NamedTuple

Write: TypeAlias = Callable[[Any], bytes]
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]  # (data, where it starts) -> (value, where it ended)
ReadItems: TypeAlias = Callable[[bytes, int, int], tuple[tuple[Any, ...], int]]  # (data, where, how many)

U64_END = 1 << 64
VARINT_LONGEST = 10
BOUND_LARGEST = 1400  # no bound makes sense beyond a whole frame

# What `write` raises on a value that does not fit. `explain` finds out which value that was.
MISFITS = (TypeError, ValueError, LookupError, AttributeError, OverflowError, struct.error)

Parts: TypeAlias = "Sequence[tuple[str, WireType, Any]]"  # where in the value, what should be there, what is there


class WireType(NamedTuple):
    write: Write
    read: Read
    largest: int
    means: str  # ends the sentence "5 is not ..."
    parts: Callable[[Any], Parts] = lambda _: ()  # of a value made of others
    # What `unrolled.py` wants to know:
    layout: str = ""  # of a number of fixed size: its code in `struct`
    quick: str = ""  # of any other: the lines that read most values; the rest raises, or goes to `read`
    table: Any = None  # for these lines
    cls: type[Any] | None = None  # of a record, and its fields
    fields: tuple[tuple[str, WireType], ...] = ()


# --- numbers --------------------------------------------------------------------------------------------------------


class _Varints(dict[int, bytes]):
    """Number to varint. The small ones, which nearly all are, cost one look into a dict."""

    def __missing__(self, value: int) -> bytes:
        if not 0 <= value < U64_END:
            raise ValueError(value)
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
        return bytes(out)


_VARINTS = _Varints((value, bytes([value])) for value in range(128))
_LENGTHS = [_VARINTS[length] for length in range(BOUND_LARGEST + 1)]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while byte > 127:
        if shift == 7 * VARINT_LONGEST:
            raise BadFrame(" is a varint of more than ten bytes")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    if not byte:
        raise BadFrame(" is a varint with a useless last byte 0")
    if value >= U64_END:
        raise BadFrame(" is a varint of more than 64 bits")
    return value, at


def _fixed(layout: str, means: str) -> WireType:
    packer = struct.Struct(">" + layout)
    unpack_from, size = packer.unpack_from, packer.size

    def read(data: bytes, at: int) -> tuple[int, int]:
        return unpack_from(data, at)[0], at + size

    return WireType(packer.pack, read, size, means, layout=layout)


def _choice(names: dict[Any, int], means: str) -> WireType:
    """One byte that is one of a few."""
    by_value = {byte: value for value, byte in names.items()}

    def read(data: bytes, at: int) -> tuple[Any, int]:
        try:
            return by_value[data[at]], at + 1
        except KeyError:
            raise BadFrame(f" is {data[at]}, which is not {means}") from None

    write = {value: bytes([byte]) for value, byte in names.items()}.__getitem__
    return WireType(write, read, 1, means, quick="{v} = {table}[data[at]]; at += 1", table=by_value)


NUMBERS = {
    "u64": _fixed("Q", "a whole number from 0 to 2**64-1"),
    "i64": _fixed("q", "a whole number from -2**63 to 2**63-1"),
    "varint": WireType(
        _VARINTS.__getitem__,
        read_varint,
        VARINT_LONGEST,
        "a whole number from 0 to 2**64-1",
        quick="{v} = data[at]; at += 1\nif {v} > 127: {v}, at = {read}(data, at - 1)",
    ),
}
FLAG = _choice({False: 0, True: 1}, "0 or 1")


def _enum(cls: type[IntEnum]) -> WireType:
    if not all(0 <= member <= 255 for member in cls):
        raise TypeError(f"{cls.__name__} goes as one byte: give its members values from 0 to 255.")
    return _choice({member: int(member) for member in cls}, f"one of the values of {cls.__name__}")


# --- strings and sequences ------------------------------------------------------------------------------------------


def _bytes(most: int) -> WireType:
    lengths = _LENGTHS[: most + 1]

    def write(value: bytes) -> bytes:
        return lengths[len(value)] + value

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        size, at = read_varint(data, at)
        if size > most:
            raise BadFrame(f" has {size} bytes, {most} at most")
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    quick = (
        "{v} = data[at]\n"
        "if {v} < {table}: end = at + 1 + {v}; {v} = data[at + 1:end]; at = end\n"
        "else: {v}, at = {read}(data, at)"
    )
    longest, below = len(lengths[-1]) + most, min(128, most + 1)
    return WireType(write, read, longest, f"bytes, {most} at most", quick=quick, table=below)


def _text(most: int) -> WireType:
    raw = _bytes(most)

    def write(value: str) -> bytes:
        return raw.write(value.encode())

    def read(data: bytes, at: int) -> tuple[str, int]:
        value, at = raw.read(data, at)
        try:
            return value.decode(), at
        except UnicodeDecodeError:
            raise BadFrame(" is not UTF-8") from None

    return WireType(write, read, raw.largest, f"text of at most {most} bytes of UTF-8")


def _many(item: WireType, most: int) -> WireType:
    lengths = _LENGTHS[: most + 1]
    write_items, read_items = _numbers(item, most) if item.layout else _items(item)

    def write(items: tuple[Any, ...]) -> bytes:
        if type(items) is not tuple:
            raise TypeError(items)
        if not items:
            return b"\0"
        return lengths[len(items)] + write_items(items)

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        count, at = read_varint(data, at)
        if count > most:
            raise BadFrame(f" has {count} items, {most} at most")
        return read_items(data, at, count)

    def parts(items: Any) -> Parts:
        return [(f"[{index}]", item, value) for index, value in enumerate(items)] if isinstance(items, tuple) else []

    largest = len(lengths[-1]) + most * item.largest
    quick = "if data[at]: {v}, at = {read}(data, at)\nelse: {v} = (); at += 1"
    return WireType(write, read, largest, f"a tuple of at most {most}", parts, quick=quick)


def _numbers(item: WireType, most: int) -> tuple[Write, ReadItems]:
    """All in one step: they are of fixed size."""
    layouts = [struct.Struct(f">{count}{item.layout}") for count in range(most + 1)]

    def read(data: bytes, at: int, count: int) -> tuple[tuple[Any, ...], int]:
        layout = layouts[count]
        return layout.unpack_from(data, at), at + layout.size

    return lambda items: layouts[len(items)].pack(*items), read


def _items(item: WireType) -> tuple[Write, ReadItems]:
    write_item, read_item = item.write, item.read

    def read(data: bytes, at: int, count: int) -> tuple[tuple[Any, ...], int]:
        items: list[Any] = []
        try:
            for _ in range(count):
                value, at = read_item(data, at)
                items.append(value)
        except BadFrame as error:
            raise BadFrame(f"[{len(items)}]{error}") from None
        return tuple(items), at

    return lambda items: b"".join(map(write_item, items)), read


def _optional(item: WireType) -> WireType:
    def write(value: Any) -> bytes:
        return b"\0" if value is None else b"\1" + item.write(value)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        there, at = FLAG.read(data, at)
        return item.read(data, at) if there else (None, at)

    return WireType(write, read, 1 + item.largest, f"None or {item.means}", parts=item.parts)


def record(cls: type[Any]) -> WireType:
    """The wire type of a NamedTuple: its fields in order, nothing between them."""
    hints = get_type_hints(cls, include_extras=True)
    names: tuple[str, ...] = cls._fields
    fields = tuple((name, wire_type_of(hints[name], f"{cls.__name__}.{name}")) for name in names)
    writers = [field.write for _, field in fields]

    def write(value: Any) -> bytes:
        if type(value) is not cls:
            raise TypeError(value)
        return b"".join(map(call, writers, value))

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        try:
            for _, field in fields:
                value, at = field.read(data, at)
                values.append(value)
        except BadFrame as error:
            raise BadFrame(f".{names[len(values)]}{error}") from None
        except (IndexError, struct.error):
            raise BadFrame(f".{names[len(values)]} is cut off") from None
        return cls._make(values), at

    def parts(value: Any) -> Parts:
        if type(value) is not cls:
            return []
        return [(f".{name}", field, part) for (name, field), part in zip(fields, value, strict=True)]

    largest = sum(field.largest for _, field in fields)
    return WireType(write, read, largest, f"a {cls.__name__}", parts, cls=cls, fields=fields)


# --- from an annotation ---------------------------------------------------------------------------------------------


def wire_type_of(annotation: Any, where: str = "this") -> WireType:
    """What `messages.py` lists as allowed in a declaration; anything else is a `TypeError` that says so."""
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        if base is int and marks[0] in NUMBERS:
            return NUMBERS[marks[0]]
        if base is bool and marks == ["flag"]:
            return FLAG
        return _bounded(base, str(marks[0]), where)
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        if len(kinds) == 1:
            return _optional(wire_type_of(kinds[0], where))
    elif isinstance(annotation, type) and issubclass(annotation, IntEnum):
        return _enum(annotation)
    elif isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return record(annotation)
    raise TypeError(f"{where} is declared as {annotation}, which has no wire type. See the top of core/messages.py.")


def _bounded(base: Any, mark: str, where: str) -> WireType:
    bound = mark.removeprefix("<=")
    if not (mark.startswith("<=") and bound.isdecimal() and 0 < int(bound) <= BOUND_LARGEST):
        raise TypeError(f'{where} is marked {mark!r}. Give a bound such as "<=32", {BOUND_LARGEST} at most.')
    if base is bytes:
        return _bytes(int(bound))
    if base is str:
        return _text(int(bound))
    if get_origin(base) is tuple and get_args(base)[1:] == (...,):
        return _many(wire_type_of(get_args(base)[0], where), int(bound))
    raise TypeError(f"{where} is a bounded {base}, which has no wire type. See the top of core/messages.py.")


def explain(wire_type: WireType, value: Any, path: str) -> str:
    """Which part of `value` could not be written, and what would have been right. Only for what `write` refused."""
    for where, part_type, part in wire_type.parts(value):
        try:
            part_type.write(part)
        except MISFITS:
            return explain(part_type, part, path + where)
    return f"{path} = {value!r:.80} is not {wire_type.means}."
