"""Slurm jobs that wait in the queue: what users, administrators and accidents do to them. A real Slurm, two nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.schedulers.contract import have_come, is_in, may_end, outsider, overlaps, visits, wait_until
from tests.schedulers.slurm_cluster import Cluster, running_cluster
from tests.schedulers.test_slurm import SOFTMUTEX, SlurmSite, printed_lua, start_releaser, stop

pytestmark = [pytest.mark.needs("root", "slurmctld", "slurmd", "munged", "sbatch", "setpriv"), pytest.mark.slow]
USER = "nobody"
HELD = ("--comment", "softmutex=transfers")
BRIDGE = "--bridge=1h"  # who is next stays so, however long Slurm and this machine take


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(printed_lua(), more="PartitionName=closed Nodes=ALL State=UP\n") as cluster:
        yield cluster


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "visits"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTMUTEX_GROUP", f"held-{os.getpid()}-{abs(hash(tmp_path)) % 10**8}")


@pytest.fixture
def site(cluster: Cluster, group: None, log: Path) -> Iterator[SlurmSite]:
    """No releaser works yet."""
    site = SlurmSite(cluster, log, held=True)
    yield site
    site.close()
    while cluster.services:  # a test that failed has not stopped its own
        stop(cluster.services.pop())
    wait_until(lambda: not cluster.releasers(), "a releaser does not end")


@pytest.fixture
def released(site: SlurmSite) -> Iterator[SlurmSite]:
    releaser = start_releaser(site.cluster, BRIDGE)
    yield site
    stop(releaser)


def waits(site: SlurmSite, job: int) -> bool:
    fields = site.cluster.fields(job)
    return fields["JobState"] == "PENDING" and "by=" not in fields["AdminComment"]


def said(site: SlurmSite) -> str:
    return (site.cluster.here / "releaser.out").read_text()


def comment(site: SlurmSite, job: int) -> str:
    lines = site.cluster.run("scontrol", "show", "job", str(job)).splitlines()
    return next((line.split("=", 1)[1].strip() for line in lines if line.strip().startswith("Comment=")), "")


def let_a_job_pass(site: SlurmSite) -> None:
    """The releaser works, and the link is free for others meanwhile."""
    job = site.submit(1, 0.1)
    wait_until(lambda: site.outcome(job), "the link idles, or nobody lets jobs go")


# --- what could not start gets no turn --------------------------------------------------------------------------------


def test_a_job_whose_dependency_is_not_met_is_passed_over_until_it_is(released: SlurmSite, log: Path):
    computation = released.cluster.submit("sleep 600")
    dependent = released.submit(0, 0.1, None, f"--dependency=afterany:{computation}")
    let_a_job_pass(released)
    let_a_job_pass(released)
    assert waits(released, dependent)
    released.cluster.run("scancel", str(computation))
    wait_until(lambda: released.outcome(dependent), "it does not get its turn")
    assert released.outcome(dependent) == (True, "")


def test_a_job_that_may_not_begin_yet_is_passed_over_until_it_may(released: SlurmSite, log: Path):
    later = released.submit(0, 0.1, None, "--begin=now+20")
    let_a_job_pass(released)
    assert waits(released, later)
    wait_until(lambda: released.outcome(later), "it does not get its turn")
    assert released.outcome(later) == (True, "")


def test_a_job_that_cannot_start_for_a_reason_that_stays_gives_its_turn_to_others_at_once(
    released: SlurmSite, log: Path
):
    released.cluster.run("scontrol", "update", "partitionname=closed", "state=down")
    try:
        stuck = released.submit(0, 0.1, None, "--partition=closed")
        wait_until(lambda: f"job {stuck} cannot start (PartitionDown)" in said(released), "it blocks the link")
        let_a_job_pass(released)
    finally:
        released.cluster.run("scontrol", "update", "partitionname=closed", "state=up")
    wait_until(lambda: released.outcome(stuck), "it is not tried again")
    assert released.outcome(stuck) == (True, "")


# --- holds of users and administrators -------------------------------------------------------------------------------

HOLDS: dict[str, Callable[[SlurmSite], int]] = {
    "sbatch --hold": lambda site: site.submit(0, 0.1, None, "--hold"),
    "scontrol hold by its user": lambda site: held_while_it_waits(site, "root", "uhold"),
    "scontrol hold by an administrator": lambda site: held_while_it_waits(site, "root", "hold"),
}


def held_while_it_waits(site: SlurmSite, user: str, how: str) -> int:
    job = site.submit(0, 0.1)
    assert not site.cluster.run("scontrol", how, str(job), user=user)
    return job


@pytest.mark.parametrize("hold", HOLDS)
def test_a_hold_is_released_by_whoever_may_and_never_by_the_service(site: SlurmSite, log: Path, hold: str):
    job = HOLDS[hold](site)
    releaser = start_releaser(site.cluster)
    try:
        let_a_job_pass(site)
        let_a_job_pass(site)
        assert site.cluster.fields(job)["Priority"] == "0"
        assert waits(site, job)
        site.cluster.run("scontrol", "release", str(job))
        wait_until(lambda: site.outcome(job), "it does not get its turn")
        assert site.outcome(job) == (True, "")
    finally:
        stop(releaser)


def test_a_release_by_its_own_user_does_not_go_round_the_turn(released: SlurmSite, log: Path):
    holder = released.submit(0, 600.0)
    wait_until(lambda: is_in(log), "the first did not begin")
    job = released.cluster.submit("true", *HELD, user=USER)
    for command in ("hold", "release", "release"):
        released.cluster.run("scontrol", command, str(job), user=USER)
    assert "denied" in released.cluster.run("scontrol", "update", f"jobid={job}", "starttime=now", user=USER)
    wait_until(lambda: "next" in comment(released, job), "it is forgotten")
    assert released.cluster.state(job) == "PENDING"
    assert "denied" in released.cluster.run("scontrol", "update", f"jobid={job}", "dependency=", user=USER)
    assert released.cluster.state(job) == "PENDING"
    released.cluster.run("scancel", str(holder))
    wait_until(lambda: released.cluster.state(job) == "COMPLETED", "it does not get its turn")


def test_a_job_that_an_administrator_starts_takes_its_slot_and_is_reported(released: SlurmSite, log: Path):
    first = released.submit(0, 600.0)
    wait_until(lambda: is_in(log), "the first did not begin")
    forced, last = released.submit(1, 600.0), released.submit(1, 0.1)
    released.cluster.run(
        "scontrol", "update", f"jobid={forced}", "starttime=now", "admincomment=softmutex=transfers", "dependency="
    )
    wait_until(lambda: f"job {forced} of root runs without a turn of transfers" in said(released), "nobody is told")
    released.cluster.run("scancel", str(first))
    wait_until(lambda: f"job {forced} runs: it has its turn from now on" in said(released), "it takes no slot")
    assert released.cluster.state(last) == "PENDING"
    released.cluster.run("scancel", str(forced))
    wait_until(lambda: released.outcome(last), "the slot is not given back")
    assert released.outcome(last) == (True, "")


# --- arrays, time limits, places --------------------------------------------------------------------------------------


def test_the_tasks_of_an_array_take_turns(released: SlurmSite, log: Path):
    job = released.submit(0, 0.1, None, "--array=0-3")
    wait_until(lambda: have_come(log) == 4 and not is_in(log), "not all tasks have their turn")
    assert not overlaps(visits(log))
    wait_until(lambda: not released.cluster.run("squeue", "-h", f"--jobs={job}").strip(), "they do not end")


def test_an_array_that_does_not_get_its_turn_in_time_is_cancelled_whole(released: SlurmSite, log: Path):
    released.submit(0, 600.0)
    wait_until(lambda: is_in(log), "the first did not begin")
    late = released.submit(1, 0.1, 1.0, "--array=0-99")
    wait_until(
        lambda: f"--jobs={late}" and not released.cluster.run("squeue", "-h", f"--jobs={late}").strip(), "it waits on"
    )
    assert have_come(log) == 1


def test_users_see_where_their_job_stands(released: SlurmSite, log: Path):
    first = released.submit(0, 600.0)
    wait_until(lambda: is_in(log), "the first did not begin")
    second = released.submit(1, 0.1)
    wait_until(lambda: comment(released, second) == f"softmutex=transfers [next, after job {first}]", "it is not next")
    third = released.cluster.submit("true", "--comment=softmutex=transfers:timeout=1d project 7", user=USER)
    fourth = released.cluster.submit("true", *HELD, "--hold", user=USER)
    array = released.cluster.submit("true", *HELD, "--array=0-9", user=USER)
    wants = {
        first: r"softmutex=transfers \[its turn\]",
        third: r"softmutex=transfers:timeout=1d project 7 \[place 1 of 11\]",
        fourth: r"softmutex=transfers \[held \(JobHeldUser\)\]",
        array: r"softmutex=transfers \[place 2 of 11\]",
    }
    wait_until(
        lambda: all(re.fullmatch(words, comment(released, job)) for job, words in wants.items()), "they are not told"
    )
    environ = released.cluster.environ()
    shown = subprocess.run([SOFTMUTEX, "slurm", "queue", "--json"], env=environ, capture_output=True, check=True).stdout
    rows = {row["job"]: row for row in json.loads(shown)}
    assert rows[str(first)]["state"] == "has its turn"
    assert rows[str(fourth)]["state"] == "held (JobHeldUser)"
    assert rows[str(third)]["state"] == rows[f"{array}_[0-9]"]["state"] == "waits"
    assert rows[str(third)]["place"] + 1 == rows[f"{array}_[0-9]"]["place"]
    table = subprocess.run(
        [SOFTMUTEX, "slurm", "queue", "-n", "transfers"], env=environ, capture_output=True, text=True
    )
    places = [line.split()[0] for line in table.stdout.splitlines()]
    assert places == ["transfers", "PLACE", "-", "-", "1", "2-11", "-"]
    for job in (second, third, fourth, array, first):
        released.cluster.run("scancel", str(job))


# --- the service ends, is killed, is replaced -------------------------------------------------------------------------

ENDS: dict[str, Callable[[subprocess.Popen[bytes]], None]] = {
    "in good order": lambda releaser: releaser.terminate(),
    "by kill -9": lambda releaser: releaser.kill(),
}


@pytest.mark.parametrize("end", ENDS)
def test_nobody_comes_in_beside_a_job_whose_releaser_ended(site: SlurmSite, log: Path, end: str):
    """Neither another job nor anybody else of the group, who waited longer than the next releaser."""
    releaser = start_releaser(site.cluster, BRIDGE)
    first = site.submit(0, 600.0)
    wait_until(lambda: is_in(log), "the first did not begin")
    with outsider(log, 0.1) as other:
        second = site.submit(1, 0.1)
        wait_until(lambda: "next" in comment(site, second), "it is not chained")
        ENDS[end](releaser)
        releaser.wait(100)
        releaser = start_releaser(site.cluster)
        try:
            wait_until(lambda: said(site).count("is the releaser of the cluster") >= 2, "nobody takes over")
            wait_until(lambda: waits(site, second), "it is not put off again")
            assert have_come(log) == 1
            assert site.cluster.state(first) == "RUNNING"
            may_end(log).touch()
            wait_until(lambda: site.outcome(second) and other.poll() is not None, "they do not get their turns")
            assert site.outcome(first) == site.outcome(second) == (True, "")
            assert len(visits(log)) == 3
            assert not overlaps(visits(log))
        finally:
            stop(releaser)


def test_a_standby_takes_over_and_nothing_overlaps(site: SlurmSite, log: Path):
    releasers = [start_releaser(site.cluster) for _ in range(2)]
    jobs = [site.submit(number % 2, 0.5) for number in range(8)]
    try:
        wait_until(lambda: have_come(log) >= 2, "they do not begin")
        leader = next(line for line in reversed(said(site).splitlines()) if "is the releaser of the cluster" in line)
        name = leader.split("softmutex slurm: ")[1].split()[0]
        mine = next(each for each in releasers if is_parent(each.pid, int(name.rsplit("-", 1)[1])))
        stop(mine)
        wait_until(lambda: all(site.outcome(job) for job in jobs), "the standby does not go on")
        assert len(visits(log)) == 8
        assert not overlaps(visits(log))
    finally:
        for each in releasers:
            stop(each)


def is_parent(parent: int, child: int) -> bool:
    return Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(parent)


def test_after_the_whole_host_was_lost_the_running_job_comes_first(site: SlurmSite, log: Path):
    """Guard and worker at once, as a host that loses power: the next releaser finds the job in Slurm's queue."""
    releaser = start_releaser(site.cluster)
    first = site.submit(0, 600.0)
    wait_until(lambda: is_in(log), "the first did not begin")
    releaser.kill()
    for worker in site.cluster.releasers():
        os.kill(worker, 9)
    stop(releaser)
    second = site.submit(1, 0.1)
    releaser = start_releaser(site.cluster)
    try:
        wait_until(lambda: f"job {first} runs: it has its turn from now on" in said(site), "it is not found again")
        assert site.cluster.state(second) == "PENDING"
        may_end(log).touch()
        wait_until(lambda: site.outcome(second), "it does not get its turn")
        assert not overlaps(visits(log))
        site.close()
    finally:
        stop(releaser)


