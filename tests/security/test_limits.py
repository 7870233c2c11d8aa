"""docs/limits.md says what is true, names a test for each limit, and leaves none out that others could reach."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from softmutex import ConfigError
from softmutex.core.algorithms.wandering import registrar
from softmutex.core.errors import BadFrame
from softmutex.core.messages import Bye, Pong, Withdraw
from softmutex.core.wire import MAX_MUTEX, Frame, UnfitForWire, decode, encode
from softmutex.mailbox import DATAGRAMS_MAX, Mailbox
from softmutex.ports import Datagram, Member
from softmutex.runtime import founding, identity, node, peers, sealing
from softmutex.runtime.identity import Vouching, issue
from softmutex.testing import MemoryNetwork
from tests.runtime.group import node_on, until
from tests.runtime.test_peers import Listed, listed_node
from tests.wandering.stage import Stage

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "limits.md"
LOOKS_LIKE_A_LIMIT = re.compile(r"[A-Z_]*(_MAX|MAX_[A-Z]+|_KEPT|_AT_ONCE|_A_SECOND)")
WHERE = ("softmutex.runtime.*", "softmutex.core.wire", "softmutex.mailbox")
# Bounds of what this node does by itself, and of what is bounded by another row.
OF_OTHER_KINDS = {
    "softmutex.runtime.peers.GREETING_MAX",  # a time
    "softmutex.runtime.identity.NAME_MAX",  # together they are less than a frame has room for
    "softmutex.runtime.identity.CERTIFICATE_MAX",
    "softmutex.runtime.identity.ATTESTATION_MAX",
    "softmutex.runtime.identity.AGAIN_MAX_S",
    "softmutex.runtime.observing.BAGGAGE_MAX",  # of a field of a message
}


class Row(NamedTuple):
    what: str
    most: str
    beyond: str
    constant: str
    shown_by: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][2:]
    return [Row(*(cell.strip().strip("`") for cell in line.strip("| ").split(" | "))) for line in lines]


@pytest.mark.house
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.constant.rpartition(".")[2])
def test_the_table_says_what_the_code_has(row: Row):
    module, _, name = row.constant.rpartition(".")
    assert float(row.most.replace(",", "")) == getattr(importlib.import_module(module), name)
    assert row.beyond


@pytest.mark.house
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.constant.rpartition(".")[2])
def test_each_limit_has_a_test_that_is_there(row: Row):
    file, _, name = row.shown_by.partition("::")
    defined = {one.name for one in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))) if hasattr(one, "name")}
    assert name in defined


@pytest.mark.house
def test_no_limit_of_the_runtime_is_left_out():
    left_out = sorted(set(limits()) - {row.constant for row in rows()} - OF_OTHER_KINDS)
    assert not left_out, f"add a row to docs/limits.md, and a test that goes beyond: {left_out}"


def limits() -> Iterator[str]:
    files = [file for part in WHERE for file in ROOT.glob(part.replace(".", "/") + ".py")]
    assert len(files) > 20
    for file in files:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for one in ast.parse(file.read_text("utf-8")).body:
            targets = [one.target] if isinstance(one, ast.AnnAssign) else getattr(one, "targets", [])
            names = [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
            yield from (f"{module}.{name}" for name in names if LOOKS_LIKE_A_LIMIT.fullmatch(name.removesuffix("_S")))


# --- beyond the limits that no other test goes beyond -----------------------------------------------------------------


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=1)


def test_a_name_that_is_too_long_is_no_frame():
    frame = Frame(1, 2, "x" * MAX_MUTEX, Bye())
    data = encode(frame)
    assert decode(data) == frame
    with pytest.raises(UnfitForWire, match="at most 64 bytes"):
        encode(frame._replace(mutex="x" * (MAX_MUTEX + 1)))
    at = data.index(b"x" * MAX_MUTEX)
    with pytest.raises(BadFrame, match="a mutex name of 65 bytes"):
        decode(data[: at - 1] + bytes([MAX_MUTEX + 1]) + b"x" + data[at:])


async def test_datagrams_that_nobody_reads_are_dropped_the_oldest_first():
    mailbox = Mailbox()
    for number in range(3 * DATAGRAMS_MAX + 10):
        mailbox.put(Datagram("there", b"%d" % number))
        assert len(mailbox._waiting) < 2 * DATAGRAMS_MAX  # cut in one piece now and then
    received = [datagram.payload for datagram in await mailbox.receive()]
    assert (len(received), received[0]) == (DATAGRAMS_MAX, b"%d" % (2 * DATAGRAMS_MAX + 10))
    assert mailbox.dropped == 2 * DATAGRAMS_MAX + 10


def test_a_full_register_takes_no_more(monkeypatch: pytest.MonkeyPatch):
    """Who does not fit asks again, and is served all the same."""
    monkeypatch.setattr(registrar, "REGISTER", 2)
    stage = Stage(nodes=6)
    stage.run(1)
    for one in range(1, 7):
        stage.request(one)
    for _ in range(600):
        stage.run(0.1)
        for holder in list(stage.holding):
            stage.release(holder)
        for machine in stage.machines.values():
            assert len(machine.registrar.ready) + len(machine.registrar.late) <= 2
    assert sorted(who for who, _ in stage.granted) == [1, 2, 3, 4, 5, 6]


async def test_members_beyond_the_limit_are_not_taken_in(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peers, "MEMBERS_MAX", 5)
    crowd = [Member(f"m{id}", id, f"m{id}") for id in range(1, 9)]
    async with listed_node(network, Listed(*crowd, complete=True), "a") as a:
        assert len(a.life().members) == 5
        assert a.statistics().dropped["members"] == 4
        a.life().peers.heard(99, "somewhere")
        assert len(a.life().members) == 5


async def test_addresses_beyond_the_limit_are_not_greeted(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peers, "CANDIDATES_MAX", 3)
    async with listed_node(network, Listed(*(Member(f"nobody-{n}") for n in range(10))), "a") as a:
        assert len(a.life().peers.greetings) == 3
        assert a.statistics().dropped["candidates"] == 7


async def test_a_leaver_says_farewell_to_so_many(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peers, "BYES_MAX", 2)
    crowd = [Member(f"m{id}", id, f"m{id}") for id in range(1, 9)]
    async with listed_node(network, Listed(*crowd, complete=True), "a") as a:
        before = a.statistics().transport["sent"]
        a.life().peers.say_bye()
        assert a.statistics().transport["sent"] - before == 2


async def test_of_those_who_left_so_many_are_remembered(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peers, "PARTED_MAX", 3)
    stranger = network.transport("stranger")
    await stranger.open()
    async with listed_node(network, Listed(), "a") as a:
        for id in range(1, 9):
            stranger.send("a", encode(Frame(id, a.id, "", Pong(1))))
            stranger.send("a", encode(Frame(id, a.id, "", Bye())))
        await until(lambda: len(a.life().peers._parted) == 3 and a.peers() == ())
        stranger.send("a", encode(Frame(8, a.id, "", Pong(1))))  # sent before it left, and comes late
        stranger.send("a", encode(Frame(1, a.id, "", Pong(1))))
        await until(lambda: a.life().members == sorted([1, a.id]))
        assert len(a.life().peers._parted) <= 3
        stranger.send("a", encode(Frame(1, a.id, "", Bye())))
        await until(lambda: a.peers() == ())
    await stranger.aclose()


async def test_one_mutex_too_many_is_refused(no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node, "SEATS_MAX", 2)
    async with node_on(network) as one:
        for name in ("x", "y"):
            async with one.mutex(name):
                pass
        with pytest.raises(ConfigError, match="2 mutexes already, which is the limit"):
            async with one.mutex("z"):
                raise AssertionError("entered")
        async with one.mutex("x"):
            pass


async def test_warnings_end_and_counting_goes_on(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(node, "SAID_MAX", 3)
    async with node_on(network) as one:
        for number in range(10):
            one.life().tell("strange", f"thing {number}")
        assert one.statistics().told["strange"] == 10
    assert caplog.text.count("thing") == 3


async def test_a_large_group_is_not_asked(no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(founding, "ASKED_MAX", 1)
    async with node_on(network) as a, node_on(network) as b, node_on(network) as c:
        await until(lambda: all(len(one.peers()) == 2 for one in (a, b, c)))
        async with a.mutex("x").hold(timeout=20):
            assert not a.life().founding._inquiries
            assert "DESCRIBE" not in a.mutex("x").statistics().sent


def test_of_an_endless_key_file_only_the_beginning_is_read(tmp_path: Path):
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(b"# nothing\n" * (sealing.KEY_FILE_MAX // 10 + 1) + b"ab" * 32)
    with pytest.raises(ConfigError, match="has no key in it"):
        sealing.read_keys(file)


def test_certificates_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(identity, "CERTIFICATES_KEPT", 4)
    authority = Vouching(group=1, authority=b"", authority_group="g", required=True, secret=bytes(32))
    options = {"group": 1, "authority": authority.public, "authority_group": "g", "required": True}
    receiver = Vouching(**options)
    for number in range(1, 10):
        sender = Vouching(**options, secret=bytes([number]) * 32)
        sender.adopt(issue(authority.prove, f"m{number}", sender.public, "g", 0, 1 << 40))
        frame = Frame(number, 77, "", Pong(1))
        attestation = sender.attest(frame.message, b"header", b"body")
        assert receiver.objection(frame, b"header", attestation, b"body") == ""
        assert receiver.is_vouched(number)
        assert len(receiver._believed) <= 4
    assert "has not its key" in receiver.objection(frame, b"header", attestation, b"other body")
    assert receiver.objection(frame._replace(message=Withdraw(1)), b"header", b"", b"body") == ""
