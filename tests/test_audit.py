"""`.ci/advisories` says which versions have a known hole, and never calls clean what it cannot know."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.house
ROOT = Path(__file__).parent.parent
TODAY = datetime.datetime.now(datetime.UTC)


def advisory(id: str, name: str, *events: dict[str, str], **other: Any) -> dict[str, Any]:
    ranges = [
        {"type": "GIT", "events": [{"introduced": "0"}]},  # of commits: says nothing of versions
        {"type": "ECOSYSTEM", "events": list(events)},
    ]
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": ranges, "versions": other.pop("versions", [])}
    return {"id": id, "modified": TODAY.isoformat(), "affected": [affected], **other}


def judge(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / ".ci/advisories", folder]
    return subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=60)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    folder = tmp_path / "advisories" / "vulns"
    folder.mkdir(parents=True)
    written = [
        advisory("X-1", "Some.Thing", {"introduced": "1.0.5"}, {"fixed": "3.9.2"}, aliases=["CVE-1"]),
        advisory("X-2", "two-lines", {"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "2.0"}, {"fixed": "2.1"}),
        advisory("X-3", "last", {"introduced": "0"}, {"last_affected": "4.0"}),
        advisory("X-4", "listed", versions=["1.0", "1.1.post1", "no version at all"]),
        advisory("X-5", "withdrawn", {"introduced": "0"}, withdrawn="2024-01-01T00:00:00Z"),
        advisory("X-6", "never-mended", {"introduced": "0"}),
    ]
    for each in written:
        (folder / f"{each['id']}.json").write_text(json.dumps(each))
    return folder.parent


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ("some-thing==1.0.4 two-lines==1.2 last==4.0.1 listed==1.2 withdrawn==1 unknown==1", []),
        ("some-thing==3.10 two-lines==2.1", []),
        (
            "some-thing==1.0.5 two-lines==0.1 last==4 listed==1.1.post1 never-mended==99",
            [
                "last 4: X-3; mended in no version",
                "listed 1.1.post1: X-4; mended in no version",
                "never-mended 99: X-6; mended in no version",
                "some-thing 1.0.5: X-1 CVE-1; mended in 3.9.2",
                "two-lines 0.1: X-2; mended in 1.2",
            ],
        ),
        (
            "some_thing==3.9.2rc1 two.lines==2.0.9",
            ["some-thing 3.9.2rc1: X-1 CVE-1; mended in 3.9.2", "two-lines 2.0.9: X-2; mended in 2.1"],
        ),
    ],
)
def test_versions_are_judged_by_the_ranges_and_the_lists(known: Path, versions: str, found: list[str]):
    done = judge(known, *versions.split())
    assert done.returncode == bool(found), done.stderr
    assert done.stdout.splitlines()[1:] == found


def test_what_is_known_of_one_of_many_is_found_in_yaml_in_a_repository_without_a_work_tree(known: Path, tmp_path: Path):
    text = """
id: PYSEC-0
modified: 2024-02-05T20:20:47.716944Z
affected:
- package: {ecosystem: PyPI, name: aiohttp}
  ranges: [{type: ECOSYSTEM, events: [{introduced: 1.0.5}, {fixed: 3.9.2}]}]
"""
    (known / "vulns" / "PYSEC-0.yaml").write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false", "-C", str(known)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "some"]):
        subprocess.run([*git, *words], check=True, timeout=30)
    bare = tmp_path / "bare"
    subprocess.run(["git", "clone", "-q", "--bare", str(known), str(bare)], check=True, timeout=30)
    done = judge(bare, "# a remark", "last==5", "aiohttp==3.9.1", "listed==3")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == ["aiohttp 3.9.1: PYSEC-0; mended in 3.9.2"]


def test_old_advisories_call_nothing_clean_and_still_tell_what_they_know(tmp_path: Path):
    old = advisory("X-1", "thing", {"introduced": "0"}, {"fixed": "2"})
    old["modified"] = (TODAY - datetime.timedelta(days=100)).isoformat()
    (tmp_path / "X-1.json").write_text(json.dumps(old))
    assert judge(tmp_path, "thing==1").returncode == 1
    done = judge(tmp_path, "thing==2")
    assert done.returncode == 69 and "100 days old" in done.stderr


@pytest.mark.parametrize("text", ["", "id: [", "id: X\nmodified: now\naffected: [{package: 3}]"])
def test_without_an_advisory_or_with_one_that_cannot_be_read_nothing_is_clean(tmp_path: Path, text: str):
    (tmp_path / "X-1.yaml").write_text(text)
    done = judge(tmp_path, "thing==2")
    assert done.returncode == 69 and "Nothing is called clean" in done.stderr


def test_what_has_no_version_is_not_called_clean(known: Path):
    done = judge(known, "thing @ file:///somewhere")
    assert done.returncode == 69 and "is no NAME==VERSION" in done.stderr
