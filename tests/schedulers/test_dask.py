"""Dask distributed: a scheduler and two worker processes of one thread each."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, secede
from distributed.diagnostics.plugin import WorkerPlugin
from softmutex_adapters.schedulers.dask import SoftMutexPlugin, turn

from softmutex import HoldLost, SoftMutexError
from tests.schedulers import spans
from tests.schedulers.contract import (
    ALONE_TOO,
    LossContract,
    Outcome,
    Site,
    SlotsContract,
    transfer,
    visits,
    wait_until,
)


def plain(log: str, seconds: float, timeout_s: float | None) -> None:
    with turn("transfers", timeout=timeout_s):
        transfer(log, seconds)


async def on_the_loop(log: str, seconds: float, timeout_s: float | None) -> None:
    async with turn("transfers", timeout=timeout_s):
        await asyncio.to_thread(transfer, log, seconds)


def plain_pairs(log: str, seconds: float, timeout_s: float | None) -> None:
    with turn("pairs", slots=2, timeout=timeout_s):
        transfer(log, seconds)


@spans.traced
def traced_plain(log: str, seconds: float, timeout_s: float | None) -> None:
    plain(log, seconds, timeout_s)


@spans.traced
async def traced_on_the_loop(log: str, seconds: float, timeout_s: float | None) -> None:
    await on_the_loop(log, seconds, timeout_s)


class DaskSite:
    def __init__(self, client: Client, log: Path, task: Any) -> None:
        self._client = client
        self._log = log
        self._task = task
        self._workers = sorted(client.scheduler_info()["workers"])
        self._pids = client.run(os.getpid)
        self._futures: list[Any] = []
        client.run(write_warnings_to, said_of(log))

    def submit(self, worker: int, seconds: float, timeout_s: float | None = None) -> int:
        where = [self._workers[worker]]
        self._futures.append(
            self._client.submit(self._task, str(self._log), seconds, timeout_s, workers=where, pure=False, retries=0)
        )
        return len(self._futures) - 1

    def outcome(self, job: int) -> Outcome | None:
        future = self._futures[job]
        if not future.done():
            return None
        error = future.exception()
        return Outcome(error is None, "" if error is None else f"{type(error).__name__}: {error}")

    def kill(self, worker: int) -> None:
        os.kill(self._pids[self._workers[worker]], signal.SIGKILL)

    @contextmanager
    def sleeps(self, worker: int, job: int) -> Iterator[None]:
        os.kill(self._pids[self._workers[worker]], signal.SIGSTOP)
        yield
        os.kill(self._pids[self._workers[worker]], signal.SIGCONT)

    def heard(self) -> str:
        return Path(said_of(self._log)).read_text()


def said_of(log: Path) -> str:
    return f"{log}.said"


class TracedPlugin(SoftMutexPlugin):
    """A worker whose SDK is set up before its node, as a preload script does."""

    async def setup(self, worker: Any) -> None:
        spans.set_up_where_wanted()
        await super().setup(worker)


def write_warnings_to(path: str) -> None:
    """As an operator's logging set-up in the workers."""
    logging.getLogger("softmutex").handlers[:] = [logging.FileHandler(path)]


@pytest.fixture(scope="module")
def dask_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    os.environ.update(ALONE_TOO, SOFTMUTEX_GROUP=f"dask-{os.getpid()}")
    os.environ[spans.VARIABLE] = str(tmp_path_factory.mktemp("dask") / "spans")
    try:
        with (
            # A worker that was killed and is not back by then is given up for good, and the next test waits for it.
            dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
            LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
            ) as cluster,
            Client(cluster) as client,
        ):
            client.register_plugin(TracedPlugin())
            yield client
    finally:
        for name in (*ALONE_TOO, "SOFTMUTEX_GROUP", spans.VARIABLE):
            del os.environ[name]


class Dask(LossContract, spans.SpansContract):
    task: Any
    traced_task: Any

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "visits"

    @pytest.fixture
    def spans(self) -> Path:
        path = Path(os.environ[spans.VARIABLE])
        path.write_text("")
        return path

    @pytest.fixture
    def site(self, dask_client: Client, log: Path) -> Site:
        wait_until(lambda: len(dask_client.scheduler_info()["workers"]) == 2, "there are not two workers")
        return DaskSite(dask_client, log, self.task)

    @pytest.fixture
    def traced(self, site: Site, dask_client: Client, log: Path) -> Site:
        return DaskSite(dask_client, log, self.traced_task)


class TestPlainTasks(Dask, SlotsContract):
    task = staticmethod(plain)
    traced_task = staticmethod(traced_plain)

    @pytest.fixture
    def pairs(self, site: Site, dask_client: Client, log: Path) -> Site:
        return DaskSite(dask_client, log, plain_pairs)


class TestAsyncTasks(Dask):
    task = staticmethod(on_the_loop)
    traced_task = staticmethod(traced_on_the_loop)


def until(sign: str) -> None:
    with turn("transfers"):
        Path(sign, "in").touch()
        wait_until(lambda: Path(sign, "go").exists(), "nobody says go")


@pytest.fixture
def workers(dask_client: Client) -> list[str]:
    wait_until(lambda: len(dask_client.scheduler_info()["workers"]) == 2, "there are not two workers")
    return sorted(dask_client.scheduler_info()["workers"])


@pytest.fixture
def held(dask_client: Client, workers: list[str], tmp_path: Path) -> Iterator[Path]:
    """By a task of the first worker, until somebody makes the file `go` there."""
    holder = dask_client.submit(until, str(tmp_path), workers=workers[:1], pure=False)
    wait_until(lambda: (tmp_path / "in").exists(), "the first task did not begin")
    yield tmp_path / "go"
    (tmp_path / "go").touch()
    holder.result(timeout=100)


