"""Who is in the queue of a token when it arrives somewhere. Each sentence is a rule that a mutant broke."""

from __future__ import annotations

import pytest

from softmutex.core.algorithms.wandering.messages import Account, Bequest, Feed, Place, Queued, Recall, Seen, Want
from softmutex.core.events import SECOND, Received, Ticket
from softmutex.core.messages import Done
from tests.wandering.stage import Stage, place_of_token, said_by


def test_who_was_fed_to_a_token_that_had_just_left_is_in_its_queue_when_it_comes_back():
    """Nobody has confirmed that it arrived: it may come back at once, and until then they wait for it there."""
    stage = Stage(nodes=5)
    stage.request(2)
    stage.run(0.5)
    first = place_of_token(stage, 2)
    stage.request(1)
    stage.run(0.1)
    stage.loses = (Done,)
    stage.release(2)
    stage.run(0.01)
    stage.request(2, 2)
    stage.run(0.01)
    stage.tell(2, Received(3, Feed(0, (Ticket(4, 1), Ticket(5, 1)), True, 4)))
    stage.release(1)
    stage.run(0.0015)
    assert stage.granted == [(2, 1), (1, 1), (2, 2)]
    (token,) = stage.machines[2].view().tokens
    assert token.queue == (Ticket(4, 1), Ticket(5, 1)) and token.escort.more
    (said,) = said_by(stage, 2, 3, Recall(1, first, first._replace(id=9), None))
    assert isinstance(said.message, Account) and said.message.after == first._replace(hop=first.hop + 1, holder=1)


def test_as_many_follow_a_token_that_has_just_left_as_fit_into_its_queue_and_the_others_go_home():
    stage = Stage(nodes=5)
    stage.request(2)
    stage.run(0.5)
    stage.request(3)
    stage.run(0.1)
    stage.loses = (Done,)
    stage.release(2)
    stage.run(0.01)
    home: list[Ticket] = []
    for first in (10, 30):
        late = tuple(Ticket(node, 1) for node in range(first, first + 20))
        home += [
            ticket
            for each in said_by(stage, 2, 4, Feed(0, late, False, 4))
            if isinstance(each.message, Bequest)
            for ticket in each.message.tickets
        ]
    assert home == [Ticket(node, 1) for node in range(42, 50)]


@pytest.mark.parametrize("more", [True, False])
def test_what_was_kept_for_a_token_tells_it_whether_others_wait(more: bool):
    stage = Stage(nodes=5)
    stage.request(2)
    stage.run(0.5)
    stage.request(3)
    stage.run(0.1)
    stage.tell(3, Received(1, Feed(0, (Ticket(4, 1),), more, 4, 9)))
    stage.release(2)
    stage.run(0.0015)
    (token,) = stage.machines[3].view().tokens
    assert token.queue == (Ticket(4, 1),) and token.escort.more is more


def test_the_last_resort_comes_sooner_again_with_each_token_that_comes():
    """Where nobody asks for a lost token (`census`), it is half as late again with each time that there was none."""
    stage = Stage(nodes=3, founder=False, census=False)
    stage.cut = {2}
    stage.request(2)
    first = stage.timers[2, "gen"] - stage.now
    stage.run(first / SECOND + 1)
    assert stage.granted == [(2, 1)]
    stage.cut = set()
    stage.release(2)
    stage.request(3)
    stage.run(9)
    assert 3 in stage.holding
    stage.request(2, 2)
    assert first < stage.timers[2, "gen"] - stage.now < first * 3 // 2


def test_a_token_that_comes_to_its_home_takes_those_along_who_wait_there():
    stage = Stage(nodes=5)
    stage.request(2)
    stage.run(0.5)
    stage.request(1)
    stage.run(0.005)
    stage.request(3)
    stage.run(0.005)
    assert stage.machines[2].view().queue == (1,)
    stage.release(2)
    stage.run(0.01)
    assert stage.granted == [(2, 1), (1, 1)] and stage.machines[1].view().queue == (3,)


def test_who_left_while_the_token_was_on_its_way_is_in_its_queue_no_more():
    stage = Stage(nodes=5)
    stage.request(2)
    stage.run(0.5)
    for node in (3, 4, 5):
        stage.request(node)
        stage.run(0.1)
    stage.release(2)
    stage.run(0.0005)
    stage.kill(4)
    stage.news(left=(4,))
    stage.run(0.01)
    assert stage.granted[-1] == (3, 1) and stage.machines[3].view().queue == (5,)


def test_who_asks_again_is_fed_once_more_unless_it_was_seen_in_the_queue():
    stage, home, holder = Stage(nodes=5, founder=False), 1, 5

    def fed() -> list[Ticket]:
        said = said_by(stage, home, 3, Want(3, 9, False, 0))
        assert Queued in {type(each.message) for each in said}
        return [ticket for each in said if isinstance(each.message, Feed) for ticket in each.message.tickets]

    seen = Place(0, 7, 1, 70, 500, holder)
    said_by(stage, home, holder, Seen(seen, 2 * SECOND, ()))
    said_by(stage, home, 3, Want(3, 9, False, 0))
    assert fed() == [Ticket(3, 9)]
    stage.run(1)
    said_by(stage, home, holder, Seen(seen, 2 * SECOND, (Ticket(3, 9),)))
    assert fed() == []
    stage.run(9)  # its holder has not been heard of since
    assert fed() == [Ticket(3, 9)]
