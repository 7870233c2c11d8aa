"""Whose ticket is lost waits for two rounds at the most: the home knows how long turns take, and whom it misses."""

from __future__ import annotations

import pytest

from softmutex.core.algorithms.wandering.messages import Heard, Place, Queued, Seen, Want
from softmutex.core.events import SECOND, NodeId, Ticket
from tests.wandering.stage import Stage, said_by


def test_a_home_that_has_its_turns_as_well_knows_how_long_they_take():
    """It passed the token on itself, and took the next turn for as long as both, and more: who was to ask again after
    a round and a quarter did so after three, and its ticket was lost."""
    stage = Stage(nodes=6)
    for node in range(1, 6):
        stage.request(node)
        stage.run(0.01)
    for turn in range(2, 25):
        stage.run(2)
        (node,) = stage.holding
        stage.release(node)
        stage.request(node, turn)
        stage.run(0.01)
    (said,) = [each.message for each in said_by(stage, 1, 6, Want(6, 1, False, 0)) if isinstance(each.message, Queued)]
    assert 6 * 2.5 * SECOND < said.patience < 6 * 3 * SECOND


def a_home_of_sixty(turn: Seen) -> Stage:
    """Who has seen that turns take five seconds; 3 and 4 are in the queue of the token, and all others ask for it."""
    stage = Stage(nodes=60, founder=False)
    said_by(stage, 1, 7, turn._replace(place=turn.place._replace(hop=turn.place.hop - 1, holder=7)))
    stage.run(5)
    said_by(stage, 1, turn.place.holder, turn)
    for node in range(8, 61):
        said_by(stage, 1, node, Want(node, 1, False, 0))
    return stage


def fed_at(stage: Stage, seen: Seen) -> list[NodeId]:
    (heard,) = [each for each in said_by(stage, 1, seen.place.holder, seen) if isinstance(each.message, Heard)]
    return [ticket.node for ticket in heard.message.tickets]


TURN = Seen(Place(0, 7, 1, 70, 500, 2), 2 * SECOND, (Ticket(3, 1), Ticket(4, 1)))


@pytest.mark.parametrize(("turns", "lost"), [(0, [8, 9, 10]), (1, [8, 9, 10]), (3, [9, 10]), (5, [])])
def test_who_was_fed_and_is_not_in_the_queue_is_fed_again_if_its_turn_cannot_have_come(turns: int, lost: list[NodeId]):
    """The home looked for them in the turn in which they were fed only: who was sent to the token with thirty others,
    and lost with them, waited for a round and a quarter until it asked again."""
    stage = a_home_of_sixty(TURN)
    stage.run(3)
    place = TURN.place._replace(hop=500 + turns, holder=59 if turns else 2)
    assert fed_at(stage, TURN._replace(place=place, queue=()))[: len(lost) + 1] == [*lost, 11]


def test_who_asks_again_for_what_was_lost_is_the_first_to_be_fed():
    """At the end of the register it waited for another round: three in all."""
    stage = a_home_of_sixty(TURN)
    place = TURN.place._replace(hop=550, holder=60)
    assert fed_at(stage, Seen(place, 2 * SECOND, ()))[:1] == [11]
    stage.run(60)
    said_by(stage, 1, 8, Want(8, 1, False, 0))
    said_by(stage, 1, 7, Want(7, 1, False, 0))
    again = fed_at(stage, Seen(place._replace(hop=590, holder=59), 2 * SECOND, ()))
    assert again[0] == 8 and again[-1] == 7
