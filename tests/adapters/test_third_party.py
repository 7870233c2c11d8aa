"""A package that nobody here knows is installed, and its transport is found by the scheme of its URL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_adapter"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run([*command, "--target", str(place), str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return place


def run_with(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_its_scheme_is_known_once_it_is_installed(installed: Path) -> None:
    code = "from softmutex import plugins; print(type(plugins.transport('unix://')).__module__)"
    run = run_with(installed, "-c", code)
    assert (run.stdout, run.stderr) == ("softmutex_unix\n", "")


def test_its_own_tests_pass_and_prove_the_contract_and_a_mutex(installed: Path) -> None:
    run = run_with(installed, str(EXAMPLE / "test_softmutex_unix.py"))
    assert run.returncode == 0, run.stderr
    assert "OK" in run.stderr and "skipped" not in run.stderr
