"""tooz's own tests of what our driver claims, which is all but shared locks, and what it says beyond them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

tooz_tests = pytest.importorskip(
    "tooz.tests.test_coordination", reason="pip install softmutex[tooz] fixtures testtools"
)
coordination = pytest.importorskip("tooz.coordination")
partitioner_tests = pytest.importorskip("tooz.tests.test_partitioner")

ALL = [name for name in dir(tooz_tests.TestAPI) if name.startswith("test_")]
NOT_CLAIMED = {name for name in ALL if "shared" in name}
OF_OTHERS = {
    "test_timeout",  # of drivers that want a heartbeat of the application
    "test_watch_join_group_disappear",  # names the drivers that it is for
}
CLAIMED = [name for name in ALL if name not in NOT_CLAIMED | OF_OTHERS]


@pytest.fixture(autouse=True)
def nothing_is_left_running(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some of tooz's tests do not stop what they start."""
    make, made = coordination.get_coordinator, []
    monkeypatch.setattr(
        coordination, "get_coordinator", lambda *args, **more: made.append(make(*args, **more)) or made[-1]
    )
    yield
    for coordinator in made:
        with contextlib.suppress(tooz_tests.tooz.ToozError):  # it was not started, or is stopped
            coordinator.stop()


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith("SOFTMUTEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOZ_TEST_URL", f"softmutex://?membership=local://?directory={tmp_path}/runtime")
    return os.environ["TOOZ_TEST_URL"]


def passes(case: Any) -> None:
    result = case.run()
    assert not result.skipped, "it is claimed"
    assert result.wasSuccessful(), [*result.errors, *result.failures]


@pytest.mark.parametrize("name", CLAIMED)
def test_it_does_what_tooz_expects(name: str):
    passes(tooz_tests.TestAPI(name))


@pytest.mark.parametrize("name", [name for name in dir(partitioner_tests.TestPartitioner) if name.startswith("test_")])
def test_a_partitioner_does_what_tooz_expects(name: str):
    passes(partitioner_tests.TestPartitioner(name))


def test_what_is_not_claimed_says_so(url: str):
    coordinator = coordination.get_coordinator(url, b"me")
    coordinator.start()
    try:
        with pytest.raises(tooz_tests.tooz.NotImplemented):
            coordinator.get_lock(b"x").acquire(shared=True)
    finally:
        coordinator.stop()


MEMBER = """
import sys
from tooz import coordination
coordinator = coordination.get_coordinator(sys.argv[1], b"worker-2")
coordinator.start()
coordinator.join_group_create(b"workers", {"cores": 4})
print("in", flush=True)
sys.stdin.read()
"""


def test_a_member_whose_process_is_killed_leaves_and_the_group_that_it_made_stays(url: str):
    coordinator = coordination.get_coordinator(url, b"worker-1")
    coordinator.start()
    process = subprocess.Popen([sys.executable, "-c", MEMBER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"in\n"
        assert coordinator.get_members_with_capabilities(b"workers").get() == {b"worker-2": {"cores": 4}}
        left: list[bytes] = []
        coordinator.watch_leave_group(b"workers", lambda event: left.append(event.member_id))
        process.kill()
        until = time.monotonic() + 60
        while not left and time.monotonic() < until:
            coordinator.run_watchers()
        assert left == [b"worker-2"]
        assert coordinator.get_groups().get() == [b"workers"]
    finally:
        process.kill()
        process.communicate()
        coordinator.stop()


def test_capabilities_that_are_too_long_are_refused_and_all_is_as_it_was(url: str):
    coordinator = coordination.get_coordinator(url, b"worker-1")
    coordinator.start()
    try:
        coordinator.join_group_create(b"workers", {"cores": 8})
        coordinator.create_group(b"others").get()
        for refused in (
            coordinator.update_capabilities(b"workers", {"poem": "x" * 20_000}),
            coordinator.join_group(b"others", {"poem": "x" * 20_000}),
        ):
            with pytest.raises(tooz_tests.tooz.ToozError, match="too long"):
                refused.get()
        assert coordinator.get_members_with_capabilities(b"workers").get() == {b"worker-1": {"cores": 8}}
        assert coordinator.get_members(b"others").get() == set()
    finally:
        coordinator.stop()


def test_many_at_once_make_a_group_once(url: str):
    coordinators = [coordination.get_coordinator(url, f"worker-{number}".encode()) for number in range(4)]
    for coordinator in coordinators:
        coordinator.start()

    def create(coordinator: Any) -> bool:
        try:
            coordinator.create_group(b"workers").get()
        except coordination.GroupAlreadyExist:
            return False
        return True

    with ThreadPoolExecutor(len(coordinators)) as pool:
        assert sorted(pool.map(create, coordinators)) == [False, False, False, True]
        list(pool.map(lambda coordinator: coordinator.join_group(b"workers").get(), coordinators))
    assert len(coordinators[0].get_members(b"workers").get()) == len(coordinators)


def test_the_pages_examples_run(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parent.parent.parent / "docs" / "howto" / "applications.md").read_text()
    found = re.findall(r"<!-- run by tests/schedulers/test_tooz.py -->\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("SOFTMUTEX_MEMBERSHIP", url.partition("membership=")[2])
    exec(compile("\n".join(found), "applications.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["b'worker-1' leads", "b'worker-1'", "{b'worker-1': {'cores': 8}}"]
