"""What comings and goings change: it matters where lives are short and ways are long."""

from __future__ import annotations

from softmutex.core.algorithms.wandering.messages import Feed
from softmutex.core.events import NodeId, Received, Released, Ticket
from tests.wandering.stage import Stage


def comes(stage: Stage, node: NodeId) -> None:
    stage.news(joined=(node,))
    stage.add(node)


# --- an inquiry ------------------------------------------------------------------------------------------------------


def test_an_inquiry_ends_where_newcomers_come_faster_than_they_answer():
    """A holder that doubted its token asked each newcomer, too, and the next one came before that one had answered."""
    stage = Stage(nodes=4)
    stage.request(3)
    stage.run(1)
    stage.sleep(3)
    stage.run(0.5)
    stage.wake(3, 0.5)
    for newcomer in range(100, 120):
        comes(stage, newcomer)
        stage.run(0.0015)
    stage.machines[3].handle(Released(1), stage.now)
    assert stage.machines[3].view().state == "parked"


# --- a turn ----------------------------------------------------------------------------------------------------------


def in_a_row(*nodes: NodeId) -> Stage:
    """The first of these holds, and the others wait; none has spoken lately, so they will be asked."""
    stage = Stage(nodes=6, early=False)
    for node in nodes:
        stage.request(node)
        stage.run(0.01)
    stage.run(1)
    return stage


def test_who_refused_its_turn_does_not_get_it_by_the_same_ticket_that_was_fed_meanwhile():
    """It spoke when it refused, so the token was committed to it unasked; it had left, and nobody knew of the token."""
    stage = in_a_row(3, 4, 5)
    stage.withdraw(4)
    stage.release(3)
    stage.tell(3, Received(1, Feed(0, (Ticket(4, 1),), False, 4)))
    stage.run(0.1)
    assert stage.sent["REFUSE"] == 1
    assert stage.machines[5].view().queue == ()
