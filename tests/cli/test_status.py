"""`softmutex status`: what it shows, and that nobody notices it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softmutex import Node
from softmutex.cli import status
from tests import prepared
from tests.cli.processes import children_of, eventually, read_number, started, state_of
from tests.cli.screen import at_terminal
from tests.runtime.group import until

SOFTMUTEX = Path(sys.executable).with_name("softmutex")


async def ask(environ: dict[str, str], *flags: str) -> Any:
    """What `softmutex status --json` prints, as soon as all answer: processes of a busy machine may stand still for
    longer than it waits for them."""
    command = [SOFTMUTEX, "status", "--json", *flags]

    async def told_by_all() -> Any:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = await asyncio.to_thread(prepared.run, command, env=environ, **streams)
        if done.returncode == 69 and "nobody answered" in done.stderr:
            return None
        assert done.returncode == 0
        picture = json.loads(done.stdout)
        return picture if all(node["answers"] for node in picture["nodes"]) else None

    return await until(told_by_all)


def local(environ: dict[str, str]) -> dict[str, str]:
    return {"membership": environ["SOFTMUTEX_MEMBERSHIP"]}


async def test_it_shows_who_holds_who_waits_and_for_how_long(no_leaks: None, environ: dict[str, str]):
    async with Node(name="a", **local(environ)) as a, Node(name="b", **local(environ)) as b:
        async with a.mutex("x"):
            waiting = asyncio.create_task(b.mutex("x").try_acquire())
            waiters = [asyncio.create_task(wait_for(b, "x")) for _ in range(3)]
            await waiting
            picture = await ask(environ)
            [x] = picture["mutexes"]
            assert [hold["node"] for hold in x["holders"]] == ["a"] == x["tokens_at"]
            assert x["holders"][0]["for"] > 0
            assert [one["node"] for one in x["waiting"]] == ["b"] * 3 and x["waiting_count"] == 3
            assert all(one["for"] > 0 for one in x["waiting"])
            assert (x["name"], x["algorithm"], x["slots"], x["epoch"]) == ("x", "wandering", 1, 1)
        await asyncio.gather(*waiters)
        [x] = (await ask(environ))["mutexes"]
        assert (x["holders"], x["waiting"], x["acquisitions"]) == ([], [], 4)


async def test_it_shows_who_takes_several_slots_and_who_is_urgent(no_leaks: None, environ: dict[str, str]):
    async with Node(name="a", **local(environ)) as a, Node(name="b", **local(environ)) as b:
        async with a.mutex("x", slots=4, weight=3, ageing=60):
            heavy = asyncio.create_task(wait_for(b, "x", slots=4, weight=2, ageing=60, priority=5))
            await until(lambda: (seen := b.mutex_statistics("x (gate)")).waiting or seen.acquisitions)
            picture = await ask(environ)
            [line] = [line for line in status.lines(picture) if "waits" in line]
            [x] = [one for one in picture["mutexes"] if one["name"] == "x"]
            holders = [(hold["node"], hold["slots"]) for hold in x["holders"] if hold["node"] == "a"]
            assert holders == [("a", 3)]
            assert any("held by   a" in line and "takes 3 slots" in line for line in status.lines(picture))
            [waits] = [one for mutex in picture["mutexes"] for one in mutex["waiting"]]
            assert (waits["node"], waits["slots"], waits["priority"]) == ("b", 2, 5)
            assert re.search(r"waits     b  for [^,]+, wants 2 slots, priority 5", line)
        await heavy


async def wait_for(node: Node, name: str, **options: Any) -> None:
    async with node.mutex(name, **options):
        pass


async def test_nobody_notices_who_looks(no_leaks: None, environ: dict[str, str]):
    async with Node(name="a", **local(environ)) as a, Node(name="b", **local(environ)) as b:
        await wait_for(a, "x")
        await wait_for(b, "x")
        await until(lambda: a.mutex_statistics("x").facts.get("handed_over"))
        before = [traces_of_visits(node) for node in (a, b)]
        for _ in range(3):
            assert len((await ask(environ))["nodes"]) == 2
        assert [traces_of_visits(node) for node in (a, b)] == before


def traces_of_visits(node: Node) -> Any:
    """What would change if a member came or the token went anywhere. Not who was late: on a machine that stands still
    a step of the hand-over before is repeated, and its second copy dropped now."""
    seen = node.mutex_statistics("x")
    facts = {what: count for what, count in seen.facts.items() if what != "stale"}
    return [peer.id for peer in node.peers()], seen.acquisitions, seen.sent.get("OFFER"), facts


async def test_a_node_with_a_fixed_port_on_this_host_is_not_in_the_way(no_leaks: None, environ: dict[str, str]):
    async with Node(name="a", transport="udp://127.0.0.1:0", membership="static://127.0.0.1:1") as a:
        flags = ("--transport", f"udp://{a.address}", "--membership", f"static://{a.address}")
        [node] = (await ask(environ, *flags))["nodes"]
        assert (node["name"], node["answers"]) == ("a", True)


async def test_only_the_mutex_that_was_asked_for(no_leaks: None, environ: dict[str, str]):
    async with Node(**local(environ)) as node:
        for name in "xyz":
            await wait_for(node, name)
        assert [each["name"] for each in (await ask(environ, "-n", "y"))["mutexes"]] == ["y"]
        assert (await ask(environ, "-n", "nobody's"))["mutexes"] == []


async def test_clocks_and_round_trips_are_measured(no_leaks: None, environ: dict[str, str]):
    async with Node(**local(environ)):
        [node] = (await ask(environ))["nodes"]
        assert 0 < node["rtt"] < 60
        assert abs(node["clock_offset"]) < 30


async def test_the_object_has_the_documented_form(no_leaks: None, environ: dict[str, str]):
    documented = re.search(r"^    (\{\"group\".*?\})\n\n", status.__doc__ or "", re.DOTALL | re.MULTILINE)
    assert documented
    async with Node(name="a", **local(environ)) as a, a.mutex("x"):
        waiter = asyncio.create_task(wait_for(a, "x"))
        await until(lambda: a.mutex_statistics("x").waiting)
        picture = await ask(environ)
    await asyncio.gather(waiter, return_exceptions=True)
    assert shape(picture) == shape(json.loads(documented[1]))


def shape(value: Any) -> Any:
    match value:
        case dict():
            return {key: shape(inner) for key, inner in value.items()}
        case list():
            return [shape(inner) for inner in value[:1]]
        case _:
            return None


HOSTILE = "n\x1b[2J\nx"


async def test_a_name_cannot_write_to_the_terminal_of_who_looks(no_leaks: None, environ: dict[str, str]):
    async with Node(name=HOSTILE, **local(environ)) as node, node.mutex(HOSTILE):
        for command in (["status"], ["doctor"], ["key", "list", "--members"]):
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            said = (await asyncio.to_thread(prepared.run, [SOFTMUTEX, *command], env=environ, **streams)).stdout
            assert r"n\x1b[2J\nx" in said
            assert "\x1b" not in said and "\nx" not in said
        assert (await ask(environ))["nodes"][0]["name"] == HOSTILE


def say(environ: dict[str, str], *flags: str) -> tuple[int, str, str]:
    run = prepared.run([SOFTMUTEX, "status", *flags], env=environ, capture_output=True, text=True, timeout=100)
    return run.returncode, run.stdout, run.stderr


def test_where_nobody_is_it_says_so(environ: dict[str, str]):
    code, said, _ = say(environ)
    assert code == 0
    assert "0 nodes" in said and "no mutex is in use" in said


def test_who_does_not_answer_is_shown_as_such(environ: dict[str, str], tmp_path: Path):
    command = ("run", "-n", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    with started(SOFTMUTEX, *command, env=environ, cwd=tmp_path) as run:
        read_number(tmp_path / "pid")
        agent = next(child for child in children_of(run.pid) if os.getsid(child) == child)
        eventually(lambda: "held by" in say(environ)[1], "it is not told who holds it")
        os.kill(agent, signal.SIGSTOP)
        eventually(lambda: state_of(agent) == "T", "it is stopped")
        code, said, _ = say(environ)
        assert code == 69
        assert "no answer: see softmutex doctor" in said
        assert "nobody answered: 1 member is listed" in said and "no mutex is in use" not in said
        os.kill(agent, signal.SIGCONT)


@pytest.mark.parametrize(
    ("answers", "has_token", "said"),
    [
        (True, False, "  free"),
        (True, True, "  free, or on the way between two nodes"),
        (False, False, "  held by nobody that answers; 1 node did not"),
        (False, True, "  held by nobody that answers; 1 node did not"),
    ],
)
def test_it_calls_no_mutex_free_while_somebody_who_may_hold_it_does_not_answer(
    answers: bool, has_token: bool, said: str
):
    """By an algorithm without a token only the holder knows: stopped by SIGSTOP, it was not asked, and all was free."""
    nodes = [
        {"name": name, "address": "127.0.0.1:1", "answers": there, "rtt": 0.001}
        for name, there in (("a", True), ("b", answers))
    ]
    x = {
        "name": "x",
        "algorithm": "voting",
        "slots": 1,
        "epoch": 3,
        "has_token": has_token,
        "acquisitions": 0,
        "holders": [],
        "waiting": [],
    }
    x |= {"tokens_at": [], "waiting_count": 0, "isolated": []}
    picture = {"group": "g", "membership": "local://", "at": 0.0, "unknown": "", "nodes": nodes, "mutexes": [x]}
    assert status.lines(picture)[-1] == said


@pytest.mark.parametrize(
    ("membership", "listed"),
    [("static://127.0.0.1:1,127.0.0.1:2", "2 members are"), ("registry+http://127.0.0.1:1/g", "no members are")],
)
def test_where_nobody_answers_it_does_not_say_that_nothing_is_in_use(
    environ: dict[str, str], membership: str, listed: str
):
    for flag in ("--json", "--group=default"):
        code, said, _ = say(environ, "--insecure", "--membership", membership, flag)
        assert code == 69
        assert f"nobody answered: {listed} listed" in said and "softmutex doctor" in said
        assert "no mutex is in use" not in said


def test_the_keys_of_members_of_whom_none_answers_are_not_none(environ: dict[str, str]):
    command = [SOFTMUTEX, "key", "list", "--members", "--insecure", "--membership", "static://127.0.0.1:1"]
    run = prepared.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert run.returncode == 69
    assert "nobody answered: 1 member is listed" in run.stdout and "in use:" not in run.stdout


def test_a_group_that_cannot_be_looked_at_is_69_and_says_why(environ: dict[str, str], tmp_path: Path):
    (tmp_path / "runtime").write_text("in the way")
    code, _, said = say(environ)
    assert code == 69
    assert said.startswith("softmutex status: the group cannot be looked at") and "Not a directory" in said


def test_watching_wants_a_terminal(environ: dict[str, str]):
    code, _, said = say(environ, "--watch")
    assert code == 64
    assert "--watch wants a terminal" in said


def test_watching_shows_what_changes_and_ends_on_ctrl_c(environ: dict[str, str], tmp_path: Path):
    with at_terminal(str(SOFTMUTEX), "status", "--watch", env=environ) as screen:
        screen.shows("no mutex is in use")
        command = ("run", "-n", "nightly", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
        with started(SOFTMUTEX, *command, env=environ, cwd=tmp_path) as run:
            screen.shows("nightly")
            screen.shows("held by")
            run.terminate()
            run.wait()
        screen.shows("no mutex is in use")
        screen.type("\x03")
        assert screen.ends() == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.5, "9.5 s"), (59.4, "59 s"), (61, "1 min 1 s"), (7321, "2 h 2 min")]
)
def test_spans_read_as_one_says_them(seconds: float, text: str):
    assert status.span(seconds) == text
