"""Nobody without the key changes who holds, whom a node knows, or what is logged of strangers: over any weather that
somebody can make who has the network, and T after he has let go of it everybody is back.

`python -m tests.security.campaign adversary --seeds 0:5000` draws more."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.security.under_attack import attack

FOUND = (584,)  # the frames of one member came by the address of another one, who was never looked for again


@pytest.mark.parametrize(
    "seeds", [(*range(8), *FOUND), pytest.param(range(8, 40), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_who_has_the_network_and_not_the_key_moves_nobody(seeds: Iterable[int], tmp_path: Path):
    for seed in seeds:
        attack(seed, tmp_path)
