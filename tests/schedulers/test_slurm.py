"""Slurm: the transfer wrapped inside the job, and jobs that are held until it is their turn. A real one, two nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.schedulers.contract import (
    ALONE_TOO,
    LossContract,
    Outcome,
    SchedulerContract,
    SlotsContract,
    is_in,
    may_end,
    overlaps,
    visits,
    wait_until,
)
from tests.schedulers.slurm_cluster import NODES, Cluster, running_cluster

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.needs("root", "slurmctld", "slurmd", "munged", "sbatch"), pytest.mark.slow]
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
BY_CODE = {75: "AcquireTimeout"}
SOFTMUTEX = str(Path(sys.executable).parent / "softmutex")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(printed_lua()) as cluster:
        yield cluster


def printed_lua() -> str:
    return subprocess.run([SOFTMUTEX, "slurm", "lua"], capture_output=True, text=True, check=True).stdout


class SlurmSite:
    def __init__(self, cluster: Cluster, log: Path, held: bool) -> None:
        self.cluster = cluster
        self._log = log
        self._held = held
        self._dead: list[str] = []

    def submit(self, worker: int, seconds: float, timeout_s: float | None = None, *more: str, wants: str = "") -> int:
        transfer = f"{sys.executable} -c 'import sys; from tests.schedulers.contract import transfer;"
        transfer += f' transfer("{self._log}", {seconds})\''
        limit = "" if timeout_s is None else f"--timeout {timeout_s} "
        wrapped = f"exec {SOFTMUTEX} run -n transfers {limit}-- {transfer}"
        comment = "softmutex=transfers" + ("" if timeout_s is None else f":timeout={timeout_s}")
        comment += wants
        said = self.cluster.run(
            "sbatch", "--parsable", f"--nodelist={NODES[worker]}", "--chdir", str(ROOT), "--output",
            str(self._log) + ".%j", "--no-requeue", *more,
            *(["--comment", comment, "--wrap", transfer] if self._held else ["--wrap", wrapped]),
        )  # fmt: skip
        assert said.strip().isdigit(), said
        return int(said)

    def outcome(self, job: int) -> Outcome | None:
        fields = self.cluster.fields(job)
        if fields.get("JobState") not in OVER:
            return None
        code = int(re.split(":", fields["ExitCode"])[0])
        ok = fields["JobState"] == "COMPLETED"
        # a held job that did not get its turn never ran: it was cancelled, and Slurm says so
        why = "AcquireTimeout" if self._held and fields["JobState"] == "CANCELLED" else BY_CODE.get(code, "")
        return Outcome(ok, "" if ok else f"{why} {fields['JobState']} {fields['ExitCode']}")

    def kill(self, worker: int) -> None:
        self._dead.append(NODES[worker])
        self.cluster.lose_power(NODES[worker])

    @contextmanager
    def sleeps(self, worker: int, job: int) -> Iterator[None]:
        """Slurm's own way: all processes of the job are stopped, its node of the mutex among them."""
        assert not self.cluster.run("scontrol", "suspend", str(job))
        yield
        assert not self.cluster.run("scontrol", "resume", str(job))

    def heard(self) -> str:
        return "".join(path.read_text() for path in self._log.parent.glob(f"{self._log.name}.[0-9]*"))

    def close(self) -> None:
        for name in self._dead:
            self.cluster.repair(name)
        self.cluster.run("scancel", "--partition=main")
        wait_until(lambda: not self.cluster.run("squeue", "-h").strip(), "jobs do not end")
        wait_until(lambda: self.cluster.run("sinfo", "-h", "-o", "%T").split() == ["idle"], "the nodes are not idle")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "visits"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTMUTEX_GROUP", f"slurm-{os.getpid()}-{abs(hash(tmp_path)) % 10**8}")
    for name, value in ALONE_TOO.items():
        monkeypatch.setenv(name, value)


