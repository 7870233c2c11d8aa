"""The key is changed while real processes work: nothing that was sealed properly is refused, and everybody gets in."""

import asyncio
import os
import secrets
import time
from collections import Counter
from pathlib import Path

import pytest

from softmutex import ConfigError, Node
from softmutex.cli import main
from softmutex.core.messages import StatusReply, Withdraw
from softmutex.core.wire import Frame
from softmutex.runtime import keyfile
from softmutex.runtime.keyfile import GRACE_S, LOOK_S
from softmutex.runtime.sealing import KeyRing, Sealer, key_id, read_keys
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.faults.harness import PATIENCE_S, Worker, assert_alone, group, stays, turns_of
from tests.runtime.group import node_on, shown, until

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

        limit, told = time.monotonic() + 100, [""]
        while f"node0: key {old} seals, {new} opens" not in told or not told[1].startswith("node1: key"):
            assert time.monotonic() < limit, told
            main(["key", "list", "--members", *where])  # who did not answer in time is asked again
            told = capsys.readouterr().out.splitlines()[1:]
        assert told[1:] == [f"node1: key {old} seals", f"in use: {old}; opened by all who answer: {old}"]
        for worker in workers:
            worker.ends()


# --- what a node makes of its file ------------------------------------------------------------------------------------


async def key_ids(node: Node, network: MemoryNetwork, *keys: bytes) -> list[int]:
    """Of the keys that the node has by its own word, the one that seals first. `keys`: with which it is asked."""
    return list((await shown(node, network.transport(), keys))["keys"])


async def seals_with(node: Node, network: MemoryNetwork, key: bytes, *others: bytes) -> bool:
    return (await key_ids(node, network, key, *others))[0] == key_id(key)


async def opens(node: Node, network: MemoryNetwork, key: bytes) -> bool:
    """Whether it opens what is sealed with this key."""

    def dropped() -> Counter[str]:
        return Counter(node.statistics().dropped)

    transport, before, me = network.transport(), dropped(), secrets.randbits(63) + 1
    await transport.open()
    frame = Frame(me, node.id, "", StatusReply(1, 0, 1, b""))  # that it understands, and nobody asked for
    transport.send(node.address, Sealer(KeyRing.of(key), "default", me).seal(frame))
    await until(lambda: dropped() != before)
    await transport.aclose()
    [why] = dropped() - before
    assert why in ("not addressed", "unknown_key")
    return why == "not addressed"


@in_virtual_time
async def test_a_running_node_follows_its_file_and_opens_a_retired_key_for_a_while(tmp_path: Path):
    file, source, network = tmp_path / "own", tmp_path / "next", MemoryNetwork()
    keyfile.make(file)
    keyfile.make(source, beside=read_keys(file))
    [first], [second] = read_keys(file), read_keys(source)
    old, new = key_id(first), key_id(second)
    async with node_on(network, key=file) as node:
        assert await key_ids(node, network, first) == [old]
        keyfile.install(file, source)
        await asyncio.sleep(1.1 * LOOK_S)
        assert await key_ids(node, network, first) == [old, new]
        keyfile.use(file, new)
        await asyncio.sleep(1.1 * LOOK_S)
        assert await key_ids(node, network, second, first) == [new, old]
        keyfile.retire(file, old)
        await asyncio.sleep(1.1 * LOOK_S)
        assert await opens(node, network, first) and await opens(node, network, second)
        await asyncio.sleep(GRACE_S)
        assert await opens(node, network, second) and not await opens(node, network, first)


