"""What a seal makes of frames where identities are asked for: who vouches is played here (S8 of runtime/sealing.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from softmutex.core.messages import Challenge, Hello, Withdraw
from softmutex.core.wire import Frame
from softmutex.runtime import ciphers
from softmutex.runtime.sealing import CIPHERS_KEPT, KeyRing, Refusal, Refused, Sealer
from tests.limits import lower

KEY = bytes(range(32))
ME, PEER, THIRD = 0x1111, 0x2222, 0x3333
SENDERS = "senders whose counters are remembered"


class Vouches:
    """Believes everybody, or nobody, and notes what it is told."""

    def __init__(self, *unproven: int, wrong: str = "", certain: bool = True) -> None:
        self.required = False
        self.unproven = unproven
        self.verdict = SimpleNamespace(wrong=wrong, is_certain=certain)
        self.sessions = SimpleNamespace(get=lambda peer: None)
        self.judged: list[int] = []
        self.taken: list[int] = []
        self.forgotten = 0

    def demands_proof(self, sender: int) -> bool:
        return sender in self.unproven

    def judge(self, frame: Frame, *parts: bytes, is_paired: bool) -> Any:
        self.judged.append(frame.sender)
        return self.verdict

    def take_in(self, sender: int, verdict: Any) -> None:
        assert verdict is self.verdict
        self.taken.append(sender)

    def forget(self, but: object) -> None:
        self.forgotten += 1

    def attest(self, *what: Any) -> bytes:
        return b""


def sealer(me: int = ME) -> Sealer:
    return Sealer(KeyRing.of(KEY), "lab", me)


def door(vouches: Vouches) -> Sealer:
    made = sealer()
    made.vouching = vouches  # type: ignore[assignment]
    return made


def to_me(number: int = 0, sender: int = PEER, receiver: int = ME) -> Frame:
    return Frame(sender, receiver, "m", Withdraw(number))


def reason_of(opened: Frame | Refused) -> Refusal:
    assert isinstance(opened, Refused)
    return opened.reason


def test_who_is_believed_is_taken_in_with_each_frame_for_this_life():
    me, peer = door(vouches := Vouches()), sealer(PEER)
    assert me.open(frame := peer.seal(to_me())) == to_me()
    assert reason_of(me.open(frame)) is Refusal.REPLAYED
    assert vouches.judged == vouches.taken == [PEER] and PEER in me.replays


def test_a_greeting_of_a_stranger_takes_nobody_in_and_one_of_a_known_one_does():
    me, peer = door(vouches := Vouches()), sealer(PEER)
    before, frame, after = peer.seal(to_me(receiver=0)), peer.seal(to_me()), peer.seal(to_me(receiver=0))
    assert me.open(before) == me.open(before) == to_me(receiver=0)
    assert vouches.taken == [] and PEER not in me.replays
    me.open(frame)
    assert me.open(after) == to_me(receiver=0) and vouches.taken == [PEER, PEER]
    assert reason_of(me.open(after)) is Refusal.REPLAYED


def test_frames_that_prove_nothing_are_opened_once_and_move_nothing_that_is_kept_of_their_sender():
    me, peer = door(vouches := Vouches(PEER)), sealer(PEER)
    frames = [peer.seal(to_me(number)) for number in range(3)]
    assert me.open(frames[0]) == to_me(0) and me.open(frames[2]) == to_me(2)
    assert PEER not in me.replays and vouches.taken == [PEER, PEER]
    assert reason_of(me.open(frames[2])) is Refusal.REPLAYED and me.refusals[Refusal.REPLAYED] == 1
    vouches.unproven = ()
    assert me.open(frames[1]) == to_me(1) and PEER in me.replays


@pytest.mark.parametrize("message", [Hello(1, 0, 1, False, "peer"), Challenge(1, 2)], ids=str)
def test_who_opens_a_conversation_may_do_so_again_and_again_before_it_has_proved_anything(message: Any):
    me, peer = door(vouches := Vouches(PEER)), sealer(PEER)
    sealed = peer.seal(frame := to_me()._replace(message=message, mutex=""))
    assert me.open(sealed) == me.open(sealed) == frame
    assert vouches.taken == []


@pytest.mark.parametrize(("certain", "sender"), [(True, PEER), (False, 0)])
def test_who_is_not_believed_is_refused_and_named_where_it_is_certain_who_that_is(certain: bool, sender: int):
    me, peer = door(vouches := Vouches(wrong="lies", certain=certain)), sealer(PEER)
    refused = me.open(peer.seal(to_me()))
    assert isinstance(refused, Refused) and refused == Refused(Refusal.UNSIGNED, "lies", sender=sender)
    assert me.refusals[Refusal.UNSIGNED] == 1 and vouches.taken == [] and PEER not in me.replays


def test_when_some_are_forgotten_whoever_vouches_forgets_them_too(monkeypatch: pytest.MonkeyPatch):
    lower(SENDERS, 1, monkeypatch)
    me = door(vouches := Vouches())
    me.open(sealer(PEER).seal(to_me()))
    assert vouches.forgotten == 0
    me.open(sealer(THIRD).seal(to_me(sender=THIRD)))
    assert vouches.forgotten == 1 and me.replays.forgettings == 1


def test_the_key_is_right_when_another_one_has_used_it_for_this_life():
    me, peer = sealer(), sealer(PEER)
    me.open(me.seal(to_me(sender=ME)._replace(message=Challenge(1, 2))))
    me.open(peer.seal(to_me(receiver=0)))
    assert not me.is_right
    me.open(peer.seal(to_me()))
    assert me.is_right
    me.rekey(KeyRing.of(bytes(range(1, 33)), KEY))
    me.open(peer.seal(to_me()))
    assert not me.is_right and len(me.key_ids) == 2


def test_ciphers_of_so_many_pairs_are_kept_and_then_the_oldest_goes(monkeypatch: pytest.MonkeyPatch):
    made: list[bytes] = []
    derive = ciphers.cipher_of
    monkeypatch.setattr(ciphers, "cipher_of", lambda *what: made.append(what[2]) or derive(*what))
    session = SimpleNamespace(half=bytes(32), shared=bytes(32), is_known_there=True)
    me, most = door(vouches := Vouches()), 2 * CIPHERS_KEPT
    vouches.sessions = SimpleNamespace(get=lambda peer: session, half=bytes(32))

    def derived_for(peer: int) -> int:
        before = len(made)
        me.seal(to_me(sender=ME, receiver=peer))
        return len(made) - before

    me.seal(to_me(sender=ME, receiver=1))
    assert [derived_for(peer) for peer in range(2, most + 1)] == [1] * (most - 1)
    assert derived_for(1) == 0
    assert derived_for(most + 1) == 1
    assert (derived_for(most), derived_for(1)) == (0, 1)


def test_of_a_frame_that_does_not_open_nobody_is_said_to_have_sent_it():
    stranger = Sealer(KeyRing.of(bytes(range(1, 33))), "lab", PEER)
    refused = sealer().open(stranger.seal(to_me()))
    assert isinstance(refused, Refused) and (refused.sender, refused.answer) == (0, None)
