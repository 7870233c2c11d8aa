"""What is on the line between registry and member: any bytes give a list or Nonsense; nothing unsigned is right."""

import contextlib
import hashlib
import json
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.followed import AGAIN, View

from softmutex.ports import Member

SIGNER = wire.Signer(bytes(range(32)))
ENTRY = wire.entry("a-lease-of-anybody", Member("10.0.0.1:9431", 2**64 - 1, "ftp1"))
LINE = wire.write("g", 7, None, 0.0, [ENTRY], [])
WORD = json.loads(LINE)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def test_what_is_written_is_read():
    found = wire.read(LINE)
    assert (found.group, found.version, found.after) == ("g", 7, None)
    assert [one for _, one in found.joined] == [Member("10.0.0.1:9431", 2**64 - 1, "ftp1")]


@given(st.binary(max_size=200))
def test_any_bytes_give_a_list_or_nonsense(data: bytes):
    with pytest.raises(wire.Nonsense):
        wire.read(data)


@example("group", "")
@example("settling_s", float("nan"))
@given(st.sampled_from(sorted(WORD)), anything)
def test_a_list_with_one_wrong_part_is_nonsense_or_a_list(part: str, value: object):
    try:
        found = wire.read(json.dumps({**WORD, part: value}).encode())
    except wire.Nonsense:
        return
    assert found.group and 0 <= found.version < wire.VERSION_MAX and 0 <= found.settling_s <= 3600


def test_a_change_back_in_time_is_nonsense():
    with pytest.raises(wire.Nonsense, match="from version 9 back to 7"):
        wire.read(wire.write("g", 7, 9, 0.0, [], []))


@pytest.mark.parametrize("place", [0, 10, len(LINE) - 1])
def test_a_signature_fits_one_line_and_one_key_only(place: int):
    signature = SIGNER.sign(LINE)
    assert wire.is_signed_by(SIGNER.public, LINE, signature)
    changed = bytearray(LINE)
    changed[place] ^= 1
    assert not wire.is_signed_by(SIGNER.public, bytes(changed), signature)
    assert not wire.is_signed_by(wire.Signer(bytes(32)).public, LINE, signature)
    assert not wire.is_signed_by(SIGNER.public, LINE, "")
    assert not wire.is_signed_by("no key", LINE, signature)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_stream_may_come_in_any_pieces(cuts: list[int]):
    stream = b": here\n\n" + wire.event(7, LINE, "one") + b": here\n\n" + wire.event(8, LINE, "two")
    reader, found, at = wire.EventReader(), [], 0
    for size in [*cuts, len(stream)]:
        found += reader.feed(stream[at : at + size])
        at += size
    assert found == [(LINE, "one"), (LINE, "two")]


@pytest.mark.parametrize("stream", [b"<html>\n\n", b"event: members\ndata: {}\n\n", b"\n\n\n\ndata: 1\n\n"])
def test_another_stream_is_nonsense(stream: bytes):
    with pytest.raises(wire.Nonsense):
        wire.EventReader().feed(stream)


@given(st.binary(max_size=300))
def test_a_stream_of_any_bytes_gives_events_or_nonsense(data: bytes):
    with contextlib.suppress(wire.Nonsense):
        assert all(len(event) == 2 for event in wire.EventReader().feed(data))


def test_w2_a_view_takes_no_older_list_and_no_change_of_another_one():
    view = View("g")
    assert view.take(wire.read(wire.write("g", 7, None, 0.0, [ENTRY], [])))
    assert not view.take(wire.read(wire.write("g", 7, None, 0.0, [], []))), "the same version again"
    assert not view.take(wire.read(wire.write("g", 6, None, 0.0, [], []))), "an older one"
    assert not view.take(wire.read(wire.write("g", 9, 8, 0.0, [], [ENTRY[0]]))), "a change of a list that it has not"
    assert [one.address for one in view.others(None, "")] == ["10.0.0.1:9431"]
    assert view.take(wire.read(wire.write("g", 9, 7, 0.0, [], [ENTRY[0]])))
    assert view.others(None, "") == ()


