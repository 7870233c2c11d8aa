"""The switches of an algorithm check themselves: `core/options.py`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from softmutex.core.errors import ConfigError
from softmutex.core.options import Options, within


class Way(StrEnum):
    NEAR = "near"
    FAR = "far"


@dataclass(frozen=True)
class Switches(Options):
    on: bool = True
    count: int = within(2, 1, 9)
    seconds: float = within(0.5, 0.0)
    pause: float | None = within(None, 0.0)
    way: Way = Way.NEAR
    other: Way | None = None
    word: str = ""
    free: float = 0.0


@dataclass(frozen=True)
class More(Switches):
    count: int = within(3, 3, 4)


def read(**given: Any) -> Switches:
    return Switches.read(given, "mine")


def test_what_is_not_given_has_its_default():
    assert read() == Switches()
    assert Options.read({}, "mine") == Options()


@pytest.mark.parametrize(
    "given",
    [
        {"on": False},
        {"count": 1},
        {"count": 9},
        {"seconds": 0},
        {"seconds": 1e300},
        {"pause": None},
        {"pause": 3},
        {"other": None},
        {"word": "anything"},
        {"free": -5.5},
    ],
)
def test_what_is_in_range_is_taken(given: dict[str, Any]):
    assert read(**given) == Switches(**given)


def test_text_becomes_the_choice_that_it_names():
    assert read(way="far").way is Way.FAR
    assert read(other="near").other is Way.NEAR
    assert Switches(way="far").way is Way.FAR  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on": 1}, "'mine': on is 1, give true or false"),
        ({"on": None}, "on is None, give true or false"),
        ({"count": 0}, "count is 0, give a whole number from 1 to 9"),
        ({"count": 10}, "count is 10, give a whole number from 1 to 9"),
        ({"count": 2.0}, "count is 2.0, give a whole number from 1 to 9"),
        ({"count": True}, "count is True, give a whole number from 1 to 9"),
        ({"seconds": -1}, "seconds is -1, give a number of at least 0"),
        ({"seconds": float("nan")}, "seconds is nan, give a number of at least 0"),
        ({"seconds": float("inf")}, "seconds is inf, give a number of at least 0"),
        ({"seconds": "1"}, "seconds is '1', give a number of at least 0"),
        ({"seconds": None}, "seconds is None, give a number of at least 0"),
        ({"pause": -1}, "pause is -1, give a number of at least 0"),
        ({"way": "away"}, "way is 'away', give one of near, far"),
        ({"way": None}, "way is None, give one of near, far"),
        ({"other": []}, "other is [], give one of near, far"),
        ({"word": 7}, "word is 7, give a text"),
        ({"free": "x"}, "free is 'x', give a number"),
        ({"cuont": 1}, "'mine' has no option 'cuont' (there are: count, free, "),
        ({"cuont": 1}, "Did you mean 'count'?"),
        ({"xyzzy": 1}, "Leave it out."),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_what_can(given: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as told:
        read(**given)
    assert said in str(told.value)


def test_a_derived_class_may_narrow_a_switch():
    assert More.read({}, "more").count == 3
    with pytest.raises(ConfigError, match="count is 2, give a whole number from 3 to 4"):
        More.read({"count": 2}, "more")


def test_without_switches_every_name_is_unknown():
    with pytest.raises(ConfigError, match=r"'mine' has no option 'on' \(there are: none\)"):
        Options.read({"on": True}, "mine")
