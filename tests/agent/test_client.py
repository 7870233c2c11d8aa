"""`softmutex.client`: what programs see of the agent."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softmutex import AcquireTimeout, ConfigError, HoldLost, SoftMutexError
from softmutex.agent.link import pack
from softmutex.client import Elsewhere, NoAgent, SoftMutex
from softmutex.core.events import LostReason
from tests import prepared
from tests.agent.conftest import Agent, StartAgent
from tests.cli.processes import PATIENCE_S, eventually, started


def test_a_thread_holds_it_and_others_do_not(agent: Agent):
    mutex = SoftMutex("x")
    with mutex as hold:
        assert hold.name == "x"
        assert hold.epoch == 1
        assert hold.peers == 0
        assert not hold.lost.is_set()
        assert mutex.try_acquire() is None
        with SoftMutex("y"):
            pass
    second = mutex.try_acquire()
    assert second is not None
    with second:
        assert (second.epoch, second.hop) > (hold.epoch, hold.hop)


async def test_a_task_holds_it_and_others_do_not(agent: Agent):
    mutex = SoftMutex("x")
    async with mutex as hold:
        assert hold.name == "x"
        assert not hold.lost.is_set()
        with pytest.raises(AcquireTimeout):
            async with mutex.hold(timeout=0):
                pass
    async with mutex.hold(timeout=60):
        pass


def test_threads_take_turns(agent: Agent):
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with SoftMutex("x", timeout=60):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


async def test_tasks_take_turns(agent: Agent):
    inside = most = 0
    mutex = SoftMutex("x", timeout=60)

    async def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            async with mutex:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(work() for _ in range(4)))
    assert most == 1


def test_a_time_limit_is_kept(agent: Agent):
    with SoftMutex("x"), pytest.raises(AcquireTimeout, match=r"0\.05 s"):
        SoftMutex("x").acquire(0.05)
    with pytest.raises(ConfigError):
        SoftMutex("x").acquire(-1)


def test_a_decorated_function_runs_while_it_is_held(agent: Agent):
    mutex = SoftMutex("x")

    @mutex.guard(timeout=60)
    def work(number: int) -> int:
        assert mutex.try_acquire() is None
        return number

    assert work(3) == 3


def test_what_would_run_after_the_call_cannot_be_decorated():
    def numbers():
        yield 1

    async def work() -> None: ...

    for wrong, why in ((numbers, "is a generator"), (work, "is a coroutine function")):
        with pytest.raises(ConfigError, match=why):
            SoftMutex("x").guard()(wrong)


async def test_a_cancelled_wait_leaves_the_queue(agent: Agent):
    mutex = SoftMutex("x")
    async with mutex:
        waiting = asyncio.create_task(mutex.__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    async with mutex.hold(timeout=60):
        pass


def test_a_loop_that_ends_before_the_agent_answers_leaves_no_link_behind(tmp_path: Path):
    """A thread calls the agent, for it may be stuck, and what it brings nobody may want any more."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "agent"))
        listening.listen()
        asked, ends = threading.Event(), threading.Event()

        def answer() -> None:
            link, _ = listening.accept()
            with link:
                link.recv(65536)
                asked.set()
                assert ends.wait(PATIENCE_S)
                link.sendall(pack("welcome"))
                link.settimeout(PATIENCE_S)
                assert link.recv(65536) == b"", "nobody has hung up"

        async def cancelled_while_it_calls() -> None:
            waiting = asyncio.create_task(SoftMutex("x", agent=tmp_path / "agent").__aenter__())
            await asyncio.to_thread(asked.wait, PATIENCE_S)
            waiting.cancel()
            await asyncio.wait([waiting])
            asyncio.get_running_loop().call_soon(ends.set)  # all that is left are threads

        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            asyncio.run(cancelled_while_it_calls())
            answering.result()
    gc.collect()  # what was left open would be warned of here


def test_slots_and_other_options_go_along(agent: Agent):
    with SoftMutex("x", slots=2), SoftMutex("x", slots=2, timeout=60):
        assert SoftMutex("x", slots=2).try_acquire() is None
    one = {"slots": 2, "options": {"each": 1}}
    with SoftMutex("one of two", **one):  # type: ignore[arg-type]
        assert SoftMutex("one of two", **one).try_acquire() is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slots"):
        SoftMutex("y", slots=0).acquire()
    with pytest.raises(ConfigError, match="pigeon"):
        SoftMutex("y", algorithm="pigeon").acquire()
    with pytest.raises(ConfigError, match="text of 1 to 64 bytes"):
        SoftMutex("").acquire()


