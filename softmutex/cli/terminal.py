"""Who owns the terminal: the command, or the shell's job that `softmutex run` belongs to.

The command lives in a process group of its own, so that a signal reaches all of it and nothing else. But a terminal
talks to one group only. The naive ways fail: a command left in the background is stopped when it asks for a password
and shows no progress (rsync and wget look), and a terminal that is always handed over stops `less` in
`softmutex run -n x -- cmd | less`, which shares the group of `softmutex`.

So: when standard input and output are both this terminal, nobody else in the pipeline wants it, and the command
gets it at once. Otherwise it gets the terminal when it has been stopped for touching it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from softmutex.agent.groups import is_gone

STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


class Terminal:
    """The controlling terminal, where there is one. To be used with SIGTTOU ignored: asking is no reason to stop."""

    def __init__(self) -> None:
        try:
            self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            self._descriptor = -1
        self._our_group = os.getpgrp()  # looked up once: a child between fork and exec is in another one
        self.wanted = self._descriptor >= 0 and os.isatty(0) and os.isatty(1)
        self._given_to = 0

    def give(self, group: int) -> bool:
        """Whether the group may talk to the terminal now; not so when the terminal is not ours to give."""
        if self._front_group() not in (self._our_group, group):
            return False
        with suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)
            self._given_to = group
        return self._given_to == group

    def take_back(self) -> bool:
        """Takes it from the command, or from a group of the command's that is gone, but never from a shell that has
        put us into the background since. Whether the command had it."""
        front = self._front_group()
        if not self._given_to or not (front == self._given_to or is_gone(front)):
            return False
        self._given_to = 0
        with suppress(OSError):
            os.tcsetpgrp(self._descriptor, self._our_group)
        return True

    def _front_group(self) -> int:
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:  # hung up
            return 0


def stop_our_job(number: int) -> None:
    """Stops our whole group as the terminal would have, and returns when somebody continues it.

    In a group that no shell watches it returns at once: there the kernel ignores these signals, since nobody would
    ever continue us.
    """
    handler = signal.signal(number, signal.SIG_DFL)
    try:
        os.killpg(os.getpgrp(), number)  # arrives before this returns
    finally:
        signal.signal(number, handler)
