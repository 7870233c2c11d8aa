"""Without a loop, or with the node on another thread: `sync`, `Node(thread=True)`, plain functions, forks."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from softmutex import AcquireTimeout, ConfigError, HoldLost, Node, NodeClosed, SoftMutex, SoftMutexError, sync
from softmutex.core.events import LostReason
from softmutex.ports import Member
from softmutex.testing import MemoryMembership, MemoryNetwork
from tests.cli.processes import but_for_standstills
from tests.runtime.group import Puppet, node_on, puppet_of, until


def by_url(name: str) -> dict[str, Any]:
    return {"transport": f"memory://{name}", "membership": f"memory://{name}"}


def until_true(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < limit
        threading.Event().wait(0.001)


def lose(node: Node | sync.Node, reason: LostReason = LostReason.OVERLAP) -> None:
    """Tells the holder of the puppet `x`, on the node's own thread."""
    puppet_of(node).lose(reason)


# --- sync -----------------------------------------------------------------------------------------------------------


def test_a_mutex_without_a_loop_excludes_threads_and_leaves_no_thread_behind():
    inside: list[int] = []
    most: list[int] = []

    def work(_: int) -> None:
        with sync.SoftMutex("x", **by_url("threads"), timeout=60) as hold:
            inside.append(1)
            most.append(len(inside))
            assert not hold.lost.is_set()
            inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))
    assert most == [1] * 12
    assert "softmutex" not in [thread.name for thread in threading.enumerate()]


