"""What time it is for the machines: wall time read once at start, monotonic from then on (N2).

The naive way, `time.time_ns()` at each event, makes every rule of every algorithm wrong for as long as an operator, NTP
or a virtual machine moves the clock. And `time.monotonic()` alone stands still while a laptop sleeps: the holder would
wake up and believe that its lease had only begun. So this clock counts sleep too, where the kernel offers that.

A loop with a time of its own (virtual time in tests) is believed, so that a test of three hours takes a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from softmutex.core.events import SECOND, Instant

Clock: TypeAlias = Callable[[], Instant]

CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def has_time_of_its_own(loop: asyncio.AbstractEventLoop) -> bool:
    return isinstance(loop, asyncio.BaseEventLoop) and type(loop).time is not asyncio.BaseEventLoop.time


def clock_of(loop: asyncio.AbstractEventLoop) -> Clock:
    if has_time_of_its_own(loop):
        return lambda: round(loop.time() * SECOND)
    gettime_ns, clock_id = time.clock_gettime_ns, CLOCK_ID
    offset_ns = time.time_ns() - gettime_ns(clock_id)
    return lambda: gettime_ns(clock_id) + offset_ns
