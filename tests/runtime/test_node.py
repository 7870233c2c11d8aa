"""A node from opening to closing, and the pump in between."""

import asyncio
import functools
import inspect
import logging
import pkgutil
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from softmutex import ConfigError, Node, NodeClosed
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import Event, Grant, Lose, LostReason, MembersChanged, Received, Released, Requested
from softmutex.core.messages import Bye, Ping, Withdraw
from softmutex.core.wire import Frame, encode
from softmutex.ports import Member, Observation
from softmutex.runtime.lag import REMEMBERED_S
from softmutex.runtime.statistics import MutexStatistics
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import Puppet, node_on, opened, perform, puppet_mutex, puppet_of, until
from tests.virtual import no_leaks_in_virtual_time

README = Path(__file__).parent.parent.parent / "README.md"
STEP = re.compile(r"^.{14} (softmutex[\w.]*:[\w.]+)(?: |$)", re.MULTILINE)


@pytest.mark.house
async def test_a_message_takes_the_way_that_the_readme_tells_of(no_leaks: None, monkeypatch: pytest.MonkeyPatch):
    """Each step of its sketch is done, one inside or after the other: these names are a promise to readers."""
    sketched = STEP.findall(README.read_text("utf-8"))
    assert len(sketched) >= 5
    way: list[str] = []
    for step in sketched:
        owner, _, name = step.replace(":", ".").rpartition(".")
        function = getattr(pkgutil.resolve_name(owner), name)
        if inspect.isfunction(function):  # an effect is a value, and no step of its own
            monkeypatch.setattr(f"{owner}.{name}", noted(function, step, way))
    key = bytes(range(32))
    async with Node(transport="udp://127.0.0.1:0", membership="static://127.0.0.1:1", key=key) as here:
        to_here = f"static://{here.address}"
        async with Node(transport="udp://127.0.0.1:0", membership=to_here, key=key) as there:
            await until(lambda: here.peers() and there.peers())
            async with here.mutex("x"):
                pass
            del way[:]
            async with there.mutex("x").hold(timeout=60):
                pass
    done = [step for step in sketched if step in way]
    assert len(done) == len(sketched) - 2, "all but the two effects"
    assert is_within(done, way), f"{done} is not the order of {way}"


def is_within(few: Sequence[str], many: Sequence[str]) -> bool:
    """All of the few are among the many, in their order."""
    rest = iter(many)
    return all(one in rest for one in few)


def noted(step: Callable[..., Any], label: str, way: list[str]) -> Callable[..., Any]:
    @functools.wraps(step)
    def pass_by(*args: Any) -> Any:
        way.append(label)
        return step(*args)

    return pass_by