class TestWrappedInTheJob(LossContract):
    """`softmutex run` in the job's script: no administrator needed, and a node waits with the job."""

    @pytest.fixture
    def site(self, cluster: Cluster, group: None, log: Path) -> Iterator[SlurmSite]:
        site = SlurmSite(cluster, log, held=False)
        yield site
        site.close()

    def test_scancel_while_it_waits_and_while_it_holds_gives_the_mutex_back(self, site: SlurmSite, log: Path):
        holder = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        waiter = site.submit(1, 600.0)
        wait_until(lambda: site.cluster.state(waiter) == "RUNNING", "the second does not run")
        last = site.submit(1, 0.1)
        site.cluster.run("scancel", str(waiter))
        wait_until(lambda: site.outcome(waiter), "it cannot be cancelled while it waits")
        site.cluster.run("scancel", str(holder))
        wait_until(lambda: site.outcome(last), "the mutex was not given back")
        assert site.outcome(last) == (True, "")
        assert len(visits(log)) == 1

    def test_the_exit_code_of_the_transfer_is_the_jobs(self, site: SlurmSite, log: Path):
        command = f"exec {SOFTMUTEX} run -q -n transfers -- sh -c 'exit 7'"
        job = int(site.cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", command))
        wait_until(lambda: site.outcome(job), "it does not end")
        assert site.cluster.fields(job)["ExitCode"] == "7:0"


class OneAfterTheOther(SlurmSite):
    """A job on each node in turn: each has one processor."""

    count = 0

    def submit(self, worker: int, seconds: float, timeout_s: float | None = None, *more: str, wants: str = "") -> int:
        self.count += 1
        return super().submit(self.count % 2, seconds, timeout_s, *more)


class TestHeldUntilItsTurn(SchedulerContract, SlotsContract):
    """`job_submit.lua` and the releaser: no node waits."""

    @pytest.fixture
    def site(self, cluster: Cluster, group: None, log: Path) -> Iterator[SlurmSite]:
        releaser = start_releaser(cluster)
        site = SlurmSite(cluster, log, held=True)
        try:
            yield site
            site.close()
        finally:
            stop(releaser)

    @pytest.fixture
    def pairs(self, cluster: Cluster, group: None, log: Path) -> Iterator[SlurmSite]:
        releaser = start_releaser(cluster, "--slots", "transfers=2")
        site = OneAfterTheOther(cluster, log, held=True)
        try:
            yield site
            site.close()
        finally:
            stop(releaser)

    def test_no_node_idles_while_a_job_waits_for_its_turn(self, site: SlurmSite, log: Path):
        holder = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        waiter = site.submit(1, 0.1)
        wait_until(lambda: site.cluster.fields(waiter).get("Reason") == "BeginTime", "it does not wait")
        assert site.cluster.run("sinfo", "-h", "-n", NODES[1], "-o", "%T").split() == ["idle"]
        site.cluster.run("scancel", str(holder))
        wait_until(lambda: site.outcome(waiter), "its turn does not come")
        assert site.outcome(waiter) == (True, "")

    def test_a_held_job_that_is_cancelled_is_forgotten(self, site: SlurmSite, log: Path):
        holder = site.submit(0, 2.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        waiter, last = site.submit(1, 600.0), site.submit(1, 0.1)
        site.cluster.run("scancel", str(waiter))
        wait_until(lambda: site.outcome(last), "the one behind it does not get its turn")
        assert site.outcome(holder) == site.outcome(last) == (True, "")

    def test_a_requeued_job_gives_its_turn_to_others_and_gets_another(self, site: SlurmSite, log: Path):
        first = site.submit(0, 600.0, None, "--requeue")
        wait_until(lambda: is_in(log), "the first did not begin")
        second = site.submit(1, 0.1)
        site.cluster.run("scontrol", "requeue", str(first))
        wait_until(lambda: site.outcome(second), "it does not get the turn of the first")
        may_end(log).touch()
        wait_until(lambda: site.outcome(first), "the first does not get another one")
        assert len(visits(log)) == 2
        assert not overlaps(visits(log))

    def test_jobs_without_the_comment_are_not_touched(self, site: SlurmSite):
        job = int(site.cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "true"))
        wait_until(lambda: site.outcome(job), "it does not end")
        assert site.outcome(job) == (True, "")


def test_a_releaser_that_is_restarted_takes_the_mutex_of_the_job_that_runs(cluster: Cluster, group: None, log: Path):
    site = SlurmSite(cluster, log, held=True)
    releaser = start_releaser(cluster)
    try:
        first = site.submit(0, 4.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        releaser.kill()
        stop(releaser)
        second = site.submit(1, 0.1)
        releaser = start_releaser(cluster)
        wait_until(lambda: site.outcome(first) and site.outcome(second), "they do not end")
        assert not overlaps(visits(log))
        assert len(visits(log)) == 2
        site.close()
    finally:
        stop(releaser)


def start_releaser(cluster: Cluster, *more: str) -> subprocess.Popen[bytes]:
    with (cluster.here / "releaser.out").open("ab") as out:
        command = [SOFTMUTEX, "slurm", "release", *more]
        service = subprocess.Popen(command, env=cluster.environ(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    cluster.services.append(service)
    return service


def stop(releaser: subprocess.Popen[bytes]) -> None:
    releaser.send_signal(signal.SIGTERM)
    releaser.wait(100)
