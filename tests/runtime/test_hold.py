"""Holding a mutex: how a hold ends, and what becomes of errors, losses and overruns."""

import asyncio
import contextlib
import logging
import threading
import time

import pytest

from softmutex import AcquireTimeout, Hold, HoldLost, Isolated, Node
from softmutex.core.events import SECOND, FactKind, LostReason, Note, Overlapped
from softmutex.ports import Observation
from softmutex.runtime.statistics import MutexStatistics, OverlapStatistics
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import lower
from tests.runtime.group import node_on, perform, puppet_mutex, puppet_of, until


class OwnError(Exception):
    pass


# --- exits ----------------------------------------------------------------------------------------------------------


async def test_an_error_of_the_body_comes_out_as_it_is_and_the_mutex_is_free(node: Node):
    mutex = node.mutex("x")
    error = OwnError()
    with pytest.raises(OwnError) as raised:
        async with mutex:
            raise error
    assert raised.value is error
    assert error.__context__ is None
    assert mutex.statistics().holding == 0


async def test_the_exit_raises_nothing_of_its_own_even_when_the_node_has_gone(no_leaks: None):
    node = Node(transport="memory://gone", membership="memory://gone", leave_timeout=0.01)
    await node.open()
    async with node.mutex("x"):
        await node.close()
    error = OwnError()
    await node.open()

    async def fail() -> None:
        async with node.mutex("x"):
            await node.close()
            raise error

    with pytest.raises(OwnError) as raised:
        await fail()
    assert raised.value is error


@in_virtual_time
async def test_a_hold_without_a_body_that_nobody_releases_is_waited_for_as_long_as_a_leaver_may_take(
    caplog: pytest.LogCaptureFixture,
):
    loop = asyncio.get_running_loop()
    async with node_on(MemoryNetwork(seed=1)) as node:
        hold = await node.mutex("x").acquire()
        begun = loop.time()
    assert loop.time() - begun == pytest.approx(5.0, abs=0.1)
    assert (hold.lost_reason, "nobody released it in the 5 s (leave_timeout)" in caplog.text) == (
        LostReason.CLOSED,
        True,
    )


@in_virtual_time
async def test_a_hold_without_a_body_may_be_released_by_another_task_while_the_node_leaves(
    caplog: pytest.LogCaptureFixture,
):
    loop = asyncio.get_running_loop()

    async def work(hold: Hold) -> None:
        await asyncio.sleep(1.0)
        await hold.release()

    async with node_on(MemoryNetwork(seed=1)) as node:
        hold = await node.mutex("x").acquire()
        working = asyncio.create_task(work(hold))
        begun = loop.time()
    assert loop.time() - begun == pytest.approx(1.0, abs=0.1)
    assert (hold.lost.is_set(), caplog.text) == (False, "")
    await working


async def test_a_cancelled_body_is_released_and_stays_cancelled(node: Node):
    mutex = node.mutex("x")

    async def work() -> None:
        async with mutex:
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await until(lambda: mutex.statistics().holding)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mutex.statistics().holding == 0


async def test_release_may_be_called_again(node: Node):
    mutex = node.mutex("x")
    async with mutex as hold:
        await hold.release()
        assert mutex.statistics().holding == 0
        async with mutex.hold(timeout=0):
            await hold.release()
            assert mutex.statistics().holding == 1


async def test_a_hold_can_be_released_by_another_task(node: Node):
    hold = await node.mutex("x").try_acquire()
    assert hold is not None
    await asyncio.create_task(hold.release())
    assert node.mutex("x").statistics().holding == 0


# --- a lost hold ----------------------------------------------------------------------------------------------------


async def test_a_lost_hold_is_told_so_and_why_and_by_default_goes_on(node: Node, caplog: pytest.LogCaptureFixture):
    mutex = puppet_mutex(node)
    async with mutex as hold:
        puppet_of(node).lose(LostReason.LEASE)
        await hold.lost.wait()
        assert hold.lost.is_set()
        assert hold.lost_reason == "lease"
        puppet_of(node).lose(LostReason.OVERLAP)
        await puppet_of(node).done()
        assert hold.lost_reason == "lease"  # the first reason stays
    assert mutex.statistics().lost == 1
    assert "no longer the only one for sure (lease). The body goes on." in caplog.text


async def test_on_lost_cancel_ends_the_body_with_hold_lost(node: Node):
    mutex = puppet_mutex(node, on_lost="cancel")
    reached = []

    async def work() -> None:
        async with mutex:
            puppet_of(node).lose()
            reached.append("before")
            await asyncio.Event().wait()
            reached.append("after")

    with pytest.raises(HoldLost, match="overlap"):
        await work()
    assert reached == ["before"]
    assert mutex.statistics().holding == 0
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    await asyncio.sleep(0)  # and nothing of the cancellation is left


