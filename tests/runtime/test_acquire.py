"""Waiting for a mutex: how a wait may end, and in which order."""

import asyncio

import pytest

from softmutex import AcquireTimeout, ConfigError, Node, NodeClosed, SoftMutexError
from softmutex.core.events import Grant, Released, Withdrawn
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import mutex_shown, node_on, puppet_mutex, puppet_of, until


async def test_the_body_runs_with_the_grant_in_hand(node: Node):
    mutex = node.mutex("x")
    async with mutex as hold:
        assert mutex.statistics().holding == 1
        assert (hold.name, hold.node) == ("x", node.name)
        assert hold.epoch >= 1
        assert hold.waited >= 0
        assert hold.deadline is None
        assert hold.peers == 0
        assert not hold.lost.is_set()
        assert hold.lost_reason is None
    assert mutex.statistics().holding == 0


async def test_the_body_is_never_entered_without_the_grant(node: Node):
    mutex = puppet_mutex(node)
    async with mutex:
        pass
    puppet = puppet_of(node)
    puppet.granting = False
    entered = False

    async def work() -> None:
        nonlocal entered
        async with mutex:
            entered = True

    task = asyncio.create_task(work())
    await until(lambda: puppet.waiting)
    assert not entered
    puppet.grant()
    await task
    assert entered


async def test_a_wait_that_takes_too_long_ends_in_acquire_timeout_which_is_a_timeout_error(node: Node):
    mutex = node.mutex("x")
    async with mutex:
        other = asyncio.create_task(_hold(mutex, 0.01))
        with pytest.raises(TimeoutError, match=r"not granted within 0.01 s") as raised:
            await other
    assert isinstance(raised.value, AcquireTimeout)
    assert isinstance(raised.value, SoftMutexError)
    assert mutex.statistics().timeouts == 1
    async with mutex:
        pass  # the one that gave up has left nothing behind


async def _hold(mutex, timeout):
    async with mutex.hold(timeout=timeout):
        pass


async def test_the_time_limit_of_a_use_goes_before_that_of_the_mutex(node: Node):
    mutex = node.mutex("x", timeout=0.01)
    async with mutex:
        waits_for_ever = asyncio.create_task(_hold(mutex, None))
        with pytest.raises(AcquireTimeout):
            await asyncio.create_task(_enter(mutex))
        assert not waits_for_ever.done()
    await waits_for_ever


async def _enter(mutex):
    async with mutex:
        pass


async def test_zero_tries(node: Node):
    mutex = node.mutex("x")
    async with mutex.hold(timeout=0):
        with pytest.raises(AcquireTimeout, match="in use"):
            await asyncio.create_task(_hold(mutex, 0))


@in_virtual_time
async def test_who_only_tries_is_told_at_once_that_it_is_in_use_and_how_many_there_are():
    network = MemoryNetwork()
    async with node_on(network) as node, node_on(network) as other:
        mutex = node.mutex("x")
        async with other.mutex("x"):
            pass
        async with mutex.hold(timeout=30):
            began = asyncio.get_running_loop().time()
            with pytest.raises(AcquireTimeout) as told:
                await asyncio.create_task(_hold(mutex, 0))
            assert asyncio.get_running_loop().time() == began
        here = "(on this node 1 hold it and 0 wait for it; 1 other nodes are known)"
        assert str(told.value) == f"the mutex 'x' is in use {here}. Wait longer, or look: softmutex status."


@pytest.mark.parametrize(("timeout", "told"), [(0.0123, "0.012"), (0.999, "1"), (1.04, "1"), (2.55, "2.5"), (90, "90")])
@in_virtual_time
async def test_who_gave_up_is_told_how_long_it_waited(timeout: float, told: str):
    async with node_on(MemoryNetwork()) as node:
        mutex = node.mutex("x")
        async with mutex:
            began = asyncio.get_running_loop().time()
            with pytest.raises(AcquireTimeout, match=f"was not granted within {told} s"):
                await asyncio.create_task(_hold(mutex, timeout))
            assert asyncio.get_running_loop().time() - began == pytest.approx(timeout, abs=0.01)


