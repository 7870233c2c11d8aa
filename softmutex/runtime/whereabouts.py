"""Which machine this is, which boot of it, and which start of this process: whether it was cloned, set back or moved.

    once a second, and when the process did not get its turn:  read --differs--> `NodeLives.end`
                                                                '--the wall clock jumped ahead--> `NodeLives.doubt`

What it decides: nothing; it only looks. A virtual machine that is restored from a snapshot goes on as if nothing had
happened, its monotonic clock included; what tells it are the id of its generation, where the hypervisor shows one, and
the wall clock, once somebody has set it right. A process that is restored from a checkpoint has another start, and on
another host another boot. The naive way, to believe the clock alone, ends a life each time that NTP corrects one: so a
jump is a reason to ask the others, who know for certain (`lives.py`).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from softmutex.core.events import Duration, from_seconds
from softmutex.runtime.clock import CLOCK_ID

LOOK_S = 1.0
JUMP: Duration = from_seconds(10.0)  # backwards it was no snapshot: that lies in the past
MARK_SIZE = 64
SOURCES = {
    "the boot": "/proc/sys/kernel/random/boot_id",
    "the machine": "/etc/machine-id",
    "the generation of this virtual machine": "/sys/firmware/qemu_fw_cfg/by_name/etc/vmgenid_guid/raw",
}
PROCESS, STARTED = "the start of this process", 22  # the field in /proc/self/stat


def read_marks() -> dict[str, bytes]:
    """What can be read of it: elsewhere than on Linux, nothing."""
    marks: dict[str, bytes] = {}
    for what, path in SOURCES.items():
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            marks[what] = file.read(MARK_SIZE)
    with contextlib.suppress(OSError, IndexError):
        after_name = Path("/proc/self/stat").read_bytes().rpartition(b")")[2]
        marks[PROCESS] = after_name.split()[STARTED - 3]
    return marks


def wall_ahead() -> Duration:
    """Of the clock that nobody sets."""
    return time.time_ns() - time.clock_gettime_ns(CLOCK_ID)


class Whereabouts:
    def __init__(self) -> None:
        self._marks = read_marks()
        self._ahead = wall_ahead()
        self._look_at_s = 0.0

    def is_due(self, now_s: float) -> bool:
        is_due = now_s >= self._look_at_s
        if is_due:
            self._look_at_s = now_s + LOOK_S
        return is_due

    def changed(self) -> str:
        """What is another one than at the last look; empty: nothing. What cannot be read any more says nothing."""
        found = read_marks()
        differs = [what for what, mark in found.items() if self._marks.get(what, mark) != mark]
        self._marks.update(found)
        return " and ".join(differs)

    def jumped(self) -> Duration:
        """How far the wall clock jumped ahead since the last look; 0: not far."""
        ahead, before = wall_ahead(), self._ahead
        self._ahead = ahead
        return ahead - before if ahead - before >= JUMP else 0
