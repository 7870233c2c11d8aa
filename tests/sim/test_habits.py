"""Timers go off as often, and for as long, as they did, and messages say what they said (`habits.py`)."""

from __future__ import annotations

import pytest

from tests.sim.days import algorithms
from tests.sim.habits import figures, outside, ranges, worlds

EVERYWHERE = [(algorithm, world) for algorithm in algorithms() for world in worlds(algorithm)]


@pytest.mark.parametrize(("algorithm", "world"), EVERYWHERE)
def test_timers_and_messages_are_as_they_were(algorithm: str, world: str):
    assert outside(figures(algorithm, world, 1), ranges()[algorithm, world]) == [], (
        f"on purpose? python -m tests.sim.habits {algorithm}"
    )


def test_a_line_of_a_world_that_is_no_more_is_taken_away():
    assert sorted(ranges()) == sorted(EVERYWHERE)
