"""What readers are told some at a time (O8): all of it, once, and how little each of it costs."""

import asyncio
import contextlib
import sys
import time
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from softmutex_adapters.observers.otel import OpenTelemetry
from softmutex_adapters.registry.reporter import Reporter

import softmutex
from softmutex import AcquireTimeout, Node, SoftMutex
from softmutex.core.events import Effect, FactKind, Note, Send, Token, to_seconds
from softmutex.core.messages import Withdraw
from softmutex.ports import Diary, Lately, NodeSeen, Observation, Observer
from softmutex.runtime.diary import AT_ONCE
from softmutex.testing import MemoryNetwork
from tests.runtime.group import node_on, perform, puppet_mutex, puppet_of, until

CALLS_MOST = {"registry": 6, "opentelemetry": 8}  # of each acquisition, the SDK's own left out


class Reading:
    """A reader that keeps what it reads, and follows where it is told to."""

    messages = False

    def __init__(self, follow: bool = False) -> None:
        self.follow = follow
        self.nodes: list[NodeSeen] = []
        self.seen: list[str] = []
        self.outcomes: list[str] = []
        self.diaries: dict[str, Diary] = {}
        self.told: list[Lately] = []

    def opened(self, node: NodeSeen) -> None:
        self.nodes.append(node)

    def closed(self, node: NodeSeen) -> None:
        self.nodes.remove(node)

    def notice(self, observation: Observation) -> None:
        self.seen.append(observation.what)
        if observation.what == "wait_ended":
            self.outcomes.append(str(observation.values["outcome"]))

    def follows(self) -> bool:
        return self.follow

    def read(self, diary: Diary, lately: Lately) -> None:
        self.diaries[diary.mutex] = diary
        self.told.append(lately)

    def settle(self) -> None:
        for node in self.nodes:
            node.settle()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Waits, holds and hand-overs."""
        sums = [(len(each.waits), len(each.holds), each.handed_over) for each in self.told]
        return tuple(map(sum, zip(*sums, strict=True))) if sums else (0, 0, 0)  # type: ignore[return-value]


class SleepyReading(Reading):
    is_asleep = True

    def asleep(self) -> bool:
        return self.is_asleep


class Sleepy:
    """No reader: it is told of each single thing, once it is awake."""

    is_asleep = True

    def __init__(self) -> None:
        self.seen: list[str] = []

    def asleep(self) -> bool:
        return self.is_asleep

    def notice(self, observation: Observation) -> None:
        self.seen.append(observation.what)


async def use(mutex: SoftMutex, times: int = 1) -> None:
    for _ in range(times):
        async with mutex:
            pass


async def test_a_reader_is_told_some_at_a_time_and_of_each_once(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    async with node_on(network, observers=[reading]) as node:
        await use(node.mutex("x"), AT_ONCE)
        await until(lambda: reading.counts[1] >= AT_ONCE)
        await use(node.mutex("x"), 3)
        reading.settle()
        assert reading.counts == (AT_ONCE + 3, AT_ONCE + 3, 0)
        assert len(reading.told) < AT_ONCE
        before = len(reading.told)
        reading.settle()
        assert len(reading.told) == before, "nothing happened since"
        await use(node.mutex("x"))
    assert reading.counts == (AT_ONCE + 4, AT_ONCE + 4, 0), "the last before the node is gone"
    assert not {"wait_started", "wait_ended", "hold_started", "hold_ended"} & {*reading.seen}


async def test_without_a_hold_a_wait_is_told_of_with_the_next_tick(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    async with node_on(network, observers=[reading]) as node, node.mutex("x", slots=2, algorithm="wandering"):
        await until(lambda: reading.told)
        assert reading.counts == (1, 0, 0)


async def test_a_diary_shows_who_waits_and_who_holds(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    async with node_on(network, observers=[reading]) as node:
        mutex = node.mutex("x", priority=3, ageing=60)
        async with mutex as hold:
            waiting = asyncio.create_task(use(mutex))
            await until(lambda: mutex.statistics().waiting)
            reading.settle()
            diary = reading.diaries["x"]
            [(_, _, epoch, hop, slots)], [(_, wanted, priority)] = diary.holding(), diary.waiting()
            assert (epoch, hop, slots, wanted, priority) == (hold.epoch, hold.hop, 1, 1, 3)
            assert diary.is_used() and diary.algorithm == "wandering"
            assert list(diary.tokens().values()) == [(hold.epoch, hold.hop, diary.node)]
        await waiting
        assert (diary.holding(), diary.waiting()) == ([], [])


async def test_a_weighted_hold_is_one_wait_and_one_hold(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    async with node_on(network, observers=[reading]) as node:
        light, heavy = (node.mutex("x", slots=3, weight=weight) for weight in (1, 3))
        async with light:
            waiting = asyncio.create_task(use(heavy))
            await until(lambda: reading.settle() or reading.diaries["x"].waiting())
            assert [wish[1] for wish in reading.diaries["x"].waiting()] == [3]
            assert [hold[4] for hold in reading.diaries["x"].holding()] == [1]
        await waiting
        reading.settle()
    assert {*reading.diaries} == {"x"}, "and its gate is none of the application's"
    assert reading.counts[:2] == (2, 2)


async def test_hand_overs_are_counted_and_say_where_the_token_went(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    async with node_on(network, observers=[reading]) as node:
        await use(puppet_mutex(node, name="p"))
        for hop in (7, 8):
            await perform(node, Note(FactKind.HANDED_OVER, Token(epoch=1, stamp=1, id=1, hop=hop), 99))
        reading.settle()
        assert reading.counts == (1, 1, 2)
        assert reading.diaries["p"].tokens()[0] == (1, 8, 99)
        assert "handed_over" not in reading.seen


async def test_of_what_was_not_granted_a_reader_is_told_in_any_case(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    async with node_on(network, observers=[reading]) as node, node.mutex("x"):
        with pytest.raises(AcquireTimeout):
            await asyncio.create_task(use_within(node.mutex("x"), 0.01))
        assert reading.seen.count("wait_ended") == 1


async def use_within(mutex: SoftMutex, timeout_s: float) -> None:
    async with mutex.hold(timeout=timeout_s):
        pass


async def test_whom_a_reader_follows_it_is_told_of_singly_too(no_leaks: None, network: MemoryNetwork):
    reading = Reading(follow=True)
    async with node_on(network, observers=[reading]) as node:
        mutex = node.mutex("x")
        async with mutex:
            reading.follow = False  # it is asked before each wait, and not again
        await use(mutex)
    told = [what for what in reading.seen if what.startswith(("wait", "hold"))]
    assert told == ["wait_started", "wait_ended", "hold_started", "hold_ended"]
    assert reading.counts[:2] == (2, 2)


async def test_who_is_no_reader_is_told_of_each_beside_one(no_leaks: None, network: MemoryNetwork):
    class Plain:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def notice(self, observation: Observation) -> None:
            self.seen.append(observation.what)

    plain, reading = Plain(), Reading()
    async with node_on(network, observers=[reading, plain]) as node:
        await use(node.mutex("x"), 2)
    assert plain.seen.count("hold_ended") == 2 and reading.counts[:2] == (2, 2)


async def test_durations_are_those_of_the_waits_and_holds(no_leaks: None, network: MemoryNetwork):
    reading = Reading()
    loop = asyncio.get_running_loop()
    async with node_on(network, observers=[reading]) as node:
        mutex = node.mutex("x")
        async with mutex:
            waiting, began = asyncio.create_task(use(mutex)), loop.time()
            await until(lambda: mutex.statistics().waiting)
            await until(lambda: loop.time() > began + 0.05)
        await waiting
    [*_, longest] = sorted(wait for each in reading.told for wait in each.waits)
    held = [to_seconds(end - begin) for each in reading.told for begin, end in each.holds]
    assert to_seconds(longest) >= 0.04 and held[0] >= 0.05 > held[1] >= 0


@pytest.mark.parametrize("which", CALLS_MOST)
async def test_a_reader_costs_an_acquisition_few_calls(no_leaks: None, network: MemoryNetwork, which: str):
    """What is told one by one takes some twenty."""
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    telemetry = OpenTelemetry(tracer_provider=tracers, meter_provider=meters, traced_at_once=1, traced_a_second=0)
    observer = Reporter(lambda: None) if which == "registry" else telemetry
    with_reader = await calls(network, [observer])
    without = await calls(network, [])
    assert without > 10, "it did see them"
    assert with_reader - without <= CALLS_MOST[which]


async def calls(network: MemoryNetwork, observers: list[Observer]) -> float:
    """Python functions that are called in softmutex and its adapters for an acquisition, parked."""
    count, times = 0, 8 * AT_ONCE
    room = softmutex.__file__.rpartition("/")[0]

    def note(frame: FrameType, event: str, what: Any) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        count += event == "call" and (name.startswith(room) or "softmutex_adapters" in name)

    async with Node(transport=network.transport(), membership=network.membership(), observers=observers) as node:
        mutex = node.mutex("x")
        await use(mutex, 2)
        sys.setprofile(note)
        try:
            await use(mutex, times)
        finally:
            sys.setprofile(None)
    return count / times


# --- of each once, whatever happens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
async def test_who_is_cancelled_as_it_is_granted_was_cancelled_and_nothing_else(
    no_leaks: None, network: MemoryNetwork, follow: bool
):
    reading = Reading(follow)
    async with node_on(network, observers=[reading]) as node:
        mutex = node.mutex("x")
        async with mutex:
            waiting = asyncio.create_task(use(mutex))
            await until(lambda: mutex.statistics().waiting)
        waiting.cancel()  # it is granted, and does not know it
        await asyncio.gather(waiting, return_exceptions=True)
        assert mutex.statistics().acquisitions == 2
    assert reading.outcomes == ["granted", "cancelled"][not follow :]
    assert reading.counts[:2] == (1, 1)


async def test_who_is_granted_after_it_said_that_it_goes_was_cancelled_and_nothing_else(
    no_leaks: None, network: MemoryNetwork
):
    class Meanwhile(Reading):
        """While this thread says so, the node grants in its own."""

        def notice(self, observation: Observation) -> None:
            super().notice(observation)
            if observation.values.get("outcome") == "cancelled":
                puppet.grant()
                while not mutex.statistics().holding:
                    time.sleep(0.001)

    reading = Meanwhile()
    async with node_on(network, observers=[reading], thread=True) as node:
        mutex = puppet_mutex(node)
        await use(mutex)
        puppet = puppet_of(node)
        puppet.granting = False
        waiting = asyncio.create_task(use(mutex))
        await until(lambda: puppet.waiting)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert reading.outcomes == ["cancelled"]
    assert reading.counts[:2] == (1, 1)


async def test_a_hold_that_the_node_ended_before_its_application_knew_of_it_is_one(
    no_leaks: None, network: MemoryNetwork
):
    reading = Reading()
    async with node_on(network, observers=[reading], thread=True) as node:
        mutex = node.mutex("x", max_hold=0.001, on_overrun="release", on_lost="continue")
        async with node.mutex("x"):
            waiting = asyncio.create_task(use(mutex))
            await until(lambda: mutex.statistics().waiting)
        look_at_nothing_else_until_it_held(mutex, 2)
        await waiting
    assert reading.counts[:2] == (2, 2)


def look_at_nothing_else_until_it_held(mutex: SoftMutex, times: int) -> None:
    """This thread's loop stands still."""
    while (now := mutex.statistics()).acquisitions < times or now.holding:
        time.sleep(0.001)