@pytest.mark.parametrize("wrong", [{"on_lost": "shrug"}, {"transport": "udp://:0"}, {"timeuot": 3}])
def test_what_an_agents_client_cannot_do_is_an_error_at_once(wrong: dict[str, str]):
    with pytest.raises(ConfigError):
        SoftMutex("x", **wrong)  # type: ignore[arg-type]


def test_a_hold_that_is_over_cannot_be_entered_again(agent: Agent):
    hold = SoftMutex("x").acquire()
    hold.release()
    hold.release()
    with pytest.raises(SoftMutexError, match="is over"), hold:
        pass


def test_without_an_agent_the_error_names_the_command(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NoAgent, match="softmutex agent"):
        SoftMutex("x").acquire()
    monkeypatch.setenv("SOFTMUTEX_AGENT", "off")
    with pytest.raises(NoAgent, match="SOFTMUTEX_AGENT=off"):
        SoftMutex("x").acquire()


def test_an_agent_of_another_group_is_not_taken_for_ones_own(agent: Agent, environ: dict[str, str]):
    with SoftMutex("x", place={"membership": environ["SOFTMUTEX_MEMBERSHIP"], "group": "default"}):
        pass
    with pytest.raises(Elsewhere, match="'lab' is wanted"):
        SoftMutex("x", place={"group": "lab"}).acquire()


def test_a_long_hold_overruns_unless_it_is_touched(agent: Agent):
    with SoftMutex("x", max_hold=60, on_overrun="cancel") as hold:
        assert hold.deadline is not None
        before = hold.deadline
        hold.touch()
        assert hold.deadline > before

    def overrun() -> None:
        with SoftMutex("x", max_hold=0.02, on_overrun="cancel"):
            agent.says("longer than max_hold")
            SoftMutex("y").acquire().release()  # once it has answered this, it has sent the news, too

    with pytest.raises(HoldLost, match="max_hold"):
        overrun()


# --- deaths ----------------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from softmutex.client import SoftMutex
with SoftMutex("x"):
    print("held", flush=True)
    sys.stdin.readline()
