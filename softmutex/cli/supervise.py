"""The front of `softmutex run`: one command, its signals, its terminal, its exit code.

Two processes, each of which cleans up when the other is killed:

    shell -- front (this file: no event loop, no network) ---- command, in a process group of its own
               |  socket pair, or Unix socket
             agent (agent.py: the node, in a session of its own; or softmutex.agent: that of all jobs)

An agent of all jobs that ends while the front waits is called again, and in the end replaced by one of its own.

One process alone cannot keep the promise that nothing is left running: SIGKILL cannot be caught, and what Linux offers
(a death signal) reaches the command but not what the command has started. So when the front is killed, the agent
kills the whole group, and only then hands the mutex on. When the agent is killed, the front treats the hold as lost.
And Ctrl-Z stops the front and the command, but not the node, so that a suspended command still holds.

    WAITING --go--> RUNNING --command ended--> SWEEPING --nobody of its group left--> LEAVING --agent ended--> exit
       |               (only where a signal ended it)                                    ^
       +------------------------- signal, or not acquired -------------------------------+

P1  The command runs only between `go` and the end of its group, as far as signals are concerned. What it leaves in the
    background when it ends by itself is its own affair.
P2  Each signal of FORWARDED reaches the whole group, whatever the state; before there is a group it ends the waiting.
P3  Nothing is written to standard output, and standard input is not read.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from enum import Enum, auto
from types import FrameType
from typing import TypeAlias

from softmutex.agent.groups import KILL_PATIENCE_S, LOOK_EVERY_S, SWEEP_EVERY_S, is_gone, is_out_of_reach, out_of_reach
from softmutex.agent.link import NOT_STARTED, Lines, Message, pack
from softmutex.cli import command
from softmutex.cli.terminal import STOPS, Terminal, stop_our_job
from softmutex.core.tuples import NamedTuple

Socket: TypeAlias = socket.socket

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

CALL_EVERY_S, CALL_PATIENCE_S = 0.1, 10.0  # an agent that is started anew is back by then
SWEEP_AFTER_S = 1.0  # what outlives the command has mostly got the same signal, and is just cleaning up


class State(Enum):
    WAITING = auto()
    RUNNING = auto()
    SWEEPING = auto()
    LEAVING = auto()


class Job(NamedTuple):
    """What is to be run, and how. `environ` gives the command's environment for the epoch and the trace of its hold."""

    argv: Sequence[str]
    file: str
    environ: Callable[[int, Mapping[str, str]], Mapping[str, str]]
    end_when_lost: bool = False
    grace_s: float = 10.0
    say: Callable[[str], None] = lambda text: None  # why the command does not run
    warn: Callable[[str], None] = lambda text: None  # what happens to a command that runs; not with --quiet
    whisper: Callable[[str], None] = lambda text: None  # what is only worth saying with --verbose
    show: Callable[[str], None] = lambda text: None  # who is in the way, in one line that the next one replaces


class CommandOutcome(NamedTuple):
    code: int
    by_sigint: bool = False
    had_terminal: bool = False

    def die(self) -> int:
        """The exit code; but where SIGINT ended it, dies of it: a shell looks for that in order to end its loops.

        When the terminal was the command's, Ctrl-C reached nobody else: then our whole group gets it, as it would have.
        """
        if self.by_sigint:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.killpg(os.getpgrp(), signal.SIGINT) if self.had_terminal else os.kill(os.getpid(), signal.SIGINT)
        return self.code


def run(
    job: Job,
    serve: Callable[[socket.socket], None],
    call: Callable[[], socket.socket | None] = lambda: None,
    may_come_back: Callable[[], bool] = lambda: False,
) -> CommandOutcome:
    """Runs the command while an agent holds the mutex: the one that `call` reaches, else `serve` in a process of its
    own. `may_come_back`: nobody is there, and another one is waited for, as by those who waited when it went."""
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    front = Front(job, serve, call, blocked_before)
    if not front.use(call()):
        front.hope() if may_come_back() else front.start_agent()
    return front.attend()