@pytest.mark.parametrize("weight", [None, 2])
async def test_who_waits_no_longer_is_news(no_leaks: None, network: MemoryNetwork, weight: int | None):
    """A reader in another thread that was told of the cancellation may have looked before the claim was withdrawn."""
    reading = Reading()
    async with node_on(network, observers=[reading]) as node:
        mutex = node.mutex("x", slots=2, weight=weight)
        async with contextlib.AsyncExitStack() as holds:
            for _ in range(2 // (weight or 1)):
                await holds.enter_async_context(mutex.hold(timeout=60))
            waiting = asyncio.create_task(use(node.mutex("x", slots=2, weight=weight)))
            await until(lambda: reading.settle() or reading.diaries["x"].waiting())
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            reading.told.clear()
            reading.settle()
            assert reading.told and not reading.diaries["x"].waiting()


async def test_who_wakes_up_meanwhile_is_told_of_what_ends_from_then_on(no_leaks: None, network: MemoryNetwork):
    reading, plain = SleepyReading(), Sleepy()
    async with node_on(network, observers=[reading, plain]) as node:
        mutex = node.mutex("x")
        async with mutex:
            waiting = asyncio.create_task(use(mutex))
            await until(lambda: mutex.statistics().waiting)
            reading.is_asleep = plain.is_asleep = False
            await until(lambda: reading.nodes and plain.seen)
        await waiting
    assert reading.counts[:2] == (1, 2)
    assert [what for what in plain.seen if what.startswith(("wait", "hold_"))] == [
        "hold_ended",
        "wait_ended",
        "hold_started",
        "hold_ended",
    ]


async def test_who_wakes_up_beside_a_follower_hears_of_messages_and_hand_overs(no_leaks: None, network: MemoryNetwork):
    reading, plain = Reading(follow=True), Sleepy()
    async with node_on(network, observers=[reading, plain]) as node:
        await use(puppet_mutex(node))
        plain.is_asleep = False
        await until(lambda: plain.seen)
        await perform(node, Send(99, Withdraw(1)))
        await perform(node, Note(FactKind.HANDED_OVER, Token(epoch=1, stamp=1, id=1, hop=7), 99))
    assert {"message_sent", "handed_over"} <= {*plain.seen}


async def test_a_reader_that_settles_when_a_hold_is_lost_misses_no_end(no_leaks: None, network: MemoryNetwork):
    class AtOnce(Reading):
        def notice(self, observation: Observation) -> None:
            super().notice(observation)
            self.settle()

    def fail() -> Effect:
        raise ZeroDivisionError

    reading = AtOnce()
    async with node_on(network, observers=[reading]) as node, puppet_mutex(node, on_lost="continue") as hold:
        puppet_of(node).pull(fail)
        await hold.lost.wait()
    assert reading.counts[:2] == (1, 1)
