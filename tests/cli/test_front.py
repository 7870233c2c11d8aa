"""`softmutex run`, its front: signals, exit codes, descriptors and terminals, with a stand-in for the agent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import children_of, eventually, is_alive, kill, kill_group, read_number, started, state_of

STANDIN = Path(__file__).with_name("standin.py")
WAITS = "echo $$ > pid; exec sleep 60"


class Front:
    """One started stand-in, and the directory through which the test talks to it and its command."""

    def __init__(self, process: subprocess.Popen[str], here: Path) -> None:
        self.process = process
        self.here = here

    def order(self, name: str) -> None:
        (self.here / name).touch()

    def heard(self) -> list[str]:
        return (self.here / "heard").read_text().splitlines() if (self.here / "heard").exists() else []

    def hears(self, kind: str) -> None:
        eventually(lambda: any(line.startswith(kind) for line in self.heard()), f"{kind} in {self.heard()}")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def number(self, name: str) -> int:
        return read_number(self.here / name)

    def ends(self) -> int:
        return self.process.wait(100)

    def said(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


Start = Callable[..., Front]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(script: str | list[str], *options: str, grant: bool = True, **popen: Any) -> Front:
            if grant:
                (tmp_path / "grant").touch()
            command = ["sh", "-c", script] if isinstance(script, str) else script
            started_as = started(sys.executable, STANDIN, tmp_path, *options, "--", *command, cwd=tmp_path, **popen)
            return Front(stack.enter_context(started_as), tmp_path)

        yield begin
        for name in ("pid", "other"):  # what a failing test may have left
            if (tmp_path / name).exists():
                kill_group(read_number(tmp_path / name))
                kill(read_number(tmp_path / name))


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 130, 255])
def test_the_exit_code_is_the_commands(start: Start, code: int):
    assert start(f"exit {code}").ends() == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "HUP", "USR1", "SEGV", "PIPE"])
def test_a_command_killed_by_a_signal_gives_128_and_its_number(start: Start, name: str):
    assert start(f"kill -{name} $$").ends() == 128 + signal.Signals[f"SIG{name}"]


def test_a_command_killed_by_sigint_makes_the_front_die_of_sigint_as_shells_expect(start: Start):
    assert start("kill -INT $$").ends() == -signal.SIGINT


def test_a_command_that_is_not_granted_gives_the_agents_code_and_never_runs(start: Start):
    front = start("touch ran", grant=False)
    front.order("fail")
    assert front.ends() == 75
    assert front.said() == "softmutex: not acquired\n"
    assert not (front.here / "ran").exists()


@pytest.mark.parametrize(("first_line", "why"), [("#!/no/such/program\n", "interpreter"), ("echo hi\n", "no shell")])
def test_a_script_that_cannot_be_run_gives_126_and_says_why(start: Start, tmp_path: Path, first_line: str, why: str):
    script = tmp_path / "script"
    script.write_text(first_line)
    script.chmod(0o755)
    front = start([str(script)])
    assert front.ends() == 126
    assert why in front.said()
    assert front.heard()[-1] == "done", "the mutex was held for a command that never ran"


# --- what the command sees -------------------------------------------------------------------------------------------


def test_standard_input_passes_through_to_the_byte(start: Start, tmp_path: Path):
    data = os.urandom(300_000)
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open() as source:
        assert start("cat > copy", stdin=source).ends() == 0
    assert (tmp_path / "copy").read_bytes() == data


def test_what_the_command_does_not_read_is_left_for_the_next_one(tmp_path: Path):
    (tmp_path / "grant").touch()
    line = f"{sys.executable} {STANDIN} {tmp_path} -- sh -c 'read a; echo got $a'; read b; echo left $b"
    run = subprocess.run(["sh", "-c", line], input="one\ntwo\n", capture_output=True, text=True, timeout=100)
    assert run.stdout == "got one\nleft two\n"
    assert run.stderr == ""


def test_nothing_is_written_to_standard_output(start: Start):
    front = start("echo only this", stdout=subprocess.PIPE)
    assert front.process.communicate(timeout=100) == ("only this\n", "")


def test_a_closed_standard_input_is_an_empty_one(start: Start):
    front = start("cat; exit 3", stdin=None, preexec_fn=lambda: os.close(0))
    assert front.ends() == 3


def test_descriptors_that_the_caller_meant_for_the_command_reach_it(start: Start):
    reads, writes = os.pipe()
    os.write(writes, b"4\n")
    os.close(writes)
    assert start(["bash", "-c", f"read n <&{reads}; exit $n"], pass_fds=(reads,)).ends() == 4
    os.close(reads)


def test_no_descriptor_of_ours_reaches_the_command(start: Start):
    front = start("ls /proc/$$/fd > fds")
    assert front.ends() == 0
    assert set((front.here / "fds").read_text().split()) <= {"0", "1", "2", "10"}  # 10 is a shell's own


def test_the_commands_output_ends_with_the_command_though_the_agent_takes_its_time(start: Start):
    front = start("echo it", stdout=subprocess.PIPE)
    front.order("dawdle")
    front.hears("done")
    front.send(signal.SIGTERM)  # the front goes, the agent is still handing on
    assert front.process.stdout and front.process.stdout.read() == "it\n"
    (front.here / "dawdle").unlink()


def test_the_command_sees_its_epoch(start: Start):
    assert start("exit $SOFTMUTEX_EPOCH").ends() == 7


# --- signals ---------------------------------------------------------------------------------------------------------

NOTICES = """
import os, signal, sys, time
name, number = sys.argv[1], signal.Signals["SIG" + sys.argv[2]]
signal.signal(number, lambda *_: (open(f"{name}.got", "x"), os._exit(5)))
open(name, "w").write(f"{os.getpid()}\\n")
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT"])
def test_a_signal_reaches_the_command_and_what_it_has_started(start: Start, tmp_path: Path, name: str):
    (tmp_path / "notices.py").write_text(NOTICES)
    notices = f"{sys.executable} notices.py"
    front = start(f"{notices} other {name} & exec {notices} pid {name}", "--grace", "60")  # both may stand still
    front.number("pid"), front.number("other")
    front.send(signal.Signals[f"SIG{name}"])
    assert front.ends() == 5
    eventually((tmp_path / "other.got").exists, "what the command has started got the signal, too")


