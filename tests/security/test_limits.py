"""docs/limits.md says what is true, names a test for each limit, and leaves none out that others could reach."""

import ast
import asyncio
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet

import pytest

from softmutex import ConfigError
from softmutex.core.errors import BadFrame
from softmutex.core.messages import Bye, Hello, Pong
from softmutex.core.wire import MAX_MUTEX, Frame, UnfitForWire, decode, encode
from softmutex.mailbox import Mailbox
from softmutex.ports import Datagram, Member
from softmutex.runtime import identity
from softmutex.runtime.identity import Vouching, is_signed, issue
from softmutex.runtime.sealing import read_keys
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import Row, limit, lower, rows
from tests.runtime.group import Overheard, Stranger, node_on, until
from tests.runtime.test_peers import Listed, listed_node
from tests.wandering.stage import Stage

ROOT = Path(__file__).parent.parent.parent
LOOKS_LIKE_A_LIMIT = re.compile(r"[A-Z_]*(_MAX|MAX_[A-Z]+|_KEPT|_AT_ONCE|_A_SECOND)")
WHERE = ("softmutex.runtime.*", "softmutex.core.group.*", "softmutex.core.wire", "softmutex.mailbox")
# Bounds of what this node does by itself, and of what is bounded by another row.
OF_OTHER_KINDS = {
    "softmutex.runtime.identity.NAME_MAX",  # together they are less than a frame has room for
    "softmutex.runtime.identity.CERTIFICATE_MAX",
    "softmutex.runtime.identity.ATTESTATION_MAX",
    "softmutex.runtime.identity.AGAIN_MAX_S",
    "softmutex.core.group.rosters.ADDRESS_MAX",
    "softmutex.core.group.rosters.ASKED_AT_ONCE",  # of what this node asks for
    "softmutex.runtime.observing.BAGGAGE_MAX",  # of a field of a message
    "softmutex.runtime.whom.PURPOSE_MAX",  # the same
    "softmutex.runtime.local.PAST_KEPT",  # of its own holds
    "softmutex.runtime.lookout.PAGES_MAX",  # of the answer of one that it asked
}


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
    class Source(str):
        """One that can be watched as long as anybody keeps its datagram."""

    most = limit("datagrams that wait to be read")
    mailbox, waiting = Mailbox(), WeakSet()
    for number in range(3 * most + 10):
        source = Source(number)
        waiting.add(source)
        mailbox.put(Datagram(source, b"%d" % number))
        del source
        assert len(waiting) < 2 * most  # cut in one piece now and then
    received = [datagram.payload for datagram in await mailbox.receive()]
    assert (len(received), received[0]) == (most, b"%d" % (2 * most + 10))
    assert mailbox.dropped == 2 * most + 10


def test_a_full_register_takes_no_more(monkeypatch: pytest.MonkeyPatch):
    """Who does not fit is told nothing, asks again, and is served all the same."""
    crowd = list(range(1, 2 * limit("requests that travel in a token")))

    def told_and_asked(most: int) -> tuple[int, int]:
        lower("requests in the register of a home", most, monkeypatch)
        stage = Stage(nodes=len(crowd))
        stage.run(1)
        for one in reversed(crowd):  # the last one holds it, far from home, while the others ask
            stage.request(one)
            stage.run(0.01)
        told = stage.sent["QUEUED"]
        stage.run(5)
        while stage.holding or len(stage.granted) < len(crowd):
            stage.run(0.5)
            for holder in list(stage.holding):
                stage.release(holder)
        assert sorted(who for who, _ in stage.granted) == crowd
        return told, stage.sent["WANT"]

    (told, asked), (told_by_the_full, asked_the_full) = told_and_asked(1000), told_and_asked(2)
    assert told_by_the_full < told
    assert asked_the_full > asked


