"""Where identities are required, the group's key alone changes nothing that is kept of anybody (S8, V1, E1, E2)."""

import pytest

from softmutex.core.events import Token
from softmutex.core.messages import Bye, Challenge, Hello, Message, Offer, Ping, Pong, StatusRequest, Welcome, Withdraw
from softmutex.core.wire import Frame, read_header
from softmutex.runtime.sealing import PAIRED, SIGNED, KeyRing, Refusal, Refused, Sealer
from tests.security.insider import KEY, certified, in_the_name_of

A, B = 0xA, 0xB
OTHER_KEY = bytes(range(1, 33))
TOKEN = Token(1, 0, 1, 0)


WORD = Withdraw(1)


def say(speaker: Sealer, to: Sealer, message: Message = WORD) -> tuple[int, Frame | Refused]:
    """With which flags it was sealed, and what came out."""
    sealed = speaker.seal(Frame(speaker.me, to.me, "", message))
    return read_header(sealed)[2] & (SIGNED | PAIRED), to.open(sealed)


def reason_of(opened: Frame | Refused) -> Refusal:
    assert isinstance(opened, Refused), opened
    return opened.reason


def met() -> tuple[Sealer, Sealer]:
    a, b = certified(A, 1), certified(B, 2)
    assert isinstance(say(a, b, Hello(1, 7, 0, False, "a"))[1], Frame)
    assert isinstance(say(b, a, Welcome(1, 0, "b"))[1], Frame)
    return a, b


def test_two_that_have_greeted_each_other_seal_with_what_they_alone_share():
    a, b = met()
    assert say(a, b) == (PAIRED, Frame(A, B, "", Withdraw(1)))
    assert say(b, a) == (PAIRED, Frame(B, A, "", Withdraw(1)))
    assert say(a, b, Offer(1, TOKEN)) == (PAIRED | SIGNED, Frame(A, B, "", Offer(1, TOKEN)))


def test_until_it_is_known_that_the_other_one_can_open_it_frames_are_signed():
    a, b = certified(A, 1), certified(B, 2)
    say(a, b, Hello(1, 7, 0, False, "a"))
    b.seal(Frame(B, A, "", Welcome(1, 0, "b")))  # lost
    for _ in range(3):
        flags, heard = say(b, a)
        assert (flags, isinstance(heard, Frame)) == (SIGNED, True)
        if a.vouching.sessions.get(B).is_known_there:
            break
    assert say(a, b)[0] == PAIRED
    assert say(b, a)[0] == PAIRED


def test_who_has_forgotten_the_other_one_is_greeted_anew():
    a, b = met()
    say(a, b)
    b.vouching.forget(())
    assert reason_of(say(a, b)[1]) is Refusal.UNMET
    assert isinstance(say(b, a, Hello(2, 7, 0, False, "b"))[1], Frame)
    assert say(a, b, Welcome(2, 0, "a")) == (SIGNED, Frame(A, B, "", Welcome(2, 0, "a")))
    assert say(a, b)[0] == SIGNED
    assert isinstance(say(b, a)[1], Frame)
    assert say(a, b) == (PAIRED, Frame(A, B, "", Withdraw(1)))


@pytest.mark.parametrize(
    "message",
    [
        Bye(),
        Ping(1),
        Pong(1),
        Withdraw(1),
        Offer(1, TOKEN),
        Welcome(1, 0, "a"),
        Hello(1, 9, 0, False, "a"),
        StatusRequest(1, 0, 0),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("counter", [5, 2**62 - 1])
def test_a_frame_in_the_name_of_another_counts_for_nothing_and_uses_up_no_counter(message: Message, counter: int):
    a, b = met()
    assert reason_of(b.open(in_the_name_of(A, counter, B, message))) is Refusal.UNSIGNED
    assert isinstance(say(a, b)[1], Frame)
    assert isinstance(say(a, b, Hello(2, 7, 0, False, "a"))[1], Frame)


@pytest.mark.parametrize("message", [Challenge(1, 2), Hello(1, 0, 0, False, "a")])
def test_what_begins_a_greeting_is_heard_from_anybody_and_uses_up_no_counter(message: Message):
    a, b = met()
    for _ in range(2):
        assert b.open(in_the_name_of(A, 2**62 - 1, B, message)) == Frame(A, B, "", message)
    assert isinstance(say(a, b)[1], Frame)
    assert isinstance(say(a, b, message)[1], Frame)


def test_the_group_key_reads_nothing_of_what_two_members_say():
    a, _ = met()
    sealed = a.seal(Frame(A, B, "payroll", Withdraw(1)))
    third = Sealer(KeyRing.of(KEY), "default", B)
    assert reason_of(third.open(sealed)) is Refusal.UNMET
    cleared = bytearray(sealed)
    cleared[12] &= 0x3F
    assert reason_of(third.open(bytes(cleared))) is Refusal.FORGED


def test_a_certified_liar_signs_for_no_life_that_has_shown_who_it_is():
    a, b = met()
    liar = certified(A, 3)  # under the id of a
    for _ in range(9):
        liar.seal(Frame(A, B, "", WORD))
    sealed = liar.seal(Frame(A, B, "", Hello(1, 7, 0, False, "a")))
    refused = b.open(sealed)
    assert (reason_of(refused), refused.sender) == (Refusal.UNVOUCHED, 0)  # nobody is expelled for it
    assert "another identity" in refused.detail
    assert isinstance(say(a, b)[1], Frame)


def test_what_a_banned_liar_has_claimed_is_free_again():
    b, liar = certified(B, 2), certified(A, 3)
    for _ in range(99):  # and the counters
        liar.seal(Frame(A, B, "", WORD))
    assert isinstance(say(liar, b, Hello(1, 7, 0, False, "a"))[1], Frame)
    a = certified(A, 1)
    assert reason_of(say(a, b, Hello(1, 7, 0, False, "a"))[1]) is Refusal.REPLAYED
    b.strike({liar.vouching.public})
    assert isinstance(say(a, b, Hello(1, 7, 0, False, "a"))[1], Frame)


def test_a_member_without_papers_is_heard_where_none_are_required_until_it_has_sealed_for_two():
    a, b = certified(A, 1, required=False), certified(B, 2, required=False)
    assert isinstance(b.open(in_the_name_of(A, 0, B, Withdraw(1))), Frame)
    for _ in range(3):
        a.seal(Frame(A, B, "", Withdraw(1)))
    say(a, b, Hello(1, 7, 0, False, "a"))
    say(b, a, Welcome(1, 0, "b"))
    assert say(a, b)[0] == PAIRED
    assert reason_of(b.open(in_the_name_of(A, 900, B, Bye()))) is Refusal.UNSIGNED
    assert isinstance(say(a, b)[1], Frame)


def test_the_groups_key_changes_under_sessions_and_nothing_is_dropped():
    a, b = met()
    both = KeyRing.of(OTHER_KEY, KEY)
    assert say(a, b)[0] == PAIRED
    b.rekey(KeyRing.of(KEY, OTHER_KEY))
    a.rekey(both)
    assert say(a, b) == (PAIRED, Frame(A, B, "", WORD))
    assert say(b, a) == (PAIRED, Frame(B, A, "", WORD))
    for each in (a, b):
        each.rekey(KeyRing.of(OTHER_KEY))
    assert say(a, b) == (PAIRED, Frame(A, B, "", WORD))
