"""Each example is a program that a newcomer runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_its_end_in_under_a_minute(example: Path, tmp_path: Path):
    run = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout, "it says nothing: a newcomer cannot see what it did"
    assert "Traceback" not in run.stderr, run.stderr
