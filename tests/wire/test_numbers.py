"""Numbers that other implementations have to agree on, and that no vector has."""

from __future__ import annotations

import pytest

from softmutex.core.algorithms.wandering.settings import WanderingOptions
from softmutex.core.errors import ConfigError
from softmutex.core.hint import HINT_SIZE, Hint, Why, read_hint, write_hint
from softmutex.core.messages import OF_ALGORITHMS, Done
from softmutex.core.wire import SMALLEST, VERSION, Frame, encode


def test_the_numbers_of_algorithms_are_these():
    """Those of other packages are 192 to 223."""
    theirs = [number for number in range(256) if any(number in numbers for numbers in OF_ALGORITHMS)]
    assert theirs == [*range(16, 48), *range(64, 224)]


@pytest.mark.parametrize(("why", "number"), [(Why.KEY, 1), (Why.VERSION, 2)])
def test_a_hint_is_these_bytes(why: Why, number: int):
    frame = encode(Frame(7, 0, "m", Done(1, 2)))
    hint = write_hint(why, frame)
    assert hint == b"\xabM\0" + bytes([number, VERSION]) + frame[3:20]
    assert len(hint) == HINT_SIZE == 22 < SMALLEST
    assert read_hint(hint) == Hint(why, VERSION, 7)
    assert read_hint(hint[:3] + b"\3" + hint[4:]) is None and read_hint(hint + b"-") is None
    assert write_hint(why, hint) == b""  # nothing answers a hint


@pytest.mark.parametrize(
    ("option", "least", "most"),
    [("watchers", 1, 2), ("each", 1, 256), ("row", 1, 4096), ("min_interval", 0.0, None), ("row_time", 0.0, None)],
)
def test_what_members_may_choose_has_bounds(option: str, least: float, most: float | None):
    for value in (least, least if most is None else most):
        assert getattr(WanderingOptions(**{option: value}), option) == value  # type: ignore[arg-type]
    for value in (least - 1, *(() if most is None else (most + 1,))):
        with pytest.raises(ConfigError, match=option):
            WanderingOptions(**{option: value})  # type: ignore[arg-type]
