"""Work in a process of its own that does not outlive us: it, and all that it starts, is ended where we are."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

ENDS_US = (signal.SIGTERM, signal.SIGHUP)  # SIGINT raises by itself


def leave_by_raising() -> None:
    """A signal ends this process as an error does: what is to be tidied up is."""
    for number in ENDS_US:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def apart(work: Callable[[], None], seconds: float | None = None, look: Callable[[], None] = lambda: None) -> int:
    """How it exited; -9 where it took longer. Meanwhile `look` is called again and again."""
    until = None if seconds is None else time.monotonic() + seconds
    over, status = 0, 0
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS_US, signal.SIGINT})  # the child may be there before we know
    child = os.fork()
    if child == 0:
        _do(work, mask)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _in_a_group_of_its_own(child)
        while not over:
            look()
            if until is not None and time.monotonic() > until:
                break
            time.sleep(0.05)
            over, status = os.waitpid(child, os.WNOHANG)
    finally:
        if not over:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _do(work: Callable[[], None], mask: set[signal.Signals | int]) -> None:
    """In the child, which never comes back from here."""
    code = os.EX_SOFTWARE
    try:
        _in_a_group_of_its_own(os.getpid())
        for number in ENDS_US:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        work()
        code = os.EX_OK
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _in_a_group_of_its_own(child: int) -> None:
    """Said by both, for either may be the first. A session would do as well, but could be left by its own children."""
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
