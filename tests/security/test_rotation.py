"""The key is changed while real processes work: nothing that was sealed properly is refused, and everybody gets in."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from softmutex import Node
from softmutex.cli import main
from softmutex.runtime import keyfile
from softmutex.runtime.keyfile import GRACE_S, LOOK_S
from softmutex.runtime.sealing import key_id, read_keys
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.faults.harness import PATIENCE_S, Worker, assert_alone, group, stays, turns_of
from tests.runtime.group import node_on, until

HOSTS = 3
ROUNDS = 60


@pytest.fixture
def hosts(tmp_path: Path) -> list[Path]:
    """The key files of some hosts, with one key."""
    keyfile.make(tmp_path / "first")
    files = [tmp_path / f"host{number}.key" for number in range(HOSTS)]
    for file in files:
        file.touch(0o600)
        file.write_bytes((tmp_path / "first").read_bytes())
    return files


def following(tmp_path: Path, hosts: list[Path]) -> tuple[Path, int]:
    keyfile.make(tmp_path / "next", beside=read_keys(hosts[0]))
    return tmp_path / "next", key_id(read_keys(tmp_path / "next")[0])


def put_to_work(workers: list[Worker]) -> None:
    for worker in workers:
        worker.order(f"turns 2 {ROUNDS}")


def everybody_seals_with(only: int, host: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    command = [
        "key",
        "list",
        "--members",
        "--membership",
        f"local://?directory={here}/runtime",
        "--key-file",
        str(host),
    ]
    all_answer = main(command) == 0
    return f"in use: {only}; " in capsys.readouterr().out and all_answer


def test_rounds_that_follow_each_other_without_a_pause_drop_nothing(
    tmp_path: Path, hosts: list[Path], capsys: pytest.CaptureFixture[str]
):
    source, new = following(tmp_path, hosts)
    old = key_id(read_keys(hosts[0])[0])
    rounds = (["install", source], ["use", new], ["retire", old])
    with group(tmp_path, [{"key": str(file)} for file in hosts]) as workers:
        for words in rounds:
            put_to_work(workers)
            for file in hosts:
                assert main(["key", *map(str, words), "--key-file", str(file)]) == 0
            for worker in workers:
                worker.hears("turned")
        batches, deadline = len(rounds), time.monotonic() + PATIENCE_S
        while not everybody_seals_with(new, hosts[0], tmp_path, capsys):  # within a second
            assert time.monotonic() < deadline
            batches += 1
            put_to_work(workers)
            for worker in workers:
                worker.hears("turned")
        for worker in workers:
            counted = worker.statistics()["node"]
            assert not {"unknown_key", "forged"} & counted["dropped"].keys(), counted
            assert counted["told"] == {}
            worker.ends()
    seen = stays(tmp_path)
    assert set(turns_of(seen).values()) == {2 * ROUNDS * batches}
    assert_alone(seen)


def test_the_operator_sees_which_members_have_which_key(
    tmp_path: Path, hosts: list[Path], capsys: pytest.CaptureFixture[str]
):
    source, new = following(tmp_path, hosts)
    old = key_id(read_keys(hosts[0])[0])
    where = ["--membership", f"local://?directory={tmp_path}/runtime", "--key-file", str(hosts[0])]
    with group(tmp_path, [{"key": str(file)} for file in hosts[:2]]) as workers:
        keyfile.install(hosts[0], source)

        def listed() -> list[str]:
            assert main(["key", "list", "--members", *where]) == 0
            return capsys.readouterr().out.splitlines()[1:]

        told = listed()
        while f"node0: key {old} seals, {new} opens" not in told:  # within a second
            told = listed()
        assert told[1:] == [f"node1: key {old} seals", f"in use: {old}; opened by all who answer: {old}"]
        for worker in workers:
            worker.ends()


# --- what a node makes of its file ------------------------------------------------------------------------------------


def opened(node: Node) -> set[int]:
    return set(node.life().seal._keys)  # type: ignore[union-attr]


@in_virtual_time
async def test_a_running_node_follows_its_file_and_opens_a_retired_key_for_a_while(tmp_path: Path):
    file, source = tmp_path / "own", tmp_path / "next"
    keyfile.make(file)
    keyfile.make(source, beside=read_keys(file))
    (old,), (new,) = map(key_id, read_keys(file)), map(key_id, read_keys(source))
    async with node_on(MemoryNetwork(), key=file) as node:
        assert node.life().seal.key_ids == (old,)
        keyfile.install(file, source)
        await asyncio.sleep(1.1 * LOOK_S)
        assert node.life().seal.key_ids == (old, new)
        keyfile.use(file, new)
        await asyncio.sleep(1.1 * LOOK_S)
        assert node.life().seal.key_ids == (new, old)
        keyfile.retire(file, old)
        await asyncio.sleep(1.1 * LOOK_S)
        assert opened(node) == {new, old}
        await asyncio.sleep(GRACE_S)
        assert opened(node) == {new}


@pytest.mark.parametrize("harm", ["chmod", "remove", "nonsense"])
async def test_a_file_that_went_bad_changes_nothing_and_is_told_once(
    no_leaks: None, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "own"
    keyfile.make(file)
    async with node_on(MemoryNetwork(), key=file) as node:
        before, content = opened(node), file.read_bytes()
        if harm == "chmod":
            file.chmod(0o644)
        elif harm == "remove":
            file.unlink()
        else:
            file.write_text("# nothing\n")
        rotation = node.life().keys
        assert rotation is not None
        for _ in range(3):
            assert not rotation.look()
        assert opened(node) == before
        assert node.statistics().told == {"keys": 1}
        assert "Until then this node goes on with the keys that it has" in caplog.text
        file.unlink(missing_ok=True)
        file.touch(0o600)
        file.write_bytes(content)
        rotation.look()
        assert opened(node) == before


async def test_a_frame_of_a_key_that_has_just_been_installed_is_opened_at_once(no_leaks: None, tmp_path: Path):
    """And none is counted as refused, though the node had not looked yet."""
    network, files = MemoryNetwork(), [tmp_path / "a", tmp_path / "b"]
    keyfile.make(files[0])
    files[1].touch(0o600)
    files[1].write_bytes(files[0].read_bytes())
    keyfile.make(tmp_path / "next", beside=read_keys(files[0]))
    async with node_on(network, key=files[0]) as a, node_on(network, key=files[1]) as b:
        await until(lambda: a.peers() and b.peers())
        for file in files:
            keyfile.install(file, tmp_path / "next")
        keyfile.use(files[0], key_id(read_keys(tmp_path / "next")[0]))
        assert a.life().keys.look()  # type: ignore[union-attr]
        before = b.peers()[0].heard_ago
        a.life().peers.suspect(b.id)  # a ping, sealed with the new key
        await until(lambda: b.peers()[0].heard_ago != before and not a.peers()[0].suspected)
        assert "unknown_key" not in b.statistics().dropped


async def test_frames_of_strangers_make_a_node_look_a_bounded_number_of_times(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "own"
    keyfile.make(file)
    looks = 0
    stat = os.stat

    def counting(path: Path) -> os.stat_result:
        nonlocal looks
        looks += path == file
        return stat(path)

    async with node_on(MemoryNetwork(), key=file) as node:
        rotation = node.life().keys
        assert rotation is not None
        second = node.life().now() // 1_000_000_000
        with monkeypatch.context() as patched:
            patched.setattr("softmutex.runtime.keyfile.os.stat", counting)
            for _ in range(5000):
                rotation.unknown()
        seconds = node.life().now() // 1_000_000_000 - second + 1
        assert looks <= keyfile.LOOKS_A_SECOND * seconds
