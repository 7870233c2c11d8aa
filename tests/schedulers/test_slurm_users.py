"""Slurm jobs of two users, wrapped, without a key or a setting of theirs: they meet at the agent of the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import Agent
from tests.agent.test_system import MAY_READ
from tests.cli.processes import started
from tests.schedulers.contract import most_at_once, visits, wait_until
from tests.schedulers.slurm_cluster import Cluster, running_cluster

pytestmark = [
    pytest.mark.needs("root", "slurmctld", "slurmd", "munged", "sbatch", "setpriv", "setcap"),
    pytest.mark.slow,
]
USERS = ("nobody", "bin")
SOFTMUTEX = str(Path(sys.executable).with_name("softmutex"))
TRANSFER = "read begin rest < /proc/uptime; sleep 0.2; read end rest < /proc/uptime; echo out $begin $end >> {log}"


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/run", prefix="softmutex-test-") as name:
        os.chmod(name, 0o755)
        (Path(name) / "visits").touch()
        (Path(name) / "visits").chmod(0o666)
        yield Path(name)


@pytest.fixture
def may_read() -> Iterator[str]:
    """For users of Slurm: the interpreter may lie in root's home. They may read everything, and nothing more."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        copy = shutil.copy(str(shutil.which("setpriv")), name)
        subprocess.run(["setcap", "cap_dac_read_search=eip", copy], check=True)
        yield " ".join((copy, *MAY_READ))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("slots", [1, 2])
def test_wrapped_jobs_of_two_users_on_two_nodes_meet(cluster: Cluster, place: Path, may_read: str, slots: int):
    env = {name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")}
    env["SOFTMUTEX_MEMBERSHIP"] = f"local://?directory={place}/runtime"
    door, log = f"{place}/agent.sock", place / "visits"
    with started(SOFTMUTEX, "agent", "-v", "--system", "--socket", door, env=env) as process:
        Agent(process).says("jobs ask at")
        run = f"exec {may_read} {SOFTMUTEX} run -n transfers --slots {slots} -- sh -c '{TRANSFER.format(log=log)}'"
        script = f"exec 2>>{log}; export SOFTMUTEX_AGENT={door}; unset SOFTMUTEX_MEMBERSHIP; {run}"
        jobs = [cluster.submit(script, user=USERS[number % 2]) for number in range(6)]
        wait_until(lambda: all(cluster.state(job) in ("COMPLETED", "FAILED") for job in jobs), "jobs do not end")
        assert [cluster.state(job) for job in jobs] == ["COMPLETED"] * 6, log.read_text()
    seen = visits(log)
    assert (len(seen), most_at_once(seen)) == (6, slots)
