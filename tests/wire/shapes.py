"""What a declared field can hold, read from its annotation: examples, random values, wrong values, JSON.

The codec derives itself from the same annotations, by other code: what is compared in these tests has two sources.
"""

import functools
import types
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from softmutex import plugins
from softmutex.core.messages import HANDOVER, OF_NODE, name_of
from softmutex.core.wire import MAX_MUTEX, Frame, kinds

MOST = 2**64 - 1
RANGES = {"u64": (0, MOST), "i64": (-(2**63), 2**63 - 1), "varint": (0, MOST)}
TYPICAL = {"u64": 0x0123456789ABCDEF, "i64": 1_700_000_000_123_456_789, "varint": 300}


def own_messages() -> dict[int, type]:
    """Those of this package, by number: another one may be installed beside it, and bring its own."""
    own = [
        name
        for name, entry in plugins.installed(plugins.Role.ALGORITHM).items()
        if entry.value.startswith("softmutex.")
    ]
    numbers = {*HANDOVER, *OF_NODE, *(number for name in own for number in plugins.algorithm(name).messages)}
    return {number: cls for number, cls in kinds().items() if number in numbers}


KINDS = own_messages()
CLASSES = list(KINDS.values())


class Shape(NamedTuple):
    """An annotation taken apart. `kind`: u64 i64 varint flag enum bytes text tuple optional record."""

    kind: str
    of: Any = None  # the enum, the record's class, or the annotation of what is inside
    most: int = 0


def shape_of(annotation: Any) -> Shape:
    if get_origin(annotation) is Annotated:
        base, mark = get_args(annotation)
        if mark in RANGES or mark == "flag":
            return Shape(mark)
        if base in (bytes, str):
            return Shape("bytes" if base is bytes else "text", most=int(mark[2:]))
        return Shape("tuple", get_args(base)[0], int(mark[2:]))
    if get_origin(annotation) in (Union, types.UnionType):
        return Shape("optional", next(part for part in get_args(annotation) if part is not types.NoneType))
    return Shape("enum" if issubclass(annotation, IntEnum) else "record", annotation)


def fields_of(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls._fields}


# --- examples --------------------------------------------------------------------------------------------------------


