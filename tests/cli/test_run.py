"""`softmutex run` as cron, timers and scripts use it: real processes, the real mutex, a directory of their own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from softmutex import Node
from tests.cli.processes import (
    but_for_standstills,
    children_of,
    eventually,
    group_is_empty,
    is_alive,
    kill,
    kill_group,
    read_number,
    started,
    state_of,
)

SOFTMUTEX = Path(sys.executable).with_name("softmutex")
HOLDS = "echo $$ > {0}.pid; exec sleep 60"
# Two at once would see the other's directory.
ALONE = "mkdir inside || exit 99; sleep 0.02; rmdir inside; echo $SOFTMUTEX_EPOCH"


class Run:
    def __init__(self, process: subprocess.Popen[str], here: Path) -> None:
        self.process = process
        self.here = here

    @property
    def pid(self) -> int:
        return self.process.pid

    def ends(self) -> int:
        return self.process.wait(100)

    def says(self, text: str) -> None:
        """Waits for a line on stderr with the text in it."""
        assert self.process.stderr
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return
        raise AssertionError(f"no {text!r} in {lines}")

    def rest(self) -> str:
        assert self.process.stderr
        return self.process.stderr.read()

    def agent(self) -> int:
        """The child that leads a session of its own."""
        return next(child for child in children_of(self.pid) if os.getsid(child) == child)


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    """`start("exit 3", "--timeout", "5")`: a script, or a list of words, run while holding the mutex `x`."""
    with ExitStack() as stack:

        def begin(command: str | list[str], *flags: str, name: str = "x", **options: Any) -> Run:
            words = ["sh", "-c", command] if isinstance(command, str) else command
            options = {"cwd": tmp_path, "env": environ, **options}
            process = stack.enter_context(started(SOFTMUTEX, "run", "-n", name, *flags, "--", *words, **options))
            return Run(process, tmp_path)

        yield begin
        for file in tmp_path.glob("*.pid"):  # what a failing test may have left
            kill_group(read_number(file))
            kill(read_number(file))


@pytest.fixture
def holder(start: Start, tmp_path: Path) -> Run:
    """One that holds `x` until it is ended."""
    run = start(HOLDS.format("holder"))
    read_number(tmp_path / "holder.pid")
    return run


# --- the mutex -------------------------------------------------------------------------------------------------------


def test_one_at_a_time_and_each_gets_its_turn(start: Start):
    runs = [start(ALONE, stdout=subprocess.PIPE) for _ in range(6)]
    assert [run.ends() for run in runs] == [0] * 6
    epochs = [run.process.stdout and run.process.stdout.read() for run in runs]
    assert len(set(epochs)) == 1, "no second token"


def test_different_names_do_not_wait_for_each_other(start: Start, holder: Run):
    assert start("exit 4", name="y").ends() == 4


def test_more_slots_let_more_in(start: Start, tmp_path: Path):
    for name in "ab":
        start(HOLDS.format(name), "--slots", "2")
    assert read_number(tmp_path / "a.pid") != read_number(tmp_path / "b.pid")
    assert start("true", "--slots", "2", "--on-busy", "fail").ends() == 75


def test_the_next_one_is_in_soon_after_the_holder_has_ended(start: Start, holder: Run, tmp_path: Path):
    waiter = start("exit 0", "-v")
    waiter.says("asking for x")
    began = time.monotonic()
    holder.process.terminate()
    assert waiter.ends() == 0
    assert time.monotonic() - began < 60  # long before it would ask again, or take the holder for dead


def test_the_command_sees_what_it_holds_and_its_epoch(start: Start, environ: dict[str, str]):
    script = f"echo $SOFTMUTEX_HELD, $SOFTMUTEX_EPOCH; {SOFTMUTEX} run -n y -- sh -c 'echo $SOFTMUTEX_HELD'"
    run = start(script, stdout=subprocess.PIPE)
    assert run.process.communicate(timeout=100)[0] == "x, 1\nx y\n"


def test_asking_again_for_what_is_held_is_an_error_at_once_instead_of_a_wait_for_ever(start: Start):
    run = start(f"exec {SOFTMUTEX} run -n x -- true")
    assert run.ends() == 64
    assert "SOFTMUTEX_HELD=x" in run.rest()


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 64, 69, 75, 126, 130, 255])
def test_the_exit_code_is_exactly_the_commands(start: Start, code: int):
    assert start(f"exit {code}").ends() == code


def test_75_when_it_was_not_acquired_in_time(start: Start, holder: Run, tmp_path: Path):
    run = start("touch ran", "--timeout", "300ms")
    assert run.ends() == 75
    said = but_for_standstills(run.rest())  # and who holds it, where he answered in so short a time
    assert re.fullmatch(
        r"softmutex: x: not acquired within 0\.3 s(: [^\n]* holds it [^\n]*)?\. See softmutex status -n x\n", said
    )
    assert not (tmp_path / "ran").exists()


def test_75_when_it_is_in_use_and_nobody_wants_to_wait(start: Start, holder: Run):
    assert start("true", "--on-busy", "fail").ends() == 75


def test_69_when_the_node_could_not_start(start: Start):
    run = start("true", "--transport", "udp://203.0.113.7:9")  # an address of nobody here
    assert run.ends() == 69
    assert "the node could not start" in run.rest()


async def test_69_when_all_that_are_there_refuse_it_and_doctor_says_so_too(environ: dict[str, str], tmp_path: Path):
    (tmp_path / "wrong.key").write_text("00" * 32)
    (tmp_path / "wrong.key").chmod(0o600)
    async with Node(transport="udp://127.0.0.1:0", membership="static://127.0.0.1:1", key=bytes(range(32))) as node:
        there = node.address
        place = ["--membership", f"static://{there}", "--transport", "udp://127.0.0.1:0"]

        def softmutex(*words: str) -> subprocess.CompletedProcess[str]:
            flags = [*words[:1], *place, "--key-file", str(tmp_path / "wrong.key"), *words[1:]]
            environment = {**environ, "SOFTMUTEX_MEMBERSHIP": ""}
            return subprocess.run([SOFTMUTEX, *flags], env=environment, capture_output=True, text=True, timeout=100)

        run = await asyncio.to_thread(softmutex, "run", "-n", "x", "--", "touch", str(tmp_path / "ran"))
        doctor = await asyncio.to_thread(softmutex, "doctor")
    assert run.returncode == 69, run.stderr
    assert f"{there} is there and refuses this node: it cannot open what is sealed with key" in run.stderr
    assert not (tmp_path / "ran").exists()
    assert doctor.returncode == 1
    assert f"{there} is there and refuses us: it cannot open what is sealed with key" in doctor.stdout


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--timeuot", "3"], "did you mean '--timeout'? See "),
        (["--timeout", "soon"], "timeout='soon'"),
        (["--slots", "0"], "slots='0'"),
        (["--on-lost", "shrug"], "shrug"),
        (["--on-busy", "nope"], "--on-busy: there is no 'nope' here (there are wait, fail). See "),
        (["--transport", "pigeon://x"], "pigeon"),
        (["--transport", "udp://:0?recieve_buffer=1"], "recieve_buffer"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--grace", "-1"], "--grace"),
    ],
)
def test_64_when_it_was_called_in_a_way_that_cannot_be_followed(start: Start, flags: list[str], why: str):
    run = start("touch ran", *flags)
    assert run.ends() == 64
    said = run.rest()
    assert why in said and "Traceback" not in said
    assert not (run.here / "ran").exists()


INTERRUPTED_WHILE_IMPORTING = """
import sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
for name in ("argparse", "difflib"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Finder)
from softmutex.cli import main
sys.exit(main(["run", "-n", "x", "--", "true"]))
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [("argparse", ""), ("softmutex.cli.run", "softmutex: interrupted\n"), ("selectors", "softmutex: interrupted\n")],
)
def test_130_when_it_is_interrupted_while_it_still_imports(environ: dict[str, str], module: str, said: str):
    command = [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING, module]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stderr) == (130, said)