"""
FORKING = HOLDER.replace("    print", "    import os\n    os.fork() or os.execvp('sleep', ['sleep', '60'])\n    print")
FORKING_PYTHON = HOLDER.replace("    print", "    import os, time\n    os.fork() or time.sleep(60)\n    print")


@pytest.mark.parametrize("program", [HOLDER, FORKING, FORKING_PYTHON], ids=["alone", "with a child", "with a fork"])
def test_a_client_that_is_killed_gives_its_hold_back_at_once(agent: Agent, environ: dict[str, str], program: str):
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(sys.executable, "-c", program, env=environ, **streams) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        assert SoftMutex("x").try_acquire() is None
        holder.kill()
        with SoftMutex("x", timeout=PATIENCE_S):
            pass
        os.killpg(holder.pid, signal.SIGKILL)


def test_an_agent_that_is_killed_is_a_lost_hold_and_the_holder_goes_on(agent: Agent):
    with SoftMutex("x") as hold:
        assert not hold.lost.is_set()
        agent.process.kill()
        assert hold.lost.wait(PATIENCE_S)
        assert hold.lost_reason is LostReason.CLOSED
    with pytest.raises(NoAgent):
        SoftMutex("x").acquire()


async def test_a_task_is_told_while_its_body_runs_and_cancelled_where_it_asked_for_that(start_agent: StartAgent):
    for on_lost in ("continue", "cancel"):
        agent = start_agent()
        began = asyncio.Event()

        async def work(on_lost: str = on_lost, began: asyncio.Event = began) -> str:
            async with SoftMutex("x", on_lost=on_lost) as hold:
                began.set()
                await hold.lost.wait()
                await asyncio.sleep(0)
                return "went on"

        working = asyncio.create_task(work())
        await began.wait()
        agent.process.kill()
        if on_lost == "continue":
            assert await working == "went on"
        else:
            with pytest.raises(HoldLost):
                await working


def test_a_thread_that_asked_for_it_gets_holdlost_after_the_body(agent: Agent):
    def body() -> None:
        with SoftMutex("x", on_lost="cancel") as hold:
            agent.process.kill()
            hold.lost.wait(PATIENCE_S)

    with pytest.raises(HoldLost, match="closed"):
        body()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_who_waits_asks_the_agent_that_comes_after(start_agent: StartAgent, environ: dict[str, str], how: int):
    first = start_agent("--leave-timeout", "1s")
    with (
        SoftMutex("x") as hold,
        started(sys.executable, "-c", HOLDER, env=environ, stdout=subprocess.PIPE) as waiter,
    ):
        eventually(lambda: waits(environ), "it waits")
        first.process.send_signal(how)
        assert hold.lost.wait(PATIENCE_S), "who holds is told"
        first.ends()
        start_agent()
        assert waiter.stdout
        assert waiter.stdout.readline() == "held\n"


async def test_a_task_that_waits_asks_the_agent_that_comes_after(start_agent: StartAgent, environ: dict[str, str]):
    first = start_agent()
    async with SoftMutex("x") as hold:
        waiting = asyncio.create_task(SoftMutex("x", timeout=60).__aenter__())
        await asyncio.to_thread(eventually, lambda: waits(environ), "it waits")
        first.process.kill()
        await hold.lost.wait()
    await asyncio.to_thread(first.ends)
    await asyncio.to_thread(start_agent)
    again = await waiting
    await again.release()


def waits(environ: dict[str, str]) -> bool:
    shown = prepared.run(
        [Path(sys.executable).with_name("softmutex"), "status", "-n", "x", "--json"],
        env=environ,
        capture_output=True,
        text=True,
    )
    return '"waiting_count": 1' in shown.stdout


def test_the_time_limit_counts_on_while_no_agent_is_there(agent: Agent, environ: dict[str, str]):
    with SoftMutex("x"):
        failed: list[Exception] = []

        def wait() -> None:
            try:
                SoftMutex("x").acquire(1.0)
            except Exception as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        began = time.monotonic()
        waiting.start()
        eventually(lambda: waits(environ) or failed, "it waits")
        agent.process.kill()
        waiting.join(PATIENCE_S)
    assert isinstance(failed[0], AcquireTimeout)
    assert time.monotonic() - began >= 1.0


# --- how little it is ------------------------------------------------------------------------------------------------


def test_a_client_imports_no_event_loop_and_nothing_else_that_is_large():
    code = (
        "import sys, softmutex.client; "
        "print(*[name for name in ('asyncio', 'aiohttp', 'logging', 'inspect', 'ssl', 'threading', 'cryptography',"
        " 'opentelemetry', 'dataclasses', 'argparse', 'importlib.metadata') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_a_client_needs_no_thread(agent: Agent):
    before = threading.active_count()
    with SoftMutex("x") as hold:
        hold.lost.is_set()
        assert threading.active_count() == before


def test_it_looks_and_takes_away_by_its_agent(agent: Agent):
    with SoftMutex("x", purpose="lftp") as hold:
        seen = SoftMutex("x").look()
        assert [(one.purpose, one.epoch) for one in seen.holders] == [("lftp", hold.epoch)]
        assert seen.waiting == ()
        assert SoftMutex("x").evict("hangs since noon") == 1
        assert hold.lost.wait(PATIENCE_S)
        assert (hold.lost_reason, hold.lost_detail) == (LostReason.EVICTED, "hangs since noon")
        with SoftMutex("x", timeout=100):
            pass
    eventually(lambda: not SoftMutex("x").look().holders, "it is not given back")
    assert SoftMutex("x").evict("nobody") == 0
    with pytest.raises(SoftMutexError, match="text of 1 to 64 bytes"):
        SoftMutex("").look()


def test_a_time_out_says_who_is_in_the_way(agent: Agent):
    with SoftMutex("x", purpose="lftp"), pytest.raises(AcquireTimeout, match=r"within 0.1 s: \S+ holds it .*\(lftp of"):
        SoftMutex("x", timeout=0.1).acquire()


def test_a_heavy_one_has_all_its_slots_or_waits(agent: Agent):
    heavy, light = SoftMutex("x", slots=3, weight=3), SoftMutex("x", slots=3, weight=1)
    with light:
        assert heavy.try_acquire() is None
    with heavy:
        assert light.try_acquire() is None
        assert len(light.look().holders) == 3
    with light, light:
        pass
