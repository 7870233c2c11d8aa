"""APScheduler 3, in two processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

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
