"""Starts real processes for tests, waits for conditions, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests import prepared

PATIENCE_S = 100.0  # generous: the machine may be shared
T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """What `look` returns as soon as that is true."""
    deadline = time.monotonic() + patience_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(0.005)
    return seen


def state_of(pid: int) -> str:
    """One letter as `ps` has it; X when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "XZ"


def children_of(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def group_is_empty(group: int) -> bool:
    """Whether no living process is left in it; zombies that nobody has collected yet do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state not in "XZ":
                return False
    return True


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def read_number(file: Path) -> int:
    """The number that a command writes into the file, once it is whole."""
    return int(eventually(lambda: file.exists() and file.read_text().endswith("\n") and file.read_text(), str(file)))


def but_for_standstills(said: str) -> str:
    """A busy machine lets processes stand still, and those that notice say so."""
    return re.sub(r"[^\n]*the event loop was blocked [^\n]*\n", "", said)


@contextmanager
def started(*command: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program in a group of its own (a stop must not reach the test run); killed at the end with its children."""
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "process_group": 0, **options}
    begin = prepared.Popen if prepared.SOFTMUTEX in command else subprocess.Popen
    with begin([str(part) for part in command], **options) as process:
        try:
            yield process
        finally:
            for child in children_of(process.pid):
                kill_group(child)  # the command leads a group, the agent a session
                kill(child)
            kill(process.pid)


PYTHON = sys.executable
