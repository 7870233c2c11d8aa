"""Which key seals the frames of a node, and whether it may do without one."""

import asyncio
import base64
from pathlib import Path

import pytest
from softmutex_adapters.transports.udp import UdpTransport

from softmutex import ConfigError, Node
from softmutex.testing import MemoryNetwork
from tests.runtime.group import shown, until

KEY = bytes(range(32))


def key_file(path: Path, *keys: bytes) -> Path:
    file = path / "key"
    file.write_bytes(b"\n".join(base64.b64encode(key) for key in keys))
    file.chmod(0o600)
    return file


def over_udp(port: int = 0, **options) -> Node:
    return Node(
        transport="udp://0.0.0.0:0?advertise=127.0.0.1", membership=f"static://127.0.0.1:{port or 1}", **options
    )


def on_loopback(**options) -> Node:
    return Node(transport="udp://127.0.0.1:0", membership="static://127.0.0.1:1", **options)


def port_of(node: Node) -> int:
    return int(node.address.rpartition(":")[2])


async def test_without_a_key_a_node_that_others_can_reach_does_not_start(no_leaks: None):
    with pytest.raises(ConfigError, match=r"no group key.*SOFTMUTEX_KEY_FILE.*insecure=True"):
        await over_udp().open()


async def test_a_wildcard_counts_as_reachable_whatever_is_advertised(no_leaks: None):
    with pytest.raises(ConfigError, match="no group key"):
        await Node(transport="udp://0.0.0.0:0", advertise="127.0.0.1", membership="static://127.0.0.1:1").open()


async def test_insecure_starts_with_a_warning(no_leaks: None, caplog: pytest.LogCaptureFixture):
    async with over_udp(insecure=True):
        assert "insecure=True: whoever reaches 127.0.0.1" in caplog.text


async def test_on_loopback_no_key_is_wanted(no_leaks: None):
    async with on_loopback() as node:
        assert (await shown(node, UdpTransport.from_url("udp://127.0.0.1:0")))["keys"] == []
    async with Node(transport="udp://localhost:0", membership="static://127.0.0.1:1"):
        pass


async def test_local_members_are_sealed_though_nobody_made_a_key(no_leaks: None, tmp_path: Path):
    async with (
        Node(membership=f"local://?directory={tmp_path}") as node,
        Node(transport="udp://127.0.0.1:0", membership=f"static://{node.address}") as plain,
    ):
        await until(lambda: node.statistics().dropped.get("not_sealed"))
        assert (node.peers(), plain.peers()) == ((), ())


@pytest.mark.parametrize("how", ["bytes", "path", "keyword", "key_file", "variable"])
async def test_members_of_one_key_meet(no_leaks: None, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch):
    file = key_file(tmp_path, KEY)
    given = {"bytes": {"key": KEY}, "path": {"key": file}, "keyword": {"key_file": file}}
    options = given.get(how, {})
    url = f"?key_file={file}" if how == "key_file" else ""
    if how == "variable":
        monkeypatch.setenv("SOFTMUTEX_KEY_FILE", str(file))
    here = Node(transport="udp://127.0.0.1:0", membership=f"static://127.0.0.1:1{url}", **options)
    async with here, over_udp(port_of(here), key=KEY) as there:
        await until(lambda: here.peers() and there.peers())


async def test_members_of_another_key_do_not_meet_and_are_counted(no_leaks: None):
    async with on_loopback(key=KEY) as here, over_udp(port_of(here), key=bytes(reversed(KEY))) as there:
        await until(lambda: sum(here.statistics().dropped.values()))
        assert (here.peers(), there.peers()) == ((), ())


async def test_a_node_with_a_key_hears_no_plain_text(no_leaks: None):
    async with on_loopback(key=KEY) as here, over_udp(port_of(here), insecure=True):
        await until(lambda: here.statistics().dropped.get("not_sealed"))
        assert here.peers() == ()


async def test_a_key_file_of_several_keys_seals_with_the_first_and_opens_with_all(no_leaks: None, tmp_path: Path):
    old, new = KEY, bytes(reversed(KEY))  # a random one may have the id of the other
    file = key_file(tmp_path, old, new)
    async with on_loopback(key=old) as here, over_udp(port_of(here), key=file) as there:
        await until(lambda: here.peers() and there.peers())  # sealed with the first, or `here` had understood nothing
        async with over_udp(port_of(there), key=new) as newer:  # what it seals with the second is opened, and answered
            await until(lambda: newer.statistics().dropped.get("unknown_key"))
        assert not {"unknown_key", "forged"} & there.statistics().dropped.keys()


async def test_the_key_is_changed_under_load_and_nothing_is_dropped(no_leaks: None, tmp_path: Path):
    old, new = KEY, bytes(reversed(KEY))  # one random key in 255 has the id of the other, and is refused
    file = key_file(tmp_path, old)
    here, turns = on_loopback(key=file), {"here": 0, "there": 0}
    async with here, over_udp(port_of(here), key=file) as there:

        async def work(node: Node, who: str) -> None:
            while True:
                async with node.mutex("x"):
                    turns[who] += 1

        async def ten_more_turns() -> None:
            reached = {who: count + 10 for who, count in turns.items()}
            await until(lambda: all(turns[who] >= count for who, count in reached.items()))

        working = [asyncio.create_task(work(here, "here")), asyncio.create_task(work(there, "there"))]
        await ten_more_turns()
        for keys in ([old, new], [new, old], [new]):
            key_file(tmp_path, *keys)
            for node in (here, there):
                node.reload_keys()
                await ten_more_turns()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        assert not {"unknown_key", "forged"} & (here.statistics().dropped.keys() | there.statistics().dropped.keys())


@pytest.mark.parametrize(
    ("key", "said"),
    [(b"short", "has 5 bytes, and must have 32"), ("/no/such/file", "cannot be read")],
)
async def test_an_impossible_key_is_refused_with_a_remedy(no_leaks: None, key: bytes | str, said: str):
    with pytest.raises(ConfigError, match=said):
        await on_loopback(key=key).open()


def test_a_key_is_never_shown():
    with pytest.raises(ConfigError) as raised:
        Node(key=12345678)  # type: ignore[arg-type]
    assert "12345678" not in str(raised.value)


async def test_an_instance_in_memory_needs_no_key(no_leaks: None):
    network = MemoryNetwork()
    async with Node(transport=network.transport(), membership=network.membership()):
        pass