class Ours:
    """Who has a key, in place of the group's."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def prove(self, what: str) -> str:
        return self.made(what, self.keys[0])

    def is_proof(self, what: str, proof: str) -> bool:
        return any(self.made(what, key) == proof for key in self.keys)

    @staticmethod
    def made(what: str, key: str) -> str:
        return hashlib.sha256(f"{key}{what}".encode()).hexdigest()[:32]


def shown(lease: str, member: Member, proof: str, by: Ours | None) -> list[bool]:
    key, view = wire.key_of(lease), View("g")
    proofs = {key: proof} if proof else {}
    assert view.take(wire.read(wire.write("g", 7, None, 0.0, [wire.entry(lease, member)], [], (), proofs)))
    return [one.is_proven for one in view.others(None, "", by)]


def test_w6_a_proof_is_good_for_its_entry_alone():
    one, ours = Member("10.0.0.1:9431", 1, "ftp1"), Ours("new", "old")
    proof = ours.prove(wire.proved("g", wire.key_of("a-lease-of-one"), one))
    assert shown("a-lease-of-one", one, proof, ours) == [True]
    assert shown("a-lease-of-one", one, proof, Ours("another")) == [False]
    assert shown("a-lease-of-one", one, "", ours) == [False]
    assert shown("a-lease-of-another", one, proof, ours) == [False], "copied, under a lease of one's own"
    assert shown("a-lease-of-one", Member("10.0.0.2:1", 1, "ftp1"), proof, ours) == [False]
    assert shown("a-lease-of-one", Member(one.address, 2, "ftp1"), proof, ours) == [False]
    assert shown("a-lease-of-one", one, proof, None) == [True], "without a key there is nothing to prove"
    old = Ours("old").prove(wire.proved("g", wire.key_of("a-lease-of-one"), one))
    assert shown("a-lease-of-one", one, old, ours) == [True], "keys are being changed"


def test_w6_what_was_in_doubt_is_looked_at_again_and_who_left_is_not():
    one, view, ours = Member("10.0.0.1:9431", 1), View("g"), Ours("new")
    lease, key = "a-lease-of-one", wire.key_of("a-lease-of-one")
    proofs = {key: ours.prove(wire.proved("g", key, one))}
    view.take(wire.read(wire.write("g", 7, None, 0.0, [wire.entry(lease, one)], [], (), {})))
    assert [each.is_proven for each in view.others(None, "", ours)] == [False]
    view.take(wire.read(wire.write("g", 8, 7, 0.0, [wire.entry(lease, one)], [], (), proofs)))
    assert [each.is_proven for each in view.others(None, "", Ours("old"))] == [False]
    assert [each.is_proven for each in view.others(None, "", ours)] == [True]
    view.take(wire.read(wire.write("g", 9, 8, 0.0, [], [key], (), {})))
    assert view.others(None, "", ours) == ()


def test_w6_of_thousands_in_doubt_few_are_looked_at_again_at_each_change_and_all_in_turn():
    """Two HMACs each, for all of them, cost a member tens of milliseconds whenever anybody came or left."""
    count = 20 * AGAIN
    members = {wire.key_of(f"lease-{number}"): Member(f"10.0.0.1:{number}", number) for number in range(count)}
    ours = Ours("new")
    proofs = {key: ours.prove(wire.proved("g", key, member)) for key, member in members.items()}
    joined = [wire.entry(f"lease-{number}", Member(f"10.0.0.1:{number}", number)) for number in range(count)]
    view, looked = View("g"), []
    looking = SimpleNamespace(is_proof=lambda what, proof: bool(looked.append(what)))
    view.take(wire.read(wire.write("g", 1, None, 0.0, joined, [], (), proofs)))
    for version in range(2, 30):
        assert not any(one.is_proven for one in view.others(None, "", looking))
        new = wire.entry(f"another-lease-{version}", Member(f"10.0.0.2:{version}", count + version))
        view.take(wire.read(wire.write("g", version, version - 1, 0.0, [new], [], (), {})))
    assert len(set(looked)) == count
    assert len(looked) <= count + 28 * (AGAIN + 1)
    for _ in range(count // AGAIN):
        shown = view.others(None, "", ours)
    assert sum(one.is_proven for one in shown) == count, "once the key is known here"


def test_w6_of_a_registry_that_knows_no_proofs_everybody_is_believed():
    view = View("g")
    assert view.take(wire.read(LINE))
    assert [each.is_proven for each in view.others(None, "", Ours("a key"))] == [True]


@pytest.mark.parametrize("proofs", [[], {"0": "0"}, {"0" * 16: "0"}, {"0" * 16: 7}])
def test_w6_proofs_that_are_none_are_nonsense(proofs: object):
    with pytest.raises(wire.Nonsense):
        wire.read(json.dumps({**WORD, "proofs": proofs}).encode())
