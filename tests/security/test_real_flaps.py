"""Every live, allowed member is back within T after a real server of lists has failed.

`python -m tests.security.campaign dns registry redis etcd --seeds 0:20` draws more."""

import asyncio
from pathlib import Path

import pytest

from tests.security import real_lists

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "kind",
    [
        "dns",
        "registry",
        pytest.param("redis", marks=pytest.mark.needs("redis-server")),
        pytest.param("etcd", marks=pytest.mark.needs("etcd")),
    ],
)
def test_whoever_lives_is_back_in_time_after_its_server_of_lists_failed(kind: str, seed: int, tmp_path: Path):
    assert asyncio.run(real_lists.flap(kind, seed, tmp_path)) < real_lists.T_S
