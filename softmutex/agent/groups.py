"""Process groups: whether anybody of one is left, and how to end all of it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

KILL_PATIENCE_S = 2.0  # for what got SIGKILL to be gone; a process that waits for a dead disk never is
SWEEP_EVERY_S = 0.02


def is_gone(group: int) -> bool:
    """Whether no process of the group is alive. Zombies do not count: in a container without an init that collects
    them, they stay for ever."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is somebody else's, but it is there
        return False
    return sys.platform.startswith("linux") and all(
        pgrp != group or state in "XZ"
        for state, pgrp in map(state_and_group, filter(str.isdecimal, os.listdir("/proc")))
    )


def state_and_group(pid: str) -> tuple[str, int]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            state, _, group = stat.read().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return state, int(group)


async def kill_group(group: int) -> None:
    import asyncio  # a job's own process does without

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(round(KILL_PATIENCE_S / SWEEP_EVERY_S)):
        if is_gone(group):
            return
        await asyncio.sleep(SWEEP_EVERY_S)