async def test_who_allows_a_second_waits_and_does_not_only_try(node: Node):
    mutex = node.mutex("x")
    async with mutex:
        waits = asyncio.create_task(_hold(mutex, 1))
        await until(lambda: mutex.statistics().waiting == 1)
    await waits


async def test_try_acquire_gives_a_hold_or_none(node: Node):
    mutex = node.mutex("x")
    hold = await mutex.try_acquire()
    assert hold is not None
    assert await mutex.try_acquire() is None
    async with hold:
        assert await asyncio.create_task(mutex.try_acquire()) is None
    assert mutex.statistics().holding == 0


async def test_try_acquire_fetches_a_free_token_from_another_node(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as here, node_on(network) as there:
        async with here.mutex("x"):
            pass
        hold = await there.mutex("x").try_acquire()
        assert hold is not None
        await hold.release()


@pytest.mark.parametrize("wrong", [-1, float("nan")])
async def test_an_impossible_time_limit_is_refused(node: Node, wrong: float):
    with pytest.raises(ConfigError, match="timeout"):
        async with node.mutex("x").hold(timeout=wrong):
            pass


async def test_tasks_of_one_node_are_served_in_the_order_in_which_they_asked(node: Node):
    mutex = node.mutex("x")
    order: list[int] = []

    async def work(number: int) -> None:
        async with mutex:
            order.append(number)

    async with mutex:
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(work(number)))
            await until(lambda number=number: mutex.statistics().waiting == number + 1)
    await asyncio.gather(*tasks)
    assert order == list(range(20))


