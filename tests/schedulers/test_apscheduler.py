"""APScheduler 3, in two processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedulers.contract import LossContract, Site
from tests.schedulers.lines import line_site


class Both(LossContract):
    how = ""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        return tmp_path / "visits"

    @pytest.fixture
    def site(self, log: Path) -> Iterator[Site]:
        environ = {**os.environ, "SOFTMUTEX_GROUP": f"aps-{os.getpid()}-{self.how}"}
        with line_site("tests.schedulers.apscheduler_worker", [self.how, str(log)], environ) as site:
            yield site


class TestThreads(Both):
    how = "threads"


class TestLoop(Both):
    how = "loop"


@pytest.mark.needs("apscheduler4")
class TestPreReleaseOfVersion4(Both):
    """It cannot be installed beside version 3: CI puts it into a directory of its own."""

    how = "4"

    @pytest.fixture
    def site(self, log: Path) -> Iterator[Site]:
        other = os.environ["APSCHEDULER4_DIR"]
        environ = {**os.environ, "SOFTMUTEX_GROUP": f"aps-{os.getpid()}-4", "PYTHONPATH": other}
        with line_site("tests.schedulers.apscheduler4_worker", [str(log)], environ) as site:
            yield site
