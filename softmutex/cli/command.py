"""Starts a command without a shell, in a process group of its own, so that it ends when we do.

    decided before anything is asked for:  find()    127 no such command, 126 there is one that cannot be run
    later:                                 spawn()   the same two codes where only exec can know (a bad interpreter)

The naive `subprocess.Popen` falls short in three ways. A signal that comes between fork and exec is eaten by a handler
of ours instead of reaching the command. It closes descriptors that the caller meant for the command (`3< list`, a job
server, socket activation). And when we are killed with SIGKILL, the command lives on: here Linux kills it with us.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

NOT_FOUND, NOT_EXECUTABLE = 127, 126
PR_SET_PDEATHSIG = 1
AS_EXEC_LOOKS = os.access in os.supports_effective_ids  # else by the real ids, without what was granted to us


class CannotRun(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def find(name: str) -> str:
    """The file that `name` stands for, as a shell would find it."""
    candidates = [name] if os.sep in name else [os.path.join(place, name) for place in os.get_exec_path()]
    there = ""
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK, effective_ids=AS_EXEC_LOOKS):
            return candidate
        there = there or (candidate if os.path.exists(candidate) else "")
    if there:
        kind = "a directory" if os.path.isdir(there) else "not executable"
        raise CannotRun(NOT_EXECUTABLE, f"{there} is {kind}")
    raise CannotRun(NOT_FOUND, f"no such command: {name}")


def spawn(
    file: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    default: Sequence[int],
    in_child: Callable[[], None] = lambda: None,
) -> int:
    """The process id of the command, which is the id of its group, too.

    The signals in `default` get back their default action; those that were ignored when we started stay ignored.
    """
    me = os.getpid()
    reads, writes = os.pipe()
    was_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                in_child()
                if os.getppid() != me:  # killed before the death signal was set
                    os._exit(NOT_EXECUTABLE)
                for number in default:
                    signal.signal(number, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
                signal.pthread_sigmask(signal.SIG_SETMASK, was_blocked)
                os.execve(file, tuple(argv), environ)
            except OSError as error:
                os.write(writes, str(error.errno).encode())
            finally:
                os._exit(NOT_EXECUTABLE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, was_blocked)
        os.close(writes)
    with open(reads, "rb") as failed:
        code = failed.read()
    if code:
        os.waitpid(pid, 0)
        refuse(file, int(code))
    return pid


def refuse(file: str, code: int) -> NoReturn:
    if code == errno.ENOENT and os.path.exists(file):
        raise CannotRun(NOT_EXECUTABLE, f"{file}: its interpreter is not there")
    if code == errno.ENOEXEC:
        raise CannotRun(
            NOT_EXECUTABLE, f"{file}: neither a program nor a script with a '#!' line; there is no shell here"
        )
    raise CannotRun(NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE, f"{file}: {os.strerror(code)}")


def death_signal_setter() -> Callable[[], object]:
    """What a child calls in order to be killed when its parent dies. Only Linux has that."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    import ctypes  # slow to import: it is called while the agent is at work, and costs nothing then

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