def be_agent(link: socket.socket, serve: Callable[[socket.socket], None], mask: Set[int]) -> None:
    """Never returns. Signals are the front's business: whoever signals the whole job (a terminal, systemd, Slurm)
    means the command, and the mutex must be held until that has ended."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*ENDING, signal.SIGUSR1, signal.SIGUSR2, *STOPS):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)  # the other ends of the user's pipes wait for the command, not for us
        os.dup2(nothing, 1)
        os.closerange(3, link.fileno())
        os.closerange(link.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        serve(link)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def noticed(number: int, frame: FrameType | None) -> None:
    """Python writes the number into the bell; all else happens in the loop."""


class Front:
    def __init__(
        self,
        job: Job,
        serve: Callable[[socket.socket], None],
        call: Callable[[], socket.socket | None],
        mask: Set[int],
    ) -> None:
        """All signals are blocked, and were as in `mask` before."""
        self._job = job
        self._serve = serve
        self._call = call
        self._mask = mask
        self._link: socket.socket | None = None
        self._agent = 0  # the process of the private one
        self._lines = Lines()
        self._terminal = Terminal()
        self._state = State.WAITING
        self._group = 0
        self._outcome = CommandOutcome(NOT_STARTED)
        self._signalled = False  # one of ENDING was passed on, or we ended it ourselves
        self._insisted = False  # somebody does not want to wait for the hand-over, either; it goes on without us
        self._lost = False
        self._is_showing = False
        self._is_helpless = False  # what is left of the group belongs to another user by now
        self._end_at = self._kill_at = self._give_up_at = self._call_at = self._alone_at = float("inf")
        self._selector = selectors.DefaultSelector()
        self._bell, self._rings = socket.socketpair()
        self._end_with_us: Callable[[], object] = lambda: None

    # --- the loop ----------------------------------------------------------------------------------------------------

    def attend(self) -> CommandOutcome:
        self._listen()
        self._end_with_us = command.death_signal_setter()
        while self._state is not State.LEAVING or (self._link and not self._insisted):
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._bell:
                    for number in self._bell.recv(4096):
                        self._on_signal(number)
                else:
                    self._on_link()
            self._keep_time(time.monotonic())
        if self._agent and not self._link:
            with suppress(ChildProcessError):
                os.waitpid(self._agent, 0)
        return self._outcome

    def _listen(self) -> None:
        """A signal that was ignored when we started (nohup) stays ignored, by us and by the command."""
        for end in (self._bell, self._rings):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        ours = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        ours.append(signal.SIGCHLD)
        self._default_in_command = [*ours, *IGNORED_BY_PYTHON]
        if signal.signal(signal.SIGTTOU, signal.SIG_IGN) is not signal.SIG_IGN:
            self._default_in_command.append(signal.SIGTTOU)
        signal.set_wakeup_fd(self._rings.fileno(), warn_on_full_buffer=False)
        for number in ours:
            signal.signal(number, noticed)
        self._mask -= set(ours)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _keep_time(self, now: float) -> None:
        if now >= self._end_at:
            self._end_group()
        if now >= self._kill_at:
            self._kill_at, self._give_up_at = float("inf"), now + KILL_PATIENCE_S
            self._signal_group(signal.SIGKILL)
        if self._state is State.SWEEPING:
            self._sweep(now)
        if self._state is State.WAITING and now >= self._call_at:
            self._call_again(now)

    def _wait_s(self) -> float | None:
        if self._state is State.SWEEPING:
            return LOOK_EVERY_S if self._is_helpless else SWEEP_EVERY_S
        at = min(self._kill_at, self._call_at if self._state is State.WAITING else float("inf"))
        return None if at == float("inf") else max(0.0, at - time.monotonic())

    # --- signals -----------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif self._state in (State.RUNNING, State.SWEEPING):
            self._signalled = self._signalled or number in ENDING
            if number == signal.SIGCONT:
                self._go_on()
            else:
                self._signal_group(number)
        elif self._state is State.LEAVING:
            self._insisted = self._insisted or number in ENDING
        elif number == signal.SIGTSTP:
            self._send("pause")
            stop_our_job(number)
            self._send("resume")
        elif number not in (signal.SIGCONT, signal.SIGWINCH):
            self._leave(CommandOutcome(128 + number, by_sigint=number == signal.SIGINT))

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)

    def _go_on(self) -> None:
        if self._terminal.wanted:
            self._terminal.give(self._group)
        self._signal_group(signal.SIGCONT)

    def _end_group(self) -> None:
        """SIGTERM, and after the grace SIGKILL. Stopped processes are continued: they would never hear of it."""
        self._end_at = float("inf")
        if self._kill_at == float("inf"):
            self._kill_at = time.monotonic() + self._job.grace_s
            self._signalled = True
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)

    # --- the command -------------------------------------------------------------------------------------------------

    def _start(self, epoch: int, trace: Mapping[str, str]) -> None:
        job = self._job
        try:
            self._group = command.spawn(
                job.file,
                job.argv,
                job.environ(epoch, trace),
                default=self._default_in_command,
                in_child=self._in_child,
            )
        except command.CannotRun as error:
            job.say(str(error))
            self._leave(CommandOutcome(error.code))
            return
        self._state = State.RUNNING
        if self._terminal.wanted:
            self._terminal.give(self._group)
        job.whisper(f"running, epoch {epoch}: {' '.join(job.argv)}")

    def _in_child(self) -> None:
        """The child itself tells its group, before the command begins: were it for us, we could be killed after that
        and before this, and what the command has started by then would work on beside the next holder."""
        self._end_with_us()
        self._send("running", group=os.getpid())
        if self._terminal.wanted:
            self._terminal.give(os.getpid())

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                if pid != self._group or self._state is not State.RUNNING:
                    continue
                if os.WIFSTOPPED(status):
                    self._on_stop(os.WSTOPSIG(status))
                else:
                    self._on_end(status)

    def _on_stop(self, number: int) -> None:
        """The command stopped: give it the terminal if that is what it stopped for, else stop with it, as one job."""
        if number not in STOPS:  # SIGSTOP: who sends it to the command means the command
            return
        if number != signal.SIGTSTP:
            self._terminal.wanted = True
            if self._terminal.give(self._group):
                self._signal_group(signal.SIGCONT)
                return
        self._terminal.take_back()
        stop_our_job(number)
        self._go_on()

    def _on_end(self, status: int) -> None:
        had_terminal = self._terminal.take_back()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self._outcome = CommandOutcome(128 + number, number == signal.SIGINT, had_terminal)
            self._signalled = True
        else:
            self._outcome = CommandOutcome(os.WEXITSTATUS(status))
        if is_gone(self._group):
            self._leave(self._outcome)
        elif self._signalled:
            self._state = State.SWEEPING
            self._end_at = time.monotonic() + min(SWEEP_AFTER_S, self._job.grace_s)
        else:
            self._job.whisper("the command ended and left processes in the background; they do not hold the mutex")
            self._leave(self._outcome)

    def _sweep(self, now: float) -> None:
        if now >= self._give_up_at and is_out_of_reach(self._group):
            self._job.warn(out_of_reach(self._group))
            self._give_up_at, self._is_helpless = float("inf"), True
            return
        if now >= self._give_up_at:
            self._job.warn(f"processes of group {self._group} do not even end on SIGKILL; not waiting for them")
        elif not is_gone(self._group):
            return
        self._leave(self._outcome)

    # --- the agent ---------------------------------------------------------------------------------------------------

    def use(self, link: socket.socket | None) -> bool:
        self._link = link
        if link is None:
            return False
        link.setblocking(False)
        self._lines = Lines()
        self._selector.register(link, selectors.EVENT_READ)
        self._call_at = float("inf")
        return True

    def start_agent(self) -> None:
        here, there = socket.socketpair()
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._agent = os.fork()
        if self._agent == 0:
            here.close()
            be_agent(there, self._serve, self._mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        there.close()
        self.use(here)

    def _call_again(self, now: float) -> None:
        if self.use(self._call()):
            self._job.whisper("the agent is there again")
        elif now < self._alone_at:
            self._call_at = now + CALL_EVERY_S
        else:
            self._job.whisper("no agent came back; joining alone")
            self.start_agent()

    def _leave(self, outcome: CommandOutcome) -> None:
        self._outcome = outcome
        self._state = State.LEAVING
        self._end_at = self._kill_at = float("inf")
        self._send("done")

    def _send(self, kind: str, **values: int) -> None:
        if self._link:
            with suppress(OSError):  # that it died is noticed when reading
                self._link.sendall(pack(kind, **values))

    def _on_link(self) -> None:
        assert self._link
        try:
            chunk = self._link.recv(65536)
        except ConnectionError:
            chunk = b""
        for message in self._lines.feed(chunk):
            self._on_message(message)
        if chunk:
            return
        self._selector.unregister(self._link)
        self._link.close()
        self._link = None
        if self._state is State.WAITING:
            self._on_hang_up()
        elif self._state is State.RUNNING:
            who = "its node" if self._agent else "the agent"
            self._on_lost(f"{who} that held the mutex for this command ended unexpectedly")

    def _on_hang_up(self) -> None:
        if self._agent:
            self._job.say("its node ended unexpectedly")
            self._leave(CommandOutcome(NOT_STARTED))
        else:
            self.hope()

    def hope(self) -> None:
        """For an agent that is on its way."""
        self._call_at = time.monotonic()
        self._alone_at = self._call_at + CALL_PATIENCE_S

    def _on_message(self, message: Message) -> None:
        job, waiting = self._job, self._state is State.WAITING
        if self._is_showing and message.get("is") != "progress":
            self._is_showing = False
            job.show("")
        match message:
            case {"is": "granted", "turn": int(turn)} if waiting:
                self._send("take", turn=turn)
            case {"is": "go", "epoch": int(epoch)} if waiting:
                self._start(epoch, message.get("trace") or {})
            case {"is": "failed", "code": int(code), "why": str(why)} if waiting:
                job.say(why)
                self._leave(CommandOutcome(code))
            case {"is": "lost", "why": str(why)} if self._state is State.RUNNING:
                self._on_lost(why)
            case {"is": "overrun", "why": str(why), "end": bool(end)} if self._state is State.RUNNING:
                job.warn(why + ("; ending the command" if end else ""))
                if end:
                    self._end_group()
            case {"is": "said", "why": str(why)}:
                job.whisper(why)
            case {"is": "progress", "why": str(why)} if waiting:
                self._is_showing = True
                job.show(why)
            case _:  # came too late to matter
                pass

    def _on_lost(self, why: str) -> None:
        """Once is enough: that the agent ended after it said so is no more news."""
        if self._lost:
            return
        self._lost = True
        self._job.warn(why + ("; ending the command" if self._job.end_when_lost else "; the command goes on"))
        if self._job.end_when_lost:
            self._end_group()