async def test_on_lost_cancel_does_not_hide_an_error_of_the_body(node: Node):
    async def fail() -> None:
        async with puppet_mutex(node, on_lost="cancel"):
            puppet_of(node).lose()
            try:
                await asyncio.Event().wait()
            finally:
                raise OwnError

    with pytest.raises(OwnError):
        await fail()
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_on_lost_cancel_tells_a_body_that_swallowed_the_cancellation(node: Node):
    async def swallow() -> None:
        async with puppet_mutex(node, on_lost="cancel"):
            puppet_of(node).lose()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with pytest.raises(HoldLost):
        await swallow()


async def test_a_body_that_others_cancel_as_well_stays_cancelled(node: Node):
    async def work() -> None:
        async with puppet_mutex(node, on_lost="cancel"):
            puppet_of(node).lose()
            task.cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loss_that_comes_after_the_body_cancels_nobody(no_leaks: None):
    """It was on its way from the node's thread to the loop of the application when the body ended."""
    where = {"transport": "memory://late-loss", "membership": "memory://late-loss"}
    async with Node(thread=True, **where) as node:
        mutex = puppet_mutex(node, on_lost="cancel")
        async with mutex as hold:
            puppet_of(node).lose()
            limit_s = time.monotonic() + 100
            while not mutex.statistics().lost:
                assert time.monotonic() < limit_s
                threading.Event().wait(0.001)  # and this loop does not get its turn meanwhile
        await until(lambda: mutex.statistics().holding == 0)
        await asyncio.sleep(0)
        assert hold.lost_reason == "overlap"  # as it was
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_on_lost_may_be_a_function_or_a_coroutine_function(node: Node):
    told: list[Hold] = []
    async with puppet_mutex(node, on_lost=told.append) as hold:
        puppet_of(node).lose()
        await until(lambda: told)
        assert told == [hold]

    async def react(hold: Hold) -> None:
        await asyncio.sleep(0)
        told.append(hold)

    async with puppet_mutex(node, on_lost=react) as hold:
        puppet_of(node).lose()
        await until(lambda: told[-1] is hold)


async def test_a_reaction_that_fails_is_logged_and_hurts_nobody(node: Node, caplog: pytest.LogCaptureFixture):
    def react(_hold: Hold) -> None:
        raise OwnError("in the reaction")

    async def react_later(_hold: Hold) -> None:
        raise OwnError("in the task")

    async with puppet_mutex(node, on_lost=react) as hold:
        puppet_of(node).lose()
        await hold.lost.wait()
    async with puppet_mutex(node, on_lost=react_later):
        puppet_of(node).lose()
        await until(lambda: "in the task" in caplog.text)
    assert "in the reaction" in caplog.text


async def test_a_grant_that_is_not_alone_says_so_at_once(node: Node):
    mutex = puppet_mutex(node)
    async with mutex:
        pass
    puppet = puppet_of(node)
    puppet.granting = False
    task = asyncio.create_task(mutex.hold().__aenter__())
    await until(lambda: puppet.waiting)
    puppet.pull(lambda: puppet.grant_next()._replace(alone=False))
    hold = await task
    assert hold.lost_reason is LostReason.OVERLAP
    await hold.release()


