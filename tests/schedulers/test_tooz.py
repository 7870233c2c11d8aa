"""tooz's own tests of what our driver claims: its locks. What it does not claim, tooz itself leaves out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

tooz_tests = pytest.importorskip(
    "tooz.tests.test_coordination", reason="pip install softmutex[tooz] fixtures testtools"
)
coordination = pytest.importorskip("tooz.coordination")

LOCKS = [name for name in dir(tooz_tests.TestAPI) if name.startswith("test_") and "lock" in name]
NOT_CLAIMED = {name for name in LOCKS if "shared" in name}


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


def test_what_is_not_claimed_says_so(url: str):
    coordinator = coordination.get_coordinator(url, b"me")
    coordinator.start()
    try:
        with pytest.raises(tooz_tests.tooz.NotImplemented):
            coordinator.get_lock(b"x").acquire(shared=True)
        with pytest.raises(tooz_tests.tooz.NotImplemented):
            coordinator.create_group(b"g")
    finally:
        coordinator.stop()


def test_the_pages_example_runs(url: str, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parent.parent.parent / "docs" / "howto" / "applications.md").read_text()
    found = re.search(r"<!-- run by tests/schedulers/test_tooz.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found
    monkeypatch.setenv("SOFTMUTEX_MEMBERSHIP", url.partition("membership=")[2])
    exec(compile(found[1], "applications.md", "exec"), {})
