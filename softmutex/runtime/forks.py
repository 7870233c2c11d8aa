"""How often this process was forked away from the one that imported it. A parent's node must not speak in a child.

The naive way, comparing `os.getpid()` at every call, costs a system call each time. The hook below runs in the child
alone, before any other code of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class Process:
    """This one."""

    generation = 0  # of forks: what was made in another generation belongs to a parent


here = Process()
_afterwards: list[Callable[[], None]] = []


def in_child(call: Callable[[], None]) -> None:
    """Calls `call` in each forked child, right after the fork."""
    _afterwards.append(call)


def _forked() -> None:
    here.generation += 1
    for call in _afterwards:
        call()


os.register_at_fork(after_in_child=_forked)
