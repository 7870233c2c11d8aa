"""`softmutex run` where an agent is there: the same exit codes, the same promises, without a node of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softmutex.client import SoftMutex
from tests import prepared
from tests.agent.conftest import SOFTMUTEX, Agent, Start, StartAgent
from tests.cli.processes import PATIENCE_S, children_of, eventually, group_is_empty, read_number, started, state_of

HOLDS = "echo $$ > {0}.pid; exec sleep 60"


def says(run: subprocess.Popen[str], text: str) -> list[str]:
    """What it said up to that line."""
    assert run.stderr
    lines = []
    for line in run.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"no {text!r} in {lines}")


def told(run: subprocess.Popen[str]) -> str:
    assert run.stderr
    return run.stderr.read()


@pytest.mark.parametrize("code", [0, 3, 75, 255])
def test_the_exit_code_is_exactly_the_commands(agent: Agent, run: Start, code: int):
    started = run(f"exit {code}", "-v")
    assert started.wait(100) == code
    assert re.search(r"joined as \S+, 0 others known", told(started)), "it is the agent's node that answers"


def test_no_node_of_its_own_is_started(agent: Agent, run: Start, tmp_path: Path):
    run(HOLDS.format("holder"))
    read_number(tmp_path / "holder.pid")
    shown = prepared.run([SOFTMUTEX, "status", "--json"], capture_output=True, text=True).stdout
    assert shown.count('"address"') == 1


def test_no_agent_means_a_node_of_its_own(agent: Agent, run: Start):
    for alone in ([], ["--no-agent"]):
        started = run("exit 0", "-v", *alone)
        assert started.wait(100) == 0
        assert (", 1 other known" in told(started)) == bool(alone)


def test_75_when_it_was_not_acquired_in_time(agent: Agent, run: Start, environ: dict[str, str]):
    with SoftMutex("x"):
        for flag, why in (("--timeout=0.3s", "within 0.3 s"), ("--on-busy=fail", "in use, and not waited for")):
            started = run("touch ran", flag)
            assert started.wait(100) == 75
            assert why in told(started)


def test_64_for_what_cannot_be(agent: Agent, run: Start):
    started = run("true", "--algorithm", "pigeon")
    assert started.wait(100) == 64
    assert "pigeon" in told(started)


def test_the_command_sees_what_it_holds(agent: Agent, run: Start):
    started = run("echo $SOFTMUTEX_HELD, $SOFTMUTEX_EPOCH", stdout=subprocess.PIPE)
    assert started.communicate(timeout=100)[0] == "x, 1\n"


def test_jobs_of_one_agent_share_the_slots(agent: Agent, run: Start, tmp_path: Path):
    for name in ("first", "second"):
        run(HOLDS.format(name), "--slots", "2")
        read_number(tmp_path / f"{name}.pid")
    assert run("true", "--slots", "2", "--on-busy", "fail").wait(100) == 75


def test_a_heavy_command_waits_for_all_its_slots(agent: Agent, run: Start, tmp_path: Path):
    run(HOLDS.format("heavy"), "--slots", "3", "--weight", "2")
    read_number(tmp_path / "heavy.pid")
    assert run("true", "--slots", "3", "--weight", "2", "--on-busy", "fail").wait(100) == 75
    assert run("true", "--slots", "3", "--weight", "1").wait(100) == 0
    assert run("true", "--slots", "3", "--weight", "4").wait(100) == 64


@pytest.mark.parametrize("what", ["--membership=local://other", "--transport=udp://127.0.0.1:0"])
def test_what_the_agent_cannot_be_is_a_node_of_its_own(agent: Agent, run: Start, what: str):
    with SoftMutex("y"):
        started = run("exit 5", "-v", what)
        assert started.wait(100) == 5
        said = told(started)
        assert f"joined as {os.uname().nodename.partition('.')[0]}-{agent.pid}-" not in said
        assert "no agent came back" not in said, "it waited ten seconds, and one is there"


def test_a_front_that_is_killed_takes_its_group_along_before_the_mutex_is_handed_on(
    agent: Agent, run: Start, tmp_path: Path
):
    front = run("sh -c 'echo $$ > grandchild.pid; exec sleep 60' & " + HOLDS.format("child"))
    child, grandchild = read_number(tmp_path / "child.pid"), read_number(tmp_path / "grandchild.pid")
    front.kill()
    with SoftMutex("x", timeout=PATIENCE_S):
        assert state_of(grandchild) in "XZ", "somebody else is in beside a process of the killed one"
    eventually(lambda: group_is_empty(child), "nothing is left")


SLOW_FRONT = """
import os, sys, time
fork = os.fork
def slow_fork():
    child = fork()
    if child:
        time.sleep(60)
    return child
