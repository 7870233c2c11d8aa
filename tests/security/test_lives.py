"""A machine that was cloned, or set back to a snapshot: its nodes take a new life at once, by themselves."""

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from softmutex import AcquireTimeout
from softmutex.core.events import SECOND
from softmutex.core.messages import Ahead, Challenge, Hello, Message, Ping, Pong
from softmutex.core.wire import Frame
from softmutex.runtime import whereabouts
from softmutex.runtime.lives import TOLD_AN_HOUR
from softmutex.runtime.sealing import KeyRing, Refusal, Refused, Sealer
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import limit, lower
from tests.runtime.group import GROUP, Stranger, node_on, until
from tests.security.insider import KEY, in_the_name_of, member
from tests.security.under_attack import CLONES_S, clones

ID = 0xC10AE
AHEADS = "senders of genuine frames that were opened before, told so, a second"


@pytest.fixture
def cloned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the nodes that are opened meanwhile all but the first begin with one id, and the counter 0."""
    ids = itertools.chain([ID + 1], itertools.repeat(ID))
    monkeypatch.setattr("softmutex.runtime.node.secrets", SimpleNamespace(randbits=lambda _: next(ids)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("identities", [False, True], ids=["a key", "identities"])
def test_two_clones_beside_a_third_become_two_lives_and_all_three_take_turns(
    seed: int, identities: bool, tmp_path: Path
):
    assert clones(seed, tmp_path if identities else None) < CLONES_S


@in_virtual_time
async def test_who_was_set_back_is_told_by_those_who_have_opened_its_frames_before(cloned: None):
    """A snapshot that is restored after the original ended: nobody else is there under its id."""
    network = MemoryNetwork(seed=1, delay=0.002)
    async with node_on(network, key=KEY, name="b") as b:
        original = node_on(network, key=KEY, name="a")
        await original.open()
        async with original.mutex("x").hold(timeout=60):
            pass
        for _ in range(100):
            async with b.mutex("x").hold(timeout=60):
                pass
            async with original.mutex("x").hold(timeout=60):
                pass
        network.crash(original.address)
        began = asyncio.get_running_loop().time()
        async with node_on(network, key=KEY, name="restored") as restored:
            assert restored.id == ID
            async with restored.mutex("x").hold(timeout=60):
                assert restored.id != ID
            assert asyncio.get_running_loop().time() - began < CLONES_S
            assert restored.statistics().told["own id"] == 1
        await original.close()


@in_virtual_time
async def test_who_waits_goes_on_waiting_in_the_new_life_and_who_holds_is_told(cloned: None):
    network = MemoryNetwork(seed=2, delay=0.002)
    async with node_on(network, name="b") as b, node_on(network, name="a") as a:
        await until(lambda: len(a.peers()) == len(b.peers()) == 1)
        async with a.mutex("held", on_lost="continue").hold(timeout=60) as held, b.mutex("x").hold(timeout=60):
            waiting = asyncio.create_task(a.mutex("x").acquire(timeout=60))
            hurried = asyncio.create_task(a.mutex("x").acquire(timeout=4))
            await asyncio.sleep(1.0)
            began = asyncio.get_running_loop().time()
            async with Stranger(network.transport("twin"), ID) as twin:
                twin.say(a, Hello(7, 0, GROUP, False, ""), receiver=0)
                twin.say(a, Hello(7, await twin.cookie(), GROUP, False, "twin"))
                await until(held.lost.is_set)
            assert not waiting.done()
            with pytest.raises(AcquireTimeout):
                await hurried
            assert asyncio.get_running_loop().time() - began == pytest.approx(3.0, abs=0.4)
        hold = await waiting
        assert hold.waited == pytest.approx(4.0, abs=1.0)
        assert a.id != ID
        await hold.release()


@in_virtual_time
async def test_the_groups_key_alone_ends_no_life_where_identities_are_required(tmp_path: Path):
    """With it anybody could ask a node for a cookie in its own name, open the answer, and send the cookie back."""
    network = MemoryNetwork(seed=3, delay=0.002)
    insider = network.transport("insider")
    await insider.open()
    reader = Sealer(KeyRing.of(KEY), "default", ID)
    async with member(network, tmp_path, "a", set()) as a:
        insider.send(a.address, in_the_name_of(a.id, 2**61, 0, Hello(7, 0, GROUP, False, "liar")))
        [answer] = await insider.receive()
        reader.me = a.id
        challenge = reader.open(answer.payload)
        assert isinstance(challenge, Frame)
        assert isinstance(challenge.message, Challenge)
        before = a.id
        hello = Hello(7, challenge.message.cookie, GROUP, False, "liar")
        insider.send(a.address, in_the_name_of(a.id, 2**61 + 1, a.id, hello))
        await until(lambda: a.statistics().dropped.get("unsigned") == 1)
        await asyncio.sleep(1.0)
        assert a.id == before
        assert "own id" not in a.statistics().told
    await insider.aclose()


@in_virtual_time
async def test_by_the_word_of_one_member_a_life_ends_three_times_in_an_hour(caplog: pytest.LogCaptureFixture):
    network = MemoryNetwork(seed=4, delay=0.002)
    liar, seal = network.transport("liar"), Sealer(KeyRing.of(KEY), "default", 4711)
    await liar.open()
    async with node_on(network, key=KEY, name="a") as a:
        ids = [a.id]
        for number in range(TOLD_AN_HOUR + 2):
            for message in (Ping(number), Ahead(0), Ahead(2**61)):  # 0: that is true
                liar.send(a.address, seal.seal(Frame(4711, a.id, "", message)))
                await asyncio.sleep(1.0)
            ids.append(a.id)
        assert len(set(ids)) == 1 + TOLD_AN_HOUR
    await liar.aclose()
    assert "says again and again that this node lives twice" in caplog.text


@in_virtual_time
async def test_where_nothing_is_sealed_nobody_can_say_that_a_node_lives_twice():
    network = MemoryNetwork(seed=4, delay=0.002)
    async with node_on(network, name="a") as a, node_on(network, name="b") as b:
        await until(lambda: len(a.peers()) == 1)
        before = a.id
        async with Stranger(network.transport("b again"), b.id) as liar:
            liar.say(a, Ahead(2**61))
            await asyncio.sleep(1.0)
        assert a.id == before


@in_virtual_time
async def test_who_is_told_at_once_of_many_frames_takes_one_new_life_and_calls_nobody_a_liar():
    network = MemoryNetwork(seed=6, delay=0.002)
    teller, seal = network.transport("teller"), Sealer(KeyRing.of(KEY), "default", 4711)
    await teller.open()
    async with node_on(network, key=KEY, name="a") as a:
        before = a.id
        teller.send(a.address, seal.seal(Frame(4711, before, "", Ping(1))))
        await asyncio.sleep(1.0)
        for _ in range(TOLD_AN_HOUR + 1):
            teller.send(a.address, seal.seal(Frame(4711, before, "", Ahead(2**61))))
        await until(lambda: a.id != before)
        await asyncio.sleep(1.0)
        assert a.statistics().told["own id"] == 1
    await teller.aclose()


@pytest.mark.parametrize("what", ["the boot", "the machine", whereabouts.PROCESS])
async def test_on_another_machine_or_boot_or_after_another_start_it_is_another_life(
    what: str, no_leaks: None, monkeypatch: pytest.MonkeyPatch
):
    marks = whereabouts.read_marks()
    assert {"the boot", whereabouts.PROCESS} <= marks.keys()
    monkeypatch.setattr(whereabouts, "read_marks", lambda: marks)
    network = MemoryNetwork(seed=5)
    async with node_on(network, key=KEY, name="a") as a, node_on(network, key=KEY, name="b") as b:
        async with a.mutex("x", on_lost="continue").hold(timeout=60) as hold:
            before = {a.id, b.id}
            marks = {**marks, what: b"another"}
            await until(lambda: before.isdisjoint({a.id, b.id}))
            assert what in hold.lost_detail
        await until(lambda: len(a.peers()) == len(b.peers()) == 1)
        async with b.mutex("x").hold(timeout=60):
            pass


@pytest.mark.parametrize("is_set_back", [False, True], ids=["the same life", "one that was set back"])
async def test_a_wall_clock_that_jumps_is_a_reason_to_ask_the_others(
    is_set_back: bool, no_leaks: None, monkeypatch: pytest.MonkeyPatch
):
    """NTP corrects clocks, too: a life ends only where others have opened its frames before."""
    network = MemoryNetwork(seed=6)
    async with node_on(network, key=KEY, name="a") as a, node_on(network, key=KEY, name="b") as b:
        await until(lambda: len(a.peers()) == len(b.peers()) == 1)
        before = a.id
        asked = []
        network.tap = lambda source, to, _payload: asked.append(to) if source == a.address else None
        if is_set_back:  # what it will have sealed, had it not been: b has heard all that
            twin = Sealer(KeyRing.of(KEY), "default", a.id)
            b_hears = network.transport("before it was set back")
            await b_hears.open()
            for number in range(500):
                b_hears.send(b.address, twin.seal(Frame(a.id, b.id, "", Pong(number))))
            await asyncio.sleep(0.1)
            await b_hears.aclose()
        ahead = whereabouts.wall_ahead() + 3600 * SECOND
        monkeypatch.setattr(whereabouts, "wall_ahead", lambda: ahead)
        await until(lambda: b.address in asked)
        if is_set_back:
            await until(lambda: a.id != before)
        else:
            await asyncio.sleep(0.3)
            assert a.id == before


def test_how_many_are_told_of_frames_that_were_opened_before_is_bounded():
    a, b = Sealer(KeyRing.of(KEY), "default", 1), Sealer(KeyRing.of(KEY), "default", 2)
    b.serve([1, 2], lambda: 0)
    sealed = a.seal(Frame(1, 2, "", Ping(7)))
    assert isinstance(b.open(sealed), Frame)
    forged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    assert [answer_of(b, each) for each in (forged, sealed)] == [None, Ahead(0)]
    told = [answer_of(b, sealed) for _ in range(2 * limit(AHEADS))]
    assert told.count(Ahead(0)) == limit(AHEADS) - 2  # after those two
    assert told[-1] is None


def answer_of(sealer: Sealer, data: bytes) -> Message | None:
    refused = sealer.open(data)
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.REPLAYED
    return refused.answer


@in_virtual_time
async def test_members_that_said_so_are_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch):
    """Who was forgotten may say it again: the bound is for memory."""
    lower("members that are remembered to have said so", 1, monkeypatch)
    network = MemoryNetwork(seed=7, delay=0.002)
    liars = network.transport("liars")
    await liars.open()
    async with node_on(network, key=KEY, name="a") as a:
        ids = [a.id]
        for number in (*range(TOLD_AN_HOUR), TOLD_AN_HOUR, 0):
            seal = Sealer(KeyRing.of(KEY), "default", 5000 + number)
            for message in (Ping(1), Ahead(2**61)):
                liars.send(a.address, seal.seal(Frame(seal.me, a.id, "", message)))
                await asyncio.sleep(1.0)
            ids.append(a.id)
        assert len(set(ids)) == len(ids)
    await liars.aclose()
