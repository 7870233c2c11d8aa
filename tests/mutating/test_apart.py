"""`.ci/mutants` leaves nothing behind, however it is ended: neither what it forked nor what that forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutating.apart import apart

ROOT = Path(__file__).parent.parent.parent
WAITS = """
import os, signal, sys
from tests.mutating.apart import apart, leave_by_raising

def work():
    if os.fork():
        os.waitpid(-1, 0)
    print("begun", flush=True)
    signal.pause()

leave_by_raising()
try:
    apart(work)
finally:
    print("tidied", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_whoever_ends_it_ends_what_it_started_and_what_that_started(number: signal.Signals):
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(number)
            rest, _ = process.communicate(timeout=100)  # to its end: nobody holds the pipe any more
        finally:
            process.kill()
    assert rest == "tidied\n" and process.returncode != 0


def test_work_that_takes_too_long_is_ended():
    assert apart(signal.pause, seconds=0.05) == -signal.SIGKILL


def test_how_work_ended_is_told():
    assert apart(lambda: None) == 0
    assert apart(lambda: sys.exit(3)) == 3
    assert apart(lambda: os.kill(os.getpid(), signal.SIGTERM)) == -signal.SIGTERM