def waiting_here(dask_worker: Any) -> int:
    waiting: int = dask_worker.plugins["softmutex"].node.mutex("transfers").statistics().waiting
    return waiting


def test_a_worker_whose_tasks_all_wait_still_works(dask_client: Client, workers: list[str], held: Path, tmp_path: Path):
    """Its only thread is free for others while two tasks wait for their turn."""
    log = str(tmp_path / "visits")
    waiting = [dask_client.submit(plain, log, 0.1, None, workers=workers[1:], pure=False) for _ in range(2)]
    assert dask_client.submit(os.getpid, workers=workers[1:], pure=False).result(timeout=100)
    held.touch()
    for task in waiting:
        task.result(timeout=100)


@pytest.mark.parametrize("task", [plain, on_the_loop], ids=["plain", "async"])
def test_a_task_that_is_cancelled_while_it_waits_leaves_the_queue_and_does_not_transfer(
    dask_client: Client, workers: list[str], held: Path, tmp_path: Path, task: Any
):
    log = tmp_path / "visits"
    cancelled = dask_client.submit(task, str(log), 600.0, None, workers=workers[1:], pure=False)
    wait_until(lambda: dask_client.run(waiting_here, workers=workers[1:])[workers[1]] == 1, "it does not wait")
    cancelled.cancel()
    wait_until(lambda: dask_client.run(waiting_here, workers=workers[1:])[workers[1]] == 0, "it waits on")
    last = dask_client.submit(task, str(log), 0.1, None, workers=workers[1:], pure=False)
    held.touch()
    last.result(timeout=100)
    assert len(visits(log)) == 1


@pytest.mark.parametrize("task", [plain, on_the_loop], ids=["plain", "async"])
def test_a_task_that_is_wanted_again_after_it_was_cancelled_has_its_turn(
    dask_client: Client, workers: list[str], held: Path, tmp_path: Path, task: Any
):
    log = tmp_path / "visits"
    for _ in range(3):
        wanted = dask_client.submit(task, str(log), 0.1, None, workers=workers[1:], key="the same")
        wait_until(lambda: dask_client.run(waiting_here, workers=workers[1:])[workers[1]] == 1, "it does not wait")
        wanted.cancel()
        wait_until(lambda: dask_client.run(waiting_here, workers=workers[1:])[workers[1]] == 0, "it waits on")
    wanted = dask_client.submit(task, str(log), 0.1, None, workers=workers[1:], key="the same")
    held.touch()
    wanted.result(timeout=100)
    assert len(visits(log)) == 1


def two_turns(first: str, second: str) -> str:
    with turn(first), turn(second) as hold:
        return hold.name


def left_the_pool_before(name: str) -> str:
    secede()
    with turn(name) as hold:
        return hold.name


def one_after_the_other(name: str) -> str:
    for _ in range(3):
        with turn(name) as hold:
            pass
    return hold.name


def test_turns_of_two_mutexes_may_be_nested_and_a_task_may_have_left_the_pool(dask_client: Client):
    assert dask_client.submit(two_turns, "outer", "inner", pure=False).result(timeout=100) == "inner"
    assert dask_client.submit(left_the_pool_before, "outer", pure=False).result(timeout=100) == "outer"
    assert dask_client.submit(one_after_the_other, "outer", pure=False).result(timeout=100) == "outer"


def test_a_turn_of_the_same_mutex_inside_is_refused_with_what_to_do(dask_client: Client):
    task = dask_client.submit(two_turns, "outer", "outer", pure=False)
    with pytest.raises(SoftMutexError, match=r"has its turn of 'outer' already.*under the outer turn"):
        task.result(timeout=100)
    assert dask_client.submit(two_turns, "outer", "inner", pure=False).result(timeout=100) == "inner", (
        "it is given back"
    )


def impatient(name: str, on_overrun: str) -> float:
    with turn(name, max_hold=0.1, on_overrun=on_overrun) as hold:
        wait_until(lambda: hold.deadline is not None and hold.deadline < time.monotonic() - 0.2, "time stands still")
        return hold.waited


def test_a_plain_task_that_overran_is_told_when_it_is_done(dask_client: Client):
    assert dask_client.submit(impatient, "outer", "warn", pure=False).result(timeout=100) >= 0.0
    with pytest.raises(HoldLost):
        dask_client.submit(impatient, "outer", "cancel", pure=False).result(timeout=100)


class Fetching(WorkerPlugin):
    """A plug-in of the user's, which fetches what its worker needs, in turn."""

    name = "fetching"

    def __init__(self, directory: str) -> None:
        self.directory = directory

    async def setup(self, worker: Any) -> None:
        async with turn("transfers"):
            Path(self.directory, worker.name if isinstance(worker.name, str) else str(worker.name)).touch()


class Stopping(WorkerPlugin):
    name = "stopping"

    def setup(self, worker: Any) -> None:
        with turn("transfers"):
            pass


def test_a_plugin_takes_its_turn_also_in_workers_that_come_later(tmp_path: Path):
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(SoftMutexPlugin(group=f"dask-plugin-{os.getpid()}"))
        client.register_plugin(Fetching(str(tmp_path)))
        assert len(list(tmp_path.iterdir())) == 1
        cluster.scale(2)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the second worker does not get its turn")
        with pytest.raises(SoftMutexError, match="Write `async with turn"):
            client.register_plugin(Stopping())


def test_without_the_plugin_a_turn_says_what_to_register():
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        Client(cluster) as client,
        pytest.raises(SoftMutexError, match="register_plugin"),
    ):
        client.submit(one_after_the_other, "outer", pure=False).result(timeout=100)