def test_threads_make_their_first_mutexes_at_once_whatever_the_algorithm():
    """Each teaches the wire its messages; two at once were told that a number was taken already, by themselves."""
    script = """
        import sys, threading
        from softmutex import plugins

        sys.setswitchinterval(1e-6)
        wrong = []
        for name in plugins.installed(plugins.Role.ALGORITHM):
            plugins.load(plugins.Role.ALGORITHM, name)
            ready = threading.Barrier(8)

            def use():
                ready.wait()
                try:
                    plugins.algorithm(name)
                except Exception as error:
                    wrong.append(error)

            threads = [threading.Thread(target=use) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong, wrong
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=100)


def test_one_mutex_object_serves_many_threads():
    mutex = sync.SoftMutex("x", **by_url("one-object"), timeout=60)
    inside: list[int] = []

    def work(_: int) -> int:
        with mutex:
            inside.append(1)
            count = len(inside)
            inside.pop()
            return count

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(12))) == [1] * 12


def test_a_thread_that_waits_too_long_is_told_so():
    with sync.Node(**by_url("too-long")) as node:
        mutex = node.mutex("x")
        hold = mutex.try_acquire()
        assert hold is not None
        with pytest.raises(AcquireTimeout), mutex.hold(timeout=0.05):
            raise AssertionError("entered")
        assert mutex.try_acquire() is None
        with hold:
            pass
        with mutex.hold(timeout=0):
            pass


def test_a_thread_that_asks_for_what_it_holds_is_told_so_at_once():
    mutex = sync.SoftMutex("x", **by_url("nested"))
    with mutex, pytest.raises(SoftMutexError, match="this thread holds the mutex 'x' already"), mutex:
        raise AssertionError("entered")


def test_a_hold_acquired_without_a_body_is_released_by_whichever_thread():
    with sync.Node(**by_url("handle")) as node:
        mutex = node.mutex("x")
        with ThreadPoolExecutor(1) as pool:
            hold = pool.submit(mutex.acquire, 5).result()
        with pytest.raises(AcquireTimeout):
            mutex.acquire(timeout=0.01)
        hold.release()
        hold.release()
        with mutex.acquire(timeout=60):
            assert mutex.statistics().holding == 1


def test_a_thread_is_not_taken_for_an_earlier_one_that_had_its_number():
    """It ended with a hold whose body it had entered, and another one releases that."""
    with sync.Node(**by_url("numbers")) as node:
        mutex = node.mutex("x")
        assert any(its_number_is_given_again(mutex) for _ in range(10)), "a number is given again on this platform"


def its_number_is_given_again(mutex: sync.SoftMutex) -> bool:
    """False: some other thread has it. If it is, the one that has it now waits, and enters."""
    holds: list[sync.Hold] = []
    numbers: list[int] = []
    entered: list[bool] = []
    over = threading.Event()

    def begin() -> None:
        holds.append(mutex.acquire().__enter__())
        numbers.append(threading.get_ident())

    def ask() -> None:
        number = threading.get_ident()
        numbers.append(number)
        if number != numbers[0]:
            over.wait(60)  # keeps its number, so that the next one gets another
            return
        with mutex.hold(timeout=60):
            entered.append(True)

    first = threading.Thread(target=begin)
    first.start()
    first.join(60)
    threads: list[threading.Thread] = []
    while numbers[0] not in numbers[1:] and len(threads) < 10:
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        until_true(lambda: len(numbers) > len(threads))
    is_given = numbers[0] in numbers[1:]
    if is_given:
        until_true(lambda: mutex.statistics().waiting)
    holds[0].release()
    over.set()
    for thread in threads:
        thread.join(60)
    assert entered == [True] * is_given
    return is_given


def test_a_node_that_is_not_open_says_how_a_thread_opens_it():
    with pytest.raises(NodeClosed, match=r"use `with node:`, or node\.open\(\)\."):
        sync.Node(**by_url("shut")).mutex("x").acquire()


def test_an_error_of_the_body_comes_out_as_it_is():
    error = ValueError("own")
    with pytest.raises(ValueError, match="own") as raised, sync.SoftMutex("x", **by_url("own")):
        raise error
    assert raised.value is error


def test_guard_takes_the_mutex_around_a_plain_function():
    mutex = sync.SoftMutex("x", **by_url("guard"))

    @mutex.guard(timeout=60)
    def work(value: int) -> int:
        assert mutex.statistics().holding == 1
        return value

    assert work(3) == 3
    assert work.__name__ == "work"
    with pytest.raises(ConfigError, match="coroutine function"):

        @mutex.guard()
        async def wrong() -> None: ...


def test_a_lost_hold_sets_a_threading_event():
    with sync.Node(**by_url("lost")) as node, node.mutex("x", algorithm=Puppet) as hold:
        lose(node, LostReason.LEASE)
        assert hold.lost.wait(100)
        assert isinstance(hold.lost, threading.Event)
        assert hold.lost_reason == "lease"


def test_where_a_task_would_be_cancelled_a_thread_is_told_after_its_body():
    ended = False

    def work(node: sync.Node) -> None:
        nonlocal ended
        with node.mutex("x", algorithm=Puppet, on_lost="cancel") as hold:
            lose(node)
            assert hold.lost.wait(100)
            ended = True

    with sync.Node(**by_url("lost-cancel")) as node, pytest.raises(HoldLost):
        work(node)
    assert ended


def test_a_reaction_runs_on_a_thread_that_may_block():
    told = threading.Event()
    may_end = threading.Event()

    def react(hold: sync.Hold) -> None:
        told.set()
        may_end.wait(100)

    with sync.Node(**by_url("reaction")) as node, node.mutex("x", algorithm=Puppet, on_lost=react):
        lose(node)
        assert told.wait(100)
        with node.mutex("y").hold(timeout=60):
            pass  # the node goes on meanwhile
        may_end.set()


def test_overrun_is_noticed_while_the_thread_blocks():
    overran = threading.Event()
    with sync.Node(**by_url("overrun")) as node:
        mutex = node.mutex("x", max_hold=0.01, on_overrun=lambda hold: overran.set())
        with mutex:
            assert overran.wait(100)


def test_a_node_that_cannot_open_raises_and_leaves_no_thread():
    with pytest.raises(ConfigError, match="no transport named 'carrier-pigeon'"):
        sync.Node(transport="carrier-pigeon://roof", membership="memory://x").open()
    assert "softmutex" not in [thread.name for thread in threading.enumerate()]


INTERRUPTED = """
import os, signal, threading
from softmutex import sync
where = {"transport": "memory://x", "membership": "memory://x"}
def interrupt():
    while not sync.SoftMutex("x", **where).look().waiting_count:
        pass
    os.kill(os.getpid(), signal.SIGINT)
