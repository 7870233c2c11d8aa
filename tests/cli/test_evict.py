"""`softmutex evict` and `history`, and what a command that waits is told of who is in the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import prepared
from tests.cli.processes import PATIENCE_S, eventually, read_number, started
from tests.cli.screen import at_terminal

SOFTMUTEX = Path(sys.executable).with_name("softmutex")
HOLDS = "echo $$ > {0}.pid; exec sleep 60"
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    return {**environ, "SOFTMUTEX_AGENT": "off"}


@pytest.fixture
def hold(tmp_path: Path, environ: dict[str, str]) -> Iterator[Hold]:
    with ExitStack() as stack:

        def begin(name: str, *flags: str) -> subprocess.Popen[str]:
            words = [SOFTMUTEX, "run", "-n", "x", *flags, "--", "sh", "-c", HOLDS.format(name)]
            process = stack.enter_context(started(*words, cwd=tmp_path, env=environ))
            read_number(tmp_path / f"{name}.pid")
            return process

        yield begin


def say(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return prepared.run([SOFTMUTEX, *words], env=environ, capture_output=True, text=True, cwd="/")


def status(environ: dict[str, str]) -> Any:
    """As soon as somebody answers: on a busy machine members may stand still for longer than is waited for them."""
    found = eventually(lambda: said_of(environ), "nobody tells of it")
    return found[0]


def said_of(environ: dict[str, str]) -> Any:
    shown = say(environ, "status", "--json", "-n", "x")
    return shown.returncode == 0 and json.loads(shown.stdout)["mutexes"]


def test_a_command_that_hangs_is_ended_and_the_next_one_runs_and_members_remember_it(
    hold: Hold, environ: dict[str, str]
):
    hanging = hold("hanging", "--on-lost", "term", "--purpose", "nightly")
    ended = say(environ, "evict", "-n", "x", "--reason", "hangs since noon")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "1 of 1 holds ended")
    assert hanging.wait(PATIENCE_S) == 143
    assert hanging.stderr
    assert "(evicted: hangs since noon)" in hanging.stderr.read()
    hold("next")
    found = say(environ, "history", "-n", "x", "--json")
    assert say(environ, "evict", "-n", "y", "--reason", "nobody").returncode == 1
    past = [json.loads(line) for line in found.stdout.splitlines()]
    assert all(one["lost"] in ("", "evicted: hangs since noon") for one in past)


def test_a_wait_that_ends_says_who_is_in_the_way_and_history_tells_of_it_afterwards(
    hold: Hold, environ: dict[str, str]
):
    first = hold("first", "--purpose", "mirror of pub")
    for seconds in ("0.5", "2", "10", "60"):  # on a busy machine it takes a while to learn who has it
        late = say(environ, "run", "-n", "x", "--timeout", f"{seconds}s", "--", "true")
        assert late.returncode == 75
        if "mirror" in late.stderr:
            break
    assert f"not acquired within {seconds} s: " in late.stderr
    assert "(mirror of pub of " in late.stderr
    eventually(lambda: [one["purpose"] for one in status(environ)["holders"]] == ["mirror of pub"], "nobody holds it")
    with started(SOFTMUTEX, "run", "-n", "x", "--", "sleep", "60", env=environ, cwd="/"):
        eventually(lambda: status(environ)["waiting_count"], "the second does not wait")
        first.terminate()
        first.wait(PATIENCE_S)
        eventually(lambda: "(mirror of pub of " in say(environ, "history", "-n", "x").stdout, "nobody remembers it")


def test_on_a_terminal_a_wait_shows_who_is_in_the_way(hold: Hold, environ: dict[str, str]):
    holder = hold("holder", "--purpose", "nightly")
    words = [str(SOFTMUTEX), "run", "-n", "x", "--wait-progress", "--", "echo", "my turn"]
    with at_terminal(*words, env=environ) as screen:
        screen.shows("(nightly of ")
        holder.terminate()
        screen.shows("my turn")