async def test_every_lost_hold_is_counted_shown_to_observers_and_logged_once_whatever_the_reason(
    no_leaks: None, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    seen: list[Observation] = []

    class Listening:
        def notice(self, observation: Observation) -> None:
            seen.append(observation)

    node = node_on(network, observers=[Listening()], leave_timeout=0.01)
    await node.open()
    told, overran = puppet_mutex(node, "told"), node.mutex("overran", max_hold=0.01, on_overrun="release")
    kept = node.mutex("kept")
    statistics: dict[str, MutexStatistics] = {}
    async with told as by_machine, overran as by_clock, kept as by_closing:
        puppet_of(node).lose(LostReason.LEASE)
        puppet_of(node).lose(LostReason.OVERLAP)
        await asyncio.gather(by_machine.lost.wait(), by_clock.lost.wait(), puppet_of(node).done())
        statistics = {each.name: each.statistics() for each in (told, overran)}
        await node.close()
        assert by_closing.lost.is_set()
    assert {name: each.lost for name, each in statistics.items()} == {"told": 1, "overran": 1}
    reasons = [(each.mutex, each.values["reason"]) for each in seen if each.what == "hold_lost"]
    assert sorted(reasons) == [("kept", "closed"), ("overran", "overrun"), ("told", "lease")]
    said = [record.getMessage() for record in caplog.records if record.name == "softmutex.hold"]
    for name, reason in reasons:
        assert sum(f"{name!r} is no longer the only one for sure ({reason})" in line for line in said) == 1


# --- what is counted of it --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_statistics_tell_how_often_and_for_how_long_was_waited_and_held():
    async with node_on(MemoryNetwork()) as node:
        mutex = node.mutex("x")

        async def use(seconds: float, **how: float) -> None:
            async with mutex.hold(**how):
                await asyncio.sleep(seconds)

        first, second = asyncio.create_task(use(2)), asyncio.create_task(use(3))
        await asyncio.sleep(1)
        said = mutex.statistics()
        assert (said.holding, said.waiting, said.acquisitions, said.hold_total) == (1, 1, 1, 0)
        with pytest.raises(AcquireTimeout):
            await use(0, timeout=0.5)
        cancelled = asyncio.create_task(use(0))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.gather(first, second)
        said = mutex.statistics()
        assert (said.holding, said.waiting, said.acquisitions) == (0, 0, 2)
        assert (said.timeouts, said.cancelled, said.overruns, said.lost) == (1, 1, 0, 0)
        spans = (said.hold_total, said.hold_max, said.wait_total, said.wait_max)
        assert spans == pytest.approx((5, 3, 2, 2), abs=0.1)


# --- a hold that takes too long -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_hold_past_max_hold_is_warned_of_once_and_counted(caplog: pytest.LogCaptureFixture):
    async with node_on(MemoryNetwork()) as node:
        mutex = node.mutex("x", max_hold=60)
        async with mutex as hold:
            assert hold.deadline == pytest.approx(asyncio.get_running_loop().time() + 60)
            await asyncio.sleep(59)
            assert mutex.statistics().overruns == 0
            await asyncio.sleep(61)
            assert not hold.lost.is_set()
        assert mutex.statistics().overruns == 1
    assert caplog.text.count("longer than max_hold (60.000 s)") == 1


@in_virtual_time
async def test_touch_extends_max_hold():
    async with node_on(MemoryNetwork()) as node:
        mutex = node.mutex("x", max_hold=60)
        async with mutex as hold:
            for _ in range(10):
                await asyncio.sleep(50)
                hold.touch()
                assert hold.deadline == pytest.approx(asyncio.get_running_loop().time() + 60)
            assert mutex.statistics().overruns == 0
            await asyncio.sleep(61)
            assert mutex.statistics().overruns == 1


@in_virtual_time
async def test_on_overrun_release_hands_on_while_the_body_goes_on():
    async with node_on(MemoryNetwork()) as node:
        mutex = node.mutex("x", max_hold=60, on_overrun="release")
        async with mutex as hold:
            await asyncio.sleep(61)
            assert hold.lost.is_set()
            assert hold.lost_reason == "overrun"
            assert mutex.statistics().holding == 0
            other = await asyncio.create_task(mutex.try_acquire())  # somebody else has it now
        assert mutex.statistics().holding == 1  # and the late exit does not take it away
        assert other is not None
        await other.release()


@in_virtual_time
async def test_on_overrun_cancel_ends_the_body_with_hold_lost():
    async with node_on(MemoryNetwork()) as node:
        mutex = node.mutex("x", max_hold=60, on_overrun="cancel")
        with pytest.raises(HoldLost, match="held longer than max_hold=60 s"):
            async with mutex:
                await asyncio.sleep(3600)
        assert mutex.statistics().holding == 0


@in_virtual_time
async def test_on_overrun_may_be_a_function():
    told: list[Hold] = []
    async with (
        node_on(MemoryNetwork()) as node,
        node.mutex("x", max_hold=60, on_overrun=told.append) as hold,
    ):
        await asyncio.sleep(61)
        assert told == [hold]


# --- overlaps -------------------------------------------------------------------------------------------------------


async def test_an_overlap_that_is_told_of_twice_is_counted_once_with_its_longest_length(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    """Also after the hold."""
    mutex = puppet_mutex(node)
    async with mutex:
        pass
    for other, length in ((7, SECOND), (7, 3 * SECOND), (8, 2 * SECOND), (7, SECOND)):
        await perform(node, Overlapped(1, other, 5, length))
    assert mutex.statistics().overlaps == OverlapStatistics(count=2, seconds=5.0, longest=3.0)
    lower("overlaps of one mutex that are remembered, so that each is counted once", 2, monkeypatch)
    for other in (9, 7):
        await perform(node, Overlapped(1, other, 5, SECOND))
    assert mutex.statistics().overlaps.count == 3, "7 was told of after 8: it is remembered"


# --- isolation ------------------------------------------------------------------------------------------------------


async def test_when_isolated_raise_ends_those_who_wait_and_those_who_come(node: Node):
    mutex = puppet_mutex(node, when_isolated="raise")
    async with mutex:
        waiting = asyncio.create_task(_enter(mutex))
        await until(lambda: mutex.statistics().waiting)
        await perform(node, Note(FactKind.ISOLATED))
        with pytest.raises(Isolated, match="cannot reach enough of its group"):
            await waiting
        with pytest.raises(Isolated):
            await asyncio.create_task(_enter(mutex))
    await perform(node, Note(FactKind.REJOINED))
    async with mutex:
        pass


async def test_when_isolated_wait_waits_until_the_group_is_back(node: Node):
    mutex = puppet_mutex(node, when_isolated="wait")
    async with mutex:
        waiting = asyncio.create_task(_enter(mutex))
        await until(lambda: mutex.statistics().waiting)
        await perform(node, Note(FactKind.ISOLATED))
        await asyncio.sleep(0)
        assert not waiting.done()
        await perform(node, Note(FactKind.REJOINED))
    await waiting


async def test_the_machine_is_told_what_to_do_when_isolated(node: Node):
    async with puppet_mutex(node, when_isolated="proceed"):
        assert puppet_of(node).setup.when_isolated == "proceed"


async def _enter(mutex):
    async with mutex:
        pass


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")
