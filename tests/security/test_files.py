"""Secrets and settings are believed where nobody but this user and root can have put them."""

import grp
import os
from pathlib import Path

import pytest

from softmutex.core.errors import ConfigError
from softmutex.files import read_secret, whose
from softmutex.runtime.sealing import read_keys
from softmutex.testing import MemoryNetwork
from tests.runtime.group import node_on

STRANGER = 54_321
KEY = "00" * 32


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=1)


def secret(folder: Path, *, mode: int = 0o600, owner: int | None = None) -> Path:
    path = folder / "secret"
    path.touch(0o600)
    path.write_text(KEY)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, -1)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_a_secret_that_others_can_use_is_refused_with_the_remedy(tmp_path: Path, mode: int):
    path = secret(tmp_path, mode=mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}.* chmod 600 {path}"):
        read_secret(path, "token file")


def test_a_group_of_users_may_share_a_key_where_the_settings_name_it_and_no_other_may(tmp_path: Path):
    path = secret(tmp_path, mode=0o640)
    own = grp.getgrgid(path.stat().st_gid).gr_name
    assert read_keys(path, of_group=own) == (bytes(32),)
    other = next(each.gr_name for each in grp.getgrall() if each.gr_gid != path.stat().st_gid)
    for refused, of_group in ((0o640, other), (0o660, own), (0o644, own), (0o641, own)):
        path.chmod(refused)
        with pytest.raises(ConfigError, match="others on this host can use it"):
            read_keys(path, of_group=of_group)
    with pytest.raises(ConfigError, match="no group of users 'no-such-group'"):
        read_keys(path, of_group="no-such-group")


@pytest.mark.needs("root")
async def test_users_of_a_group_take_turns_with_one_key_file(no_leaks: None, tmp_path: Path, network: MemoryNetwork):
    path = secret(tmp_path, mode=0o640)
    own = grp.getgrgid(path.stat().st_gid).gr_name
    with pytest.raises(ConfigError, match="others on this host can use it"):
        async with node_on(network, key_file=path):
            pass
    async with node_on(network, key_file=path, key_group=own) as node, node.mutex("x"):
        pass


@pytest.mark.needs("root")
def test_a_secret_that_a_stranger_has_put_there_is_refused_also_by_root(tmp_path: Path):
    path = secret(tmp_path, owner=STRANGER)
    for read in (lambda: read_secret(path, "key file"), lambda: read_keys(path)):
        with pytest.raises(ConfigError, match=rf"belongs to user {STRANGER}, not to you \(0\).*chown 0 {path}"):
            read()
    assert read_keys(path, of_anybody=True) == (bytes(32),), "root looks after the files of services"


def test_of_an_endless_file_only_the_beginning_is_read(tmp_path: Path):
    path = secret(tmp_path)
    path.write_bytes(b"x" * 1000)
    assert len(read_secret(path, "token file", most=99)) == 100


def test_a_fifo_makes_nobody_wait(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert read_secret(tmp_path / "fifo", "token file") == b""


def test_what_lies_in_a_place_of_ones_own_may_be_believed(tmp_path: Path):
    assert whose(secret(tmp_path, mode=0o644)) == ""
    assert whose(secret(tmp_path, mode=0o664)) == "", "where each user has a group of its own"


@pytest.mark.parametrize(("of_file", "of_folder"), [(0o646, 0o755), (0o644, 0o777)])
def test_what_everybody_may_write_is_not_believed(tmp_path: Path, of_file: int, of_folder: int):
    path = secret(tmp_path, mode=of_file)
    tmp_path.chmod(of_folder)
    assert "can be written by others" in whose(path)
    tmp_path.chmod(0o1755 if of_file == 0o646 else 0o1777)
    assert bool(whose(path)) is (of_file == 0o646), "in a sticky directory nobody can replace what is another's"


@pytest.mark.needs("root")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_lies_in_the_place_of_a_stranger_is_not_believed(tmp_path: Path, what: str):
    path = secret(tmp_path, mode=0o644)
    os.chown(path if what == "file" else tmp_path, STRANGER, -1)
    assert f"belongs to user {STRANGER}" in whose(path)
