"""Declarations become codecs, and a declaration that cannot is refused with what to write instead."""

from enum import IntEnum
from typing import Annotated, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softmutex.core.codec import MISFITS, Read, WireType, Write, explain, read_varint, record, wire_type_of
from softmutex.core.errors import BadFrame
from softmutex.core.events import Count, NodeId
from softmutex.core.unrolled import BROKEN, unroll
from tests.wire.shapes import CLASSES, values, wrong_values


class Colour(IntEnum):
    RED = 0
    BLUE = 200


class Everything(NamedTuple):
    """Shapes that no message has yet: an optional text, a tuple of optionals, bounds over one byte of length."""

    colours: Annotated[tuple[Colour, ...], "<=200"]
    remark: Annotated[str, "<=300"] | None
    pairs: "Annotated[tuple[Pair | None, ...], '<=3']"
    blobs: Annotated[tuple[Annotated[bytes, "<=2"], ...], "<=2"]


class Empty(NamedTuple):
    pass


class Pair(NamedTuple):
    left: NodeId
    right: Count


@given(values(Everything))
def test_any_nesting_of_what_is_allowed_is_read_as_it_was_written(value: Everything):
    wire_type = record(Everything)
    written = wire_type.write(value)
    assert wire_type.read(b"--" + written + b"--", 2) == (value, 2 + len(written))
    assert len(written) <= wire_type.largest


def test_largest_is_reached():
    wire_type = record(Everything)
    fullest = Everything((Colour.BLUE,) * 200, "x" * 300, (Pair(1, 2**64 - 1),) * 3, (b"xx",) * 2)
    assert len(wire_type.write(fullest)) == wire_type.largest


@given(st.integers(0, 2**64 - 1))
def test_a_varint_has_seven_bits_a_byte_and_is_never_longer_than_needed(value: int):
    written = wire_type_of(Count).write(value)
    assert len(written) == max(1, -(-value.bit_length() // 7))
    assert read_varint(written, 0) == (value, len(written))


@given(st.binary(min_size=1, max_size=12))
def test_a_varint_has_one_spelling(data: bytes):
    try:
        value, end = read_varint(data, 0)
    except (BadFrame, IndexError):
        return
    assert wire_type_of(Count).write(value) == data[:end]


VARINTS = {
    0: "00",
    1: "01",
    127: "7f",
    128: "8001",
    255: "ff01",
    256: "8002",
    16_383: "ff7f",
    16_384: "808001",
    2**32: "8080808010",
    2**63: "80808080808080808001",
    2**64 - 1: "ffffffffffffffffff01",
}


@pytest.mark.parametrize(("value", "written"), VARINTS.items())
def test_a_varint_is_these_bytes(value: int, written: str):
    assert wire_type_of(Count).write(value).hex() == written
    assert read_varint(b"-" + bytes.fromhex(written) + b"-", 1) == (value, 1 + len(written) // 2)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("8000", "a varint with a useless last byte 0"),
        ("ff00", "a varint with a useless last byte 0"),
        ("ffffffffffffffffff02", "a varint of more than 64 bits"),
        ("80808080808080808002", "a varint of more than 64 bits"),
        ("8080808080808080808001", "a varint of more than ten bytes"),
    ],
)
def test_other_bytes_are_no_varint(data: str, told: str):
    with pytest.raises(BadFrame, match=told):
        read_varint(bytes.fromhex(data), 0)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_what_has_more_than_64_bits_is_not_written(value: int):
    with pytest.raises(MISFITS):
        wire_type_of(Count).write(value)


class Blob(NamedTuple):
    blob: Annotated[bytes, "<=200"]
    after: Count


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 129, 199, 200])
def test_bytes_of_any_length_up_to_their_bound_are_read_where_they_end(size: int):
    value = Blob(b"x" * size, 7)
    for write, read in ((record(Blob).write, record(Blob).read), unroll(record(Blob))):
        written = write(value)
        assert len(written) == size + 2 + (size > 127)
        assert read(b"--" + written + b"--", 2) == (value, 2 + len(written))
        with pytest.raises((BadFrame, *BROKEN)):
            read(written[:-1], 0)


