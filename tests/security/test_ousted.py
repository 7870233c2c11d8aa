"""Whoever is banned has no effect within T, whatever it has at that moment and goes on to do.

`python -m tests.security.campaign oust --seeds 0:100` draws more."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.depth import DEEP
from tests.security.ousted import oust


@pytest.mark.parametrize(
    "seeds", [(4, 5, 10), pytest.param(range(40 if DEEP else 12), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_banned_member_that_goes_on_has_no_effect_in_time(seeds: Iterable[int], tmp_path: Path):
    for seed in seeds:
        oust(seed, tmp_path)
