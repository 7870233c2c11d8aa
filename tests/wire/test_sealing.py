"""Sealed frames: nobody without the key forges, reads, changes or plays one back (S1 to S6 of runtime/sealing.py)."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from softmutex.core import wire
from softmutex.core.errors import NodeClosed
from softmutex.core.messages import Accept, Bye, Challenge, Done, Hello, Offer, Ping, Pong, Withdraw
from softmutex.core.wire import HEADER_SIZE, MAX_FRAME, TAG_SIZE, Frame, UnfitForWire
from softmutex.runtime import ciphers
from softmutex.runtime.replays import WINDOW
from softmutex.runtime.sealing import KeyRing, Refusal, Refused, Sealer, Unsealed, key_id
from tests.limits import limit, lower
from tests.wire import by_hand
from tests.wire.shapes import CLASSES, example, example_frame, frame_from_json, frame_to_json, frames

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
ME, PEER, THIRD = 0x1111, 0x2222, 0x3333
SENDERS = "senders whose counters are remembered"
VECTORS = Path(__file__).with_name("sealed_vectors.json")


def sealer(me: int = ME, group: str = "lab", *keys: bytes) -> Sealer:
    return Sealer(KeyRing.of(*(keys or (KEY,))), group, me)


def to_me(number: int = 0, sender: int = PEER, receiver: int = ME) -> Frame:
    return Frame(sender, receiver, "m", Withdraw(number))


def reason_of(opened: Frame | Refused) -> Refusal:
    assert isinstance(opened, Refused), opened
    assert opened.detail
    return opened.reason


# --- what is sealed can be opened ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_is_sealed_is_what_is_opened(cls: type):
    for size in ("smallest", "typical", "largest"):
        frame = example_frame(cls, size)._replace(sender=PEER, receiver=ME)
        sealed = sealer(PEER).seal(frame)
        assert sealer().open(sealed) == frame
        assert sealer().open(memoryview(sealed)) == frame
        assert len(sealed) == len(wire.encode(frame)) + TAG_SIZE <= MAX_FRAME


def test_nothing_but_the_header_can_be_read():
    frame = Frame(PEER, ME, "payroll-database", Withdraw(0x0123456789ABCDEF))
    sealed = sealer(PEER).seal(frame)
    assert wire.read_header(sealed) == (next(iter(KeyRing.of(KEY).keys)), PEER, 0)
    assert b"payroll" not in sealed
    assert ME.to_bytes(8) not in sealed
    assert (0x0123456789ABCDEF).to_bytes(8) not in sealed


def test_the_key_schedule_is_hkdf_of_rfc_5869_and_the_cipher_aes_siv_of_rfc_5297():
    frame = to_me(7)
    peer = Sealer(KeyRing({9: KEY}, use=9), "größe", PEER)
    peer.seal(to_me())
    assert peer.seal(frame) == by_hand.seal(wire.encode(frame)[HEADER_SIZE:], KEY, 9, PEER, 1, "größe")


def sealed_vectors() -> list[dict[str, object]]:
    told = []
    for number, cls in enumerate((Withdraw, Accept, Offer)):
        ring = KeyRing({number + 1: KEY, 200: OTHER_KEY}, use=number + 1)
        frame = Frame(PEER, ME, "nightly-ftp", example(cls, "typical"))
        peer = Sealer(ring, "lab", PEER)
        for _ in range(number):
            peer.seal(frame)
        told.append(
            {
                "group_key": KEY.hex(),
                "key_id": number + 1,
                "group": "lab",
                "counter": str(number),
                "frame": frame_to_json(frame),
                "hex": peer.seal(frame).hex(),
            }
        )
    return told


def test_the_sealed_vectors_are_opened_and_made_as_the_file_says(rewrite: bool):
    if rewrite:
        lines = ",\n  ".join(json.dumps(vector, ensure_ascii=False) for vector in sealed_vectors())
        VECTORS.write_text(f"[\n  {lines}\n]\n", "utf-8")
    told = json.loads(VECTORS.read_text("utf-8"))
    assert told == sealed_vectors()
    for vector in told:
        receiver = Sealer(KeyRing({vector["key_id"]: bytes.fromhex(vector["group_key"])}, vector["key_id"]), "lab", ME)
        assert receiver.open(bytes.fromhex(vector["hex"])) == frame_from_json(vector["frame"])


# --- what was touched, or made by others, is refused -----------------------------------------------------------------


def test_every_changed_bit_is_noticed():
    sealed = sealer(PEER).seal(to_me(1))
    me = sealer()
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        expected = {0: Refusal.MALFORMED, 1: Refusal.MALFORMED, 2: Refusal.VERSION, 3: Refusal.UNKNOWN_KEY}
        other = Refusal.UNMET if changed[12] & 0x40 else Refusal.FORGED  # bit 62 of the counter: for two alone
        assert reason_of(me.open(bytes(changed))) == expected.get(bit // 8, other)
    assert me.open(sealed) == to_me(1)


def test_every_cut_and_every_addition_is_noticed():
    sealed = sealer(PEER).seal(to_me(1))
    me = sealer()
    for end in range(len(sealed)):
        assert reason_of(me.open(sealed[:end])) in (Refusal.MALFORMED, Refusal.FORGED)
    assert reason_of(me.open(sealed + b"\0")) is Refusal.FORGED
    assert reason_of(me.open(sealed + bytes(65_507))) is Refusal.MALFORMED


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Sealer(KeyRing({1: OTHER_KEY}, 1), "lab", PEER), Refusal.FORGED),
        (Sealer(KeyRing({1: KEY}, 1), "lab2", PEER), Refusal.FORGED),
        (Sealer(KeyRing({2: KEY}, 2), "lab", PEER), Refusal.UNKNOWN_KEY),
    ],
    ids=["another key", "another group", "another key id"],
)
def test_who_has_another_key_or_group_is_not_understood(other: Sealer, reason: Refusal):
    me = Sealer(KeyRing({1: KEY}, 1), "lab", ME)
    assert reason_of(me.open(other.seal(to_me()))) is reason
    assert me.refusals[reason] == 1


def test_a_member_cannot_speak_as_another():
    """The sub-key belongs to the sender in the header: what PEER sealed does not open as a frame of THIRD."""
    sealed = bytearray(sealer(PEER).seal(to_me()))
    sealed[4:12] = THIRD.to_bytes(8)
    assert reason_of(sealer().open(sealed)) is Refusal.FORGED


@pytest.mark.parametrize("door", [sealer(), Unsealed(ME)], ids=["sealed", "unsealed"])
@given(data=st.binary(max_size=200) | frames().map(wire.encode) | frames().map(lambda f: wire.encode(f) + b"x"))
def test_any_bytes_give_a_frame_or_a_reason_that_is_counted(door: Sealer | Unsealed, data: bytes):
    before = sum(door.refusals.values())
    opened = door.open(data)
    assert isinstance(opened, Frame | Refused)
    assert sum(door.refusals.values()) - before == isinstance(opened, Refused)


@given(st.binary(min_size=1, max_size=100))  # cryptography before 45 seals nothing that is empty
def test_what_a_member_seals_need_not_be_a_frame(body: bytes):
    """Who has the key may still send nonsense: refused like any other."""
    opened = sealer().open(by_hand.seal(body, KEY, key_id(KEY), PEER, 0, "lab"))
    assert isinstance(opened, Frame) or opened.reason in (Refusal.MALFORMED, Refusal.MISDIRECTED)


def test_another_version_is_told_apart_so_that_the_user_can_be_told():
    sealed = bytearray(sealer(PEER).seal(to_me()))
    sealed[2] = 3
    for door in (sealer(), Unsealed(ME)):
        opened = door.open(sealed)
        assert reason_of(opened) is Refusal.VERSION
        assert opened.version == 3
        assert "version 3" in opened.detail


# --- no fall-back ----------------------------------------------------------------------------------------------------


def test_a_node_with_a_key_refuses_what_is_not_sealed_and_one_without_refuses_what_is():
    sealed, plain = sealer(PEER).seal(to_me()), Unsealed(PEER).seal(to_me())
    assert reason_of(sealer().open(plain)) is Refusal.NOT_SEALED
    assert reason_of(Unsealed(ME).open(sealed)) is Refusal.SEALED
    assert Unsealed(ME).open(plain) == to_me()


def test_an_unsealed_frame_with_a_counter_is_refused():
    plain = wire.write_header(0, PEER, 1) + wire.write_body(to_me())
    assert reason_of(Unsealed(ME).open(plain)) is Refusal.MALFORMED


# --- replays ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40) | st.sampled_from([1000, 1023, 1024, 1063, 1064, 2500]), max_size=60))
def test_a_frame_is_opened_once_and_refused_only_if_seen_or_older_than_what_is_remembered(order: list[int]):
    me, window, opened = sealer(), {}, set()
    for counter in order:
        remembered = [seen for seen in opened if seen > max(opened) - WINDOW] if opened else []
        new = counter not in opened and (not opened or counter > min(remembered))
        got = me.open(frame_with_counter(counter, window))
        assert isinstance(got, Frame) == new
        if new:
            opened.add(counter)
        else:
            assert reason_of(got) is Refusal.REPLAYED


def sealed_with(counter: int, sender: int = PEER) -> bytes:
    body = wire.encode(to_me(counter, sender))[HEADER_SIZE:]
    return by_hand.seal(body, KEY, key_id(KEY), sender, counter, "lab")


def frame_with_counter(counter: int, made: dict[int, bytes]) -> bytes:
    if counter not in made:
        made[counter] = sealed_with(counter)
    return made[counter]


def test_a_frame_may_be_1023_behind_and_no_more():
    peer, me = sealer(PEER), sealer()
    sealed = [peer.seal(to_me(number)) for number in range(WINDOW + 2)]
    assert me.open(sealed[0]) == to_me(0)
    assert me.open(sealed[1]) == to_me(1)
    assert me.open(sealed[-1]) == to_me(WINDOW + 1)
    assert me.open(sealed[2]) == Refused(Refusal.REPLAYED, me.open(sealed[2]).detail)
    assert me.open(sealed[3]) == Refused(Refusal.REPLAYED, me.open(sealed[3]).detail)


def test_a_late_frame_within_the_window_is_opened_once():
    peer, me = sealer(PEER), sealer()
    sealed = [peer.seal(to_me(number)) for number in range(WINDOW)]
    assert me.open(sealed[0]) == to_me(0)
    assert me.open(sealed[-1]) == to_me(WINDOW - 1)
    assert me.open(sealed[1]) == to_me(1)
    assert reason_of(me.open(sealed[1])) is Refusal.REPLAYED
    assert reason_of(me.open(sealed[0])) is Refusal.REPLAYED


def test_a_recorded_hour_played_back_is_refused_frame_by_frame(monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(1)
    peers, me = [sealer(number) for number in range(100, 110)], sealer()
    recorded = []
    for number in range(5000):
        peer = rng.choice(peers)
        recorded.append(peer.seal(to_me(number, peer.me)))
        assert isinstance(me.open(recorded[-1]), Frame)
    assert {reason_of(me.open(sealed)) for sealed in recorded} == {Refusal.REPLAYED}
    next_life = sealer(THIRD)
    assert {reason_of(next_life.open(sealed)) for sealed in recorded} == {Refusal.MISDIRECTED}
    lower(SENDERS, 1, monkeypatch)
    assert isinstance(next_life.open(sealer(PEER).seal(to_me(receiver=THIRD))), Frame)  # none of those has its room


def test_a_forged_frame_does_not_move_the_window():
    peer, me = sealer(PEER), sealer()
    first, second = peer.seal(to_me(0)), peer.seal(to_me(1))
    assert isinstance(me.open(first), Frame)
    far = bytearray(second)
    far[12:20] = (2**62 - 1).to_bytes(8)
    assert reason_of(me.open(far)) is Refusal.FORGED
    assert me.open(second) == to_me(1)


# --- whom a frame is for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("door", "peer"), [(sealer(), sealer(PEER)), (Unsealed(ME), Unsealed(PEER))])
def test_a_frame_for_another_life_is_refused(door: Sealer | Unsealed, peer: Sealer | Unsealed):
    assert reason_of(door.open(peer.seal(to_me(receiver=THIRD)))) is Refusal.MISDIRECTED


def test_a_greeting_is_for_whoever_gets_it_and_leaves_no_memory_of_a_stranger(
    monkeypatch: pytest.MonkeyPatch, derived: list[bytes]
):
    lower(SENDERS, 1, monkeypatch)
    greeting = sealer(PEER).seal(to_me(receiver=0))
    me = sealer()
    for _ in range(2):
        derived.clear()
        assert me.open(greeting) == to_me(receiver=0)
        assert len(derived) == 1  # the key of the stranger, each time anew
    assert me.open(sealer(THIRD).seal(to_me(sender=THIRD))) == to_me(sender=THIRD)  # it has not its room


def test_a_greeting_from_before_the_first_frame_for_this_life_cannot_be_played_back_after_it():
    peer, me = sealer(PEER), sealer()
    greeting, frame = peer.seal(to_me(receiver=0)), peer.seal(to_me())
    assert isinstance(me.open(greeting), Frame)
    assert isinstance(me.open(frame), Frame)
    assert reason_of(me.open(greeting)) is Refusal.REPLAYED


def test_a_nodes_own_frames_do_not_come_back_to_it_but_for_greetings():
    me = sealer()
    assert reason_of(me.open(me.seal(to_me(sender=ME)))) is Refusal.REFLECTED
    own = to_me(sender=ME)._replace(message=Challenge(1, 2))
    assert me.open(sealed := me.seal(own)) == own
    assert reason_of(me.open(sealed)) is Refusal.REPLAYED
    assert me.open(me.seal(to_me(sender=ME, receiver=0))) == to_me(sender=ME, receiver=0)


@pytest.mark.parametrize("door", [sealer(), Unsealed(ME)], ids=["sealed", "unsealed"])
def test_nobody_sends_for_others(door: Sealer | Unsealed):
    with pytest.raises(UnfitForWire, match="nobody sends for others"):
        door.seal(to_me(sender=PEER))


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_when_there_is_no_room_some_are_forgotten_and_no_frame_of_theirs_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
):
    lower(SENDERS, 3, monkeypatch)
    me, peers = sealer(), [sealer(number) for number in range(100, 104)]
    me.serve([102], lambda: 0)
    first = [peer.seal(to_me(0, peer.me)) for peer in peers]
    assert [me.open(sealed) for sealed in first] == [to_me(0, peer.me) for peer in peers]
    assert {reason_of(me.open(sealed)) for sealed in first} == {Refusal.REPLAYED, Refusal.UNPROVEN}
    assert me.open(peers[2].seal(to_me(1, 102))) == to_me(1, 102)  # a member
    assert reason_of(me.open(peers[0].seal(to_me(1, 100)))) is Refusal.UNPROVEN


def test_who_was_forgotten_proves_that_it_is_there_by_a_number_that_is_good_until_the_next_forgetting(
    monkeypatch: pytest.MonkeyPatch,
):
    lower(SENDERS, 2, monkeypatch)
    me, old = sealer(), sealer(PEER)

    def crowd(begin: int) -> None:
        for number in range(begin, begin + 3):
            sender = sealer(number)
            proof = asked(me, sender)
            if proof is not None:
                assert me.open(sender.seal(Frame(number, ME, "", proof)))

    def asked(by: Sealer, of: Sealer) -> Pong | None:
        """What `of` answers to the question that its frame has brought about."""
        got = by.open(of.seal(to_me(0, of.me)))
        if isinstance(got, Frame):
            return None
        assert (got.reason, got.sender) == (Refusal.UNPROVEN, of.me)
        assert isinstance(got.answer, Ping)
        return Pong(got.answer.nonce)

    crowd(100)
    proof = asked(me, old)
    assert reason_of(me.open(old.seal(Frame(PEER, ME, "", Pong(proof.nonce ^ 1))))) is Refusal.UNPROVEN
    recorded = old.seal(Frame(PEER, ME, "", proof))
    assert me.open(recorded) == Frame(PEER, ME, "", proof)
    later = old.seal(to_me(1))
    assert me.open(later) == to_me(1)
    crowd(200)
    before = me.refusals[Refusal.UNPROVEN]
    assert {reason_of(me.open(sealed)) for sealed in (recorded, later)} == {Refusal.UNPROVEN}
    assert me.refusals[Refusal.UNPROVEN] == before + 2


def test_of_who_has_to_prove_itself_questions_are_heard_and_leave_no_trace(monkeypatch: pytest.MonkeyPatch):
    """Two that have forgotten each other would wait for ever if neither answered."""
    lower(SENDERS, 1, monkeypatch)
    me, peer = sealer(), sealer(PEER)
    for number in (100, 101):
        me.open(sealer(number).seal(to_me(0, number)))
    held = len(me.replays)
    for question in (Hello(1, 0, 2, False, ""), Challenge(1, 2)):
        assert me.open(peer.seal(Frame(PEER, ME, "", question))) == Frame(PEER, ME, "", question)
    assert me.open(peer.seal(Frame(PEER, ME, "", Ping(7)))).answer == Pong(7)
    for silent in (Bye(), Pong(1)):
        assert me.open(peer.seal(Frame(PEER, ME, "", silent))).answer is None
    assert len(me.replays) == held


def test_nobody_is_asked_for_a_proof_with_more_bytes_than_it_sent(monkeypatch: pytest.MonkeyPatch):
    lower(SENDERS, 1, monkeypatch)
    me = sealer()
    for number in (100, 101):
        me.open(sealer(number).seal(to_me(0, number)))
    for cls in CLASSES:
        frame = example_frame(cls, "smallest")._replace(sender=PEER, receiver=ME, mutex="")
        sealed = sealer(PEER).seal(frame)
        got = me.open(sealed)
        if isinstance(got, Refused) and got.answer is not None:
            assert len(me.seal(Frame(ME, PEER, "", got.answer))) <= len(sealed)


def test_strangers_spend_no_memory_of_ours(monkeypatch: pytest.MonkeyPatch, derived: list[bytes]):
    lower(SENDERS, 2, monkeypatch)
    me, peer = sealer(), sealer(PEER)
    for number in range(2):
        assert isinstance(me.open(peer.seal(to_me(number))), Frame)
    for number in range(1000, 1100):
        forged = by_hand.header(key_id(KEY), number, 0) + bytes(60)
        assert reason_of(me.open(forged)) is Refusal.FORGED
    third = sealer(THIRD).seal(to_me(sender=THIRD))
    derived.clear()
    assert isinstance(me.open(peer.seal(to_me(2))), Frame)
    assert not derived  # its key is still here
    assert isinstance(me.open(third), Frame)  # and there is room for another one


def test_the_ciphers_of_many_members_are_kept_in_bounds(derived: list[bytes]):
    me, kept = sealer(), limit("ciphers kept")
    for counter in range(3):
        for number in range(100, 150):
            assert isinstance(me.open(sealed_with(counter, number)), Frame)
    derived.clear()
    for number in range(150 - kept, 150):
        assert isinstance(me.open(sealed_with(3, number)), Frame)
    assert not derived
    for number in range(100, 100 + kept):
        assert isinstance(me.open(sealed_with(3, number)), Frame)
    assert len(derived) == kept


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """For what a key was derived, from now on."""
    made: list[bytes] = []

    def deriving(*how: Any, info: bytes, **more: Any) -> HKDF:
        made.append(info)
        return HKDF(*how, info=info, **more)

    monkeypatch.setattr(ciphers, "HKDF", deriving)
    return made


# --- nonces ----------------------------------------------------------------------------------------------------------


def test_no_nonce_is_used_twice_even_when_the_key_changes_and_changes_back():
    me = sealer()
    used = []
    for key in (KEY, OTHER_KEY, KEY):
        me.rekey(KeyRing.of(key))
        used += [wire.read_header(me.seal(to_me(sender=ME))) for _ in range(5)]
    assert [counter for _, _, counter in used] == list(range(15))


def test_a_counter_that_comes_twice_in_a_clone_gives_nothing_away():
    """Under GCM the two bodies would lie there XORed, and the key that authenticates with them."""
    original, clone = sealer(PEER), sealer(PEER)
    frames = to_me(1), to_me(0x0123456789ABCDEF)
    plain = [wire.encode(each)[HEADER_SIZE:] for each in frames]
    one, other = [door.seal(each) for door, each in zip((original, clone), frames, strict=True)]
    assert one[:HEADER_SIZE] == other[:HEADER_SIZE]
    told, body = xor(one, other)[HEADER_SIZE:], xor(*plain)
    assert all(body != told[at : at + len(body)] for at in range(TAG_SIZE + 1))


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=False))


def wound_forward(door: Sealer, to: int) -> Sealer:
    """As if it had sealed so many frames: whatever part of it counts them."""
    for _ in range(777):
        door.seal(to_me(sender=door.me))
    [counter] = [name for name, value in vars(door).items() if value == 777]
    setattr(door, counter, to)
    return door


def test_a_counter_that_has_reached_its_end_seals_no_more():
    me = wound_forward(sealer(), 2**62 - 1)
    me.seal(to_me(sender=ME))
    for _ in range(2):
        with pytest.raises(UnfitForWire, match="has sealed all that it can"):
            me.seal(to_me(sender=ME))


def test_a_forked_child_cannot_seal_with_its_parents_nonces():
    me = sealer()
    child = os.fork()
    if not child:
        try:
            me.seal(to_me(sender=ME))
        except NodeClosed:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert me.seal(to_me(sender=ME))


# --- changing the key ------------------------------------------------------------------------------------------------


def test_a_key_is_installed_used_and_retired_and_nothing_is_dropped_on_the_way():
    installed, used, retired = KeyRing.of(KEY, OTHER_KEY), KeyRing.of(OTHER_KEY, KEY), KeyRing.of(OTHER_KEY)
    nodes = {number: sealer(number) for number in (ME, PEER, THIRD)}
    late = nodes[PEER].seal(to_me(99))

    def everybody_reaches_everybody() -> None:
        for sender in nodes:
            for receiver in nodes:
                if sender != receiver:
                    frame = Frame(sender, receiver, "m", Done(1, 2))
                    assert nodes[receiver].open(nodes[sender].seal(frame)) == frame

    for ring in (installed, used, retired):  # each step is taken by one node after the other
        for node in nodes.values():
            node.rekey(ring)
            everybody_reaches_everybody()
    assert reason_of(nodes[ME].open(late)) is Refusal.UNKNOWN_KEY


def test_a_new_key_opens_no_old_replay():
    peer, me = sealer(PEER), sealer()
    sealed = peer.seal(to_me())
    assert isinstance(me.open(sealed), Frame)
    me.rekey(KeyRing.of(OTHER_KEY, KEY))
    assert reason_of(me.open(sealed)) is Refusal.REPLAYED
