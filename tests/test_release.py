"""What people meet before they meet the package: the workflow, and the notes of a release."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.scheduling import PURE_ROOMS

pytestmark = pytest.mark.house
ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def notes(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci/release", "--notes", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )


def test_the_workflow_runs_on_macos_exactly_the_rooms_that_only_compute():
    (line,) = [line for line in CI.splitlines() if "run: pytest" in line]
    assert sorted(re.findall(r"tests/(\w+)", line)) == sorted(PURE_ROOMS)
    assert "macos-latest" in CI


def test_what_a_workflow_calls_is_there_and_can_be_run():
    called = {word for file in WORKFLOWS for word in re.findall(r"\.ci/\w+", file.read_text())}
    assert {".ci/run", ".ci/release", ".ci/audit"} <= called
    assert all(os.access(ROOT / each, os.X_OK) for each in called)


def test_a_commit_is_asked_what_ci_asks_of_format_lint_and_imports():
    asked = re.findall(r"entry: ([^,}]+)", (ROOT / ".pre-commit-config.yaml").read_text())
    steps = re.findall(r"^beside \w+ (.+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert [entry.split()[:2] for entry in asked] == [
        ["ruff", "format"],
        ["ruff", "check"],
        ["lint-imports", "--no-cache"],
    ]
    assert all(any(step.startswith(entry) for step in steps) for entry in asked)


def test_a_commit_and_ci_look_at_the_same_scripts():
    """`pre-commit` knows Python by the first line, ruff by the name: a commit was refused for what CI never saw."""
    scripts = [file for file in (ROOT / ".ci").iterdir() if "python" in file.read_text().partition("\n")[0]]
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["extend-include"]
    assert sorted(included) == sorted(f".ci/{file.name}" for file in scripts)


def test_the_notes_of_a_release_are_a_section_of_the_changelog():
    said = notes().stdout
    assert "### Added" in said and "## [" not in said
    assert said.strip() in (ROOT / "CHANGELOG.md").read_text()


def test_a_version_without_notes_is_refused_with_what_to_do():
    refused = notes("99.0")
    assert refused.returncode == 65 and refused.stdout == ""
    assert "nothing under [99.0]. Write it" in refused.stderr


def test_an_audit_that_could_ask_nobody_calls_nothing_clean(tmp_path: Path):
    """An index without advisories was taken for one that knows of no hole."""
    auditor = tmp_path / "auditor"
    auditor.write_text("""#!/bin/sh\necho '{"dependencies": [{"name": "aiohttp", "skip_reason": "not found"}]}'\n""")
    auditor.chmod(0o755)
    env = os.environ | {"AUDITOR": str(auditor)}
    done = subprocess.run([ROOT / ".ci/audit"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 69, done.stderr
    assert "Nothing was audited" in done.stderr
