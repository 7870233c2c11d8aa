"""Notices when the application blocks the event loop that a node lives on.

A node that does not get its turn cannot answer; others take it for dead and replace its token, and from outside
nothing tells the two apart. The naive way, to measure the delay of the node's own timers, notices nothing while no
timer is due. So one tick a loop is timed, however many nodes live there.

The first thing that a process does when it goes on may be to use a token that was replaced meanwhile, and the tick that
is late may be the last to come up. So every event of a node looks whether the tick is overdue (`Life.handle`), and then
machines hear of that first (`Slept`).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING

from softmutex.core.events import from_seconds

if TYPE_CHECKING:
    from softmutex.runtime.node import Life

log = logging.getLogger("softmutex")

PERIOD_S = 0.25
SLEEP = from_seconds(2 * PERIOD_S)  # after this it is clear that this process did not get its turn
WARN_S = 0.5  # shorter than the silence after which others begin to probe
WARN_AGAIN_S = 60.0

_monitors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LagMonitor] = weakref.WeakKeyDictionary()


class LagMonitor:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lives: dict[Life, None] = {}
        self._due = 0.0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._warned_at = float("-inf")
        self.max_s = 0.0
        self.count = 0

    @classmethod
    def watch(cls, life: Life) -> LagMonitor:
        monitor = _monitors.get(life.loop)
        if monitor is None:
            monitor = _monitors[life.loop] = cls(life.loop)
        monitor._lives[life] = None
        life.overdue_at = life.now() + SLEEP
        if monitor._tick_handle is None:
            monitor._wait()
        return monitor

    def leave(self, life: Life) -> None:
        self._lives.pop(life, None)
        if not self._lives and self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None

    def _wait(self) -> None:
        self._due = self._loop.time() + PERIOD_S
        for life in self._lives:
            life.overdue_at = life.now() + SLEEP
        self._tick_handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        for life in list(self._lives):
            life.is_awake()
        lag_s = now - self._due
        if lag_s > self.max_s:
            self.max_s = lag_s
        if lag_s > WARN_S:
            self.count += 1
            if now - self._warned_at > WARN_AGAIN_S:
                self._warned_at = now
                log.warning(
                    "the event loop was blocked for %.1f s: meanwhile others take the nodes on it for dead. "
                    "Move what blocks into a thread (asyncio.to_thread), or the node (Node(thread=True)).",
                    lag_s,
                )
        for life in list(self._lives):
            life.tell_observers("", "loop_lag", {"seconds": lag_s})
        self._wait()