def test_jobs_that_take_several_slots_come_in_as_long_as_they_fit(site: SlurmSite, log: Path):
    releaser = start_releaser(site.cluster, "--slots", "transfers=3", "--bridge=3s")
    try:
        heavy, light = site.submit(0, 600.0, wants=":weight=2"), site.submit(1, 600.0, wants=":weight=1")
        wait_until(lambda: have_come(log) == 2, "a slot is free, and the second waits")
        last, never = site.submit(0, 0.1, wants=":weight=2"), site.submit(1, 0.1, wants=":weight=4")
        wait_until(lambda: "never fits into 3" in comment(site, never), "it is not told")
        # While the first turn is young the last one is chained to its job in Slurm, and put off again after that.
        wait_until(lambda: waits(site, last), "it is not put off")
        assert have_come(log) == 2
        queue = site.cluster.run(SOFTMUTEX, "slurm", "queue")
        assert queue.count("takes 2 slots") == 2, queue
        may_end(log).touch()
        wait_until(lambda: all(map(site.outcome, (heavy, light, last))), "they do not end")
        assert len(visits(log)) == 3
        site.close()
    finally:
        stop(releaser)


def test_an_urgent_job_comes_first_where_the_settings_say_what_that_is_worth(
    site: SlurmSite, log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOFTMUTEX_AGEING", "60")
    releaser = start_releaser(site.cluster, BRIDGE)
    try:
        first = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        second = site.submit(1, 0.1)
        wait_until(lambda: "[next" in comment(site, second), "the second is not next")
        patient, urgent = site.submit(1, 0.1), site.submit(1, 0.1, wants=":priority=5")
        wait_until(lambda: re.search(r"place 1 of \d", comment(site, urgent)), "the urgent one is not the first")
        wait_until(lambda: "[place" in comment(site, patient) and "place 1" not in comment(site, patient), "both are")
        assert f"{urgent}" in next(
            line for line in site.cluster.run(SOFTMUTEX, "slurm", "queue").splitlines() if "priority 5" in line
        )
        may_end(log).touch()
        jobs = (first, second, urgent, patient)
        wait_until(lambda: all(map(site.outcome, jobs)), "they do not end")
        assert site.cluster.fields(urgent)["StartTime"] <= site.cluster.fields(patient)["StartTime"]
        assert [site.outcome(job) for job in jobs] == [(True, "")] * 4
        site.close()
    finally:
        stop(releaser)


def test_a_controller_that_restarts_costs_no_turn(released: SlurmSite, log: Path):
    first, second = released.submit(0, 600.0), released.submit(1, 0.1)
    wait_until(lambda: is_in(log), "the first did not begin")
    released.cluster.restart_controller()
    assert released.cluster.state(first) == "RUNNING"
    may_end(log).touch()
    wait_until(lambda: released.outcome(second), "it does not get its turn")
    assert released.outcome(first) == released.outcome(second) == (True, "")
    assert all(two.begin >= one.end for one, two in pairwise(visits(log)))


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_a_unit_and_names_this_interpreter(tmp_path: Path):
    unit = subprocess.run([SOFTMUTEX, "slurm", "unit"], capture_output=True, text=True, check=True).stdout
    found = re.search("^ExecStart=(/.*) -m softmutex slurm release$", unit, re.MULTILINE)
    assert found is not None, unit
    assert subprocess.run([found[1], "-m", "softmutex", "--version"], capture_output=True, cwd="/").returncode == 0
    (tmp_path / "softmutex-slurm.service").write_text(unit.replace("WorkingDirectory=/etc/slurm", ""))
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "softmutex-slurm.service")]
    checked = subprocess.run(verify, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "softmutex-slurm" not in checked.stderr, checked.stderr


def test_each_part_has_a_help_of_its_own():
    helps = [
        subprocess.run([SOFTMUTEX, "slurm", part, "--help"], capture_output=True, text=True, check=True).stdout
        for part in ("release", "queue", "lua", "unit")
    ]
    assert len(set(helps)) == 4
    assert ["--slots" in each for each in helps] == [True, False, False, False]
    assert "job_submit.lua" in helps[2]
