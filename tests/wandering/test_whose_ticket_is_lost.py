"""Whose ticket is lost waits for two rounds at the most: the home knows how long turns take, and whom it misses."""

from __future__ import annotations

from softmutex.core.algorithms.wandering.messages import Queued, Want
from softmutex.core.events import SECOND
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
