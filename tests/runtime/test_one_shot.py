"""`async with SoftMutex(...)`: joins, waits, works, hands the token on, leaves."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from softmutex import AcquireTimeout, ConfigError, SoftMutex
from softmutex.ports import Member
from softmutex.testing import MemoryMembership, MemoryNetwork
from tests.runtime.group import until


def by_url(name: str) -> dict[str, Any]:
    return {"transport": f"memory://{name}", "membership": f"memory://{name}"}


async def test_it_joins_waits_works_hands_on_and_leaves_nothing_behind(no_leaks: None):
    order: list[str] = []

    async def work(who: str) -> None:
        async with SoftMutex("x", **by_url("one-shot"), timeout=60) as hold:
            order.append(f"{who} in")
            assert hold.epoch == 1
            await asyncio.sleep(0.01)
            order.append(f"{who} out")

    await asyncio.gather(*(work(who) for who in "abcde"))
    assert [step.split()[1] for step in order] == ["in", "out"] * 5
    assert not MemoryNetwork.named("one-shot").members


async def test_released_in_its_body_it_leaves_once_and_says_nothing(no_leaks: None, caplog: pytest.LogCaptureFixture):
    mutex = SoftMutex("x", **by_url("released"))
    async with mutex as hold:
        await hold.release()
        await hold.release()
        assert not MemoryNetwork.named("released").members
        async with mutex:
            assert len(MemoryNetwork.named("released").members) == 1
    assert not [record for record in caplog.records if record.name.startswith("softmutex")]


async def test_with_nothing_given_the_processes_of_this_user_meet(no_leaks: None, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SOFTMUTEX_MEMBERSHIP", f"local://?directory={tmp_path}")
    async with SoftMutex("x"):
        with pytest.raises(AcquireTimeout):
            async with SoftMutex("x", timeout=0.1):
                raise AssertionError("two holders")
    async with SoftMutex("x", timeout=60):
        pass


def test_one_made_at_import_time_works_in_any_loop_that_runs_later():
    mutex = SoftMutex("x", **by_url("import-time"))

    async def use() -> int:
        async with mutex as hold:
            return hold.epoch

    assert asyncio.run(use()) == 1
    assert asyncio.run(use()) == 1


def test_one_may_be_used_in_two_loops_at_once():
    mutex = SoftMutex("x", **by_url("two-loops"), timeout=60)
    inside: list[int] = []
    most: list[int] = []

    async def use() -> None:
        for _ in range(5):
            async with mutex:
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=asyncio.run, args=(use(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert most == [1] * 10


async def test_all_uses_at_a_time_share_one_node(no_leaks: None):
    network = MemoryNetwork.named("shared")
    mutex = SoftMutex("x", **by_url("shared"), options={"each": 5}, slots=5)
    together = asyncio.Barrier(5)
    addresses: set[str] = set()

    async def use() -> None:
        async with mutex:
            await together.wait()
            addresses.update(network.addresses)
            await together.wait()

    async with asyncio.timeout(60):
        await asyncio.gather(*(use() for _ in range(5)))
    assert len(addresses) == 1
    assert not network.addresses


async def test_the_time_limit_covers_the_joining(no_leaks: None):
    class Slow(MemoryMembership):
        async def join(self, me: Member) -> None:
            await asyncio.Event().wait()

    network = MemoryNetwork()
    mutex = SoftMutex("x", transport=network.transport(), membership=Slow(network), timeout=0.05)
    with pytest.raises(AcquireTimeout, match=r"could not join its group within 0.05 s"):
        async with mutex:
            pass


async def test_it_leaves_also_when_the_wait_was_in_vain(no_leaks: None):
    async with SoftMutex("x", **by_url("in-vain")):
        with pytest.raises(AcquireTimeout):
            async with SoftMutex("x", **by_url("in-vain"), timeout=0.05):
                raise AssertionError("two holders")
        assert len(MemoryNetwork.named("in-vain").addresses) == 1


async def test_the_hand_off_survives_the_cancellation_of_its_caller(no_leaks: None):
    """Cancelled after 0, 1, 2, ... turns of the exit: the next one gets the token all the same, and at once."""
    async with SoftMutex("x", **by_url("survives")):
        pass
    for turns in range(12):
        finish = asyncio.Event()
        async with asyncio.timeout(60):
            holding = asyncio.create_task(_hold_until(finish))
            await until(lambda: MemoryNetwork.named("survives").addresses)
            network = MemoryNetwork.named("survives")
            waiting = asyncio.create_task(_hold_until(None))
            await until(lambda network=network: len(network.addresses) == 2)
            finish.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            assert await waiting == 1  # the same generation of the token: nobody had to replace it


async def _hold_until(event: asyncio.Event | None) -> int:
    async with SoftMutex("x", **by_url("survives")) as hold:
        if event is not None:
            await event.wait()
        return hold.epoch


def test_an_unknown_keyword_names_the_nearest_right_one():
    with pytest.raises(ConfigError, match=r"no setting 'time_out'.*Did you mean 'timeout'"):
        SoftMutex("x", time_out=3)  # type: ignore[call-arg]


async def test_try_acquire_and_release(no_leaks: None):
    mutex = SoftMutex("x", **by_url("try"))
    hold = await mutex.try_acquire()
    assert hold is not None
    assert mutex.statistics().holding == 1
    assert await mutex.try_acquire() is None
    await hold.release()
    assert mutex.statistics().acquisitions == 0  # its node has left
    gc.collect()


async def test_guard_takes_the_mutex_around_each_call(no_leaks: None):
    mutex = SoftMutex("x", **by_url("guard"))

    @mutex.guard(timeout=60)
    async def report(what: str) -> str:
        """Says what is going on."""
        assert mutex.statistics().holding == 1
        return what

    assert await report("done") == "done"
    assert report.__name__ == "report"
    assert report.__doc__ == "Says what is going on."


@pytest.mark.parametrize("kind", ["generator", "async generator"])
def test_guard_refuses_generators(kind: str):
    def generator():
        yield 1

    async def async_generator():
        yield 1

    with pytest.raises(ConfigError, match="runs after the call"):
        SoftMutex("x").guard()(generator if kind == "generator" else async_generator)
