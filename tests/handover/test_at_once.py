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


def test_of_a_request_that_was_forgotten_nothing_is_said():
    handover = make()
    for request in range(1, Handover.MEMORY + 3):
        handover.stand(request)
    assert hear(handover, 2, commit_for(1)) == NOTHING


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
