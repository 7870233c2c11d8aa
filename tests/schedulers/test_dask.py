"""Dask distributed: a scheduler and two worker processes of one thread each."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from softmutex_adapters.schedulers.dask import SoftMutexPlugin, turn

from tests.schedulers import spans
from tests.schedulers.contract import LossContract, Outcome, Site, transfer, wait_until


def plain(log: str, seconds: float, timeout_s: float | None) -> None:
    with turn("transfers", timeout=timeout_s):
        transfer(log, seconds)


async def on_the_loop(log: str, seconds: float, timeout_s: float | None) -> None:
    async with turn("transfers", timeout=timeout_s):
        await asyncio.to_thread(transfer, log, seconds)


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
    os.environ["SOFTMUTEX_GROUP"] = f"dask-{os.getpid()}"
    os.environ[spans.VARIABLE] = str(tmp_path_factory.mktemp("dask") / "spans")
    try:
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
            ) as cluster,
            Client(cluster) as client,
        ):
            client.register_plugin(TracedPlugin())
            yield client
    finally:
        del os.environ["SOFTMUTEX_GROUP"], os.environ[spans.VARIABLE]


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


class TestPlainTasks(Dask):
    task = staticmethod(plain)
    traced_task = staticmethod(traced_plain)


class TestAsyncTasks(Dask):
    task = staticmethod(on_the_loop)
    traced_task = staticmethod(traced_on_the_loop)


def until(sign: str) -> None:
    with turn("transfers"):
        Path(sign, "in").touch()
        wait_until(lambda: Path(sign, "go").exists(), "nobody says go")


def test_a_worker_whose_tasks_all_wait_still_works(dask_client: Client, tmp_path: Path):
    """Its only thread is free for others while two tasks wait for their turn."""
    wait_until(lambda: len(dask_client.scheduler_info()["workers"]) == 2, "there are not two workers")
    one, other = sorted(dask_client.scheduler_info()["workers"])
    holder = dask_client.submit(until, str(tmp_path), workers=[one], pure=False)
    wait_until(lambda: (tmp_path / "in").exists(), "the first task did not begin")
    log = str(tmp_path / "visits")
    waiting = [dask_client.submit(plain, log, 0.1, None, workers=[other], pure=False) for _ in range(2)]
    assert dask_client.submit(os.getpid, workers=[other], pure=False).result(timeout=60)
    (tmp_path / "go").touch()
    for task in (holder, *waiting):
        task.result(timeout=60)
