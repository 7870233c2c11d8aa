"""The mutex without a node, for the tests of applications."""

import asyncio
import inspect
import threading
import time

import pytest

from softmutex import AcquireTimeout, Hold, NodeClosed, SoftMutex, sync
from softmutex.testing import NullMutex, NullSyncMutex


async def test_it_grants_at_once_and_counts():
    mutex = NullMutex("x")
    async with mutex as first, mutex.hold(timeout=3) as second:
        assert mutex.holds == [first, second]
        assert (first.name, second.hop) == ("x", 2)
        first.touch()
        assert first.touches == 1
    assert (mutex.holds, mutex.grants) == ([], 2)


async def test_while_it_is_busy_tries_fail_and_waits_last():
    mutex = NullMutex(timeout=0.01)
    mutex.busy = True
    assert await mutex.try_acquire() is None
    with pytest.raises(AcquireTimeout):
        async with mutex:
            pass
    waiting = asyncio.create_task(mutex.hold(timeout=60).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    mutex.busy = False
    hold = await waiting
    assert hold.waited > 0
    await hold.release()
    assert mutex.holds == []


async def test_its_holds_can_be_lost_and_its_grants_can_fail():
    mutex = NullMutex()
    async with mutex as hold:
        mutex.lose()
        await hold.lost.wait()
        assert hold.lost_reason == "overlap"
    mutex.fails = NodeClosed("gone")
    with pytest.raises(NodeClosed, match="gone"):
        await mutex.try_acquire()


async def test_it_guards():
    mutex = NullMutex()

    @mutex.guard()
    async def work() -> int:
        return len(mutex.holds)

    assert await work() == 1


def test_it_stands_in_for_the_mutex_of_threads():
    mutex = NullSyncMutex("x", timeout=0.01)
    with mutex as hold, mutex.hold(timeout=3):
        mutex.lose()
        assert isinstance(hold.lost, threading.Event)
        assert hold.lost.wait(0)
    mutex.busy = True
    assert mutex.try_acquire() is None
    with pytest.raises(AcquireTimeout), mutex:
        pass
    threading.Timer(0.01, lambda: setattr(mutex, "busy", False)).start()
    begun = time.monotonic()
    assert mutex.guard(timeout=60)(lambda: len(mutex.holds))() == 1
    assert time.monotonic() > begun
    free = mutex.try_acquire()
    assert free is not None
    free.release()
    assert mutex.holds == []


@pytest.mark.parametrize(
    ("fake", "real"), [(NullMutex, SoftMutex), (NullSyncMutex, sync.SoftMutex)], ids=["asyncio", "threads"]
)
def test_it_has_what_the_real_ones_have(fake: type, real: type):
    def public(of: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}

    assert public(real) - public(fake) <= {"statistics"}
    shown = {name for name in dir(Hold) if not name.startswith("_")} - {"lost", "name"}
    with NullSyncMutex() as hold:
        assert shown <= set(dir(hold))
