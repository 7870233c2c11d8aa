"""Celery with a real Redis: two workers, each kind of pool."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.schedulers.contract import (
    ALONE_TOO,
    LossContract,
    Outcome,
    Site,
    SlotsContract,
    is_in,
    may_end,
    outsider,
    overlaps,
    visits,
    wait_until,
)
from tests.schedulers.spans import SpansContract

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.needs("redis-server"), pytest.mark.slow]


@pytest.fixture(scope="module")
def celery_tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with redis_server(tmp_path_factory.mktemp("redis")) as tasks:
        yield tasks


@contextmanager
def redis_server(here: Path) -> Iterator[Any]:
    """Gives the application whose broker this is."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(here)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as redis:
        os.environ["REDIS_URL"] = f"redis://127.0.0.1:{port}/0"
        try:
            wait_until(lambda: answers(port), "redis does not answer")
            sys.modules.pop("tests.schedulers.celery_app", None)  # it would know the last one's address
            yield importlib.import_module("tests.schedulers.celery_app")
        finally:
            del os.environ["REDIS_URL"]
            redis.terminate()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class CelerySite:
    def __init__(
        self, tasks: Any, log: Path, pool: str, processes: int = 2, places: Sequence[Any] = (), **more: str
    ) -> None:
        """`places`: for each worker what its command is preceded by, and more of its environment."""
        self.tasks = tasks
        self.usual = tasks.patient
        self._log = log
        self._results: list[Any] = []
        name = f"{pool}-{os.getpid()}-{log.parent.name}"
        self.queues = [f"{name}-{number}" for number in range(2)]
        self.group = name[:60]
        self._environ = {**os.environ, "SOFTMUTEX_GROUP": self.group, **ALONE_TOO, **more}
        self._options = ["--pool", pool, "-c", str(processes), "--without-gossip", "--without-mingle", "-l", "INFO"]
        self._places = dict(zip(self.queues, places, strict=False))
        self._workers = [self._start(queue) for queue in self.queues]

    def _start(self, queue: str) -> subprocess.Popen[bytes]:
        prefix, more = self._places.get(queue, ((), {}))
        command = [*prefix, sys.executable, "-m", "celery", "-A", "tests.schedulers.celery_app", "worker", "-Q", queue]
        command += ["-n", f"{queue}@%h", *self._options]
        with (self._log.parent / "workers").open("ab") as out:
            return subprocess.Popen(
                command, cwd=ROOT, env={**self._environ, **more}, stdout=out, stderr=out, start_new_session=True
            )

    def stop(self, worker: int) -> None:
        """In good order: it ends when the tasks are over that it runs."""
        self._workers[worker].send_signal(signal.SIGTERM)

    def replace(self, worker: int) -> None:
        """The one that was killed."""
        self._workers[worker] = self._start(self.queues[worker])

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            found = self.tasks.app.control.ping(timeout=0.5)
            return sum(any(queue in name for queue in self.queues) for each in found for name in each) == 2

        try:
            wait_until(ready, "the workers do not start")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self._log.parent / 'workers').read_text()}") from None

    def send(self, task: Any, worker: int, *arguments: Any) -> int:
        self._results.append(task.apply_async(arguments, queue=self.queues[worker]))
        return len(self._results) - 1

    def submit(self, worker: int, seconds: float, timeout_s: float | None = None) -> int:
        task = self.usual if timeout_s is None else self.tasks.hurried
        return self.send(task, worker, str(self._log), seconds)

    def result(self, job: int) -> Any:
        return self._results[job]

    def outcome(self, job: int) -> Outcome | None:
        result = self._results[job]
        if not result.ready():
            return None
        return Outcome(result.successful(), "" if result.successful() else repr(result.result))

    def kill(self, worker: int) -> None:
        os.killpg(self._workers[worker].pid, signal.SIGKILL)
        self._workers[worker].wait()

    @contextmanager
    def sleeps(self, worker: int, job: int) -> Iterator[None]:
        """The main process, where the agent is. A prefork pool's processes go on meanwhile."""
        self._workers[worker].send_signal(signal.SIGSTOP)
        yield
        self._workers[worker].send_signal(signal.SIGCONT)

    def heard(self) -> str:
        return (self._log.parent / "workers").read_text()

    def close(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is None:
                self.kill(number)


def waiters(group: str) -> int:
    """Claims of that group, wherever they wait."""
    command = [sys.executable, "-m", "softmutex", "status", "--json", "-n", "transfers", "--group", group]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, cwd="/").stdout)
    return sum(mutex["waiting_count"] for mutex in said["mutexes"])


