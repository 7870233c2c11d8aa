"""Packages that nobody here knows are installed, and what they bring is found by its scheme or its name."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ADAPTER, ALGORITHM = EXAMPLES / "third_party_adapter", EXAMPLES / "third_party_algorithm"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run(
        [*command, "--target", str(place), str(ADAPTER), str(ALGORITHM)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return place


def run_with(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def command(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_with(installed, str(Path(sys.executable).with_name("softmutex")), *arguments)


def test_its_scheme_is_known_once_it_is_installed(installed: Path) -> None:
    code = "from softmutex import plugins; print(type(plugins.transport('unix://')).__module__)"
    run = run_with(installed, "-W", "error", "-c", code)
    assert (run.stdout, run.stderr) == ("softmutex_unix\n", "")


def test_the_tests_of_the_adapter_pass_and_prove_the_contract_and_a_mutex(installed: Path) -> None:
    run = run_with(installed, "-W", "error", str(ADAPTER / "test_softmutex_unix.py"))
    assert run.returncode == 0, run.stderr
    assert "OK" in run.stderr and "skipped" not in run.stderr


# --- an algorithm ----------------------------------------------------------------------------------------------------


def test_the_tests_of_the_algorithm_pass_and_prove_its_laws_and_a_mutex(installed: Path) -> None:
    run = run_with(installed, "-W", "error", str(ALGORITHM / "test_softmutex_ask_everybody.py"))
    assert run.returncode == 0, run.stderr
    assert "OK" in run.stderr and "skipped" not in run.stderr


def test_it_runs_in_the_simulator_by_its_name_and_beside_others(installed: Path) -> None:
    scenario = [
        "--nodes",
        "5",
        "--duration",
        "100",
        "--seed",
        "1",
        "--delay",
        "0.05",
        "--loss",
        "0.05",
        "--settle",
        "99",
    ]
    run = command(installed, "sim", "run", "--algorithm", "ask-everybody", *scenario, "--json")
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["algorithm"] == "ask-everybody" and shown["concurrency"].keys() == {"0", "1"}
    assert shown["messages"]["by_kind"].keys() == {"REQUEST", "PERMIT"}
    assert shown["violations"] == [] and shown["liveness"]["unserved"] == 0
    run = command(installed, "sim", "compare", "--nodes", "5", "--algorithms", "ask-everybody,sandwich", "--json")
    assert run.returncode == 0, run.stderr
    asking, _ = json.loads(run.stdout)["rows"]
    assert asking["overlap_killed"] == 0 and asking["laws_broken"] == []
    assert asking["messages_rare"] == pytest.approx(2 * (5 - 1), rel=0.05)


def test_processes_take_turns_by_it_over_udp(installed: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    turn = f"import time; f = open({str(log)!r}, 'a', 1); print('in', file=f); time.sleep(0.01); print('out', file=f)"
    place = ["--transport", "udp://127.0.0.1:0", "--membership", f"local://turns?directory={tmp_path}"]
    wanted = [*place, "-q", "-n", "turns", "--algorithm", "ask-everybody", "--", sys.executable, "-c", turn]
    with ThreadPoolExecutor(4) as crew:
        runs = list(crew.map(lambda _: command(installed, "run", *wanted), range(8)))
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 8
    assert log.read_text() == "in\nout\n" * 8


def test_who_does_not_have_it_is_told_how_to_get_it() -> None:
    program = Path(sys.executable).with_name("softmutex")
    run = subprocess.run(
        [program, "sim", "run", "--algorithm", "ask-everybody", "--duration", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 64
    assert "no algorithm named 'ask-everybody' (installed: adaptive, " in run.stderr
