"""Who stands in the queue of a token, and where: each sentence is a rule that a mutant broke."""

from __future__ import annotations

import random

import pytest

from softmutex.core.algorithms.wandering.messages import Feed, Queued
from softmutex.core.events import SECOND, Received, Ticket
from tests.wandering.stage import Stage

NODES = 12
HOLDER = 3


def in_use() -> Stage:
    stage = Stage(nodes=NODES)
    stage.request(HOLDER)
    stage.run(0.5)
    return stage


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_fed_a_node_stands_there_once_for_its_latest_request_where_it_came_first(seed: int):
    rng, stage = random.Random(seed), in_use()
    latest: dict[int, int] = {}
    for _ in range(12):
        others = [node for node in range(1, NODES + 1) if node != HOLDER]
        tickets = tuple(Ticket(rng.choice(others), rng.randint(1, 9)) for _ in range(rng.randint(0, 6)))
        batch: dict[int, int] = {}
        for node, request in tickets:
            batch[node] = max(request, batch.get(node, 0))
        for node, request in batch.items():
            latest[node] = max(request, latest.get(node, 0))
        stage.tell(HOLDER, Received(1, Feed(0, tickets, False, 4)))
        (token,) = stage.machines[HOLDER].view().tokens
        assert token.queue == tuple(Ticket(*each) for each in latest.items())


def test_who_refuses_its_turn_stands_there_no_longer():
    stage = in_use()
    for node in (2, 4):
        stage.request(node)
        stage.run(0.001)
    stage.withdraw(2)
    stage.run(1)
    assert stage.machines[HOLDER].view().queue == (4,)


def test_who_does_not_answer_that_its_turn_comes_lets_the_others_go_first():
    stage = in_use()
    stage.request(2)
    stage.run(0.0015)  # the home knows of it
    stage.cut = {2}
    stage.request(4)
    stage.run(0.1)
    assert stage.machines[HOLDER].view().queue == (2, 4)
    stage.run(2)
    assert stage.machines[HOLDER].view().queue == (4, 2)
    stage.release(HOLDER)
    stage.run(0.1)
    assert stage.granted[-1] == (4, 1)


def test_whom_a_commit_did_not_reach_asks_again_whatever_it_was_told():
    """It had been told to be patient for two minutes. Its ticket was used up by the hand-over that failed, and the home
    that might have known that was another one by then."""
    stage = Stage(nodes=4)
    stage.request(2)
    stage.run(0.5)
    stage.request(3)
    stage.run(0.5)
    stage.tell(3, Received(1, Queued(1, 120 * SECOND)))
    stage.cut = {3}
    stage.release(2)
    stage.run(1.1)  # the COMMIT is sent no longer, and its sender asks what became of it
    assert stage.timers[3, "want"] > stage.now + 90 * SECOND
    stage.cut = {1}
    stage.run(0.2)
    assert stage.timers[3, "want"] < stage.now + SECOND
