"""`vectors.json` is the protocol as bytes, for implementations in other languages. What it says is what this code does.

After a change that is meant, `pytest tests/wire/test_vectors.py --rewrite` writes the file anew, and the difference is
read in review.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softmutex.core.codec import WireType, record
from softmutex.core.errors import BadFrame
from softmutex.core.messages import Offer, name_of
from softmutex.core.wire import HEADER_SIZE, MAX_FRAME, VERSION, decode, encode
from tests.wire.shapes import CLASSES, KINDS, example_frame, fields_of, frame_from_json, frame_to_json, schema, shape_of

FILE = Path(__file__).with_name("vectors.json")
ABOUT = [
    "Frames of softmutex as bytes. The format is described at the top of softmutex/core/wire.py.",
    "kinds: every message, its number, and its fields in order with their wire types.",
    "  u64, i64, varint: numbers. flag. {bytes: most}, {text: most bytes of UTF-8}, {tuple: most items, of: type},",
    "  {optional: type}, {enum: {name: byte}}, {record: [[field, type], ...]}.",
    "valid: decoding hex gives frame, and encoding frame gives hex. Numbers are decimal strings, since many readers of",
    "  JSON lose what is over 2**53; bytes are hex; enums are names.",
    "invalid: decoding hex must fail, always; reason says why.",
]


# --- invalid frames: a valid one in which one thing is spelled wrong -------------------------------------------------


def misspelled(wire_type: WireType, value: Any, where: str, spelling: bytes) -> bytes:
    """`value` as bytes, but for the part at `where` (".token.queue[1]"), which is `spelling`."""
    if not where:
        return spelling
    parts = wire_type.parts(value)
    written = [part_type.write(part) for _, part_type, part in parts]
    whole = wire_type.write(value)
    head = whole[: len(whole) - len(b"".join(written))]  # the count of a tuple
    for index, (step, part_type, part) in enumerate(parts):
        if where.startswith(step) and where[len(step) :][:1] in ("", ".", "["):
            written[index] = misspelled(part_type, part, where[len(step) :], spelling)
    return head + b"".join(written)


OFFER = example_frame(Offer, "typical")
GOOD = encode(OFFER)
NAME = HEADER_SIZE + 8  # the length of the mutex name stands here
KIND = NAME + 1 + GOOD[NAME]


def token(where: str, spelling: bytes) -> bytes:
    return GOOD[: KIND + 1] + misspelled(record(Offer), OFFER.message, where, spelling)


def invalid_frames() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "one byte", GOOD[:1]
    yield "magic alone", GOOD[:2]
    yield "another magic", b"\xac" + GOOD[1:]
    yield "version 0", GOOD[:2] + b"\0" + GOOD[3:]
    yield "the next version", GOOD[:2] + bytes([VERSION + 1]) + GOOD[3:]
    yield "a header alone", GOOD[:HEADER_SIZE]
    yield "a key id, and no tag", GOOD[:3] + b"\x01" + GOOD[4:]
    yield "sender 0", GOOD[:4] + bytes(8) + GOOD[12:]
    yield "unsealed, and a counter", GOOD[:12] + bytes(7) + b"\x01" + GOOD[20:]
    yield "a mutex name that is too long", GOOD[:NAME] + b"\x41" + b"m" * 65 + GOOD[KIND:]
    yield "a mutex name that goes on after the end", GOOD[:NAME] + b"\x40" + GOOD[NAME + 1 : KIND]
    yield "a mutex name that is not UTF-8", GOOD[:NAME] + b"\x02\xff\xfe" + GOOD[KIND:]
    yield "a mutex name with a surrogate", GOOD[:NAME] + b"\x03\xed\xa0\x80" + GOOD[KIND:]
    yield "a mutex name in an overlong form of UTF-8", GOOD[:NAME] + b"\x02\xc0\x80" + GOOD[KIND:]
    yield "kind 0", GOOD[:KIND] + b"\0" + GOOD[KIND + 1 :]
    yield "a kind that does not exist", GOOD[:KIND] + b"\xff" + GOOD[KIND + 1 :]
    yield "no fields", GOOD[: KIND + 1]
    yield "cut off in a number", GOOD[: KIND + 5]
    yield "two frames", GOOD + GOOD
    yield "over 1,400 bytes", GOOD + bytes(MAX_FRAME + 1 - len(GOOD))
    yield "flag 2", token(".early", b"\x02")
    yield "flag 255", token(".token.escort.more", b"\xff")
    yield "a varint with a useless last byte", token(".token.slot", b"\x80\x00")
    yield "a varint with two of them", token(".token.slot", b"\x81\x80\x00")
    yield "a varint of 2**64", token(".token.slot", b"\x80" * 9 + b"\x02")
    yield "a varint of eleven bytes", token(".token.slot", b"\x80" * 10 + b"\x01")
    yield "33 tickets", token(".token.queue", b"\x21" + bytes(9) * 33)
    yield "a queue that ends too early", token(".token.queue", b"\x20")[:-20]
    yield "a count in two bytes, where one is enough", token(".token.queue", b"\x80\x00")
    yield "a count of 2**64-1", token(".token.queue", b"\xff" * 9 + b"\x01")
    yield "a mistake in the second ticket", token(".token.queue[1].request", b"\x80\x00")
    yield "65 bytes of baggage", token(".token.baggage", b"\x41" + bytes(65))
    yield "baggage that goes on after the end", token(".token.baggage", b"\x40")
    for cls in CLASSES:
        yield from misspellings(cls)


WRONG = {"enum": b"\xfe", "optional": b"\x02", "text": b"\x02\xff\xfe"}


def misspellings(cls: type) -> Iterator[tuple[str, bytes]]:
    """Wrong in a message of any kind, and in types that OFFER does not have: enums, optionals, texts."""
    frame = example_frame(cls, "typical")
    good = encode(frame)
    head = good[: KIND + 1]
    name = name_of(cls)
    yield f"{name}: one byte too many", good + b"\0"
    if good != head:
        yield f"{name}: one byte missing", good[:-1]
    for field, hint in fields_of(cls).items():
        kind = shape_of(hint).kind
        if kind in WRONG:
            yield f"{name}: {kind} {field}", head + misspelled(record(cls), frame.message, f".{field}", WRONG[kind])


# --- the file --------------------------------------------------------------------------------------------------------


def reason(data: bytes) -> str:
    with pytest.raises(BadFrame) as error:
        decode(data)
    return str(error.value)


def vectors() -> dict[str, Any]:
    return {
        "about": ABOUT,
        "version": VERSION,
        "kinds": [
            {"number": number, "name": name_of(cls), "fields": schema(cls)["record"]} for number, cls in KINDS.items()
        ],
        "valid": [
            {"name": f"{name_of(cls)}, {size}", "hex": encode(frame).hex(), "frame": frame_to_json(frame)}
            for cls in CLASSES
            for size in ("smallest", "typical", "largest")
            for frame in [example_frame(cls, size)]
        ],
        "invalid": [{"name": name, "hex": data.hex(), "reason": reason(data)} for name, data in invalid_frames()],
    }


def as_text(told: dict[str, Any]) -> str:
    """JSON with one vector a line, so that a difference shows which vector changed."""
    lines = []
    for key, value in told.items():
        if isinstance(value, list):
            items = ",\n    ".join(json.dumps(item, ensure_ascii=False) for item in value)
            lines.append(f"  {json.dumps(key)}: [\n    {items}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.fixture
def told(rewrite: bool) -> dict[str, Any]:
    if rewrite:
        FILE.write_text(as_text(vectors()), "utf-8")
    read: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return read


def test_every_valid_vector_is_decoded_and_encoded_as_the_file_says(told: dict[str, Any]):
    for vector in told["valid"]:
        data, frame = bytes.fromhex(vector["hex"]), frame_from_json(vector["frame"])
        assert decode(data) == frame, vector["name"]
        assert encode(frame) == data, vector["name"]
        assert frame_to_json(frame) == vector["frame"], vector["name"]


def test_every_invalid_vector_is_refused_for_the_reason_in_the_file(told: dict[str, Any]):
    for vector in told["invalid"]:
        assert reason(bytes.fromhex(vector["hex"])) == vector["reason"], vector["name"]


def test_the_file_covers_every_kind_and_says_what_is_declared_today(told: dict[str, Any]):
    assert FILE.read_text("utf-8") == as_text(vectors()), (
        "A declaration of a message, an encoding or a reason is not what vectors.json says. Was that meant? "
        "Then `pytest tests/wire/test_vectors.py --rewrite`, and read the difference: other implementations will have "
        "to follow it."
    )
