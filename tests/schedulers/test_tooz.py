"""tooz's own tests of what our driver claims: locks and elections. What it does not claim, tooz itself leaves out."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

tooz_tests = pytest.importorskip(
    "tooz.tests.test_coordination", reason="pip install softmutex[tooz] fixtures testtools"
)
coordination = pytest.importorskip("tooz.coordination")

ELECTIONS = [name for name in dir(tooz_tests.TestAPI) if "election" in name or "elected_as_leader" in name]
LOCKS = [name for name in dir(tooz_tests.TestAPI) if name.startswith("test_") and "lock" in name]
NOT_CLAIMED = {name for name in LOCKS if "shared" in name}


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


@pytest.mark.parametrize("name", [name for name in LOCKS if name not in NOT_CLAIMED])
def test_a_lock_does_what_tooz_expects(name: str):
    result = tooz_tests.TestAPI(name).run()
    assert not result.skipped, "it is claimed"
    assert result.wasSuccessful(), [*result.errors, *result.failures]


@pytest.mark.parametrize("name", ELECTIONS)
def test_an_election_ends_as_tooz_expects(name: str):
    result = tooz_tests.TestAPI(name).run()
    assert not result.skipped, "it is claimed"
    assert result.wasSuccessful(), [*result.errors, *result.failures]


def test_what_is_not_claimed_says_so(url: str):
    coordinator = coordination.get_coordinator(url, b"me")
    coordinator.start()
    try:
        with pytest.raises(tooz_tests.tooz.NotImplemented):
            coordinator.get_lock(b"x").acquire(shared=True)
        with pytest.raises(tooz_tests.tooz.NotImplemented):
            coordinator.join_group(b"g")
        with pytest.raises(tooz_tests.tooz.NotImplemented):
            coordinator.get_members(b"g")
    finally:
        coordinator.stop()


def test_the_pages_examples_run(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parent.parent.parent / "docs" / "howto" / "applications.md").read_text()
    found = re.findall(r"<!-- run by tests/schedulers/test_tooz.py -->\n```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("SOFTMUTEX_MEMBERSHIP", url.partition("membership=")[2])
    exec(compile("\n".join(found), "applications.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["b'worker-1' leads", "b'worker-1'"]
