"""What a process holds right now, for tests that must leave nothing behind.

Things end a little after they were told to (a cancelled task needs a turn of the loop, a transport closes in the next
one), so a single look at the end accuses the innocent. `must_return` therefore looks until all is back, and complains
only when a bound of real time is over.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 100.0
SPARED: set[str] = set()  # what all tests of a run share, and no test leaves behind


def tasks_now() -> frozenset[str]:
    """All tasks but the one that looks."""
    me = asyncio.current_task()
    return frozenset(f"task {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks() if task is not me)


def timers_now() -> frozenset[str]:
    """Timers of the running loop that are still to fire; a loop that does not list them (uvloop) has none to show."""
    scheduled = getattr(asyncio.get_running_loop(), "_scheduled", ())
    return frozenset(f"timer {handle!r} ({id(handle)})" for handle in scheduled if not handle.cancelled())


def descriptor(number: int | str) -> str:
    return f"descriptor {number}: {os.readlink(f'/proc/self/fd/{number}')}"


def descriptors_now() -> frozenset[str]:
    """Every open descriptor with what it points to: a socket or pipe has its inode in there, so reuse is seen."""
    seen = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            seen.add(descriptor(name))
        except FileNotFoundError:
            continue  # the one that listed the directory
    return frozenset(seen)


def threads_now() -> frozenset[str]:
    """Threads but those of the loop's default executor, which the loop keeps until it closes."""
    names = ((thread.name, thread.ident) for thread in threading.enumerate())
    return frozenset(f"thread {name} ({ident})" for name, ident in names if not name.startswith("asyncio_"))


def children_now() -> frozenset[str]:
    """Child processes, zombies too."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(f"child process {pid}" for pid in found)


@dataclass(frozen=True)
class Census:
    held: frozenset[str]

    @classmethod
    def take(cls) -> Census:
        gc.collect()
        return cls(tasks_now() | timers_now() | descriptors_now() | threads_now() | children_now())

    def left_behind(self) -> list[str]:
        return sorted(Census.take().held - self.held - SPARED)

    async def must_return(self, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while left := self.left_behind():
            assert time.monotonic() < deadline, "left behind:\n  " + "\n  ".join(left)
            await asyncio.sleep(0.01)