@pytest.mark.parametrize("harm", ["chmod", "remove", "nonsense"])
@in_virtual_time
async def test_a_file_that_went_bad_changes_nothing_and_is_told_once(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "own"
    keyfile.make(file)
    network, [key] = MemoryNetwork(), read_keys(file)
    async with node_on(network, key=file) as node:
        content = file.read_bytes()
        if harm == "chmod":
            file.chmod(0o644)
        elif harm == "remove":
            file.unlink()
        else:
            file.write_text("# nothing\n")
        for _ in range(3):
            await asyncio.sleep(1.1 * LOOK_S)
        assert await key_ids(node, network, key) == [key_id(key)]
        assert node.statistics().told == {"keys": 1}
        assert "Until then this node goes on with the keys that it has" in caplog.text
        file.unlink(missing_ok=True)
        file.touch(0o600)
        file.write_bytes(content)
        await asyncio.sleep(1.1 * LOOK_S)
        assert await key_ids(node, network, key) == [key_id(key)]


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
        [new] = read_keys(tmp_path / "next")
        keyfile.use(files[0], key_id(new))
        a.reload_keys()
        old = read_keys(files[0])[1]
        await until(lambda: seals_with(a, network, new, old))
        async with a.mutex("x").hold(timeout=60):  # b is asked, and told, with the new key
            pass
        assert "unknown_key" not in b.statistics().dropped
        assert await key_ids(b, network, new, old) == [key_id(old), key_id(new)]


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

    keyfile.make(tmp_path / "stranger", beside=read_keys(file))  # one random key in 255 has the id of the other
    network, [stranger] = MemoryNetwork(), read_keys(tmp_path / "stranger")
    transport = network.transport("stranger")
    await transport.open()
    async with node_on(network, key=file) as node:
        seal = Sealer(KeyRing.of(stranger), "default", 7)
        begun = time.monotonic()
        with monkeypatch.context() as patched:
            patched.setattr("softmutex.runtime.keyfile.os.stat", counting)
            for sent in range(1, 5001):
                transport.send(node.address, seal.seal(Frame(7, node.id, "", StatusReply(1, 0, 1, b""))))
                if sent % 500 == 0:
                    await until(lambda sent=sent: node.statistics().dropped.get("unknown_key") == sent)
        seconds = time.monotonic() - begun + 2  # begun at the beginning, and at the end
        assert looks <= (keyfile.LOOKS_A_SECOND + 1 / keyfile.LOOK_S) * seconds
    await transport.aclose()


def of_one_id() -> tuple[bytes, bytes]:
    """Two keys that share their id, as one in 255 pairs does."""
    seen: dict[int, bytes] = {}
    while True:
        key = secrets.token_bytes(32)
        if seen.setdefault(key_id(key), key) != key:
            return seen[key_id(key)], key


@in_virtual_time
@pytest.mark.parametrize("is_replaced", [True, False], ids=["instead of the other", "beside it"])
async def test_a_key_that_shares_its_id_with_the_one_in_use_is_refused_and_the_old_ones_stay(
    is_replaced: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    old, new = of_one_id()
    file, network = tmp_path / "key", MemoryNetwork(seed=1)
    file.touch(0o600)
    file.write_text(old.hex())
    async with node_on(network, key=file, name="a") as a, node_on(network, key=old, name="b") as b:
        await until(lambda: len(a.peers()) == len(b.peers()) == 1)
        file.write_text(new.hex() if is_replaced else f"{old.hex()}\n{new.hex()}\n")
        with pytest.raises(ConfigError, match=r"share.* the id .* Make the new one once more"):
            a.reload_keys()
        await until(lambda: a.statistics().told.get("keys"))
        assert "goes on with the keys that it has" in caplog.text
        for node in (a, b):
            async with node.mutex("x").hold(timeout=60):
                pass
        assert "forged" not in a.statistics().dropped


def test_a_key_is_known_to_be_right_when_another_life_that_knows_this_one_has_used_it():
    """Then those who refuse this node do so for another reason, and it need not fear to be shut out."""
    old, new = secrets.token_bytes(32), secrets.token_bytes(32)
    for of_peer, to, is_right in ((1, 1, True), (2, 1, False), (1, 3, False)):
        me, peer = (Sealer(KeyRing({1: old, 2: new}, use), "lab", node) for node, use in ((1, 1), (2, of_peer)))
        assert not me.is_right
        me.open(peer.seal(Frame(2, to, "x", Withdraw(7))))
        assert me.is_right is is_right
        me.open(me.seal(Frame(1, 1, "x", Withdraw(8))))
        assert me.is_right is is_right