def example(annotation: Any, size: str) -> Any:
    """The `smallest`, a `typical`, or the `largest` value."""
    kind, of, most = shape_of(annotation)
    small, large = size == "smallest", size == "largest"
    match kind:
        case "u64" | "i64" | "varint":
            low, high = RANGES[kind]
            return (low if kind == "i64" else 0) if small else high if large else TYPICAL[kind]
        case "flag":
            return not small
        case "enum":
            return list(of)[-1 if large else 0]
        case "bytes":
            return b"" if small else b"\xff" * most if large else b"\x00\x80\xff"[:most]
        case "text":
            return "" if small else "a" * (most % 4) + "\U0001f512" * (most // 4) if large else "größe"[: most // 2]
        case "tuple":
            return () if small else (example(of, size),) * (most if large else min(most, 2))
        case "optional":
            return None if small else example(of, size)
    return of(*(example(hint, size) for hint in fields_of(of).values()))


def example_frame(cls: type, size: str) -> Frame:
    sender, receiver, mutex = {
        "smallest": (1, 0, ""),
        "typical": (0xFEDCBA9876543210, 0x0F1E2D3C4B5A6978, "nightly-ftp"),
        "largest": (MOST, MOST, "\U0001f512" * (MAX_MUTEX // 4)),
    }[size]
    return Frame(sender, receiver, mutex, example(cls, size))


# --- random values ---------------------------------------------------------------------------------------------------


def texts(most: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=most // 4) | st.text("aé", max_size=most // 2)


@functools.cache  # hypothesis takes longer to look at a new one than to draw from one it knows
def values(annotation: Any) -> st.SearchStrategy[Any]:
    kind, of, most = shape_of(annotation)
    match kind:
        case "u64" | "i64" | "varint":
            low, high = RANGES[kind]
            return st.integers(low, high) | st.integers(0, 300) | st.sampled_from([low, high, 127, 128, 2**63 - 1])
        case "flag":
            return st.booleans()
        case "enum":
            return st.sampled_from(list(of))
        case "bytes":
            return st.binary(max_size=most)
        case "text":
            return texts(most)
        case "tuple":
            return st.lists(values(of), max_size=most).map(tuple)
        case "optional":
            return st.none() | values(of)
    return st.tuples(*map(values, fields_of(of).values())).map(of._make)


@functools.cache
def frames(cls: type | None = None) -> st.SearchStrategy[Frame]:
    nodes = st.integers(1, MOST)
    message = values(cls) if cls else st.sampled_from(CLASSES).flatmap(values)
    return st.tuples(nodes, st.just(0) | nodes, texts(MAX_MUTEX), message).map(Frame._make)


# --- wrong values ----------------------------------------------------------------------------------------------------


def wrong_values(annotation: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Values that must not be written, each with the path of the part that is wrong with it."""
    kind, of, most = shape_of(annotation)
    match kind:
        case "u64" | "i64" | "varint":
            low, high = RANGES[kind]
            yield from ((path, wrong) for wrong in (low - 1, high + 1, 1.5, "1", None, 2**70))
        case "flag":
            yield from ((path, wrong) for wrong in (2, None, "yes", []))
        case "enum":
            yield from ((path, wrong) for wrong in (256, -1, None))
        case "bytes":
            yield from ((path, wrong) for wrong in (b"x" * (most + 1), "text", None))
        case "text":
            yield from ((path, wrong) for wrong in ("é" * (most // 2 + 1), "x" * (most + 1), "\ud800", b"", None))
        case "tuple":
            good = example(of, "typical")
            yield from ((path, wrong) for wrong in ((good,) * (most + 1), [good], None))
            yield from ((where, (good, wrong)) for where, wrong in wrong_values(of, f"{path}[1]") if most > 1)
        case "optional":
            yield from ((where, wrong) for where, wrong in wrong_values(of, path) if wrong is not None)
        case "record":
            good, hints = example(of, "typical"), fields_of(of)
            yield from ((path, wrong) for wrong in (tuple(good), None) if hints)
            for name, hint in hints.items():
                for where, wrong in wrong_values(hint, f"{path}.{name}"):
                    yield where, good._replace(**{name: wrong})


# --- the format once more, as its page says it -----------------------------------------------------------------------


def plain_varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + plain_varint(value // 128)


def plain_bytes(annotation: Any, value: Any) -> bytes:
    kind, of, _ = shape_of(annotation)
    match kind:
        case "u64" | "i64":
            return (value % 2**64).to_bytes(8, "big")
        case "varint":
            return plain_varint(value)
        case "flag" | "enum":
            return bytes([value])
        case "bytes":
            return plain_varint(len(value)) + value
        case "text":
            return plain_varint(len(value.encode())) + value.encode()
        case "tuple":
            return plain_varint(len(value)) + b"".join(plain_bytes(of, item) for item in value)
        case "optional":
            return b"\0" if value is None else b"\1" + plain_bytes(of, value)
    return b"".join(plain_bytes(hint, getattr(value, name)) for name, hint in fields_of(of).items())


def plain_frame(frame: Frame) -> bytes:
    cls, mutex = type(frame.message), frame.mutex.encode()
    number = next(number for number, known in KINDS.items() if known is cls)
    header = b"\xabM\x01\x00" + frame.sender.to_bytes(8) + bytes(8)
    return header + frame.receiver.to_bytes(8) + bytes([len(mutex), *mutex, number]) + plain_bytes(cls, frame.message)


# --- JSON, for implementations in other languages --------------------------------------------------------------------


def schema(annotation: Any) -> Any:
    kind, of, most = shape_of(annotation)
    match kind:
        case "bytes" | "text":
            return {kind: most}
        case "tuple":
            return {kind: most, "of": schema(of)}
        case "optional":
            return {kind: schema(of)}
        case "enum":
            return {kind: {member.name: int(member) for member in of}}
        case "record":
            return {kind: [[name, schema(hint)] for name, hint in fields_of(of).items()]}
    return kind


def to_json(annotation: Any, value: Any) -> Any:
    kind, of, _ = shape_of(annotation)
    match kind:
        case "u64" | "i64" | "varint":
            return str(value)
        case "bytes":
            return value.hex()
        case "enum":
            return value.name
        case "tuple":
            return [to_json(of, item) for item in value]
        case "optional":
            return None if value is None else to_json(of, value)
        case "record":
            return {name: to_json(hint, getattr(value, name)) for name, hint in fields_of(of).items()}
    return value


def from_json(annotation: Any, value: Any) -> Any:
    kind, of, _ = shape_of(annotation)
    match kind:
        case "u64" | "i64" | "varint":
            return int(value)
        case "bytes":
            return bytes.fromhex(value)
        case "enum":
            return of[value]
        case "tuple":
            return tuple(from_json(of, item) for item in value)
        case "optional":
            return None if value is None else from_json(of, value)
        case "record":
            return of(**{name: from_json(hint, value[name]) for name, hint in fields_of(of).items()})
    return value


def frame_to_json(frame: Frame) -> dict[str, Any]:
    cls = type(frame.message)
    return {
        "sender": str(frame.sender),
        "receiver": str(frame.receiver),
        "mutex": frame.mutex,
        "kind": name_of(cls),
        "fields": to_json(cls, frame.message),
    }


def frame_from_json(told: dict[str, Any]) -> Frame:
    cls = next(cls for cls in CLASSES if name_of(cls) == told["kind"])
    return Frame(int(told["sender"]), int(told["receiver"]), told["mutex"], from_json(cls, told["fields"]))