def test_a_stopped_command_stops_the_front_and_both_go_on_together(start: Start):
    front = start(WAITS)
    command = front.number("pid")
    front.send(signal.SIGTSTP)
    eventually(lambda: state_of(command) == "T" and state_of(front.process.pid) == "T", "both are stopped")
    front.send(signal.SIGCONT)
    eventually(lambda: state_of(command) in "SR" and state_of(front.process.pid) in "SR", "both go on")


def test_where_nobody_could_continue_it_a_stopped_command_goes_on_at_once(start: Start):
    front = start("echo $$ > pid; kill -TSTP $$; exit 6", process_group=None, start_new_session=True)
    assert front.ends() == 6


@pytest.mark.parametrize("name", ["TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_while_waiting_leaves_the_queue_and_gives_128_and_its_number(start: Start, name: str):
    front = start("touch ran", grant=False)
    eventually(lambda: (front.here / "heard").exists(), "the agent is there")
    front.send(signal.Signals[f"SIG{name}"])
    assert front.ends() == 128 + signal.Signals[f"SIG{name}"]
    assert front.heard() == ["done"]
    assert not (front.here / "ran").exists()


def test_sigint_while_waiting_leaves_the_queue_and_is_what_the_front_dies_of(start: Start):
    front = start("touch ran", grant=False)
    eventually(lambda: (front.here / "heard").exists(), "the agent is there")
    front.send(signal.SIGINT)
    assert front.ends() == -signal.SIGINT
    assert front.heard() == ["done"]


def test_a_signal_that_comes_before_anything_is_ready_counts_too(start: Start):
    for _ in range(5):
        front = start("exit 0", grant=False)
        eventually(lambda at=front: children_of(at.process.pid), "the agent is being started")
        front.send(signal.SIGTERM)
        assert front.ends() == 128 + signal.SIGTERM


def test_a_stop_while_waiting_tells_the_agent_so_that_nobody_waits_for_a_sleeper(start: Start):
    front = start("exit 4", grant=False)
    eventually(lambda: (front.here / "heard").exists(), "the agent is there")
    front.send(signal.SIGTSTP)
    front.hears("pause")
    eventually(lambda: state_of(front.process.pid) == "T", "the front is stopped")
    front.send(signal.SIGCONT)
    front.hears("resume")
    front.order("grant")
    assert front.ends() == 4


def test_what_was_ignored_from_the_start_stays_ignored_by_both(start: Start):
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    front = start("kill -HUP $$; kill -HUP $PPID; exit 8", preexec_fn=ignore_hangup)
    assert front.ends() == 8


def test_an_impatient_second_signal_does_not_wait_for_the_hand_over(start: Start):
    front = start("exit 3")
    front.order("dawdle")
    front.hears("done")
    front.send(signal.SIGTERM)
    assert front.ends() == 3
    (front.here / "dawdle").unlink()


# --- nothing is left running -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="death signals are Linux's")
def test_a_front_that_is_killed_takes_the_command_with_it(start: Start):
    front = start(WAITS)
    command = front.number("pid")
    front.send(signal.SIGKILL)
    eventually(lambda: not is_alive(command), "the command is gone")


WITH_ANOTHER = "sh -c \"trap '' TERM; echo \\$\\$ > other; exec sleep 60\" & " + WAITS


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_after_a_signal_the_front_stays_until_the_whole_group_is_gone(start: Start, name: str):
    front = start(WITH_ANOTHER, "--grace", "0.3")
    command, other = front.number("pid"), front.number("other")
    os.kill(command if name == "KILL" else front.process.pid, signal.Signals[f"SIG{name}"])
    assert front.ends() == 128 + signal.Signals[f"SIG{name}"]
    assert not is_alive(other)
    assert front.heard()[-1] == "done"


def test_what_a_command_leaves_behind_when_it_ends_by_itself_is_its_own_affair(start: Start):
    front = start("sh -c 'echo $$ > other; exec sleep 60' & while ! test -s other; do :; done; exit 2")
    assert front.ends() == 2
    assert is_alive(front.number("other"))


# --- when the mutex is lost ------------------------------------------------------------------------------------------


def test_a_lost_mutex_is_told_and_the_command_goes_on(start: Start):
    front = start("echo $$ > pid; while ! test -e go; do sleep 0.01; done; exit 9")
    front.number("pid")
    front.order("lose")
    assert front.process.stderr and front.process.stderr.readline() == "softmutex: lost; the command goes on\n"
    (front.here / "go").touch()
    assert front.ends() == 9


def test_with_on_lost_term_the_command_is_ended(start: Start):
    front = start(WAITS, "--end-when-lost")
    front.number("pid")
    front.order("lose")
    assert front.ends() == 128 + signal.SIGTERM
    assert front.said() == "softmutex: lost; ending the command\n"


def test_a_command_that_ignores_its_end_is_killed_after_the_grace(start: Start):
    front = start("trap '' TERM; " + WAITS, "--end-when-lost", "--grace", "0.2")
    front.number("pid")
    front.order("lose")
    assert front.ends() == 128 + signal.SIGKILL


def test_a_stopped_command_hears_of_its_end_too(start: Start):
    front = start(WAITS, "--end-when-lost", "--grace", "15")
    command = front.number("pid")
    os.kill(command, signal.SIGSTOP)
    eventually(lambda: state_of(command) == "T", "it is stopped")
    front.order("lose")
    assert front.ends() == 128 + signal.SIGTERM


def test_holding_for_too_long_may_end_the_command(start: Start):
    front = start(WAITS)
    front.number("pid")
    front.order("overrun")
    assert front.ends() == 128 + signal.SIGTERM
    assert front.said() == "softmutex: held for too long; ending the command\n"


def test_an_agent_that_dies_is_a_lost_mutex(start: Start):
    front = start(WAITS, "--end-when-lost")
    front.number("pid")
    front.order("crash")
    assert front.ends() == 128 + signal.SIGTERM
    assert "its node that held the mutex for this command ended unexpectedly; ending" in front.said()


def test_an_agent_that_dies_before_it_has_the_mutex_is_a_node_that_could_not_start(start: Start):
    front = start("touch ran", grant=False)
    front.order("crash")
    assert front.ends() == 69
    assert front.said() == "softmutex: its node ended unexpectedly\n", "where no agent is, none is spoken of"
    assert not (front.here / "ran").exists()
