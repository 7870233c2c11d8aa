from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import started

SOFTMUTEX = Path(sys.executable).with_name("softmutex")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Jobs and agents of this test find each other, and nobody else; this process is such a job, too."""
    for name in [name for name in os.environ if name.startswith("SOFTMUTEX_")]:
        monkeypatch.delenv(name)
    own = {
        "SOFTMUTEX_MEMBERSHIP": f"local://?directory={tmp_path}/runtime",
        "SOFTMUTEX_AGENT": f"{tmp_path}/agent/socket",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, **own}


class Agent:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, text: str) -> str:
        """Waits for a line on stderr with the text in it."""
        assert self.process.stderr
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in {lines}")

    def ends(self) -> int:
        return self.process.wait(100)


StartAgent = Callable[..., Agent]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_agent(tmp_path: Path, environ: dict[str, str]) -> Iterator[StartAgent]:
    with ExitStack() as stack:

        def begin(*flags: str, ready: bool = True, **options: Any) -> Agent:
            options = {"cwd": tmp_path, "env": environ, **options}
            agent = Agent(stack.enter_context(started(SOFTMUTEX, "agent", "-v", *flags, **options)))
            if ready:
                agent.says("jobs ask at")
            return agent

        yield begin


@pytest.fixture
def agent(start_agent: StartAgent) -> Agent:
    return start_agent()


@pytest.fixture
def run(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    """`run("exit 3", "--timeout", "5")`: a script, run while holding the mutex `x`."""
    with ExitStack() as stack:

        def begin(script: str, *flags: str, **options: Any) -> subprocess.Popen[str]:
            words = [SOFTMUTEX, "run", "-n", "x", *flags, "--", "sh", "-c", script]
            options = {"cwd": tmp_path, "env": environ, **options}
            return stack.enter_context(started(*words, **options))

        yield begin
