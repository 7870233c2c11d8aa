"""What time it is for the machines: wall time read once at start, monotonic from then on (N2).

The naive way, `time.time_ns()` at each event, makes every rule of every algorithm wrong for as long as an operator, NTP or
a virtual machine moves the clock. And `time.monotonic()` alone stands still while a laptop sleeps: the holder would wake up
and believe that its lease had only begun. So this clock counts sleep too, where the kernel offers that.

A loop with a time of its own (a virtual clock in tests) is believed, so that a test of three hours takes a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from softmutex.core.events import SECOND, Instant

Clock: TypeAlias = Callable[[], Instant]

OWN_TIME_S = 1.0  # a loop whose time differs by more from the system's keeps a time of its own


def real_ns() -> int:
    return time.clock_gettime_ns(CLOCK)


CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_of(loop: asyncio.AbstractEventLoop) -> Clock:
    if abs(loop.time() - time.monotonic()) > OWN_TIME_S:
        return lambda: round(loop.time() * SECOND)
    offset_ns = time.time_ns() - real_ns()
    gettime_ns, clock_id = time.clock_gettime_ns, CLOCK
    return lambda: gettime_ns(clock_id) + offset_ns
