"""The road of one acquisition is as short as the README draws it: `benchmarks/road.py` counts what is called."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Calls outside the core; whoever makes the road longer raises these, and says what for. The core counts its own.
# With proofs (`replays.py`), a memory of past holds, and one of what was sent (`udp.py`: who quotes it is believed).
# Up: what an observer is told where the token came a moment late is among it now and then.
MOST = {"down": 22, "up": 42, "release": 22, "parked": 41}


@pytest.mark.house
def test_the_road_of_an_acquisition_does_not_grow():
    run = subprocess.run(
        [sys.executable, "benchmarks/road.py", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    counts = {name: said["counts"][name]["outside the core"] for name in MOST}
    longer = {name: said["calls"][name] for name, count in counts.items() if count > MOST[name]}
    assert not longer, f"{counts}, at most {MOST}: {longer}"
    assert min(counts.values()) > 10  # it did see the road


@pytest.mark.slow
def test_the_flame_graph_shows_both_ways(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "benchmarks/flame.py", "--json", "--samples", "100", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert sum(json.loads(run.stdout).values()) == pytest.approx(1)
    drawn = (tmp_path / "hop.svg").read_text()
    for step in ("SoftMutex.acquire", "Wandering.handle", "UdpTransport._drain", "Hold.__aexit__"):
        assert f"{step} " in drawn, step
