"""Notices when the application blocks the event loop that a node lives on.

A node that does not get its turn cannot answer; others take it for dead and replace its token, and from outside
nothing tells the two apart. The naive way, to measure the delay of the node's own timers, notices nothing while no
timer is due. So one tick a loop is timed, however many nodes live there.

The first thing that a process does when it goes on may be to use a token that was replaced meanwhile, and the tick that
is late may be the last to come up. So every event of a node looks whether the tick is overdue (`RunningNode.handle`),
and then machines hear of that first (`Slept`).
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Protocol

from softmutex.core.events import Duration, Instant, from_seconds
from softmutex.runtime.clock import Clock, has_time_of_its_own
from softmutex.runtime.whereabouts import Whereabouts
from softmutex.saying import logger

log = logger("loop")

PERIOD_S = 0.25
SLEEP = from_seconds(2 * PERIOD_S)  # after this it is clear that this process did not get its turn
WARN_S = 0.5  # shorter than the silence after which others begin to probe
WARN_AGAIN_S = 60.0
REMEMBERED_S = 3600.0  # at least; who slept once is not warned of for life

_monitors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LagMonitor] = weakref.WeakKeyDictionary()


class LivesForLag(Protocol):
    def end(self, why: str) -> None: ...

    def doubt(self, jump: Duration) -> None: ...


class NodeForLag(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    now: Clock
    overdue_at: Instant

    @property
    def lives(self) -> LivesForLag: ...

    def is_awake(self) -> None: ...

    def tick(self, lag_s: float) -> None: ...


class LagMonitor:
    """One for each loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._nodes: dict[NodeForLag, None] = {}
        self._due = 0.0
        self._tick_handle: asyncio.TimerHandle | None = None
        self._warned_at = float("-inf")
        self._worst_s = self._worst_before_s = 0.0  # of this hour, and of the last
        self._remembers_since = loop.time()
        self.count = 0
        self._whereabouts = None if has_time_of_its_own(loop) else Whereabouts()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LagMonitor:
        monitor = _monitors.get(loop)
        if monitor is None:
            monitor = _monitors[loop] = cls(loop)
        return monitor

    @property
    def max_s(self) -> float:
        """The worst of the last hour, or of up to two."""
        return max(self._worst_s, self._worst_before_s)

    def watch(self, node: NodeForLag) -> None:
        self._nodes[node] = None
        node.overdue_at = node.now() + SLEEP
        if self._tick_handle is None:
            self._wait()

    def leave(self, node: NodeForLag) -> None:
        self._nodes.pop(node, None)
        if not self._nodes and self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None

    def _wait(self) -> None:
        self._due = self._loop.time() + PERIOD_S
        for node in self._nodes:
            node.overdue_at = node.now() + SLEEP
        self._tick_handle = self._loop.call_at(self._due, self._tick)

    def look(self) -> None:
        """Whether this is still the machine that it was."""
        where = self._whereabouts
        if where is None or not where.is_due(self._loop.time()):
            return
        if differs := where.changed():
            for node in list(self._nodes):
                node.lives.end(
                    f"{differs} is another one than a moment ago: this machine was cloned, set back or moved."
                )
        elif jump := where.jumped():
            for node in list(self._nodes):
                node.lives.doubt(jump)

    def _tick(self) -> None:
        now = self._loop.time()
        self.look()
        for node in list(self._nodes):
            node.is_awake()
        lag_s = now - self._due
        if now - self._remembers_since > REMEMBERED_S:
            self._worst_before_s, self._worst_s = self._worst_s, 0.0
            self._remembers_since = now
        self._worst_s = max(self._worst_s, lag_s)
        if lag_s > WARN_S:
            self.count += 1
            if now - self._warned_at > WARN_AGAIN_S:
                self._warned_at = now
                log.warning(
                    "the event loop was blocked for %.1f s: meanwhile others take the nodes on it for dead. "
                    "Move what blocks into a thread (asyncio.to_thread), or the node (Node(thread=True)).",
                    lag_s,
                )
        for node in list(self._nodes):
            node.tick(lag_s)
        self._wait()
