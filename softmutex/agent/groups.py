"""Process groups: whether anybody of one is left, and how to end all of it.

What it decides: a process that has become another user (sudo, a setuid program) cannot be ended from here, and it works
on. So the mutex is held until it is gone. The naive way, to give up on whatever SIGKILL does not end, hands the mutex
to the next one while the command still runs; only of what waits for a dead disk that is right, since it does nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count

KILL_PATIENCE_S = 2.0  # for what got SIGKILL to be gone; a process that waits for a dead disk never is
SWEEP_EVERY_S = 0.02
LOOK_EVERY_S = 0.2


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


def is_out_of_reach(group: int) -> bool:
    """Whether somebody is left whom we may not even signal."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not sys.platform.startswith("linux"):
        return False
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        state, pgrp = state_and_group(pid)
        if pgrp == group and state not in "XZ":
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                continue
            except PermissionError:
                return True
    return False


def out_of_reach(group: int) -> str:
    return (
        f"processes of group {group} have become another user's and cannot be ended from here: the mutex is held until "
        "they are gone"
    )


def state_and_group(pid: str) -> tuple[str, int]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            state, _, group = stat.read().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return state, int(group)


async def outlast_group(group: int, warn: Callable[[str], None]) -> None:
    """Returns when it is gone. For whoever may not, or must not, signal what another user names."""
    import asyncio

    if not is_gone(group):
        warn(f"process group {group} works on after its job was killed: the mutex is held until it is gone")
    while not is_gone(group):  # noqa: ASYNC110 (the kernel tells of the end of one's own children only)
        await asyncio.sleep(LOOK_EVERY_S)


async def kill_group(group: int, warn: Callable[[str], None]) -> None:
    """Returns when it is gone, or does nothing any more."""
    import asyncio  # a job's own process does without

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    patience = round(KILL_PATIENCE_S / SWEEP_EVERY_S)
    for turn in count():
        if is_gone(group) or (turn >= patience and not is_out_of_reach(group)):
            return
        if turn == patience:
            warn(out_of_reach(group))
        await asyncio.sleep(SWEEP_EVERY_S if turn < patience else LOOK_EVERY_S)
