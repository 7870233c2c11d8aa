"""All timers of a node in one heap, and the clock that they go by."""

import asyncio
import time
from typing import Any
from weakref import WeakSet

import pytest

from softmutex.core.events import SECOND, from_seconds
from softmutex.runtime.clock import clock_of
from softmutex.runtime.timers import SLACK, Timers
from softmutex.testing import in_virtual_time


def timers() -> tuple[Timers, list[Any]]:
    loop = asyncio.get_running_loop()
    return Timers(loop, clock_of(loop)), []


def soon(seconds: float) -> int:
    return clock_of(asyncio.get_running_loop())() + from_seconds(seconds)


class Number:
    """One that can be watched as long as anybody keeps it."""

    def __init__(self, value: int) -> None:
        self.value = value


@in_virtual_time
async def test_each_fires_once_in_order_and_not_before_its_time():
    some, fired = timers()
    begun = asyncio.get_running_loop().time()
    for delay in (3, 1, 2):
        some.set(delay, soon(delay), lambda which: fired.append((which, asyncio.get_running_loop().time())), delay)
    await asyncio.sleep(10)
    assert [which for which, _ in fired] == [1, 2, 3]
    assert all(at >= begun + which for which, at in fired)
    assert len(some) == 0


@in_virtual_time
async def test_what_is_replaced_or_cancelled_does_not_fire():
    some, fired = timers()
    some.set("replaced", soon(1), fired.append, "early")
    some.set("replaced", soon(5), fired.append, "late")
    some.set("cancelled", soon(1), fired.append, "never")
    some.cancel("cancelled")
    some.cancel("unknown")
    await asyncio.sleep(4)
    assert fired == []
    await asyncio.sleep(4)
    assert fired == ["late"]


@in_virtual_time
async def test_one_that_is_set_anew_while_it_fires_waits_for_the_next_pass():
    some, fired = timers()

    def again(count: int) -> None:
        fired.append(count)
        some.set("again", 0, again, count + 1)

    some.set("again", 0, again, 0)
    for turn in range(1, 6):
        await asyncio.sleep(0)
        assert len(fired) <= turn  # the loop has its turn in between
    some.close()
    before = len(fired)
    await asyncio.sleep(1)
    assert len(fired) == before


@in_virtual_time
async def test_a_million_settings_leave_no_million_entries():
    some, fired = timers()
    kept: WeakSet[Number] = WeakSet()
    for value in range(100_000):
        number = Number(value)
        kept.add(number)
        some.set(value % 10, soon(3600), fired.append, number)
        assert len(kept) <= 4 * len(some) + SLACK + 1
    assert len(some) == 10
    await asyncio.sleep(3601)
    assert sorted(number.value for number in fired) == list(range(99_990, 100_000))


@in_virtual_time
async def test_a_call_that_raises_is_logged_and_holds_no_other_one_up(caplog: pytest.LogCaptureFixture):
    some, fired = timers()
    some.set("bad", soon(1), lambda _: 1 // 0, None)
    some.set("good", soon(1), fired.append, "good")
    some.set("later", soon(2), fired.append, "later")
    await asyncio.sleep(3)
    assert fired == ["good", "later"]
    assert "ZeroDivisionError" in caplog.text


@in_virtual_time
async def test_a_timer_may_cancel_another_that_is_due_as_well():
    some, fired = timers()
    some.set("first", soon(1), some.cancel, "second")
    some.set("second", soon(1), fired.append, "second")
    await asyncio.sleep(2)
    assert fired == []


@in_virtual_time
async def test_virtual_time_is_believed():
    now = clock_of(asyncio.get_running_loop())
    before = now()
    await asyncio.sleep(3600)
    assert now() - before == 3600 * SECOND


@in_virtual_time
async def test_after_a_year_a_timer_costs_no_more_calls_than_at_the_start():
    """A float of so many seconds has no nanoseconds left: who waits for one was called without end, and time stood."""
    loop, calls = asyncio.get_running_loop(), 0
    clock = clock_of(loop)

    def now() -> int:
        nonlocal calls
        calls += 1
        assert calls < 10_000, "called without end while the clock stands"
        return clock()

    some, fired = Timers(loop, now), []
    await asyncio.sleep(400 * 86_400.0)
    for odd in range(1_000):
        some.set("odd", clock() + SECOND + odd, fired.append, odd)
        await asyncio.sleep(2)
    assert fired == list(range(1_000))
    assert calls <= 5_000


async def test_real_time_is_wall_time_at_the_start_and_never_jumps(monkeypatch: pytest.MonkeyPatch):
    now = clock_of(asyncio.get_running_loop())
    earlier, seen, later = time.time_ns(), now(), time.time_ns()
    assert earlier - SECOND < seen < later + SECOND
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    earlier, before, after, later = time.monotonic_ns(), now(), now(), time.monotonic_ns()
    assert 0 <= after - before <= later - earlier