async def test_members_beyond_the_limit_are_not_taken_in(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    lower("members that a node knows", 5, monkeypatch)
    crowd = [Member(f"m{id}", id, f"m{id}") for id in range(1, 9)]
    async with (
        Stranger(network.transport("stranger"), 99) as stranger,
        listed_node(network, Listed(*crowd, complete=True), "a", leave_timeout=0.1) as a,
    ):
        assert a.statistics().peers + 1 == 5
        assert a.statistics().dropped["members"] == 4
        assert a.statistics().told["members"] == 1
        stranger.say(a, Pong(1))
        await until(lambda: a.statistics().dropped["members"] == 5)
        assert a.statistics().peers + 1 == len(a.peers()) + 1 == 5


@in_virtual_time
async def test_addresses_beyond_the_limit_are_not_greeted():
    network = MemoryNetwork()
    overheard = Overheard(network)
    with pytest.MonkeyPatch.context() as patch:
        lower("addresses that are greeted and have not answered", 3, patch)
        async with listed_node(network, Listed(*(Member(f"nobody-{n}") for n in range(10))), "a") as a:
            await asyncio.sleep(600)
            greeted = {to for to, frame in overheard.frames if isinstance(frame.message, Hello)}
            assert len(greeted) == 3
            assert a.statistics().dropped["candidates"] == 7
            assert a.statistics().told["candidates"] == 7  # counted, and written once


async def test_a_leaver_says_farewell_to_so_many(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    lower("farewells of a node that leaves", 2, monkeypatch)
    crowd = [Member(f"m{id}", id, f"m{id}") for id in range(1, 9)]
    overheard = Overheard(network)
    async with listed_node(network, Listed(*crowd, complete=True), "a") as a:
        leaver = a.id
        assert not overheard.frames
    assert len(overheard.of(Bye, leaver)) == len(overheard.frames) == 2


async def test_of_those_who_left_so_many_are_remembered(
    no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
):
    """What they sent before they left, and comes late, makes no member of them; what the forgotten sent does."""
    most = 3
    lower("nodes that left and are remembered as such", most, monkeypatch)
    stranger = network.transport("stranger")
    await stranger.open()
    async with listed_node(network, Listed(), "a") as a:
        for id in range(1, 9):
            stranger.send("a", encode(Frame(id, a.id, "", Pong(1))))
            stranger.send("a", encode(Frame(id, a.id, "", Bye())))
        received = a.statistics().transport["received"]
        await until(lambda: a.statistics().transport["received"] == received == 16 and a.peers() == ())
        for id in range(8, 0, -1):
            stranger.send("a", encode(Frame(id, a.id, "", Pong(1))))
        forgotten = list(range(1, 9 - most))
        await until(lambda: sorted(peer.id for peer in a.peers()) == forgotten)
        for id in forgotten:
            stranger.send("a", encode(Frame(id, a.id, "", Bye())))
        await until(lambda: a.peers() == ())
    await stranger.aclose()


async def test_one_mutex_too_many_is_refused(no_leaks: None, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch):
    lower("mutexes of a node", 2, monkeypatch)
    async with node_on(network) as one:
        for name in ("x", "y"):
            async with one.mutex(name):
                pass
        with pytest.raises(ConfigError, match="2 mutexes already, which is the limit"):
            async with one.mutex("z"):
                raise AssertionError("entered")
        async with one.mutex("x"):
            pass


def test_of_an_endless_key_file_only_the_beginning_is_read(tmp_path: Path):
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(b"# nothing\n" * (limit("a key file, in bytes") // 10 + 1) + b"ab" * 32)
    with pytest.raises(ConfigError, match="has no key in it"):
        read_keys(file)


def test_certificates_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """The signature of the authority under one that is kept is not verified again."""
    lower("certificates of others that are kept", 4, monkeypatch)
    verified = 0

    def counting(*what: bytes) -> bool:
        nonlocal verified
        verified += 1
        return is_signed(*what)

    monkeypatch.setattr(identity, "is_signed", counting)
    authority = Vouching(group=1, authority=b"", authority_group="g", required=True, secret=bytes(32))
    options = {"group": 1, "authority": authority.public, "authority_group": "g", "required": True}
    receiver = Vouching(**options)
    shown: dict[int, tuple[Frame, bytes]] = {}

    def checks(number: int) -> int:
        before = verified
        verdict = receiver.judge(shown[number][0], b"header", shown[number][1], b"body", is_paired=False)
        assert verdict.wrong == ""
        receiver.take_in(number, verdict)
        return verified - before

    for number in range(1, 10):
        sender = Vouching(**options, secret=bytes([number]) * 32)
        sender.adopt(issue(authority.prove, f"m{number}", sender.public, "g", 0, 1 << 40))
        frame = Frame(number, 77, "", Pong(1))
        shown[number] = frame, sender.attest(frame.message, 77, b"header", b"body")
        assert checks(number) == 2
        assert receiver.is_vouched(number)
    assert [checks(number) for number in (6, 7, 8, 9)] == [1, 1, 1, 1]
    assert [checks(number) for number in (5, 4, 3, 2, 1)] == [2, 2, 2, 2, 2]
    frame, attestation = shown[9]
    assert "has not its key" in receiver.judge(frame, b"header", attestation, b"other body", is_paired=False).wrong
