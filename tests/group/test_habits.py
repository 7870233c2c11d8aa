"""A village does what it did, with any seed: `habits.py`."""

from __future__ import annotations

import pytest

from tests.group.habits import STORIES, figures, outside, ranges


@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("story", STORIES)
def test_a_village_does_what_it_did(story: str, seed: int):
    assert outside(figures(story, seed), ranges()[story]) == [], (
        "on purpose? python -m tests.group.habits > tests/group/habits.txt"
    )


def test_a_line_of_a_story_that_is_no_more_is_taken_away():
    assert list(ranges()) == list(STORIES)