@pytest.mark.parametrize(
    ("annotation", "largest"),
    [
        (Count, 10),
        (NodeId, 8),
        (Annotated[bytes, "<=127"], 128),
        (Annotated[bytes, "<=128"], 130),
        (Annotated[str, "<=5"], 6),
        (Annotated[tuple[NodeId, ...], "<=3"], 25),
        (NodeId | None, 9),
        (Colour, 1),
        (Pair, 18),
    ],
)
def test_how_long_a_value_may_become(annotation: object, largest: int):
    assert wire_type_of(annotation).largest == largest


@pytest.mark.parametrize(("annotation", "value"), [(bytes, b"xyz"), (str, "xyz"), (tuple[Count, ...], (1, 2, 3))])
def test_one_more_than_a_bound_allows_is_neither_written_nor_read(annotation: object, value: bytes | str | tuple[int]):
    wire_type, shorter = wire_type_of(Annotated[annotation, "<=3"]), wire_type_of(Annotated[annotation, "<=2"])  # type: ignore[valid-type]
    written = wire_type.write(value)
    assert wire_type.read(written, 0) == (value, len(written))
    with pytest.raises(MISFITS):
        shorter.write(value)
    with pytest.raises(BadFrame, match=r"3 \w+, 2 at most"):
        shorter.read(written, 0)


# --- unrolled: the same, sooner --------------------------------------------------------------------------------------

UNROLLED = [(cls, record(cls), unroll(record(cls))) for cls in [*CLASSES, Everything, Empty]]
every_record = pytest.mark.parametrize(("cls", "slow", "quick"), UNROLLED, ids=lambda it: getattr(it, "__name__", ""))


@every_record
@given(data=st.data())
def test_unrolled_a_value_has_the_same_bytes_and_damaged_bytes_the_same_value_or_none(
    cls: type, slow: WireType, quick: tuple[Write, Read], data: st.DataObject
):
    value = data.draw(values(cls))
    written = slow.write(value)
    assert quick[0](value) == written
    assert quick[1](b"--" + written, 2) == slow.read(b"--" + written, 2) == (value, 2 + len(written))
    damaged = bytearray(written)
    for _ in range(data.draw(st.integers(1, 3))):
        at, length = data.draw(st.integers(0, len(damaged))), data.draw(st.integers(0, 3))
        damaged[at : at + length] = data.draw(st.binary(max_size=3))
    try:
        expected = slow.read(bytes(damaged), 0)
    except BadFrame:
        with pytest.raises(BROKEN):
            quick[1](bytes(damaged), 0)
    else:
        assert quick[1](bytes(damaged), 0) == expected


@every_record
def test_what_does_not_fit_is_refused_by_both(cls: type, slow: WireType, quick: tuple[Write, Read]):
    for path, wrong in wrong_values(cls, cls.__name__):
        for write in (slow.write, quick[0]):
            with pytest.raises(MISFITS):
                write(wrong)
        assert explain(slow, wrong, cls.__name__).startswith(f"{path} = ")


# --- declarations that cannot be -------------------------------------------------------------------------------------


class TooManyColours(IntEnum):
    ULTRAVIOLET = 256


class Plain(NamedTuple):
    number: int


class Unbounded(NamedTuple):
    numbers: tuple[int, ...]


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (int, "this is declared as <class 'int'>, which has no wire type. See the top of core/messages.py."),
        (bytes, "no wire type"),
        (dict[str, int], "no wire type"),
        (Count | NodeId | None, "no wire type"),
        (Plain, "Plain.number is declared as <class 'int'>"),
        (Unbounded, "Unbounded.numbers is declared as tuple"),
        (Annotated[int, "u32"], "this is marked 'u32'. Give a bound such as \"<=32\", 1400 at most."),
        (Annotated[bytes, "64"], "marked '64'"),
        (Annotated[bytes, "<=many"], "marked '<=many'"),
        (Annotated[bytes, "<=0"], "marked '<=0'"),
        (Annotated[bytes, "<=1401"], "1400 at most"),
        (Annotated[int, "<=9"], "a bounded <class 'int'>"),
        (Annotated[tuple[Count, Count], "<=2"], "a bounded tuple"),
        (Annotated[tuple[int, ...], "<=2"], "declared as <class 'int'>"),
        (TooManyColours, "TooManyColours goes as one byte"),
    ],
    ids=str,
)
def test_a_declaration_without_a_wire_type_is_refused_with_what_to_write(annotation: object, told: str):
    with pytest.raises(TypeError) as error:
        wire_type_of(annotation)
    assert told in str(error.value)
