"""All timers of one node: one heap, one timer of the loop.

The naive way, `loop.call_later` for each timer of each mutex, leaves thousands of cancelled handles in the loop of the
application and wakes it for each. Here a setting is a tuple in a heap; a replaced or cancelled one stays there until
it comes up or until most of the heap is like it.

I1  A setting fires once, at or after its instant, unless replaced or cancelled before (D3).
I2  What is set while timers fire waits for the next pass, even when it is due: the loop gets its turn in between.
I3  A call that raises is logged, and holds no other one up.
I4  The heap holds at most 4 entries a live setting, plus 64.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Hashable
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from softmutex.core.events import SECOND, Instant
from softmutex.runtime.clock import Clock
from softmutex.saying import logger

Entry: TypeAlias = tuple[Instant, int, Hashable, Callable[[Any], None], Any]

log = logger("node")

SLACK = 64


class Timers:
    def __init__(self, loop: asyncio.AbstractEventLoop, now: Clock) -> None:
        self._loop = loop
        self._now = now
        self._heap: list[Entry] = []
        self._live: dict[Hashable, Entry] = {}
        self._serial = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: Instant = 0
        self.late_max_ns = 0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: Hashable, at: Instant, call: Callable[[Any], None], argument: Any) -> None:
        self._serial += 1
        entry = (at, self._serial, key, call, argument)
        self._live[key] = entry
        heappush(self._heap, entry)
        if self._alarm is None or at < self._alarm_at:
            self._arm(at)
        if len(self._heap) > 4 * len(self._live) + SLACK:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def cancel(self, key: Hashable) -> None:
        self._live.pop(key, None)

    def cancel_of(self, owners: Container[Hashable]) -> None:
        """All whose key begins with one of these; nothing of them is kept."""
        for key in [key for key in self._live if isinstance(key, tuple) and key[0] in owners]:
            del self._live[key]
        self._heap = list(self._live.values())
        heapify(self._heap)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._heap.clear()
        self._live.clear()

    def _arm(self, at: Instant) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(0, at - self._now()) / SECOND, self._fire)

    def _fire(self) -> None:
        self._alarm = None
        now, last = self._now(), self._serial
        heap, live = self._heap, self._live
        put_off = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if live.get(entry[2]) is not entry:
                continue
            if entry[1] > last:
                put_off.append(entry)
                continue
            del live[entry[2]]
            self.late_max_ns = max(self.late_max_ns, now - entry[0])
            try:
                entry[3](entry[4])
            except Exception:
                log.exception("what was to be done at a timer %r went wrong", entry[2])
            heap = self._heap  # may have been rebuilt
        for entry in put_off:
            heappush(heap, entry)
        while heap and live.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        if heap and (self._alarm is None or heap[0][0] < self._alarm_at):
            self._arm(heap[0][0])
