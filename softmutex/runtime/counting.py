"""What is counted of a mutex on this node. What is shown of it: `statistics.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softmutex.core.events import Duration, FactKind, NodeId, RequestId, to_seconds

if TYPE_CHECKING:
    from softmutex.runtime.statistics import OverlapStatistics

PAIRS_KEPT = 256


class Durations:
    """Count, sum and maximum of something that takes time."""

    __slots__ = ("count", "max_ns", "total_ns")

    def __init__(self) -> None:
        self.count = 0
        self.total_ns: Duration = 0
        self.max_ns: Duration = 0

    def add(self, duration: Duration) -> None:
        self.count += 1
        self.total_ns += duration
        if duration > self.max_ns:
            self.max_ns = duration


class Overlaps:
    """Pairs of holds, each counted once however often it is told of. The oldest are forgotten one by one, not counted
    out."""

    __slots__ = ("_lengths", "count", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self._lengths: dict[tuple[RequestId, NodeId, RequestId], Duration] = {}
        self.count = 0
        self.total_ns: Duration = 0
        self.longest_ns: Duration = 0

    def add(self, pair: tuple[RequestId, NodeId, RequestId], length: Duration) -> bool:
        """Whether it is new."""
        known = self._lengths.pop(pair, None)
        if known is None:
            self.count += 1
        longest = max(known or 0, length)
        self.total_ns += longest - (known or 0)
        self.longest_ns = max(self.longest_ns, longest)
        self._lengths[pair] = longest
        if len(self._lengths) > PAIRS_KEPT:
            del self._lengths[next(iter(self._lengths))]
        return known is None

    def seen(self) -> OverlapStatistics:
        from softmutex.runtime.statistics import OverlapStatistics  # slow to make

        return OverlapStatistics(self.count, to_seconds(self.total_ns), to_seconds(self.longest_ns))


class MutexCounts:
    """Of one mutex on one node."""

    __slots__ = ("acquisitions", "cancelled", "facts", "lost", "overruns", "received", "sent", "timeouts")

    def __init__(self) -> None:
        self.acquisitions = 0
        self.timeouts = 0
        self.cancelled = 0
        self.overruns = 0
        self.lost = 0
        self.facts: dict[FactKind, int] = {}
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