async def test_one_node_carries_any_number_of_mutexes_over_one_socket(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as here, node_on(network) as there:
        names = [f"mutex {number}" for number in range(50)]

        async def use(node: Node, name: str) -> None:
            async with node.mutex(name).hold(timeout=60):
                await asyncio.sleep(0)

        await asyncio.gather(*(use(node, name) for node in (here, there) for name in names))
        assert len(network.addresses) == 2
        assert here.statistics().mutexes == 50


async def test_a_node_may_be_opened_again_and_is_then_another_one(no_leaks: None):
    node = Node(transport="memory://again", membership="memory://again")
    mutex = node.mutex("x")
    async with node, mutex:
        first = node.id
    async with node, mutex:
        assert node.id != first


def test_a_node_may_be_used_in_another_loop_after_closing():
    node = Node(transport="memory://loops", membership="memory://loops")
    mutex = node.mutex("x")

    async def use() -> None:
        async with node, mutex:
            pass

    asyncio.run(use())
    asyncio.run(use())


async def test_a_node_with_an_instance_says_that_it_cannot_be_opened_again(no_leaks: None, network: MemoryNetwork):
    node = node_on(network)
    async with node:
        with pytest.raises(NodeClosed, match="open already"):
            await node.open()
    with pytest.raises(ConfigError, match="transport and a membership given as an instance"):
        await node.open()


async def test_a_node_that_cannot_open_leaves_nothing_behind(no_leaks: None, network: MemoryNetwork):
    class Broken(type(network.membership())):  # type: ignore[misc]
        async def join(self, me):
            raise OSError("no directory")

    node = Node(transport=network.transport(), membership=Broken(network))
    with pytest.raises(OSError, match="no directory"):
        await node.open()
    assert not network.addresses


async def test_closing_waits_for_a_hold_but_not_for_ever(no_leaks: None, network: MemoryNetwork):
    node = node_on(network, leave_timeout=0.05)
    await node.open()
    hold = await node.mutex("x").try_acquire()
    assert hold is not None
    await node.close()
    assert hold.lost_reason == "closed"
    await hold.release()


async def test_closing_ends_as_soon_as_the_hold_does(no_leaks: None, network: MemoryNetwork):
    node = node_on(network, leave_timeout=60)
    await node.open()
    hold = await node.mutex("x").try_acquire()
    assert hold is not None
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await hold.release()
        await closing
    assert not hold.lost.is_set()


async def test_a_leaver_hands_the_token_over_and_nobody_regenerates_it(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as stays:
        for _ in range(5):
            async with node_on(network) as leaves, leaves.mutex("x").hold(timeout=60) as hold:
                assert hold.epoch == 1
        async with stays.mutex("x").hold(timeout=60) as hold:
            assert hold.epoch == 1


# --- what comes from outside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage", [b"\0", b"\xabM", b"\xabM\x01", b"x" * 1400, encode(Frame(5, 6, "x", Bye())), bytes(range(256))]
)
async def test_no_bytes_from_outside_stop_the_pump(network: MemoryNetwork, node: Node, garbage: bytes):
    stranger = network.transport("stranger")
    await stranger.open()
    for _ in range(100):
        stranger.send(node.address, garbage)
    await until(lambda: sum(node.statistics().dropped.values()) >= 100)
    async with node.mutex("x").hold(timeout=60):
        pass
    await stranger.aclose()


async def test_a_frame_for_another_life_is_dropped_and_counted(network: MemoryNetwork, node: Node):
    stranger = network.transport("stranger")
    await stranger.open()
    stranger.send(node.address, encode(Frame(5, node.id ^ 1, "", Ping(1))))
    await until(lambda: node.statistics().dropped.get("misdirected"))
    assert node.peers() == ()
    await stranger.aclose()


async def test_that_somebody_is_there_is_known_before_what_it_says(network: MemoryNetwork, node: Node):
    async with puppet_mutex(node):
        pass
    stranger = await opened(network, "stranger")
    stranger.say(node, Withdraw(1), mutex="x")
    puppet = puppet_of(node)
    await until(lambda: Received(stranger.id, Withdraw(1)) in puppet.told)
    assert puppet.told[-2:] == [MembersChanged((stranger.id,), ()), Received(stranger.id, Withdraw(1))]
    await stranger.close()


@in_virtual_time
async def test_two_that_do_not_hear_each_other_pass_the_token_on_by_way_of_a_third():
    network = MemoryNetwork(seed=1)
    async with node_on(network) as one, node_on(network) as between, node_on(network) as other:
        for node in (between, one, other):
            async with node.mutex("x").hold(timeout=30):
                pass
        network.partition(one.address, other.address)
        for node in (one, other, one, other):
            async with node.mutex("x").hold(timeout=60):
                pass
        assert sum(statistics.facts.get("generated", 0) for statistics in map(_of_x, (one, between, other))) == 1


def _of_x(node: Node) -> MutexStatistics:
    return node.mutex("x").statistics()


async def test_a_peer_of_another_version_is_told_of_once_and_counted(
    network: MemoryNetwork, node: Node, caplog: pytest.LogCaptureFixture
):
    stranger = network.transport("stranger")
    await stranger.open()
    frame = bytearray(encode(Frame(5, node.id, "", Ping(1))))
    frame[2] = 9
    stranger.send(node.address, bytes(frame))
    await until(lambda: node.statistics().dropped.get("version") == 1)
    assert "version 9" not in caplog.text, "whoever is in no list may write what he likes"
    listed = network.membership()
    await listed.join(Member(stranger.address))

    def tell_again() -> bool:
        stranger.send(node.address, bytes(frame))
        return "version 9" in caplog.text

    await until(tell_again)
    before = node.statistics().dropped["version"]
    for _ in range(10):
        stranger.send(node.address, bytes(frame))
    await until(lambda: node.statistics().dropped["version"] >= before + 10)
    assert caplog.text.count("version 9") == 1
    assert node.statistics().told["version"] >= 11
    await listed.aclose()
    await stranger.aclose()


async def test_who_sends_in_this_nodes_name_is_told_of_once_and_harms_nobody(
    network: MemoryNetwork, node: Node, caplog: pytest.LogCaptureFixture
):
    stranger = network.transport("stranger")
    await stranger.open()
    for _ in range(3):
        stranger.send(node.address, encode(Frame(node.id, node.id, "", Bye())))
    await until(lambda: node.statistics().dropped.get("reflected") == 3)
    assert caplog.text.count("in the name of this node") == 1
    await stranger.aclose()


# --- broken parts ---------------------------------------------------------------------------------------------------


class Breaking(Puppet):
    """Finds itself to be wrong at the first release."""

    name = "breaking"

    def handle(self, event: Event, now: int):
        if isinstance(event, Released):
            raise InvariantBreach("two and two are five")
        return super().handle(event, now)


async def test_a_machine_that_breaks_down_takes_nobody_along(node: Node, caplog: pytest.LogCaptureFixture):
    broken, whole = node.mutex("b", algorithm=Breaking), node.mutex("w")
    async with whole:
        async with broken:
            waiting = asyncio.create_task(_enter(broken))
            await until(lambda: broken.statistics().waiting)
        with pytest.raises(NodeClosed, match="broke down: two and two are five"):
            await waiting
    async with whole:
        pass
    assert "broke down: two and two are five" in caplog.text
    assert node.statistics().told["breakdowns"] == 1
    assert node.statistics().mutexes == 1  # the whole one alone; the next use makes a new machine
    async with broken:
        assert node.statistics().mutexes == 2


async def test_holders_on_a_machine_that_breaks_down_are_told(node: Node):
    class BreaksOnRequest(Puppet):
        name = "breaks-on-request"

        def handle(self, event: Event, now: int):
            if self.holding and isinstance(event, Requested):
                raise InvariantBreach("no")
            return super().handle(event, now)

    mutex = node.mutex("b", algorithm=BreaksOnRequest)
    async with mutex as hold:
        with pytest.raises(NodeClosed):
            await asyncio.create_task(_enter(mutex))
        assert hold.lost_reason == "closed"


async def test_a_grant_that_nobody_asked_for_is_given_back(node: Node):
    mutex = puppet_mutex(node)
    async with mutex:
        pass
    puppet_of(node).holding.append(999)
    await perform(node, Grant(999))
    assert puppet_of(node).told[-1] == Released(999)


class Listening:
    """An observer and courier that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def notice(self, observation: Observation) -> None:
        self.seen.append(observation)

    def baggage(self, observation: Observation) -> bytes:
        return b"from " + observation.mutex.encode()

    def of(self, what: str) -> list[Observation]:
        return [each for each in self.seen if each.what == what]


async def test_observers_are_told_of_waits_holds_and_facts(no_leaks: None, network: MemoryNetwork):
    listening = Listening()
    async with node_on(network, observers=[listening]) as node:
        mutex = node.mutex("x")
        async with mutex:
            with pytest.raises(TimeoutError):
                await asyncio.create_task(_enter_within(mutex, 0.01))
    assert [each.values["outcome"] for each in listening.of("wait_ended")] == ["granted", "timeout"]
    [started], [ended] = listening.of("hold_started"), listening.of("hold_ended")
    assert started.values["claim"] == listening.of("wait_started")[0].values["claim"]
    assert started.values["request"] == ended.values["request"]
    assert started.values["epoch"] == 1
    assert listening.of("generated")[0].note is not None


async def test_observers_are_told_of_messages_members_and_losses(no_leaks: None, network: MemoryNetwork):
    listening = Listening()
    async with node_on(network, observers=[listening]) as here, node_on(network) as there:
        async with there.mutex("x"):
            pass
        async with here.mutex("x").hold(timeout=60):
            pass
        async with puppet_mutex(here, name="p"):
            await perform(here, Lose(1, LostReason.LEASE))
    sent = [each.values["kind"] for each in listening.of("message_sent")]
    assert "DONE" in sent
    assert listening.of("message_received")
    assert listening.of("members")[0].values["count"] == 2
    assert listening.of("hold_lost")[0].values["reason"] == "lease"


async def test_what_a_courier_sends_along_comes_out_at_the_next_hold_on_another_node(
    no_leaks: None, network: MemoryNetwork
):
    sends, hears = Listening(), Listening()
    async with node_on(network, observers=[sends]) as here, node_on(network, observers=[hears]) as there:
        async with here.mutex("x"):
            pass
        async with there.mutex("x").hold(timeout=60):
            pass
    assert hears.of("hold_started")[0].values["baggage"] == b"from x".hex()


async def test_an_observer_that_fails_is_told_of_once_counted_and_hurts_nobody(
    no_leaks: None, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    class Failing:
        def notice(self, observation: Observation) -> None:
            raise ZeroDivisionError

        def baggage(self, observation: Observation) -> bytes:
            raise ZeroDivisionError

    async with node_on(network, observers=[Failing()]) as node:
        for _ in range(5):
            async with node.mutex("x"):
                pass
        assert node.statistics().told["observers"] >= 20
    assert caplog.text.count("ZeroDivisionError()") == 1


# --- a loop that is blocked -----------------------------------------------------------------------------------------


async def test_a_loop_that_the_application_blocks_is_noticed_warned_of_and_counted(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    loop = asyncio.get_running_loop()
    real = loop.time
    assert node.statistics().loop_lags == 0
    monkeypatch.setattr(loop, "time", lambda: real() + 3.0)  # as if a callback had taken three seconds
    await until(lambda: node.statistics().loop_lags)
    assert node.statistics().loop_lag_max > 2.0
    assert "the event loop was blocked for" in caplog.text
    monkeypatch.undo()


@no_leaks_in_virtual_time
async def test_a_loop_that_was_blocked_once_is_not_told_of_for_life(monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    real = loop.time
    async with node_on(MemoryNetwork()) as node:
        monkeypatch.setattr(loop, "time", lambda: real() + 3.0)
        await asyncio.sleep(REMEMBERED_S / 2)
        assert node.statistics().loop_lag_max > 2.0
        await asyncio.sleep(2 * REMEMBERED_S)
        assert node.statistics().loop_lag_max < 2.0
        assert node.statistics().loop_lags == 1


async def _enter(mutex):
    async with mutex:
        pass


async def _enter_within(mutex, timeout):
    async with mutex.hold(timeout=timeout):
        pass


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")
