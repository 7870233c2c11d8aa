"""Many runs on a real Dask cluster: the same to the byte as here, whatever becomes of its workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmutex.cli import main
from softmutex.core.errors import ConfigError
from softmutex.sim import engine
from softmutex.sim.campaign import Campaign, CampaignPlan, outcomes
from tests.schedulers.contract import wait_until

WORKERS = 4
START_S = 100
PLANS = [CampaignPlan(seed, (2, 4), "wandering") for seed in range(1, 4)]


def slow_square(number: int, folder: str) -> int:
    """Whoever does the fourth one dies of it, once."""
    mark = Path(folder, "died")
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main(["sim", *words])
    said = capsys.readouterr()
    assert code in (0, 1), said.err
    return re.sub(r'"(wall_seconds|seeds_per_hour)": [0-9.e+-]+', "", said.out)


@contextlib.contextmanager
def process(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as said:
        it = subprocess.Popen([sys.executable, "-m", *words], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        yield it
    finally:
        it.terminate()
        try:
            it.wait(100)
        except subprocess.TimeoutExpired:
            it.kill()
            it.wait()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler and four workers, each a process of its own under a nanny that starts it anew when it dies."""
    folder = tmp_path_factory.mktemp("dask")
    where, dask = folder / "scheduler.json", "distributed.cli.dask_"
    with contextlib.ExitStack() as stack:
        quiet = ["--no-dashboard", "--scheduler-file", str(where)]
        started = process(f"{dask}scheduler", "--host", "127.0.0.1", "--port", "0", *quiet, log=folder / "scheduler")
        stack.enter_context(started)
        wait_until(lambda: address_in(where), "no scheduler", START_S)
        words = ["--nworkers", str(WORKERS), "--nthreads", "1", "--memory-limit", "0", "--host", "127.0.0.1"]
        words += ["--local-directory", str(folder), "--no-dashboard", "--scheduler-file", str(where)]
        stack.enter_context(process(f"{dask}worker", *words, log=folder / "workers"))
        address = address_in(where)
        wait_until(lambda: workers_of(address) == WORKERS, "not all workers", START_S)
        yield address


def address_in(file: Path) -> str:
    """Empty until the file is there and whole."""
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, ValueError):
        return ""


def workers_of(address: str) -> int:
    from distributed import Client

    with Client(address, timeout=START_S, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        return len(client.nthreads())


def test_seeds_come_back_from_a_cluster_as_from_here_and_in_their_order(scheduler: str):
    here, there = Campaign("wandering"), Campaign("wandering")
    for outcome in outcomes(PLANS, engine.InThisProcess()):
        here.add(outcome)
    with engine.on(scheduler) as cluster:
        found = list(outcomes(PLANS, cluster))
    for outcome in found:
        there.add(outcome)
    assert [outcome.seed for outcome in found] == [plan.seed for plan in PLANS]
    assert json.dumps(there.to_json(1.0)) == json.dumps(here.to_json(1.0))


def test_a_worker_that_dies_loses_nothing(scheduler: str, tmp_path: Path):
    with engine.on(scheduler) as cluster:
        squares = list(cluster.run((slow_square, (number, str(tmp_path))) for number in range(20)))
    assert (tmp_path / "died").exists() and squares == [number * number for number in range(20)]


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--seeds", "2", "--nodes", "2:3", "--shrink-for", "0", "--json"],
        ["compare", "--algorithms", "central,wandering", "--entries", "20", "--nodes", "3", "--json"],
        pytest.param(["reproduce", "003-searches", "--quick", "--json"], marks=pytest.mark.slow),  # 9 s of computing
    ],
    ids=lambda words: words[0],
)
def test_each_command_says_the_same_wherever_it_is_done(
    words: list[str], scheduler: str, capsys: pytest.CaptureFixture[str]
):
    assert told(capsys, *words, "--on", scheduler) == told(capsys, *words)


def test_where_no_scheduler_answers_the_error_says_what_to_start():
    with (
        pytest.raises(ConfigError, match=r"no Dask scheduler answers there.*`dask scheduler`"),
        engine.on("tcp://127.0.0.1:1", patience_s=0.5),
    ):
        pass


def test_a_worker_with_other_code_is_told_of_and_its_result_is_not_taken():
    with pytest.raises(ConfigError, match="another softmutex than you"):
        engine.same_code("other", abs, (-1,))
    assert engine.same_code(engine.code(), abs, (-1,)) == 1


def test_processes_give_what_one_gives_in_the_same_order():
    calls = [(pow, (number, 2)) for number in range(30)]
    assert list(engine.side_by_side(2).run(iter(calls))) == list(engine.InThisProcess().run(iter(calls)))