os.fork = slow_fork
from softmutex.cli import main
sys.exit(main())
"""


def test_nothing_is_left_of_a_group_whose_front_was_killed_before_it_went_on(
    agent: Agent, tmp_path: Path, environ: dict[str, str]
):
    """The machine let it stand still as soon as it had forked."""
    script = "sh -c 'echo $$ > grandchild.pid; exec sleep 60' & echo $$ > child.pid; exec sleep 60"
    words = [sys.executable, "-c", SLOW_FRONT, "run", "-n", "x", "--", "sh", "-c", script]
    with started(*words, cwd=tmp_path, env=environ) as front:
        child, grandchild = read_number(tmp_path / "child.pid"), read_number(tmp_path / "grandchild.pid")
        front.kill()
        with SoftMutex("x", timeout=PATIENCE_S):
            assert state_of(grandchild) in "XZ", "somebody else is in beside a process of the killed one"
        eventually(lambda: group_is_empty(child), "nothing is left")


def test_a_signal_ends_the_waiting(agent: Agent, run: Start):
    with SoftMutex("x"):
        waiter = run("touch ran", "-v")
        says(waiter, "asking for x")
        waiter.send_signal(signal.SIGTERM)
        assert waiter.wait(100) == 128 + signal.SIGTERM
    with SoftMutex("x", timeout=PATIENCE_S) as hold:
        assert hold.epoch == 1


def test_a_suspended_waiter_is_passed_over_and_asks_again(agent: Agent, run: Start):
    with SoftMutex("x"):
        sleeper = run("exit 5", "-v")
        says(sleeper, "asking for x")
        sleeper.send_signal(signal.SIGTSTP)
        eventually(lambda: state_of(sleeper.pid) == "T", "it is stopped")
    with SoftMutex("x", timeout=PATIENCE_S):
        sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(100) == 5


@pytest.mark.parametrize(("on_lost", "code"), [("warn", 7), ("term", 128 + signal.SIGTERM)])
def test_an_agent_that_is_killed_while_the_command_runs_is_a_lost_hold(
    agent: Agent, run: Start, tmp_path: Path, on_lost: str, code: int
):
    holder = run("echo $$ > child.pid; while [ ! -e go ]; do sleep 0.05; done; exit 7", "--on-lost", on_lost)
    read_number(tmp_path / "child.pid")
    agent.process.kill()
    says(holder, "ended unexpectedly")
    (tmp_path / "go").touch() if on_lost == "warn" else None
    assert holder.wait(100) == code


def test_an_agent_that_ends_tells_once_and_the_command_goes_on(start_agent: StartAgent, run: Start, tmp_path: Path):
    agent = start_agent("--leave-timeout", "0.2s")
    holder = run("echo $$ > child.pid; while [ ! -e go ]; do sleep 0.05; done; exit 7")
    read_number(tmp_path / "child.pid")
    agent.process.terminate()
    assert agent.ends() == 0
    (tmp_path / "go").touch()
    assert holder.wait(100) == 7
    assert told(holder).count("may be held by others, too") == 1


def test_a_waiter_asks_the_agent_that_comes_after(start_agent: StartAgent, run: Start):
    first = start_agent()
    with SoftMutex("x"):
        waiter = run("exit 6", "-v")
        says(waiter, "asking for x")
        first.process.kill()
        first.ends()
        start_agent()
        says(waiter, "the agent is there again")
    assert waiter.wait(100) == 6


def test_a_waiter_keeps_its_place_when_the_agent_is_killed(start_agent: StartAgent, run: Start, tmp_path: Path):
    first = start_agent()
    holder = run("echo $$ > holder.pid; until [ -e go ]; do sleep 0.05; done", "--no-agent")
    read_number(tmp_path / "holder.pid")
    waiter = run("echo waiter >> order", "-v")
    says(waiter, "asking for x")
    waiter.send_signal(signal.SIGSTOP)  # so that the other one certainly asks the new agent first
    first.process.kill()
    first.ends()
    start_agent()
    newcomer = run("echo newcomer >> order", "-v")
    says(newcomer, "asking for x")
    waiter.send_signal(signal.SIGCONT)
    says(waiter, "the agent is there again")
    eventually(lambda: SoftMutex("x").look().waiting_count == 2, "both wait")
    (tmp_path / "go").touch()
    assert [each.wait(100) for each in (holder, waiter, newcomer)] == [0, 0, 0]
    assert (tmp_path / "order").read_text().split() == ["waiter", "newcomer"]


def test_who_comes_when_the_agent_was_just_killed_waits_for_the_next_one_behind_those_who_wait(
    start_agent: StartAgent, run: Start, tmp_path: Path
):
    first = start_agent()
    with SoftMutex("x"):
        waiter = run("echo waiter >> order", "-v")
        says(waiter, "asking for x")
        first.process.kill()
        first.ends()
    newcomer = run("echo newcomer >> order", "-v")
    says(newcomer, "no agent answers")
    start_agent()
    assert [each.wait(100) for each in (waiter, newcomer)] == [0, 0]
    assert (tmp_path / "order").read_text().split() == ["waiter", "newcomer"]


def test_who_has_little_time_when_the_agent_was_just_killed_joins_alone(agent: Agent, run: Start):
    agent.process.kill()
    agent.ends()
    assert run("true", "--timeout", "10s").wait(100) == 0, "it would have been waited for as long as that"


@pytest.mark.slow
def test_a_waiter_whose_agent_never_comes_back_joins_alone(agent: Agent, run: Start):
    with SoftMutex("x"):
        waiter = run("exit 6", "-v")
        says(waiter, "asking for x")
        agent.process.kill()
        said = says(waiter, "no agent came back; joining alone")
        assert len(said) <= 3, "it is told once that no agent answers, however often it is asked"
        assert waiter.wait(100) == 6
    assert not children_of(waiter.pid)


def test_the_front_imports_no_event_loop(agent: Agent, environ: dict[str, str]):
    code = (
        "import sys\nfrom softmutex.cli import main\n"
        "assert main(['run', '-n', 'x', '--', 'true']) == 0\n"
        "print(*[name for name in ('asyncio', 'aiohttp', 'logging', 'cryptography', 'opentelemetry', 'ssl', 'inspect',"
        " 'dataclasses', 'difflib', 'email', 'importlib.metadata', 'tomllib', 'uuid', 'ctypes.util', 'shutil',"
        " 'locale') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert (ran.stdout.split(), ran.stderr) == ([], "")
