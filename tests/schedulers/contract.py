"""What every plug-in for a scheduler must do, whatever the scheduler: one suite, run against the real thing.

A subclass supplies a `Site`: two workers of the scheduler as real processes, and how to give them jobs.
A job is a transfer: it writes down when it came in and when it went out, and holds the mutex `transfers` meanwhile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

# Of two members, one of which sleeps, the other one waits by default: it may be cut off itself.
ALONE_TOO = {"SOFTMUTEX_WHEN_ISOLATED": "proceed"}
WARNING = re.compile("may be held by others, too.*goes on|no longer the only one for sure.*goes on")
ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 100.0  # for what must come in the end, on a busy machine


class Outcome(NamedTuple):
    ok: bool
    says: str


class Site(Protocol):
    """Two workers; a job is named by its number."""

    def submit(self, worker: int, seconds: float, timeout_s: float | None = None) -> int: ...

    def outcome(self, job: int) -> Outcome | None:
        """None while it is not over."""

    def kill(self, worker: int) -> None:
        """With the job that it runs, as a machine that loses power."""


class Telling(Site, Protocol):
    """A site whose nodes can be made to sleep, and be heard."""

    def sleeps(self, worker: int, job: int) -> AbstractContextManager[None]:
        """The node that holds the mutex for this job does nothing meanwhile, as a machine that swaps."""

    def heard(self) -> str:
        """What users find in the logs of both workers."""


class Visit(NamedTuple):
    begin: float
    end: float


def transfer(log: str, seconds: float) -> None:
    """What the jobs of these tests do. Times of one clock for all processes of the machine."""
    begin = time.monotonic()
    with Path(log).open("a") as file:
        file.write(f"in {begin}\n")
    while time.monotonic() < begin + seconds and not may_end(log).exists():
        time.sleep(max(0.0, min(0.02, begin + seconds - time.monotonic())))
    with Path(log).open("a") as file:
        file.write(f"out {begin} {time.monotonic()}\n")


@contextmanager
def outsider(log: Path, seconds: float, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody of the group who is no job of the scheduler, and transfers when it is its turn."""
    code = f"from tests.schedulers.contract import transfer; transfer({str(log)!r}, {seconds})"
    command = [sys.executable, "-m", "softmutex", "run", "-q", "-n", "transfers", "--", sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environ})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(100)


def may_end(log: str | Path) -> Path:
    """Where this file is, transfers end at once."""
    return Path(f"{log}.may-end")


def visits(log: Path) -> list[Visit]:
    """Those that came to their end, in order."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return sorted(Visit(float(line[1]), float(line[2])) for line in lines if line[0] == "out")


def is_in(log: Path) -> bool:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return bool(lines) and lines[-1][0] == "in"


def have_come(log: Path) -> int:
    return log.read_text().count("in ") if log.exists() else 0


def overlaps(seen: list[Visit]) -> list[tuple[Visit, Visit]]:
    return [(one, two) for one, two in pairwise(seen) if two.begin < one.end]


def most_at_once(seen: list[Visit]) -> int:
    return max((sum(other.begin <= one.begin < other.end for other in seen) for one in seen), default=0)


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"after {patience_s:g} s: {what}"
        time.sleep(0.02)


class SchedulerContract:
    """`site` and `log` are fixtures of the subclass; `adds_s` is what the plug-in may add between two transfers."""

    adds_s = 0.5  # on a machine that does other things, too; the benchmark measures what it really is

    def test_ten_jobs_over_two_workers_never_overlap(self, site: Site, log: Path) -> None:
        jobs = [site.submit(number % 2, 0.1) for number in range(10)]
        wait_until(lambda: all(site.outcome(job) for job in jobs), "not all ten are over")
        assert [site.outcome(job) for job in jobs if not site.outcome(job).ok] == []  # type: ignore[union-attr]
        seen = visits(log)
        assert len(seen) == 10
        assert not overlaps(seen)

    def test_a_killed_job_frees_the_mutex(self, site: Site, log: Path) -> None:
        site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first job did not begin")
        waiting = site.submit(1, 0.1)
        site.kill(0)
        wait_until(lambda: site.outcome(waiting), "nobody got the mutex of the killed one")
        outcome = site.outcome(waiting)
        assert outcome is not None
        assert outcome.ok, outcome.says

    def test_a_job_that_does_not_get_it_in_time_fails_the_schedulers_own_way(self, site: Site, log: Path) -> None:
        first = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first job did not begin")
        late = site.submit(1, 0.1, timeout_s=0.3)
        wait_until(lambda: site.outcome(late), "it waits for longer")
        may_end(log).touch()
        wait_until(lambda: site.outcome(first), "the first is not over")
        assert site.outcome(first) == (True, "")
        outcome = site.outcome(late)
        assert outcome is not None
        assert not outcome.ok
        assert "AcquireTimeout" in outcome.says
        assert len(visits(log)) == 1


class SlotsContract:
    """Two slots. The subclass's fixture `pairs` is a site where the mutex has two."""

    def test_two_jobs_of_one_worker_run_at_once_where_there_are_two_slots(self, pairs: Site, log: Path) -> None:
        jobs = [pairs.submit(0, 600.0), pairs.submit(0, 600.0)]
        wait_until(lambda: have_come(log) == 2, "the second job waits, though a slot is free")
        jobs.append(pairs.submit(1, 0.1))
        may_end(log).touch()
        wait_until(lambda: all(pairs.outcome(job) for job in jobs), "not all are over")
        assert [pairs.outcome(job) for job in jobs] == [(True, "")] * 3
        assert most_at_once(visits(log)) == 2


class LossContract(SchedulerContract):
    """Also for schedulers whose jobs have a node each, or one for each worker: it may sleep while others do not."""

    def test_a_lost_hold_is_warned_of_and_the_job_ends_well(self, site: Telling, log: Path) -> None:
        first = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first job did not begin")
        with site.sleeps(0, first):
            second = site.submit(1, 600.0)
            wait_until(lambda: have_come(log) == 2, "nobody took the place of the one that sleeps")
        wait_until(lambda: WARNING.search(site.heard()), "nobody is warned")
        assert (site.outcome(first), site.outcome(second)) == (None, None), "the warning ended a job"
        may_end(log).touch()
        wait_until(lambda: site.outcome(first) and site.outcome(second), "they are not over")
        assert (site.outcome(first), site.outcome(second)) == ((True, ""), (True, ""))
        assert len(overlaps(visits(log))) == 1
