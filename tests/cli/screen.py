"""A program at a terminal of its own."""

import os
import pty
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from tests.cli.processes import PATIENCE_S, children_of, kill, kill_group


class Screen:
    """A program at a terminal of its own: what it shows, what is typed."""

    def __init__(self, pid: int, master: int) -> None:
        self.pid = pid
        self._master = master
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shows(self, text: str) -> str:
        """Waits until the text appears behind what was waited for before. All that was shown up to there."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._shown:
            ready = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"no {text!r}, but: {self._shown!r}"
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # how Linux says that nobody is left at the terminal
                chunk = b""
            assert chunk, f"ended without {text!r}: {self._shown!r}"
            self._shown += chunk.decode(errors="replace")
        before, _, self._shown = self._shown.partition(text)
        return before

    def ends(self) -> int:
        """The exit code, as `subprocess` gives it. Reads on: who is at a full terminal cannot end."""
        with suppress(OSError):
            while os.read(self._master, 65536):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def at_terminal(*command: str, env: Mapping[str, str] = os.environ) -> Iterator[Screen]:
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.execvpe(command[0], command, {**env, "PS1": "READY> ", "TERM": "dumb", "HISTFILE": ""})
        finally:
            os._exit(127)
    try:
        yield Screen(pid, master)
    finally:
        for child in children_of(pid):
            for below in children_of(child):
                kill_group(below)
                kill(below)
            kill_group(child)
        kill(pid)
        os.close(master)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
