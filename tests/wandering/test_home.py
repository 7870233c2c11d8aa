"""What a home does for those who wait: each sentence is a rule that a mutant broke while every other test passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Bequest, Feed, Place, Probe, Queued, Seen, Want
from softmutex.core.events import SECOND, Effect, Event, Fired, Instant, NodeId, Send, Ticket, from_seconds
from softmutex.sim.spy import SpiedOn
from tests.wandering import stage as stages
from tests.wandering.stage import Stage, said_by


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.01])
def test_who_asks_while_the_token_leaves_the_home_is_in_its_queue_when_it_has_arrived(after_s: float, early: bool):
    """At whatever moment of the hand-over: behind a turn of a minute nobody would see it before the next beat."""
    stage = Stage(nodes=4, early=early)
    for node in (1, 2):
        stage.request(node)
        stage.run(0.5)
    stage.release(1)
    stage.run(after_s)
    stage.request(3)
    stage.run(0.02)
    assert stage.granted == [(1, 1), (2, 1)]
    assert stage.machines[2].view().queue == (3,)


def test_a_home_that_asked_for_the_token_feeds_whom_it_finds_it_at():
    """The holder was told that others wait, and is to ask for them. That word may be what got lost."""
    stage = Stage(nodes=14)
    stage.request(14)
    stage.run(0.5)
    for node in range(2, 14):
        stage.request(node)
        stage.run(0.05)
    before = stage.machines[14].view().queue
    assert 0 < len(before) < 12
    stage.tell(1, Fired(("watch", 0)))
    stage.run(0.005)
    assert stage.machines[14].view().queue[len(before) :] != ()


def who_are_reminded_by(stage: Stage, home: NodeId) -> set[NodeId]:
    """While the token is idle now and then at node 6, and its queue lost each time."""
    reminded = set[NodeId]()
    for hop, lease in enumerate((2 * SECOND, 0, 2 * SECOND, 0), 510):  # the lost ones are fed once more, and lost
        stage.run(1)
        said = said_by(stage, home, 6, Seen(Place(0, 7, 1, 70, hop, 6), lease, ()))
        reminded |= {each.to for each in said if isinstance(each.message, Queued) and not each.message.patience}
    return reminded


def test_who_asked_again_at_the_end_of_its_turn_is_reminded_though_a_word_of_that_turn_comes_after():
    """The network repeats and overtakes. Its ticket is lost here, and the token idle: nobody else would tell it."""
    stage, home, node = Stage(nodes=30, founder=False), 1, 29
    turn = Seen(Place(0, 7, 1, 70, 500, node), 2 * SECOND, ())
    said_by(stage, home, node, turn)
    for other in range(5, node):
        said_by(stage, home, other, Want(other, 1, False, 0))
    said_by(stage, home, node, Want(node, 2, False, 0))
    stage.run(1)
    said_by(stage, home, node, turn)
    reminded = who_are_reminded_by(stage, home)
    assert node in reminded and 6 not in reminded


def test_a_word_of_the_turn_before_that_comes_after_the_next_ticket_is_not_taken_for_the_next_turn():
    """The ticket overtook it by a few milliseconds, and was lost with the token: minutes beside an idle one."""
    stage, home, node = Stage(nodes=30, founder=False), 1, 29
    said_by(stage, home, 6, Seen(Place(0, 7, 1, 70, 500, 6), 2 * SECOND, ()))
    for other in range(5, node):
        said_by(stage, home, other, Want(other, 1, False, 0))
    said_by(stage, home, node, Want(node, 2, False, 0))
    stage.run(0.001)
    said_by(stage, home, node, Seen(Place(0, 7, 1, 70, 505, node), 2 * SECOND, ()))
    reminded = who_are_reminded_by(stage, home)
    assert node in reminded and 6 not in reminded


def test_whose_answer_came_later_than_it_was_waited_for_is_asked_less_often_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
):
    """An answer to a question that was repeated measures nothing, but that the patience was too short."""
    monkeypatch.setattr(stages, "DELAY", from_seconds(0.4))
    stage = Stage(nodes=5, founder=False)
    stage.cut = {3, 4, 5}  # it goes on asking
    asked = Counter[int]()

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        sent = [each for each in effects if isinstance(each, Send) and each.to == 2]
        asked.update(each.message.number for each in sent if isinstance(each.message, Probe))

    stage.machines[1] = SpiedOn(stage.machines[1], 1, look)  # type: ignore[assignment]
    stage.request(2)
    stage.run(30)
    first, *later = asked.values()
    assert len(later) >= 3
    assert max(later[1:-1]) < first


def test_a_ticket_that_is_given_back_when_its_node_has_asked_anew_is_of_no_use():
    """Five tokens, turns of a millisecond: old tickets went round after them, a thousand messages a second."""
    stage, home, holder = Stage(nodes=5, founder=False), 1, 5
    said_by(stage, home, holder, Seen(Place(0, 7, 1, 70, 500, holder), 2 * SECOND, ()))
    said_by(stage, home, 3, Want(3, 9, False, 0))
    said = said_by(stage, home, holder, Bequest(None, (Ticket(3, 4), Ticket(4, 4))))
    fed = [ticket for each in said if isinstance(each.message, Feed) for ticket in each.message.tickets]
    assert fed == [Ticket(4, 4)]


def test_who_asked_again_as_its_turn_began_is_reminded_until_the_next_turn_of_it_was_seen():
    """It is seen twice: in the turn that it had asked for before, and in the next. Then it waits for nothing."""
    stage, home, node = Stage(nodes=30, founder=False), 1, 29
    said_by(stage, home, 6, Seen(Place(0, 7, 1, 70, 500, 6), 2 * SECOND, ()))
    said_by(stage, home, node, Want(node, 1, False, 0))
    for other in range(5, node):
        said_by(stage, home, other, Want(other, 1, False, 0))
    told = said_by(stage, home, node, Want(node, 2, False, 0))
    assert [each.to for each in told if isinstance(each.message, Queued)] == [node]
    for hop in (501, 505):
        stage.run(1)
        said_by(stage, home, node, Seen(Place(0, 7, 1, 70, hop, node), 2 * SECOND, ()))
    reminded = who_are_reminded_by(stage, home)
    assert node not in reminded and reminded


def test_who_was_told_to_be_patient_is_reminded_three_times_and_no_more():
    """A reminder may be lost; who has had its turn, or is gone, does not answer."""
    stage, home, waiter = Stage(nodes=30, founder=False), 1, 29
    said_by(stage, home, 6, Seen(Place(0, 7, 1, 70, 500, 6), 2 * SECOND, ()))
    for other in range(8, 30):
        said_by(stage, home, other, Want(other, 1, False, 0))
    reminded = list[NodeId]()
    for hop in range(510, 530):
        stage.run(1)
        said = said_by(stage, home, 6, Seen(Place(0, 7, 1, 70, hop, 6), hop % 2 * SECOND, ()))
        reminded += [each.to for each in said if isinstance(each.message, Queued) and not each.message.patience]
    assert reminded.count(waiter) == 3