with sync.SoftMutex("x", **where):
    def wait():
        try:
            threading.Thread(target=interrupt).start()
            with sync.SoftMutex("x", **where, timeout=60):
                print("entered")
        except KeyboardInterrupt:
            print("interrupted")
    wait()
with sync.SoftMutex("x", **where, timeout=60):
    print("free again")
"""


def test_an_interrupt_ends_the_wait_and_leaves_nothing_behind():
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=100)
    assert run.stdout.split("\n") == ["interrupted", "free again", ""], run.stderr


# --- the node on a thread of its own --------------------------------------------------------------------------------


async def test_a_node_on_a_thread_works_as_one_on_the_loop(no_leaks: None):
    async with Node(thread=True, **by_url("threaded")) as node:
        mutex = node.mutex("x")
        async with mutex as hold:
            assert hold.epoch == 1
            assert await mutex.try_acquire() is None
            with pytest.raises(AcquireTimeout):
                await asyncio.create_task(_enter_within(mutex, 0.01))
            waiting = asyncio.create_task(_enter_within(mutex, None))
            await until(lambda: mutex.statistics().waiting)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with mutex.hold(timeout=60):
            assert node.peers() == ()


async def test_a_threaded_node_whose_opening_is_cancelled_leaves_nothing_behind(no_leaks: None):
    network = MemoryNetwork()

    class Slow(MemoryMembership):
        async def join(self, me: Member) -> None:
            await asyncio.Event().wait()

    node = Node(thread=True, transport=network.transport(), membership=Slow(network))
    opening = asyncio.create_task(node.open())
    await until(lambda: network.addresses)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not network.addresses


async def test_a_body_that_blocks_the_loop_does_not_make_a_threaded_node_look_dead(
    no_leaks: None, network: MemoryNetwork
):
    async with node_on(network, thread=True) as blocked, blocked.mutex("x"):
        peer_answers = threading.Event()

        def meanwhile() -> None:
            with sync.Node(transport=network.transport(), membership=network.membership()) as other:
                if other.mutex("x").try_acquire() is None and other.peers():
                    peer_answers.set()

        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join(100)  # the loop stands still
        assert peer_answers.is_set()


async def test_a_loss_on_a_threaded_node_is_seen_while_the_loop_is_blocked_and_waited_for_after(no_leaks: None):
    async with Node(thread=True, **by_url("threaded-lost")) as node, node.mutex("x", algorithm=Puppet) as hold:
        lose(node)
        until_true(hold.lost.is_set)  # without giving the loop its turn
        await hold.lost.wait()
        assert hold.lost_reason == "overlap"


async def test_on_lost_cancel_crosses_the_threads(no_leaks: None):
    async def work(node: Node) -> None:
        async with node.mutex("x", algorithm=Puppet, on_lost="cancel"):
            lose(node)
            await asyncio.Event().wait()

    async with Node(thread=True, **by_url("threaded-cancel")) as node:
        with pytest.raises(HoldLost):
            await work(node)


async def test_cancellation_at_any_moment_leaves_a_threaded_mutex_free(no_leaks: None):
    async with Node(thread=True, **by_url("threaded-free")) as node:
        mutex = node.mutex("x")
        for turns in range(30):
            task = asyncio.create_task(_enter_within(mutex, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with mutex.hold(timeout=60):
            await until(lambda: mutex.statistics().holding == 1)


async def _enter_within(mutex: SoftMutex, timeout: float | None) -> None:
    async with mutex.hold(timeout=timeout):
        pass


# --- plain functions under a mutex of asyncio -----------------------------------------------------------------------


async def test_a_plain_function_under_guard_runs_in_a_thread_and_refuses_the_nodes_own_loop(node: Node):
    mutex = node.mutex("x")

    @mutex.guard(timeout=60)
    def work() -> int:
        return mutex.statistics().holding

    assert await asyncio.to_thread(work) == 1
    with pytest.raises(SoftMutexError, match=r"asyncio.to_thread"):
        work()


async def test_a_plain_function_under_guard_of_a_threaded_node_may_be_called_anywhere(no_leaks: None):
    async with Node(thread=True, **by_url("plain")) as node:
        assert node.mutex("x").guard()(lambda: 5)() == 5


def test_a_plain_function_under_guard_of_a_one_shot_mutex_brings_its_own_thread():
    assert SoftMutex("x", **by_url("plain-one-shot")).guard()(lambda: 5)() == 5
    assert "softmutex" not in [thread.name for thread in threading.enumerate()]


# --- forks ----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(there, said.encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def enter(mutex: sync.SoftMutex) -> None:
    with mutex.hold(timeout=60):
        pass


def test_a_parents_node_raises_in_a_forked_child_and_sends_nothing():
    network = MemoryNetwork.named("fork")
    sent: list[str] = []
    network.tap = lambda source, to, payload: sent.append(to)
    with sync.Node(**by_url("fork")) as node, sync.Node(**by_url("fork")) as other:
        until_true(lambda: node.peers() and other.peers())
        with ThreadPoolExecutor(1) as pool, node.mutex("x").hold(timeout=60):
            waiting = pool.submit(enter, other.mutex("x"))
            until_true(lambda: other.mutex("x").statistics().waiting)
        waiting.result()
        assert sent  # what is said goes over this network

        def use() -> str:
            sent.clear()
            try:
                with node.mutex("x").hold(timeout=60):
                    return "entered"
            except NodeClosed as error:
                said = str(error)
            node.close()  # it is not told to anybody, either
            return f"{len(sent)} sent: {said}"

        said = in_child(use)
        assert said.startswith("0 sent: this node belongs to the parent of this forked process")


def test_the_exit_of_a_parents_hold_in_a_forked_child_does_nothing():
    with sync.SoftMutex("x", **by_url("fork-exit")) as hold:

        def leave() -> str:
            hold.__exit__(None, None, None)
            return "quiet"

        assert in_child(leave) == "quiet"
        assert not hold.lost.is_set()


def test_a_parents_hold_looks_lost_in_a_forked_child_and_cannot_be_released_there():
    with sync.SoftMutex("x", **by_url("fork-hold")) as hold:

        def look() -> str:
            seen = f"{hold.lost.is_set()} {hold.lost.wait(100)} {hold.lost_reason}"
            try:
                hold.release()
            except NodeClosed as error:
                return f"{seen}: {error}"
            return "released"

        assert in_child(look).startswith(
            "True True closed: this hold of the mutex 'x' belongs to the parent of this forked process"
        )
        assert not hold.lost.is_set()
        assert hold.lost_reason is None


async def test_so_does_one_of_a_task(no_leaks: None):
    async with SoftMutex("x", **by_url("fork-task")) as hold:

        def look() -> str:
            try:
                hold.release().send(None)
            except NodeClosed as error:
                return f"{hold.lost.is_set()} {hold.lost_reason} {error}"
            return "released"

        assert in_child(look).startswith("True closed this hold of the mutex 'x' belongs to the parent")


def test_a_one_shot_mutex_of_the_parent_joins_anew_in_a_forked_child(tmp_path: Any):
    mutex = sync.SoftMutex("x", membership=f"local://?directory={tmp_path}", timeout=60)

    def use() -> str:
        with mutex:
            return "entered"

    assert use() == "entered"
    assert in_child(use) == "entered"
    with mutex:
        assert in_child(lambda: str(mutex.try_acquire())) == "None"


def test_children_of_multiprocessing_exclude_each_other(tmp_path: Any):
    record = tmp_path / "record"
    context = multiprocessing.get_context("fork")
    mutex = sync.SoftMutex("x", membership=f"local://?directory={tmp_path}", timeout=100)

    def work(number: int) -> None:
        for _ in range(3):
            with mutex:
                with record.open("a") as file:
                    file.write(f"in {number}\n")
                with record.open("a") as file:
                    file.write(f"out {number}\n")

    children = [context.Process(target=work, args=(number,)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
    lines = record.read_text().split("\n")[:-1]
    assert len(lines) == 24
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert left == entered.replace("in", "out")


def test_an_interpreter_that_ends_with_a_node_open_does_not_hang():
    script = textwrap.dedent("""
        from softmutex import sync
        node = sync.Node(transport="memory://x", membership="memory://x")
        node.open()
        node.mutex("x").try_acquire()
    """)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (run.returncode, but_for_standstills(run.stderr)) == (0, "")
