"""Timing: what the application states, and what the papers' formulas make of it."""

from __future__ import annotations

import math

import pytest

from softmutex.core.algorithms.adaptive import Adaptive
from softmutex.core.algorithms.random_access import RandomAccess
from softmutex.core.algorithms.sandwich import Sandwich
from softmutex.core.errors import ConfigError
from softmutex.core.events import SECOND
from softmutex.core.timing import Timing

PACES = {algorithm.name: algorithm.pace for algorithm in (Adaptive, Sandwich, RandomAccess)}


def seconds(timing: Timing, algorithm: str) -> dict[str, float]:
    return timing.constants(PACES[algorithm]).in_seconds()


def test_the_defaults_are_the_constants_of_seed_001():
    assert seconds(Timing(), "sandwich") == {"skip": 0.1, "op": 4, "min": 600, "max": 1800, "generate": 180_000}


def test_the_defaults_are_the_constants_of_seed_000_too():
    assert seconds(Timing(), "adaptive") == {"skip": 1, "op": 4, "min": 600, "max": 1800, "generate": 180_000}


def test_random_access_waits_up_to_half_as_long_again():
    assert seconds(Timing(), "random-access")["max"] == 900


def test_the_constants_grow_with_op_and_with_the_nodes_that_saturate():
    assert seconds(Timing(op=2, nodes_max=50), "sandwich") == {
        "skip": 0.05,
        "op": 2,
        "min": 50,
        "max": 150,
        "generate": 2500,
    }


def test_what_is_stated_is_not_computed():
    timing = Timing(op=4, nodes_max=10, skip=0.5, min_interval=7, max_interval=9)
    assert seconds(timing, "adaptive") == {"skip": 0.5, "op": 4, "min": 7, "max": 9, "generate": 70}


def test_max_follows_from_a_stated_min():
    assert seconds(Timing(min_interval=10), "adaptive")["max"] == 30


def test_inside_everything_is_whole_nanoseconds():
    constants = Timing(op=0.1, nodes_max=3).constants()
    assert constants == (SECOND // 400, SECOND // 10, 3 * SECOND // 20, 9 * SECOND // 20, 9 * SECOND // 20)
    assert all(type(value) is int for value in constants)


def test_nothing_becomes_zero_however_short_op_is():
    constants = Timing(op=1e-10).constants()
    assert constants.skip_ns == 1
    assert constants.op_ns == 1


@pytest.mark.parametrize(("nodes", "load"), [(75, 0.5), (150, 1.0), (300, 2.0)])
def test_kload_is_above_one_when_more_is_wanted_than_there_is(nodes: int, load: float):
    assert Timing().kload(nodes) == load


def test_kload_without_a_pause_is_infinite():
    assert Timing(min_interval=0).kload(2) == math.inf


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"op": 0}, "op is 0: give a finite number of seconds, above 0"),
        ({"op": -1}, "op is -1"),
        ({"op": math.nan}, "op is nan"),
        ({"op": math.inf}, "op is inf"),
        ({"op": "4"}, "op is '4': give a number of seconds"),
        ({"op": True}, "op is True"),
        ({"skip": 0}, "skip is 0: give a finite number of seconds, above 0"),
        ({"skip": -0.1}, "skip is -0.1"),
        ({"skip": 5}, "skip (5 s) is longer than op (4 s)"),
        ({"min_interval": -1}, "min_interval is -1: give a finite number of seconds, 0 or above"),
        ({"max_interval": 0}, "max_interval is 0: give a finite number of seconds, above 0"),
        ({"max_interval": math.nan}, "max_interval is nan"),
        ({"min_interval": 10, "max_interval": 9}, "max_interval (9 s) is below min_interval (10 s)"),
        ({"nodes_max": 1}, "nodes_max is 1: a group has at least 2 nodes"),
        ({"nodes_max": 2.5}, "nodes_max is 2.5: give a whole number"),
        ({"nodes_max": True}, "nodes_max is True"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict[str, object], said: str):
    with pytest.raises(ConfigError) as error:
        Timing(**settings)  # type: ignore[arg-type]
    assert said in str(error.value)
    assert "give" in str(error.value).lower()


def test_the_edges_of_what_is_possible_are_allowed():
    Timing(op=4, skip=4)
    Timing(min_interval=9, max_interval=9).constants()
    Timing(nodes_max=2)
    Timing(min_interval=0)


@pytest.mark.parametrize("algorithm", ["adaptive", "sandwich"])
def test_algorithms_that_measure_in_min_refuse_a_min_of_zero(algorithm: str):
    with pytest.raises(ConfigError, match="min_interval is 0"):
        Timing(min_interval=0).constants(PACES[algorithm])
    assert Timing(min_interval=0).constants().min_ns == 0


def test_a_max_below_the_min_that_follows_is_refused():
    with pytest.raises(ConfigError, match=r"max_interval \(599 s\) is below the min_interval of 600 s"):
        Timing(max_interval=599).constants()
    assert Timing(max_interval=600).constants().max_ns == 600 * SECOND