def test_64_without_a_name_and_without_a_command(environ: dict[str, str]):
    for words in (["run", "--", "true"], ["run", "-n", "x"], ["run", "-n", "x", "--"], ["run", "-n", "", "--", "true"]):
        assert subprocess.run([SOFTMUTEX, *words], env=environ, capture_output=True).returncode == 64


def test_127_and_126_are_found_out_before_anything_is_asked_for(start: Start, holder: Run, tmp_path: Path):
    (tmp_path / "plain").write_text("")
    for command, code in [("no-such-command-at-all", 127), ("./no/such", 127), ("./plain", 126), (".", 126)]:
        run = start([command])
        assert run.ends() == code
        assert command in run.rest()
    assert is_alive(holder.pid), "it would still be waiting"


def test_the_command_may_have_flags_and_dashes_of_its_own(environ: dict[str, str]):
    for words in (["--", "echo", "-n", "a", "--", "b"], ["echo", "-n", "a", "--", "b"]):
        run = subprocess.run([SOFTMUTEX, "run", "-n", "x", *words], env=environ, capture_output=True, text=True)
        assert run.stdout == "a -- b"


# --- what is said ----------------------------------------------------------------------------------------------------


def test_nothing_is_said_when_nothing_goes_wrong(start: Start):
    run = start("true", stdout=subprocess.PIPE)
    out, err = run.process.communicate(timeout=100)
    assert (out, but_for_standstills(err)) == ("", "")


