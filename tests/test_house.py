"""The suite's own mechanism: needs, CI, leaks. Each test runs a small suite of its own in another process."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks import Census

HERE = Path(__file__).parent
ONE_NEEDY_TEST = """
import pytest
@pytest.mark.needs("no-such-program")
def test_needy(): raise AssertionError("it ran")
def test_modest(): pass
"""
ONE_SHY_TEST = """
import pytest
def test_shy(): pytest.skip("not today")
def test_bold(): pass
"""


def run_suite(where: Path, source: str, *, ci: bool) -> tuple[int, str]:
    (where / "tests").mkdir()
    for name in ("conftest.py", "leaks.py"):
        shutil.copy(HERE / name, where / "tests")
    (where / "tests" / "test_it.py").write_text(source)
    (where / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\nmarkers = needs\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        cwd=where,
        env={**os.environ, "CI": "true" if ci else ""},
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout + run.stderr


def test_a_test_whose_need_is_missing_is_left_out_and_named_with_the_remedy(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_NEEDY_TEST, ci=False)
    assert code == 0, said
    assert "1 passed, 1 deselected" in said
    assert "1 test: no 'no-such-program' here (sudo .ci/install-system): test_needy" in said


def test_in_ci_a_test_whose_need_is_missing_fails(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_NEEDY_TEST, ci=True)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "no no-such-program here, and in CI no test may be left out" in said
    assert "1 passed, 1 error" in said


def test_in_ci_a_test_that_skips_itself_fails(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_SHY_TEST, ci=True)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 1 passed" in said
    assert "not today" in said


def test_elsewhere_a_test_may_skip_itself(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_SHY_TEST, ci=False)
    assert code == 0, said
    assert "1 passed, 1 skipped" in said


async def test_what_ends_in_its_own_time_is_no_leak(no_leaks: None):
    one, other = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=one)
    writer.close()
    other.close()
    asyncio.get_running_loop().call_later(0.05, lambda: None)
    asyncio.ensure_future(asyncio.sleep(0.02))  # noqa: RUF006 that nobody awaits it is the point


async def test_a_forgotten_task_is_a_leak_and_named():
    before = Census.take()
    forgotten = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    with pytest.raises(AssertionError, match="task forgotten"):
        await before.must_return(patience_s=0.0)
    forgotten.cancel()
    await before.must_return()


async def test_an_open_socket_a_timer_and_a_child_are_leaks_and_named():
    before = Census.take()
    timer = asyncio.get_running_loop().call_later(3600.0, lambda: None)
    child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    with socket.socket(), pytest.raises(AssertionError) as said:
        await before.must_return(patience_s=0.0)
    assert "socket:" in str(said.value)
    assert "timer <TimerHandle" in str(said.value)
    assert f"child process {child.pid}" in str(said.value)
    timer.cancel()
    await child.communicate(b"")
    await before.must_return()
