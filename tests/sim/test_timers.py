"""Timers go off as often, and are set for as long, as they were: no more in vain, with each algorithm (`timers.py`)."""

from __future__ import annotations

import pytest

from tests.sim.timers import figures, outside, ranges, timed, worlds

EVERYWHERE = [(algorithm, world) for algorithm in timed() for world in worlds(algorithm)]


@pytest.mark.parametrize(("algorithm", "world"), EVERYWHERE)
def test_a_timer_is_set_for_as_long_and_goes_off_as_often_as_it_did(algorithm: str, world: str):
    assert outside(figures(algorithm, world, 1), ranges()[algorithm, world]) == []


def test_a_line_of_a_world_that_is_no_more_is_taken_away():
    assert sorted(ranges()) == sorted(EVERYWHERE)