def test_each_line_says_who_speaks(start: Start, holder: Run):
    said = start("true", "-v", "--on-busy", "fail").process.communicate(timeout=100)[1]
    assert said and all(line.startswith("softmutex: ") for line in said.splitlines())


def test_a_name_cannot_write_to_the_terminal(start: Start):
    run = start("true", "-v", "--node-name", "n\x1b[2J\nx", name="m\x1b]0;mine\x07")
    assert run.ends() == 0
    said = run.rest()
    assert r"n\x1b[2J\nx" in said and r"m\x1b]0;mine\x07" in said
    assert "\x1b" not in said and "\nx" not in said and "\x07" not in said


# --- without a terminal, in the dark ---------------------------------------------------------------------------------


def test_it_runs_as_cron_runs_it_without_terminal_standard_input_and_most_of_the_environment(
    start: Start, environ: dict[str, str]
):
    bare = {"PATH": "/usr/bin:/bin", "SOFTMUTEX_MEMBERSHIP": environ["SOFTMUTEX_MEMBERSHIP"]}
    run = start(
        "cat; exit 3", env=bare, stdin=None, preexec_fn=lambda: os.close(0), process_group=None, start_new_session=True
    )
    assert run.ends() == 3


def test_it_runs_with_all_three_standard_descriptors_closed(start: Start, tmp_path: Path):
    closed = {"stdin": None, "stderr": None, "preexec_fn": lambda: os.closerange(0, 3)}
    assert start("echo out; echo err >&2; exit 4", **closed).ends() == 4


# --- signals, with the agent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1"])
def test_a_signal_while_waiting_leaves_the_queue_cleanly(start: Start, holder: Run, tmp_path: Path, name: str):
    waiter = start("touch ran", "-v")
    waiter.says("asking for x")
    waiter.process.send_signal(signal.Signals[f"SIG{name}"])
    assert waiter.ends() == 128 + signal.Signals[f"SIG{name}"]
    holder.process.terminate()
    assert holder.ends() == 128 + signal.SIGTERM
    assert start("echo $SOFTMUTEX_EPOCH", stdout=subprocess.PIPE).process.communicate(timeout=100)[0] == "1\n"
    assert not (tmp_path / "ran").exists()


def test_a_suspended_waiter_is_passed_over_and_asks_again_when_it_goes_on(start: Start, holder: Run):
    sleeper = start("exit 5", "-v")
    sleeper.says("asking for x")
    sleeper.process.send_signal(signal.SIGTSTP)
    eventually(lambda: state_of(sleeper.pid) == "T", "it is stopped")
    holder.process.terminate()
    assert start("exit 6").ends() == 6, "the sleeper keeps everybody waiting"
    sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.ends() == 5


@pytest.mark.slow
def test_a_waiter_that_is_stopped_without_warning_does_not_sit_on_its_grant(start: Start, holder: Run):
    sleeper = start("exit 5", "-v")
    sleeper.says("asking for x")
    sleeper.process.send_signal(signal.SIGSTOP)
    holder.process.terminate()
    assert start("exit 6").ends() == 6
    sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.ends() == 5


def test_a_suspended_command_still_holds(start: Start, holder: Run):
    holder.process.send_signal(signal.SIGTSTP)
    eventually(lambda: state_of(holder.pid) == "T", "it is stopped")
    assert start("true", "--timeout", "1s").ends() == 75


GRANDCHILD = "sh -c 'echo $$ > grandchild.pid; exec sleep 60' & " + HOLDS.format("child")


def test_sigkill_takes_the_whole_group_along_before_the_mutex_is_handed_on(start: Start, tmp_path: Path):
    run = start(GRANDCHILD)
    child, grandchild = read_number(tmp_path / "child.pid"), read_number(tmp_path / "grandchild.pid")
    agent = run.agent()
    check = f"! kill -0 {grandchild} 2> /dev/null || grep -q '^State:.Z' /proc/{grandchild}/status"
    waiter = start(check, "-v")
    waiter.says("asking for x")
    run.process.kill()
    assert waiter.ends() == 0, "the next one ran beside a process of the killed one"
    eventually(lambda: group_is_empty(child) and not is_alive(agent), "nothing is left")


def test_when_the_agent_is_killed_the_command_is_told_of_or_ended(start: Start, tmp_path: Path):
    run = start(GRANDCHILD, "--on-lost", "term")
    child, _ = read_number(tmp_path / "child.pid"), read_number(tmp_path / "grandchild.pid")
    kill(run.agent())
    assert run.ends() == 128 + signal.SIGTERM
    said = run.rest()
    assert "its node" in said and "ended unexpectedly; ending the command" in said and "agent" not in said
    assert group_is_empty(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="death signals are Linux's")
