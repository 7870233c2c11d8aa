"""Who hears nobody and is heard: it says so, is passed over for a while, and only for a while."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Probe
from softmutex.core.events import Effect, Event, Instant, NodeId, Received, Send
from softmutex.sim.spy import SpiedOn
from tests.wandering.stage import Stage

SAYS_SO = Probe(0, 0, 0, None, False)


@pytest.fixture
def stage() -> Stage:
    """1 holds, 2 and 3 wait in its queue, in this order."""
    stage = Stage(nodes=3)
    stage.request(1)
    for node in (2, 3):
        stage.run(0.5)
        stage.request(node)
    stage.run(0.5)
    return stage


def test_who_says_that_it_hears_nobody_is_passed_over_for_those_behind_it(stage: Stage):
    stage.tell(1, Received(2, SAYS_SO))
    stage.release(1)
    stage.run(0.5)
    assert stage.granted == [(1, 1), (3, 1)]


def test_who_left_since_and_is_back_is_not_passed_over_for_what_it_said_before(stage: Stage):
    stage.tell(1, Received(2, SAYS_SO))
    assert 2 in stage.machines[1].context.deaf
    stage.news(left=(2,))
    stage.news(joined=(2,))
    assert 2 not in stage.machines[1].context.deaf


def test_it_is_not_forgotten_and_has_its_turn_when_it_does_not_say_so_again():
    """Only the holder was told, which parks the token with the deaf one in its queue: nothing else happens."""
    stage = Stage(nodes=2)
    stage.request(1)
    stage.run(0.5)
    stage.request(2)
    stage.run(0.5)
    stage.tell(1, Received(2, SAYS_SO))
    stage.cut = {2}  # nor does it ask again
    stage.release(1)
    stage.run(4)
    assert stage.granted == [(1, 1)]
    stage.run(0.99)
    stage.cut = set()
    stage.run(0.015)
    assert stage.granted == [(1, 1), (2, 1)]


def test_whoever_uses_the_token_does_not_say_that_it_hears_nobody():
    """Who asks goes on being told that it is in use (S1)."""
    said: list[Probe] = []

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        said.extend(each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Probe))

    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.machines[3] = SpiedOn(stage.machines[3], 3, look)  # type: ignore[assignment]
    stage.cut = {3}
    stage.run(20)
    assert said and all(probe.number for probe in said)
    stage.release(3)
    assert any(not probe.number for probe in said)
