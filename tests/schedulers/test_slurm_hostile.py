"""What users of a cluster write, and what becomes of it in a service that may cancel and start the jobs of everybody.

A real Slurm; `nobody` is the one who is up to something, `daemon` the one whose jobs are at stake.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from softmutex_adapters.schedulers.slurm.jobs import TURN_S

from tests.schedulers.contract import wait_until
from tests.schedulers.slurm_cluster import Cluster, running_cluster
from tests.schedulers.test_slurm import printed_lua, start_releaser, stop

pytestmark = [pytest.mark.needs("root", "slurmctld", "slurmd", "munged", "sbatch", "setpriv"), pytest.mark.slow]
ATTACKER, VICTIM = "nobody", "daemon"
LINE_ENDS = {
    "lf": b"\n",
    "vt": b"\v",
    "ff": b"\f",
    "cr": b"\r",
    "fs": b"\x1c",
    "nel": b"\xc2\x85",
    "ls": b"\xe2\x80\xa8",
}
NOT_TEXT = {"no utf-8": b"\xff\xfe", "a quote": b'"}]}', "an escape": b"\x1b]0;x\x07", "a surrogate": b"\xed\xa0\x80"}


def put_off(cluster: Cluster, script: str, mutex: str) -> int:
    """As an administrator may mark a job, with no job_submit.lua."""
    job = cluster.submit(script, "--begin=2100-01-01T00:00:00")
    assert not cluster.run("scontrol", "update", f"jobid={job}", f"admincomment=softmutex={mutex}")
    return job


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    os.environ["SOFTMUTEX_GROUP"] = f"hostile-{os.getpid()}"
    yield
    del os.environ["SOFTMUTEX_GROUP"]


@pytest.fixture(scope="module")
def open_cluster(group: None) -> Iterator[Cluster]:
    """Without job_submit.lua: comments reach the releaser as they are."""
    os.environ["TZ"] = "UTC"
    with running_cluster() as cluster:
        releaser = start_releaser(cluster)
        yield cluster
        assert releaser.poll() is None, "the service has ended"
        stop(releaser)
    del os.environ["TZ"]


@pytest.fixture(scope="module")
def victims(open_cluster: Cluster) -> list[int]:
    """One that runs, one that its user holds, one that an administrator holds."""
    found = [open_cluster.submit("sleep 600", *held, user=VICTIM) for held in ((), ("--hold",), ())]
    assert not open_cluster.run("scontrol", "hold", str(found[2]))
    wait_until(lambda: open_cluster.state(found[0]) == "RUNNING", "it does not run")
    return found


@pytest.fixture(scope="module")
def holder(open_cluster: Cluster) -> int:
    """Has the mutex `taken`, so that a forged wish for it can only run into its timeout."""
    job = put_off(open_cluster, "sleep 600", "taken")
    wait_until(lambda: open_cluster.state(job) == "RUNNING", "it does not get its turn")
    return job


@pytest.fixture(scope="module")
def cluster(group: None) -> Iterator[Cluster]:
    with running_cluster(printed_lua()) as cluster:
        yield cluster


class TestWithoutTheSubmitPlugin:
    def unharmed(self, open_cluster: Cluster, victims: list[int]) -> None:
        assert [open_cluster.state(job) for job in victims] == ["RUNNING", "PENDING", "PENDING"]
        assert [open_cluster.fields(job)["Reason"] for job in victims[1:]] == ["JobHeldUser", "JobHeldAdmin"]

    def looked(self, open_cluster: Cluster) -> None:
        """The releaser has seen the queue as it is now."""
        job = put_off(open_cluster, "true", "free")
        wait_until(lambda: open_cluster.state(job) == "COMPLETED", "the service does nothing any more")

    @pytest.mark.parametrize("end", LINE_ENDS.values(), ids=LINE_ENDS)
    @pytest.mark.parametrize("where", ["--comment", "--job-name"])
    def test_rows_that_a_comment_forges_are_not_obeyed(
        self, open_cluster: Cluster, victims: list[int], holder: int, end: bytes, where: str
    ):
        names = [b"--user=daemon", *(str(job).encode() for job in victims)]
        wishes = [b"softmutex=free", b"softmutex=taken:timeout=0.1s"]
        rows = [b"|".join((name, b"PENDING", b"JobHeldUser", wish)) for name in names for wish in wishes]
        forged = end.join([b"x", *rows])
        job = open_cluster.submit("sleep 600", where, forged, "--hold", user=ATTACKER)
        self.looked(open_cluster)
        self.looked(open_cluster)
        self.unharmed(open_cluster, victims)
        open_cluster.run("scancel", str(job))

    @pytest.mark.parametrize("bytes", [*LINE_ENDS.values(), *NOT_TEXT.values()], ids=[*LINE_ENDS, *NOT_TEXT])
    def test_a_job_with_any_comment_does_not_end_the_service(self, open_cluster: Cluster, bytes: bytes):
        for comment in (b"two" + bytes + b"lines", b"softmutex=free" + bytes, b"softmutex=" + bytes, bytes):
            open_cluster.submit("sleep 1", "--comment", comment, user=ATTACKER)
        self.looked(open_cluster)

    def test_a_comment_says_nothing_about_another_mark(self, open_cluster: Cluster, victims: list[int]):
        """Only who may write the admin comment is let go, put off or cancelled by it."""
        begin = ("--begin=2100-01-01T00:00:00", "--comment", "softmutex=free:timeout=0.1s")
        job = open_cluster.submit("true", *begin, user=VICTIM)
        self.looked(open_cluster)
        self.looked(open_cluster)
        assert open_cluster.state(job) == "PENDING"
        open_cluster.run("scancel", str(job))

    def test_nobody_but_an_administrator_writes_a_mark(self, open_cluster: Cluster):
        job = open_cluster.submit("sleep 600", "--hold", user=ATTACKER)
        said = open_cluster.run("scontrol", "update", f"jobid={job}", "admincomment=softmutex=free", user=ATTACKER)
        assert "denied" in said
        open_cluster.run("scancel", str(job))


REFUSED = {
    "a misspelt setting": "softmutex=transfers:timeot=4s",
    "a mark behind other words": "project7 softmutex=transfers",
    "no name": "softmutex=",
    "a name with a space": "softmutex= transfers",
    "another case": "SoftMutex=transfers",
    "a colon": "softmutex:transfers",
    "no time": "softmutex=transfers:timeout=soon",
    "a setting twice": "softmutex=transfers:timeout=1s:timeout=2s",
    "somebody's turn": "softmutex=transfers:by=slurm-test-host-1",
    "a beginning": "softmutex=transfers:begin=1",
    "no weight": "softmutex=transfers:weight=0",
    "a weight with a sign": "softmutex=transfers:weight=+3",
    "a weight twice": "softmutex=transfers:weight=2:weight=3",
    "a priority that there is not": "softmutex=transfers:priority=10",
    "a priority with a sign": "softmutex=transfers:priority=-1",
    "a priority twice": "softmutex=transfers:priority=2:priority=3",
    "a line end": "softmutex=transfers words\nmore",
    "a quote": "softmutex=trans'fers",
}
TAKEN = {
    "softmutex=transfers": "softmutex=transfers",
    "softmutex=transfers:timeout=1h30m": "softmutex=transfers:timeout=1h30m",
    "softmutex=transfers:timeout=0.5": "softmutex=transfers:timeout=0.5",
    "softmutex=transfers:weight=3:timeout=2h words": "softmutex=transfers:timeout=2h:weight=3",
    "softmutex=transfers:priority=5:weight=3": "softmutex=transfers:weight=3:priority=5",
    "softmutex=a.b_c@d+e-f project 7 (softmutex=2)": "softmutex=a.b_c@d+e-f",
}


class TestWithTheSubmitPlugin:
    @pytest.mark.parametrize("comment", REFUSED.values(), ids=REFUSED)
    def test_a_comment_that_asks_wrongly_is_refused_and_the_user_told_how(self, cluster: Cluster, comment: str):
        said = cluster.run("sbatch", "--output=/dev/null", "--comment", comment, "--wrap", "true", user=ATTACKER)
        assert "failed" in said
        assert "write --comment=softmutex=NAME" in said

    @pytest.mark.parametrize("comment", TAKEN)
    def test_a_comment_that_asks_rightly_becomes_the_mark(self, cluster: Cluster, comment: str):
        job = cluster.submit("true", "--comment", comment, user=ATTACKER)
        assert cluster.fields(job)["AdminComment"] == TAKEN[comment]
        assert cluster.fields(job)["StartTime"].startswith(("2100-01-01", "2099-12-31"))

    def test_other_comments_are_no_business_of_ours(self, cluster: Cluster):
        job = cluster.submit("true", "--comment", "wrapped in softmutex run", user=ATTACKER)
        assert "AdminComment" not in cluster.fields(job)
        wait_until(lambda: cluster.state(job) == "COMPLETED", "it does not run")

    @pytest.mark.parametrize(
        "change", ["starttime=now", "comment=", "comment=softmutex=other", "admincomment=x", "comment=any"]
    )
    def test_a_user_cannot_change_what_goes_round_the_turn(self, cluster: Cluster, change: str):
        job = cluster.submit("true", "--comment=softmutex=transfers", user=ATTACKER)
        said = cluster.run("scontrol", "update", f"jobid={job}", change, user=ATTACKER)
        assert "denied" in said, said
        assert cluster.state(job) == "PENDING"

    def test_a_turn_is_asked_for_at_submission_only(self, cluster: Cluster):
        job = cluster.submit("true", "--hold", user=ATTACKER)
        for comment in ("softmutex=transfers", "x softmutex=y"):
            assert "denied" in cluster.run("scontrol", "update", f"jobid={job}", f"comment={comment}", user=ATTACKER)
        assert not cluster.run("scontrol", "update", f"jobid={job}", "comment=mine", user=ATTACKER)

    def test_an_administrator_may_start_it_all_the_same(self, cluster: Cluster):
        job = cluster.submit("true", "--comment=softmutex=transfers", user=ATTACKER)
        assert not cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
        wait_until(lambda: cluster.state(job) == "COMPLETED", "it does not run")


def test_lua_and_the_releaser_mean_the_same_moment():
    assert f"local TURN = {TURN_S} " in printed_lua()
