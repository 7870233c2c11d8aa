"""One message: a commit to who promised beforehand, in its request. And what a departure ends."""

from __future__ import annotations

from typing import Any

import pytest

from softmutex.core.at_once import OWED, STANDING
from softmutex.core.events import Effect, Send, SetTimer
from softmutex.core.handover import Failed, Gone, Handover, Taken
from softmutex.core.messages import Accept, Ask, Commit, Done, Offer, Void
from tests.handover.stage import TOKEN
from tests.handover.test_bounds import NOTHING, exactly, hear, make

HOP_1 = TOKEN._replace(hop=1)


def commit_for(request: int, nonce: int = 5) -> Commit:
    return Commit(nonce, STANDING + request, TOKEN)


def sent(out: list[Effect]) -> list[Any]:
    return exactly(*(effect.message for effect in out if isinstance(effect, Send)))


def test_who_stands_for_a_request_takes_the_token_at_once_and_says_so_a_moment_later():
    handover = make()
    handover.stand(3)
    out: list[Effect] = []
    assert exactly(handover.received(2, commit_for(3), 100, out)) == exactly(Taken(HOP_1, 2))
    assert sent(out) == []
    [timer] = [effect.timer for effect in out if isinstance(effect, SetTimer)]
    assert timer == (OWED, 5)
    later: list[Effect] = []
    assert handover.fired(timer, 200, later) is None
    assert sent(later) == exactly(Done(5, STANDING + 3))
    assert handover.idle


def test_a_copy_of_the_commit_is_confirmed_and_another_commit_for_that_request_is_refused_for_ever():
    handover = make()
    handover.stand(3)
    hear(handover, 2, commit_for(3))
    assert hear(handover, 2, commit_for(3)) == exactly(None, Done(5, STANDING + 3))
    assert hear(handover, 4, commit_for(3, nonce=6)) == exactly(None, Void(6, STANDING + 3))
    handover.stand(3)
    assert not handover.standing


def test_a_question_about_a_commit_that_never_came_gives_the_place_up():
    handover = make()
    handover.stand(3)
    assert hear(handover, 2, Ask(5, STANDING + 3)) == exactly(None, Void(5, STANDING + 3))
    assert hear(handover, 2, commit_for(3)) == exactly(None, Void(5, STANDING + 3))


def test_an_earlier_request_that_was_served_by_another_way_will_do():
    handover = make()
    handover.stand(3)
    assert hear(handover, 2, commit_for(2)) == exactly(Taken(HOP_1, 2))


def test_who_stands_for_nothing_refuses():
    handover = make()
    handover.stand(3)
    handover.stand(0)
    assert hear(handover, 2, commit_for(3)) == exactly(None, Void(5, STANDING + 3))
    assert hear(handover, 2, commit_for(9)) == exactly(None, Void(5, STANDING + 9))


def pass_over(handover: Handover, first: int) -> int:
    """It stands for so many requests that those before them are forgotten; the last of them."""
    last = first + Handover.MEMORY + 1
    for request in range(first, last + 1):
        handover.stand(request)
    return last


def test_who_slept_and_commits_to_what_was_forgotten_long_ago_keeps_its_token_each_time():
    handover = make()
    handover.stand(1)
    hear(handover, 2, commit_for(1))
    last = pass_over(handover, 2)
    for nonce, request in enumerate(range(2, last), start=6):
        assert hear(handover, 2, commit_for(request, nonce)) == exactly(None, Void(nonce, STANDING + request))
        assert hear(handover, 2, Ask(nonce, STANDING + request)) == exactly(None, Void(nonce, STANDING + request))
    assert hear(handover, 2, commit_for(last, nonce=100)) == exactly(Taken(HOP_1, 2))


def test_the_last_commit_of_a_sender_is_confirmed_for_ever_and_of_earlier_ones_nothing_is_said():
    handover = make()
    for request, nonce in ((1, 5), (2, 6)):
        handover.stand(request)
        assert hear(handover, 2, commit_for(request, nonce)) == exactly(Taken(HOP_1, 2))
    pass_over(handover, 3)
    assert hear(handover, 2, Ask(6, STANDING + 2)) == exactly(None, Done(6, STANDING + 2))
    assert hear(handover, 2, commit_for(1, nonce=5)) == NOTHING
    assert hear(handover, 2, Ask(5, STANDING + 1)) == NOTHING


def test_two_commits_that_overtake_each_other_count_as_the_later_one():
    handover = make()
    for request, nonce in ((1, 6), (2, 5)):
        handover.stand(request)
        assert hear(handover, 2, commit_for(request, nonce)) == exactly(Taken(HOP_1, 2))
    pass_over(handover, 3)
    assert hear(handover, 2, Ask(6, STANDING + 1)) == NOTHING
    assert hear(handover, 2, Ask(5, STANDING + 2)) == NOTHING
    assert hear(handover, 2, Ask(7, STANDING + 2)) == exactly(None, Void(7, STANDING + 2))


def test_so_many_senders_are_remembered_and_of_others_only_that_later_requests_were_never_theirs():
    handover = make()
    senders = range(2, Handover.MEMORY + 4)
    for request, sender in enumerate(senders, start=1):
        handover.stand(request)
        assert hear(handover, sender, commit_for(request)) == exactly(Taken(HOP_1, sender))
    pass_over(handover, len(senders) + 1)
    assert handover.remembered.senders == Handover.MEMORY
    for request, sender in enumerate(senders[:2], start=1):
        assert hear(handover, sender, Ask(5, STANDING + request)) == NOTHING
    assert hear(handover, 1000, commit_for(2, nonce=9)) == NOTHING
    assert hear(handover, 1000, commit_for(3, nonce=9)) == exactly(None, Void(9, STANDING + 3))
    assert hear(handover, senders[2], Ask(5, STANDING + 3)) == exactly(None, Done(5, STANDING + 3))


def test_the_return_of_the_token_pays_for_the_done():
    handover = make()
    handover.stand(3)
    hear(handover, 2, commit_for(3))
    out: list[Effect] = []
    handover.give_at_once(HOP_1, 2, 7, 100, out)
    assert sent(out) == exactly(Commit(1001, STANDING + 7, HOP_1))
    later: list[Effect] = []
    handover.fired((OWED, 5), 200, later)
    assert sent(later) == []


@pytest.mark.parametrize("committed", [False, True])
def test_what_was_under_way_to_who_left_is_over(committed: bool):
    handover = make()
    handover.give(TOKEN, 2, 0, [])
    if committed:
        hear(handover, 2, Accept(1001, 7))
    outcome = Gone(TOKEN, 2) if committed else Failed(TOKEN, 2)
    assert exactly(*handover.departed(2, [])) == exactly(outcome)
    assert handover.idle


def test_what_was_promised_to_who_left_is_void():
    handover = make()
    assert hear(handover, 2, Offer(5, TOKEN))[1][0] is Accept
    handover.departed(2, [])
    assert handover.idle
