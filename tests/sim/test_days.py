"""What an ordinary day costs, with each algorithm: no less than it did, and no more (`days.py`)."""

from __future__ import annotations

import pytest

from tests.sim.days import algorithms, days, outside, ranges, run

EVERY_DAY = [(algorithm, day) for algorithm in algorithms() for day in days(algorithm)]


@pytest.mark.parametrize(("algorithm", "day"), EVERY_DAY)
def test_an_ordinary_day_costs_what_it_does_with_any_seed(algorithm: str, day: str):
    assert outside(run(algorithm, day, 1), ranges()[algorithm, day]) == []


def test_a_line_of_a_day_that_is_no_more_is_taken_away():
    assert sorted(ranges()) == sorted(EVERY_DAY)