async def test_after_a_release_others_come_before_the_same_node_asks_again(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as greedy, node_on(network) as modest:
        turns: list[str] = []
        mutex = greedy.mutex("x")
        async with mutex:
            waiter = asyncio.create_task(_note(modest.mutex("x"), turns, "modest"))
            await until(lambda: is_queued(greedy, network))
        while not waiter.done():
            await _note(mutex, turns, "greedy")
        assert turns[0] == "modest"


async def is_queued(holder: Node, network: MemoryNetwork) -> bool:
    return bool((await mutex_shown(holder, network))["queue"])


async def test_a_loop_that_only_takes_and_releases_does_not_starve_other_nodes(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as greedy, node_on(network) as modest:
        turns: list[str] = []
        waiter = asyncio.create_task(_note(modest.mutex("x"), turns, "modest"))
        async with asyncio.timeout(60):
            while not waiter.done():
                await _note(greedy.mutex("x"), turns, "greedy")


async def _note(mutex, turns, who):
    async with mutex:
        turns.append(who)


# --- cancellation ---------------------------------------------------------------------------------------------------


async def test_a_cancelled_waiter_leaves_the_queue(node: Node):
    mutex = puppet_mutex(node)
    async with mutex:
        task = asyncio.create_task(_enter(mutex))
        await until(lambda: mutex.statistics().waiting)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mutex.statistics().waiting == 0
        assert any(isinstance(event, Withdrawn) for event in puppet_of(node).told)
    assert mutex.statistics().cancelled == 1


async def test_a_cancelled_waiter_that_is_granted_all_the_same_hands_on_at_once(node: Node):
    mutex = puppet_mutex(node)
    async with mutex:
        pass
    puppet, loop = puppet_of(node), asyncio.get_running_loop()
    puppet.granting = False
    task = asyncio.create_task(_enter(mutex))
    await until(lambda: puppet.waiting)

    def grant_and_cancel() -> Grant:
        loop.call_soon(task.cancel)  # before the turn of the task, which the grant makes ready to run
        return puppet.grant_next()

    puppet.pull(grant_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mutex.statistics().acquisitions == 2
    assert mutex.statistics().holding == 0
    assert isinstance(puppet.told[-1], Released)


async def test_cancellation_at_every_turn_of_the_loop_leaves_the_mutex_free(no_leaks: None, network: MemoryNetwork):
    """Of an acquisition that crosses the network, cancelled after 0, 1, 2, ... turns."""
    async with node_on(network) as here, node_on(network) as there:
        near, far = here.mutex("x"), there.mutex("x")
        for turns in range(40):
            async with near:
                pass
            task = asyncio.create_task(_enter(far))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert far.statistics().holding == 0
            assert far.statistics().waiting == 0
        async with near.hold(timeout=60):
            assert far.statistics().holding == 0


# --- without a body -------------------------------------------------------------------------------------------------


async def test_a_hold_acquired_without_a_body_lasts_until_it_is_released_by_whichever_task(node: Node):
    mutex = node.mutex("x")
    hold = await mutex.acquire(timeout=60)
    assert mutex.statistics().holding == 1
    with pytest.raises(AcquireTimeout, match=r"not granted within 0.01 s"):
        await mutex.acquire(timeout=0.01)  # no deadlock: another task may release it meanwhile
    waiting = asyncio.create_task(mutex.acquire())
    await until(lambda: mutex.statistics().waiting)
    await asyncio.create_task(hold.release())
    async with await waiting as second:
        assert second is not hold
    assert mutex.statistics().holding == 0


@pytest.mark.parametrize("wrong", ["5", True, [1]])
async def test_a_time_limit_that_is_no_number_is_an_error_that_says_so(node: Node, wrong):
    with pytest.raises(ConfigError, match="give seconds as a number"):
        await node.mutex("x").acquire(timeout=wrong)


# --- nesting --------------------------------------------------------------------------------------------------------


async def test_a_task_that_asks_for_what_it_holds_is_told_so_at_once(node: Node):
    mutex = node.mutex("x")
    async with mutex:
        with pytest.raises(SoftMutexError, match="holds the mutex 'x' already"):
            async with mutex:
                raise AssertionError("entered")
        with pytest.raises(AcquireTimeout, match="holds the mutex 'x' already, so that it would not be granted within"):
            async with node.mutex("x").hold(timeout=60):
                raise AssertionError("entered")
        assert await mutex.try_acquire() is None
        async with node.mutex("y"):
            pass  # another one is no nesting
    async with mutex:
        pass  # and what was refused holds nothing up


async def test_the_same_resource_by_another_node_is_nesting_where_there_is_no_time_limit(no_leaks: None):
    by_url = {"transport": "memory://nesting", "membership": "memory://nesting"}
    async with Node(**by_url) as one, Node(**by_url) as other, one.mutex("x"):
        with pytest.raises(SoftMutexError, match="already"):
            async with other.mutex("x"):
                raise AssertionError("entered")
        with pytest.raises(AcquireTimeout):
            async with other.mutex("x").hold(timeout=0.01):
                raise AssertionError("entered")


async def test_a_hold_may_be_passed_to_another_task_and_its_task_may_ask_again(node: Node):
    mutex = node.mutex("x")
    hold = await mutex.try_acquire()
    assert hold is not None

    async def finish() -> None:
        async with hold:
            await until(lambda: mutex.statistics().waiting)

    other = asyncio.create_task(finish())
    async with mutex.hold(timeout=60):
        assert other.done()


async def test_a_hold_is_for_one_use(node: Node):
    hold = await node.mutex("x").try_acquire()
    assert hold is not None
    async with hold:
        pass
    with pytest.raises(SoftMutexError, match="is over"):
        async with hold:
            pass


# --- a node that is not there ---------------------------------------------------------------------------------------


async def test_a_node_that_is_not_open_raises_instead_of_hanging(no_leaks: None, network: MemoryNetwork):
    node = node_on(network)
    mutex = node.mutex("x")
    with pytest.raises(NodeClosed, match="not open"):
        async with mutex:
            pass
    async with node, mutex:
        pass
    with pytest.raises(NodeClosed, match="not open"):
        async with mutex:
            pass
    with pytest.raises(NodeClosed):
        node.peers()


async def test_who_waits_while_the_node_closes_is_told(no_leaks: None, network: MemoryNetwork):
    node = node_on(network)
    await node.open()
    mutex = node.mutex("x")
    hold = await mutex.try_acquire()
    assert hold is not None
    waiting = asyncio.create_task(_enter(mutex))
    await until(lambda: mutex.statistics().waiting)
    closing = asyncio.create_task(node.close())
    with pytest.raises(NodeClosed, match="closed while the mutex 'x' was waited for"):
        await waiting
    await hold.release()
    await closing


@pytest.mark.parametrize("name", ["", "x" * 65, 5])
def test_an_impossible_name_is_refused(name):
    with pytest.raises(ConfigError, match="named by a text"):
        Node().mutex(name)
