"""APScheduler 3, in two processes."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler import events
from apscheduler.executors import base
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from softmutex_adapters.schedulers.apscheduler import AsyncIOSoftMutexExecutor, SoftMutexExecutor

from softmutex import Node
from tests.runtime.group import until
from tests.schedulers.contract import ALONE_TOO, LossContract, Site, SlotsContract
from tests.schedulers.lines import LineSite, line_site
from tests.schedulers.spans import SpansContract


class Both(LossContract, SpansContract, SlotsContract):
    worker = "tests.schedulers.apscheduler_worker"
    how = ""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "visits"

    @pytest.fixture
    def spans(self, tmp_path: Path) -> Path:
        return tmp_path / "spans"

    @pytest.fixture
    def site(self, log: Path) -> Iterator[Site]:
        with self.start(log) as site:
            yield site

    @pytest.fixture
    def traced(self, log: Path, spans: Path) -> Iterator[Site]:
        with self.start(log, TESTS_SPANS=str(spans)) as site:
            yield site

    @pytest.fixture
    def pairs(self, log: Path) -> Iterator[Site]:
        with self.start(log, SOFTMUTEX_SLOTS="2") as site:
            yield site

    def start(self, log: Path, **more: str) -> AbstractContextManager[LineSite]:
        environ = {**os.environ, "SOFTMUTEX_GROUP": f"aps-{os.getpid()}-{self.how}", **ALONE_TOO, **more}
        return line_site(self.worker, [self.how, str(log)], environ)


class TestThreads(Both):
    how = "threads"


class TestLoop(Both):
    how = "loop"


@pytest.mark.needs("apscheduler4")
class TestPreReleaseOfVersion4(Both):
    """It cannot be installed beside version 3: CI puts it into a directory of its own."""

    worker = "tests.schedulers.apscheduler4_worker"
    how = "4"

    def start(self, log: Path, **more: str) -> AbstractContextManager[LineSite]:
        return super().start(log, PYTHONPATH=os.environ["APSCHEDULER4_DIR"], **more)


async def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "executor", "job"),
    [(BackgroundScheduler, SoftMutexExecutor, int), (AsyncIOScheduler, AsyncIOSoftMutexExecutor, nothing)],
)
async def test_a_job_is_late_by_when_it_was_taken_up_and_not_by_when_it_got_its_turn(
    monkeypatch: pytest.MonkeyPatch, kind: Any, executor: Any, job: Any
) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr(base, "datetime", SimpleNamespace(now=lambda _zone: now))
    where: Any = {"transport": f"memory://{kind.__name__}", "membership": f"memory://{kind.__name__}"}
    over: queue.SimpleQueue[Any] = queue.SimpleQueue()
    scheduler = kind()
    scheduler.add_executor(executor("link", **where), "link")
    scheduler.add_listener(over.put, events.EVENT_JOB_EXECUTED | events.EVENT_JOB_ERROR | events.EVENT_JOB_MISSED)
    scheduler.start()
    async with Node(**where) as other:

        async def waits() -> bool:
            return (await other.mutex("link").look()).waiting_count == 1

        async with other.mutex("link"):
            scheduler.add_job(job, "date", run_date=now, executor="link")
            await until(waits)
            now += timedelta(hours=1)
        assert (await asyncio.to_thread(over.get, timeout=100)).code == events.EVENT_JOB_EXECUTED
        await asyncio.to_thread(scheduler.shutdown) if kind is BackgroundScheduler else scheduler.shutdown()
