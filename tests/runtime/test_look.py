"""Who holds it, who waits: `look`, what tries and time-outs say of it, and holds that are taken away."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from softmutex import AcquireTimeout, Node, SoftMutex, sync
from softmutex.core.events import LostReason
from softmutex.core.messages import Evict, Evicted
from softmutex.core.wire import Frame, encode
from softmutex.testing import MemoryNetwork, virtual_time
from tests.runtime.group import node_on, opened, until

DELAY_S = 0.05  # one way


def in_a_group(of: int, story: Callable[..., Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        network = MemoryNetwork(seed=of, delay=DELAY_S)
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(node_on(network, name=f"n{i}", **options)) for i in range(of)]
            await story(*nodes)

    with virtual_time() as runner:
        runner.run(main())


async def queue_up(mutex: SoftMutex) -> asyncio.Task[None]:
    async def work() -> None:
        async with mutex:
            pass

    task = asyncio.create_task(work())
    await asyncio.sleep(1.0)
    return task


def test_look_tells_who_holds_it_and_who_waits_in_order():
    async def story(a: Node, b: Node, c: Node) -> None:
        async with a.mutex("x", purpose="lftp"):
            tasks = [await queue_up(node.mutex("x", purpose=f"job of {node.name}")) for node in (c, b)]
            for node in (a, b, c):
                seen = await node.mutex("x").look()
                assert [(one.node, one.purpose) for one in seen.holders] == [("n0", "lftp")]
                assert [(one.node, one.position) for one in seen.waiting] == [("n2", 1), ("n1", 2)]
                assert (seen.waiting_count, seen.silent, seen.slots) == (2, (), 1)
                assert seen.epoch >= 1
                assert seen.at - seen.holders[0].since == pytest.approx(2.0, abs=1.0)
                assert seen.holders[0].user and seen.holders[0].host
        await asyncio.gather(*tasks)
        assert (await b.mutex("x").look()).holders == ()

    in_a_group(3, story)


@pytest.mark.parametrize("of", [2, 5, 30])
def test_a_try_is_answered_within_two_round_trips_where_another_node_holds_it(of: int):
    async def story(*nodes: Node) -> None:
        async with nodes[0].mutex("x", purpose="lftp"):
            for node in nodes[1:]:
                loop = asyncio.get_running_loop()
                await node.mutex("x").look()
                begun = loop.time()
                assert await node.mutex("x").try_acquire() is None
                assert loop.time() - begun < 4 * DELAY_S + 0.01
            with pytest.raises(AcquireTimeout, match=r"'x' is in use: n0 holds it for .* \(lftp of \w+\)"):
                await nodes[1].mutex("x").acquire(0)
        hold = await nodes[-1].mutex("x").try_acquire()
        assert hold is not None, "nobody has it: a try waits for it to come here"
        await hold.release()

    in_a_group(of, story)


def test_two_that_only_try_do_not_refuse_each_other():
    async def story(a: Node, b: Node) -> None:
        async with a.mutex("x"):
            pass
        await asyncio.sleep(5.0)
        tried = await asyncio.gather(*(node.mutex("x").try_acquire() for node in (a, b)))
        assert [hold for hold in tried if hold is not None]

    in_a_group(2, story)


def test_a_time_out_says_who_holds_it_for_how_long_and_how_many_wait_before():
    async def story(a: Node, b: Node, c: Node) -> None:
        async with a.mutex("x", purpose="lftp"):
            await asyncio.sleep(170)
            waiting = await queue_up(b.mutex("x"))
            loop = asyncio.get_running_loop()
            begun = loop.time()
            with pytest.raises(AcquireTimeout) as raised:
                await c.mutex("x").acquire(10)
            assert loop.time() - begun == pytest.approx(10, abs=0.01), "asking costs no time"
            assert "within 10 s: n0 holds it for 3 min 1 s (lftp of " in str(raised.value)
            assert "1 waits before this" in str(raised.value)
        await waiting

    in_a_group(3, story)


@pytest.mark.parametrize("said", ["", "none"])
def test_nothing_is_told_of_a_purpose_that_is_nobodys_business(said: str):
    async def story(a: Node, b: Node) -> None:
        async with a.mutex("x", purpose=said):
            assert [one.purpose for one in (await b.mutex("x").look()).holders] == [""]
        async with a.mutex("y"):
            purpose = (await b.mutex("y").look()).holders[0].purpose
            assert purpose and "/" not in purpose and " " not in purpose, "a program's name, and no command line"

    in_a_group(2, story)


def test_a_hold_that_is_taken_away_is_lost_with_the_reason_and_the_next_one_enters():
    async def story(a: Node, b: Node, c: Node) -> None:
        hold = await a.mutex("x").acquire()
        waiting = asyncio.create_task(b.mutex("x").acquire())
        await asyncio.sleep(1.0)
        assert await c.mutex("x").evict("hangs since noon") == 1
        assert (hold.lost_reason, hold.lost_detail) == (LostReason.EVICTED, "hangs since noon")
        next_one = await waiting
        await hold.release()  # late, and no harm
        assert next_one.lost_reason is None
        await next_one.release()
        assert await c.mutex("x").evict("again") == 0, "nobody holds it"
        assert a.mutex("x").statistics().lost == 1

    in_a_group(3, story)


def test_who_asked_for_that_is_cancelled_when_its_hold_is_taken_away():
    ended: list[str] = []

    async def story(a: Node, b: Node) -> None:
        async def work() -> None:
            try:
                async with a.mutex("x", on_lost="cancel"):
                    await asyncio.sleep(3600)
            except Exception as error:
                ended.append(str(error))

        task = asyncio.create_task(work())
        await asyncio.sleep(1.0)
        assert await b.mutex("x").evict("hangs") == 1
        await task

    in_a_group(2, story)
    assert "evicted: hangs" in ended[0]


async def test_an_eviction_that_comes_twice_ends_one_hold_and_who_is_no_member_yet_is_not_obeyed(
    no_leaks: None, network: MemoryNetwork
):
    async with node_on(network) as node:
        spy = await opened(network, "spy", 4711)
        hold = await node.mutex("x").acquire()
        seen = await node.mutex("x").look()
        evict = encode(Frame(spy.id, node.id, "x", Evict(3, seen.holders[0].request, "hangs")))
        spy.transport.send(node.address, evict)
        await until(lambda: node.peers())
        assert hold.lost_reason is None
        spy.transport.send(node.address, evict)
        await until(lambda: hold.lost_reason)
        async with node.mutex("x") as other:
            spy.transport.send(node.address, evict)
            await until(lambda: spy.count(Evicted) == 2)
            assert other.lost_reason is None
        await hold.release()
        await spy.close()


async def test_a_mutex_with_a_node_of_its_own_joins_to_look(no_leaks: None):
    where = {"transport": "memory://look", "membership": "memory://look"}
    async with SoftMutex("x", **where, purpose="lftp"):  # type: ignore[arg-type]
        assert [one.purpose for one in (await SoftMutex("x", **where).look()).holders] == ["lftp"]  # type: ignore[arg-type]


def test_threads_look_and_evict_too(no_leaks: None):
    with sync.Node(transport="memory://seen", membership="memory://seen") as node:
        hold = node.mutex("x").acquire()
        seen = sync.SoftMutex("x", transport="memory://seen", membership="memory://seen").look()
        assert [one.node for one in seen.holders] == [node.name]
        assert time.time() - seen.holders[0].since < 60
        assert node.mutex("x").evict("hangs") == 1
        assert hold.lost.is_set()
        assert hold.lost_detail == "hangs"


def test_members_remember_the_holds_of_who_left():
    async def story(a: Node, b: Node, c: Node) -> None:
        for node in (a, b):
            async with node.mutex("x", purpose=f"job of {node.name}"):
                await asyncio.sleep(5.0)
        hold = await b.mutex("x").acquire()
        await c.mutex("x").evict("hangs")
        await hold.release()
        await a.close()
        past = await c.mutex("x").history()
        assert [(one.node, one.purpose, round(one.held)) for one in past[:2]] == [
            ("n0", "job of n0", 5),
            ("n1", "job of n1", 5),
        ]
        assert past[2].lost == "evicted: hangs"

    in_a_group(3, story)
