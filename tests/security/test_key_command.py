"""`softmutex key`: what it does to files, and what it says where it cannot."""

import os
import stat
import threading
from pathlib import Path

import pytest

from softmutex.cli import main
from softmutex.runtime import keyfile
from softmutex.runtime.sealing import key_id, read_keys


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SOFTMUTEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The file of this host, and one with a key that is to follow."""
    own, following = tmp_path / "group.key", tmp_path / "next.key"
    keyfile.make(own)
    keyfile.make(following, beside=read_keys(own))
    return own, following


def ids(file: Path) -> list[int]:
    return [key_id(key) for key in read_keys(file)]


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["key", *map(str, words)]) == 64
    return capsys.readouterr().err


def test_a_new_key_is_random_only_its_owners_and_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    os.umask(os.umask(0))  # whatever it is
    assert main(["key", "new", "a"]) == main(["key", "new", "b"]) == 0
    assert read_keys("a") != read_keys("b")
    assert mode(tmp_path / "a") == 0o600
    said = capsys.readouterr()
    assert (tmp_path / "a").read_text().strip() not in said.out + said.err
    assert str(ids(tmp_path / "a")[0]) in said.out


def test_no_key_is_ever_overwritten(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    before = files[0].read_bytes()
    assert "is there already" in fails(capsys, "new", files[0])
    assert files[0].read_bytes() == before


def test_three_rounds_change_the_key(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    own, following = files
    (old,), (new,) = ids(own), ids(following)
    for words, then in (
        (["install", following], [old, new]),
        (["install", following], [old, new]),  # again: nothing to do
        (["use", new], [new, old]),
        (["use", new], [new, old]),
        (["retire", old], [new]),
    ):
        assert main(["key", *map(str, words), "--key-file", str(own)]) == 0
        assert ids(own) == then
        assert mode(own) == 0o600
    assert main(["key", "list", "--key-file", str(own)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{own}: key {new} seals"


def test_remarks_survive_and_a_file_of_bare_bytes_becomes_text(files: tuple[Path, Path]):
    own, following = files
    key = read_keys(own)[0]
    own.write_text(f"# the lab's\n{key.hex()}\n")
    keyfile.install(own, following)
    assert own.read_text().splitlines()[:2] == ["# the lab's", key.hex()]
    keyfile.use(own, ids(following)[0])
    keyfile.retire(own, key_id(key))
    assert own.read_text().splitlines()[1:] == ["# the lab's"]
    own.write_bytes(key)
    keyfile.install(own, following)
    assert read_keys(own) == (key, *read_keys(following))


def test_the_key_in_use_and_the_only_key_cannot_be_retired(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
):
    own, following = files
    (old,), (new,) = ids(own), ids(following)
    assert "It is the only one." in fails(capsys, "retire", old, "--key-file", own)
    keyfile.install(own, following)
    assert f"is the one that seals: it cannot be retired. Use another one first ({new})" in fails(
        capsys, "retire", old, "--key-file", own
    )
    assert ids(own) == [old, new]


def test_an_unknown_id_is_told_with_those_that_there_are(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    own, _ = files
    for what in ("use", "retire"):
        assert f"{own} has no key 999 (there are: {ids(own)[0]})" in fails(capsys, what, 999, "--key-file", own)
    assert "invalid int value" in fails(capsys, "use", "first", "--key-file", own)


def test_files_that_others_can_read_are_neither_used_nor_changed(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
):
    own, following = files
    following.chmod(0o644)
    assert f"{following} has mode 0644" in fails(capsys, "install", following, "--key-file", own)
    following.chmod(0o600)
    own.chmod(0o640)
    before = own.read_bytes()
    assert f"chmod 600 {own}" in fails(capsys, "install", following, "--key-file", own)
    assert own.read_bytes() == before


def test_what_cannot_be_read_or_found_is_told(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own, following = files
    assert "cannot be read (No such file" in fails(capsys, "install", tmp_path / "none", "--key-file", own)
    assert "cannot be read (No such file" in fails(capsys, "use", 1, "--key-file", tmp_path / "none")
    assert "directory of" in fails(capsys, "new", tmp_path / "no" / "where")
    own.write_text("not a key\n")
    assert "line 1: neither hexadecimal nor base64" in fails(capsys, "install", following, "--key-file", own)
    assert "which file?" in fails(capsys, "list")


def test_two_keys_of_one_id_are_not_put_into_one_file(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    own, following = files
    number = ids(own)[0]
    twin = next(key for key in (n.to_bytes(32) for n in range(100_000)) if key_id(key) == number)
    following.write_text(twin.hex())
    assert f"share the id {number}" in fails(capsys, "install", following, "--key-file", own)
    assert ids(own) == [number]


def test_a_change_that_is_cut_off_leaves_the_file_as_it_was(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    own, following = files
    before = own.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match=r"cannot be changed .No space left on device.; it is as it was"):
        keyfile.install(own, following)
    assert own.read_bytes() == before
    assert sorted(path.name for path in own.parent.iterdir()) == ["group.key", "next.key"]


def test_a_link_stays_a_link(files: tuple[Path, Path], tmp_path: Path):
    own, following = files
    link = tmp_path / "link"
    link.symlink_to(own)
    keyfile.install(link, following)
    assert link.is_symlink()
    assert len(ids(own)) == 2


def test_changes_at_once_come_one_after_the_other(files: tuple[Path, Path], tmp_path: Path):
    own, _ = files
    taken = list(read_keys(own))
    for number in range(8):
        keyfile.make(tmp_path / f"key-{number}", beside=taken)
        taken += read_keys(tmp_path / f"key-{number}")
    threads = [threading.Thread(target=keyfile.install, args=(own, tmp_path / f"key-{n}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_keys(own)) == set(taken)
