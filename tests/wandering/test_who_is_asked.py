"""Whom a node asks, and who watches: each sentence is one that a mutant once broke."""

from __future__ import annotations

import pytest

from softmutex.core.algorithms.wandering.messages import Probe, Queued, Want
from softmutex.core.algorithms.wandering.settings import PATIENCE
from softmutex.core.events import SECOND, Received, Released, Requested, Send
from softmutex.core.messages import Commit
from tests.wandering.stage import Stage


@pytest.mark.parametrize("nodes", [3, 4, 5, 9, 60])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_random_others_are_different_ones_and_mostly_so_many(nodes: int, count: int):
    context = Stage(nodes=nodes).machines[1].context
    drawn = [context.random_others(count) for _ in range(200)]
    assert all(len(set(each)) == len(each) <= count and 1 not in each for each in drawn)
    assert sum(map(len, drawn)) >= 0.9 * 200 * min(count, nodes - 1)


def test_a_request_is_sent_home_and_not_after_the_token_that_has_just_left():
    """Those near its trail got in again and again, before others that the home had been asked for."""
    stage = Stage(nodes=5)
    for node in (2, 3):
        stage.request(node)
        stage.run(0.1)
    stage.release(2)
    stage.run(0.005)
    assert stage.granted[-1] == (3, 1)
    asked = [effect for effect in stage.machines[2].handle(Requested(9), stage.now) if isinstance(effect, Send)]
    assert [effect.to for effect in asked if isinstance(effect.message, Want)] == [1]


def test_who_is_not_answered_asks_again_no_later_than_who_was_told_to_wait():
    """Where many messages are lost, it had waited for minutes in the end, and went on to after all was well again."""
    stage = Stage(nodes=9)
    stage.run(1)
    stage.cut = set(range(1, 9))
    stage.request(9)
    for _ in range(60):
        stage.run(1)
        assert stage.timers[9, "want"] <= stage.now + 5 * PATIENCE // 4


@pytest.mark.parametrize("said", [1, 2])
def test_who_was_told_to_be_patient_asks_at_once_where_it_is_said_that_a_token_is_idle(said: int):
    """Also by who knows of its last request only: it had waited for all of its patience, minutes, beside that token."""
    stage = Stage(nodes=3)
    stage.request(3)
    stage.run(1)
    stage.release(3)
    stage.request(1)
    stage.run(1)
    stage.request(3, 2)
    stage.run(0.1)
    stage.tell(3, Received(2, Queued(2, 900 * SECOND)))
    assert stage.timers[3, "want"] > stage.now + 600 * SECOND
    stage.tell(3, Received(2, Queued(said, 0)))
    assert stage.timers[3, "want"] <= stage.now + SECOND


def test_a_token_that_comes_after_it_was_given_up_is_looked_into_before_it_is_used():
    """Copies of a COMMIT came ten seconds late, when its sender had given up and another token was in use."""
    stage = Stage(nodes=3)
    stage.request(1)
    stage.request(2)
    stage.run(1)
    commit = next(each for each in stage.machines[1].handle(Released(1), stage.now) if isinstance(each, Send))
    assert isinstance(commit.message, Commit) and commit.to == 2
    stage.tell(2, Received(1, Probe(77, 0, 5, None, False)))
    stage.tell(2, Received(1, commit.message))
    assert (2, 1) not in stage.granted
    assert stage.machines[2].view().state == "doubtful"
    stage.run(1)
    assert (2, 1) in stage.granted, "it was not replaced"


@pytest.mark.parametrize("age", [0.1, 1, 2, 3, 5, 20])
@pytest.mark.parametrize("apart", [0.001, 0.1, 0.9])
@pytest.mark.parametrize("turns_before", [0, 0.05, 0.5])
def test_behind_a_long_turn_whoever_waits_is_in_the_queue_of_the_token_though_the_home_waits_too(
    age: float, apart: float, turns_before: float
):
    """Others wait at the home while the token is to come by there; for longer than a moment nobody would see them,
    whatever the holder says meanwhile, and however short turns have been."""
    stage = Stage(nodes=5)
    if turns_before:
        for node in (2, 3, 4, 5):
            stage.request(node)
        for _ in range(4):
            stage.run(turns_before)
            stage.release(stage.granted[-1][0])
        stage.run(0.1)
    stage.request(2)
    stage.run(age)
    for node in (1, 3, 4, 5):
        stage.request(node)
        stage.run(apart)
    stage.run(6)
    assert stage.machines[2].view().queue == (1, 3, 4, 5)


def test_a_leaver_whose_heir_does_not_answer_finds_another_one():
    stage = Stage(nodes=4)
    stage.request(4)
    stage.run(1)
    stage.release(4)
    stage.run(1)
    stage.cut = {1}  # the home, and the first that is thought of
    stage.leave(4)
    stage.run(30)
    (holder,) = [node for node, machine in stage.machines.items() if machine.view().tokens]
    assert holder in (2, 3)


def test_watchers_that_stood_in_for_the_first_home_are_relieved_when_it_is_back():
    stage = Stage(nodes=5)
    stage.request(5)
    stage.run(1)
    stage.cut = {1}
    stage.run(30)
    (token,) = stage.machines[5].view().tokens
    assert token.escort.watch and 1 not in token.escort.watch
    stage.cut = set()
    stage.run(60)
    (token,) = stage.machines[5].view().tokens
    assert 1 in token.escort.watch
    assert stage.lost == []


def test_that_somebody_leaves_who_has_nothing_to_do_with_a_request_is_no_reason_to_repeat_it():
    """In a group of thousands somebody always leaves, and thousands may wait."""
    stage = Stage(nodes=9)
    for node in (3, 4, 5, 6):
        stage.request(node)
        stage.run(0.1)
    asked = stage.sent["WANT"]
    for leaver in (7, 8, 9):
        stage.kill(leaver)
        stage.news(left=(leaver,))
        stage.run(0.5)
    assert stage.sent["WANT"] == asked