def test_when_both_are_killed_the_command_still_ends(start: Start, tmp_path: Path):
    run = start(HOLDS.format("child"))
    child = read_number(tmp_path / "child.pid")
    kill(run.agent())
    run.process.kill()
    eventually(lambda: not is_alive(child), "the command is gone")


# --- holding for too long --------------------------------------------------------------------------------------------


def test_max_hold_warns_and_lets_the_command_go_on(start: Start):
    run = start("while ! test -e go; do sleep 0.05; done; exit 7", "--max-hold", "200ms")
    run.says("softmutex: x: x is held for longer than --max-hold allows\n")
    (run.here / "go").touch()
    assert run.ends() == 7
    assert but_for_standstills(run.rest()) == ""


def test_max_hold_may_end_the_command(start: Start):
    run = start("exec sleep 60", "--max-hold", "200ms", "--on-overrun", "term")
    assert run.ends() == 128 + signal.SIGTERM


def test_max_hold_may_let_others_in(start: Start, tmp_path: Path):
    run = start(HOLDS.format("holder"), "--max-hold", "200ms", "--on-overrun", "release")
    read_number(tmp_path / "holder.pid")
    assert start("exit 3").ends() == 3
    run.says("may be held by others, too")


def test_settings_come_from_the_environment_and_the_file_too(start: Start, environ: dict[str, str], tmp_path: Path):
    (tmp_path / "softmutex.toml").write_text("[mutex.x]\nmax_hold = 0.2\n")
    run = start("exec sleep 60", env={**environ, "SOFTMUTEX_ON_OVERRUN": "cancel"})
    assert run.ends() == 128 + signal.SIGTERM


def test_who_meets_nobody_imports_only_what_it_needs(environ: dict[str, str], tmp_path: Path):
    """In the process of the node, which is forked: its modules are written down before it ends."""
    code = (
        "import sys\n"
        "from softmutex.cli import main, supervise\n"
        "be_agent = supervise.be_agent\n"
        "def written(link, serve, mask):\n"
        "    def both(link):\n"
        "        serve(link)\n"
        "        open(sys.argv[1], 'w').write(' '.join(sys.modules))\n"
        "    be_agent(link, both, mask)\n"
        "supervise.be_agent = written\n"
        "sys.exit(main(['run', '-n', 'x', '--no-agent', '--', 'true']))\n"
    )
    said = tmp_path / "modules"
    command = [sys.executable, "-c", code, str(said)]
    subprocess.run(command, env=environ, timeout=100, check=True, capture_output=True)
    modules = set(said.read_text().split())
    assert "softmutex.core.algorithms.wandering.machine" in modules, "that was the node's process"
    heavy = "cryptography aiohttp opentelemetry email difflib importlib.metadata tomllib uuid zipfile softmutex.seen"
    heavy += " shutil stringprep concurrent.futures.thread softmutex.runtime.statistics"
    heavy += " _ssl"  # of `ssl`, which asyncio imports: it is there, and not loaded. `inspect` and `tokenize`:
    heavy += " ast dis token" * (sys.version_info < (3, 13))  # ... dataclasses use them from 3.13 on
    assert modules & set(heavy.split()) == set()


COUNTS_WHAT_IS_COMPILED = """
import sys
from_texts = set()
def hook(event, arguments):
    if event == "compile" and (frame := sys._getframe(1)).f_code.co_name in ("namedtuple", "__init__"):
        while frame and not frame.f_globals.get("__name__", "").startswith("softmutex"):
            frame = None if frame.f_code.co_filename.startswith("<frozen importlib") else frame.f_back
        if frame and frame.f_globals["__name__"] != "softmutex.core.tuples":  # of twelve fields and more
            from_texts.add(f"{frame.f_globals['__name__']}:{frame.f_lineno}")
sys.addaudithook(hook)
from softmutex.cli import main, supervise
be_agent = supervise.be_agent
def written(link, serve, mask):
    def both(link):
        serve(link)
        open(sys.argv[1], "w").write(" ".join(from_texts))
    be_agent(link, both, mask)
supervise.be_agent = written
sys.exit(main(["run", "-n", "x", "--no-agent", "--", "true"]))
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="softmutex.core.tuples is that of typing there")
def test_no_tuple_with_names_and_no_annotation_is_compiled_from_text(environ: dict[str, str], tmp_path: Path):
    """`typing.NamedTuple` compiles a constructor, and each annotation that is a text; ours does not."""
    said = tmp_path / "compiled"
    command = [sys.executable, "-c", COUNTS_WHAT_IS_COMPILED, str(said)]
    subprocess.run(command, env=environ, timeout=100, check=True, capture_output=True)
    assert said.read_text() == ""
