"""Random numbers of other shapes: right, and the same bits on every machine."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from softmutex.core.chance import drawn, exponential, natural_log
from softmutex.core.events import NOBODY, SECOND
from softmutex.core.machine import pick_other


@pytest.mark.parametrize(
    "x", [5e-324, 1e-300, 2**-53, 0.1, 0.25, 0.5, 0.7071067811865476, 0.75, 1 - 2**-53, 1.0, 2.0, 10, 1e300]
)
def test_the_logarithm_is_right(x: float):
    assert natural_log(x) == pytest.approx(math.log(x), rel=3e-15, abs=1e-17)


def test_the_logarithm_is_right_everywhere_between():
    rng = random.Random(1)
    for _ in range(2000):
        x = 1.0 - rng.random()
        assert natural_log(x) == pytest.approx(math.log(x), rel=3e-15, abs=1e-17)


def test_the_logarithm_has_the_same_bits_everywhere():
    assert [natural_log(x).hex() for x in (0.1, 0.3, 0.9)] == [
        "-0x1.26bb1bbb55515p+1",
        "-0x1.34378fcbda720p+0",
        "-0x1.af8e8210a415bp-4",
    ]


def test_exponential_times_have_their_mean_and_their_median():
    rng = random.Random(1)
    draws = sorted(exponential(rng, SECOND) for _ in range(20_000))
    assert all(type(draw) is int and draw >= 0 for draw in draws)
    assert fmean(draws) == pytest.approx(SECOND, rel=0.03)
    assert draws[10_000] == pytest.approx(math.log(2) * SECOND, rel=0.03)


def test_one_number_is_drawn_for_each():
    one, other = random.Random(7), random.Random(7)
    exponential(one, SECOND)
    other.random()
    assert one.random() == other.random()


@pytest.mark.parametrize(("random", "number"), [(0.0, 0), (2**-53, 1), (0.5, 2**52), (1 - 2**-53, 2**53 - 1)])
def test_a_number_that_is_drawn_has_53_bits(random: float, number: int):
    class Rng:
        def random(self) -> float:
            return random

    assert drawn(Rng()) == number


def test_another_member_is_any_but_this_one_and_nobody_where_there_is_no_other():
    rng = random.Random(1)
    assert pick_other((), 3, rng) == pick_other((3,), 3, rng) == NOBODY
    assert pick_other((5,), 3, rng) == 5
    assert {pick_other((3, 5, 7), 3, rng) for _ in range(40)} == {5, 7}
