"""Another user may take the name of the run directory; the processes of this user meet all the same."""

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest
from softmutex_adapters.memberships.local import LocalMembership

from softmutex import meeting
from softmutex.agent.place import path_of
from softmutex.meeting import meeting_place
from softmutex.ports import Member

STRANGER = 54_321
pytestmark = pytest.mark.needs("root")


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp; beside it is a home."""
    for name in ("tmp", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(meeting, "TMP", str(tmp_path / "tmp"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path / "home")))
    return tmp_path / "tmp"


def taken(tmp: Path) -> Path:
    place = tmp / f"softmutex-{os.geteuid()}"
    place.mkdir()
    os.chown(place, STRANGER, -1)
    return place


async def test_where_another_user_has_taken_the_name_they_meet_in_the_home(no_leaks: None, tmp: Path):
    taken(tmp)
    one, two = LocalMembership("it"), LocalMembership("it")
    await one.join(Member("127.0.0.1:1", 1))
    await two.join(Member("127.0.0.1:2", 2))
    assert [each.id for each in await two.watch()] == [1]
    assert one.group_key() == two.group_key()
    assert list(tmp.parent.glob("home/.softmutex-*/it/key"))
    for each in (one, two):
        await each.aclose()
    assert str(path_of({})).startswith(str(tmp.parent / "home"))


@pytest.mark.parametrize("how", ["a directory", "a link to one of ours", "a file"])
def test_whatever_has_taken_the_name_is_passed_by(tmp: Path, how: str):
    place = tmp / f"softmutex-{os.geteuid()}"
    if how == "a directory":
        taken(tmp)
    elif how == "a file":
        place.touch()
    else:
        place.symlink_to(tmp.parent)
    assert meeting_place().startswith(str(tmp.parent / "home"))


def test_who_takes_the_name_and_gives_it_back_parts_nobody(tmp: Path):
    place = taken(tmp)
    second = Path(meeting_place())
    second.mkdir()
    place.rmdir()
    assert meeting_place() == str(second), "some have met there"
    place.mkdir()
    assert meeting_place() == str(place), "some had met here before"


def test_where_nothing_is_in_the_way_it_is_where_it_always_was(tmp: Path, monkeypatch: pytest.MonkeyPatch):
    assert meeting_place() == str(tmp / f"softmutex-{os.geteuid()}")
    monkeypatch.setattr(meeting, "BOOT_ID", str(tmp / "nothing"))
    taken(tmp)
    assert meeting_place() == str(tmp / f"softmutex-{os.geteuid()}"), "which is refused with its remedy"