class Celery(LossContract):
    pool = ""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "visits"

    @pytest.fixture
    def site(self, celery_tasks: Any, log: Path) -> Iterator[Site]:
        with self.start(celery_tasks, log) as site:
            yield site

    @pytest.fixture
    def pairs(self, celery_tasks: Any, log: Path) -> Iterator[Site]:
        with self.start(celery_tasks, log, SOFTMUTEX_SLOTS="2") as site:
            yield site

    @contextmanager
    def start(self, tasks: Any, log: Path, **more: str) -> Iterator[Site]:
        site = CelerySite(tasks, log, self.pool, **more)
        try:
            site.wait_until_ready()
            yield site
        finally:
            site.close()

    def test_a_lost_hold_is_warned_of_and_the_job_ends_well(self, site: CelerySite, log: Path):
        site.usual = site.tasks.persistent
        super().test_a_lost_hold_is_warned_of_and_the_job_ends_well(site, log)


class TestPrefork(Celery, SlotsContract, SpansContract):
    pool = "prefork"

    @pytest.fixture
    def spans(self, tmp_path: Path) -> Path:
        return tmp_path / "spans"

    @pytest.fixture
    def traced(self, celery_tasks: Any, log: Path, spans: Path) -> Iterator[Site]:
        with self.start(celery_tasks, log, TESTS_SPANS=str(spans)) as site:
            yield site

    def test_a_task_that_is_revoked_while_it_runs_gives_the_mutex_back(self, site: CelerySite, log: Path):
        first = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        second = site.submit(1, 0.1)
        site.result(first).revoke(terminate=True, signal="SIGKILL")
        wait_until(lambda: site.outcome(second), "the mutex was not given back")
        assert site.outcome(second) == (True, "")

    def test_a_soft_time_limit_gives_the_mutex_back(self, site: CelerySite, log: Path):
        limited = site.send(site.tasks.limited, 0, str(log))
        wait_until(lambda: is_in(log), "the first did not begin")
        second = site.submit(1, 0.1)
        wait_until(lambda: site.outcome(second) and site.outcome(limited), "the mutex was not given back")
        assert site.result(limited).result == "stopped"
        assert site.outcome(second) == (True, "")

    def test_waiting_occupies_no_worker_and_costs_no_retry_of_the_tasks_own(self, site: CelerySite, log: Path):
        holder = site.submit(0, 600.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        marks = log.parent / "marks"
        failing = site.send(site.tasks.failing, 1, str(marks))
        wait_until(lambda: site.result(failing).state == "RETRY", "it waits in the worker")
        may_end(log).touch()
        wait_until(lambda: site.outcome(failing) and site.outcome(holder), "they do not end")
        assert site.outcome(failing) == (True, "")
        assert marks.read_text().split() == ["0", "1"]
        assert len(visits(log)) == 1

    def test_a_task_that_is_tried_again_keeps_its_place_in_the_queue(self, site: CelerySite, log: Path):
        """Before others of the group who began to wait later, and did not go away."""
        holder = site.submit(1, 600.0)
        wait_until(lambda: is_in(log), "the first did not begin")
        first = site.submit(0, 0.1)
        wait_until(lambda: site.result(first).state == "RETRY", "it waits in the worker")
        with outsider(log, 3.0, SOFTMUTEX_GROUP=site.group, SOFTMUTEX_AGENT="off") as other:
            wait_until(lambda: waiters(site.group) == 2, "the other does not wait")
            second = site.send(site.tasks.persistent, 0, str(log), 0.1)
            wait_until(lambda: waiters(site.group) == 3, "the last does not wait")
            may_end(log).touch()
            wait_until(lambda: site.outcome(holder), "the first does not end")
            may_end(log).unlink()
            wait_until(lambda: len(visits(log)) == 4 and other.poll() is not None, "they do not have their turns")
            wait_until(lambda: site.outcome(first) and site.outcome(second), "they do not end")
        took = [visit.end - visit.begin for visit in visits(log)]
        assert took[1] < max(took[2:]), "the one that came later, and holds it for three seconds, was first"
        assert site.outcome(first) == site.outcome(second) == (True, "")
        assert not overlaps(visits(log))

    @pytest.mark.alone  # the broker gives up a worker that is late by three seconds
    def test_tasks_that_waited_in_a_worker_that_was_killed_come_back_after_the_visibility_timeout(
        self, celery_tasks: Any, log: Path
    ):
        with self.start(celery_tasks, log, VISIBILITY_TIMEOUT="3") as site:
            holder = site.submit(1, 600.0)
            wait_until(lambda: is_in(log), "the first did not begin")
            tasks = [site.submit(0, 0.1) for _ in range(4)]
            wait_until(lambda: all(site.result(task).state == "RETRY" for task in tasks), "they wait in the worker")
            site.kill(0)
            site.replace(0)
            may_end(log).touch()
            wait_until(lambda: all(site.outcome(task) for task in [holder, *tasks]), "they do not come back")
            assert [site.outcome(task) for task in tasks] == [(True, "")] * 4
            assert not overlaps(visits(log))


class TestThreads(Celery, SlotsContract):
    pool = "threads"


class TestSolo(Celery):
    """One task of a worker at a time, whatever `-c` says."""

    pool = "solo"


class TestGevent(Celery, SlotsContract):
    pool = "gevent"
