"""`softmutex run` at a real terminal: who has it, Ctrl-C, Ctrl-Z, `fg`, pipelines. A stand-in plays the agent."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import PATIENCE_S
from tests.cli.screen import Screen, at_terminal

STANDIN = Path(__file__).with_name("standin.py")
CTRL_C, CTRL_Z = "\x03", "\x1a"


Start = Callable[..., Screen]


@pytest.fixture
def front(tmp_path: Path) -> str:
    """The words that begin a `softmutex run`, for a shell."""
    (tmp_path / "grant").touch()
    return f"{sys.executable} {STANDIN} {tmp_path} --"


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *command: stack.enter_context(at_terminal(*command))


@pytest.fixture
def shell(start: Start) -> Screen:
    screen = start("bash", "--norc", "-i")
    screen.shows("READY> ")
    return screen


IN_FRONT = "import os; print('in front:', os.tcgetpgrp(0) == os.getpgrp())"


def test_the_command_has_the_terminal_so_that_it_can_ask_and_show_progress(shell: Screen, front: str):
    shell.type(f'{front} {sys.executable} -c "{IN_FRONT}"\n')
    shell.shows("in front: True")
    shell.shows("READY> ")


def test_the_shell_has_the_terminal_again_afterwards(shell: Screen, front: str):
    shell.type(f"{front} true; {sys.executable} -c 'input(); print(6 * 7)'\n\n")
    shell.shows("42")


def test_ctrl_c_ends_the_command_and_the_front_dies_of_it(shell: Screen, front: str):
    shell.type(f"{front} sh -c 'echo be''gun; exec sleep 60'\n")
    shell.shows("begun")
    shell.type(CTRL_C)
    shell.shows("READY> ")
    shell.type("echo code $?\n")
    shell.shows("code 130")


def test_ctrl_c_ends_a_script_that_runs_one_after_the_other(start: Start, front: str, tmp_path: Path):
    script = tmp_path / "script"
    script.write_text(f"for i in 1 2 3; do {front} sh -c 'echo begun; exec sleep 60'; echo next; done\n")
    screen = start("bash", str(script))
    screen.shows("begun")
    screen.type(CTRL_C)
    assert screen.ends() == -signal.SIGINT, "the script went on"


def test_a_command_that_takes_ctrl_c_for_itself_ends_as_it_likes(shell: Screen, front: str):
    shell.type(f"{front} sh -c 'trap \"exit 5\" INT; echo be''gun; while :; do sleep 0.01; done'; echo code $?\n")
    shell.shows("begun")
    shell.type(CTRL_C)
    shell.shows("code 5")


def test_ctrl_z_gives_the_shell_back_and_fg_the_command(shell: Screen, front: str):
    shell.type(f"{front} sh -c 'echo be''gun; read answer; echo got $answer'\n")
    shell.shows("begun")
    shell.type(CTRL_Z)
    shell.shows("Stopped")
    shell.shows("READY> ")
    shell.type("fg\n")
    shell.shows("standin.py")
    shell.type("four\n")
    shell.shows("got four")
    shell.shows("READY> ")


def test_in_the_background_a_command_that_asks_is_stopped_until_it_gets_the_terminal(shell: Screen, front: str):
    shell.type("set -b\n")
    shell.type(f"{front} sh -c 'read answer; echo got $answer' &\n")
    shell.shows("Stopped")
    shell.type("fg\n")
    shell.shows("standin.py")
    shell.type("five\n")
    shell.shows("got five")


def test_the_rest_of_a_pipeline_keeps_the_terminal(shell: Screen, front: str):
    pager = f"{sys.executable} -c \"tty = open('/dev/tty'); print('pager ' + 'got', tty.readline())\""
    shell.type(f"{front} echo data | {pager}\n")
    shell.type("page\n")
    shell.shows("pager got page")


def test_a_command_in_a_pipeline_gets_the_terminal_when_it_asks(shell: Screen, front: str):
    shell.type(f"{front} sh -c 'read answer < /dev/tty; echo got $answer' | cat\n")
    shell.type("six\n")
    shell.shows("got six")
    shell.shows("READY> ")


def test_ctrl_c_in_a_pipeline_ends_all_of_it(shell: Screen, front: str):
    shell.type(f"{front} sh -c 'echo be''gun; exec sleep 60' | cat\n")
    shell.shows("begun")
    shell.type(CTRL_C)
    shell.shows("READY> ")
    shell.type("echo codes ${PIPESTATUS[@]}\n")
    shell.shows("codes 130 ")


def test_ctrl_c_while_waiting_ends_the_waiting(shell: Screen, front: str, tmp_path: Path):
    (tmp_path / "grant").unlink()
    shell.type(f"{front} touch {tmp_path}/ran; echo waited\n")
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "heard").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shell.type(CTRL_C)
    shell.shows("READY> ")
    shell.type("echo code $?\n")
    shell.shows("code 130")
    assert not (tmp_path / "ran").exists()
