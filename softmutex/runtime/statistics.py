"""What is counted, and the frozen pictures of it that the application is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from softmutex.core.events import Duration, FactKind, NodeId, RequestId, to_seconds

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


@dataclass(frozen=True, slots=True)
class OverlapStatistics:
    """Holds of this node that were held while another node held the same, as far as it is known by now."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0


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
        self.facts: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}

    def note(self, kind: FactKind) -> None:
        self.facts[kind.value] = self.facts.get(kind.value, 0) + 1


@dataclass(frozen=True, slots=True)
class MutexStatistics:
    """One mutex as this node saw it since the node was opened."""

    name: str
    holding: int  # claims of this node that hold it now
    waiting: int  # claims of this node that wait for it now
    acquisitions: int
    timeouts: int
    cancelled: int
    overruns: int
    lost: int  # holds that were told that they may not be the only one, whatever the reason
    wait_total: float  # seconds, of those that were granted
    wait_max: float
    hold_total: float
    hold_max: float
    facts: Mapping[str, int]  # by FactKind: generated, discarded, handed_over, overlap ...
    sent: Mapping[str, int]  # messages by kind
    received: Mapping[str, int]
    overlaps: OverlapStatistics = OverlapStatistics()

    @classmethod
    def nothing(cls, name: str) -> MutexStatistics:
        """Of a mutex that this node has not met."""
        return cls(name, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, {}, {}, {})


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The node as a whole since it was opened."""

    peers: int
    mutexes: int
    dropped: Mapping[str, int]  # frames that were not for this node to act on, by reason
    told: Mapping[str, int]  # what went wrong around this node, by kind: breakdowns, observer errors ...
    loop_lag_max: float  # seconds for which the loop did not get its turn, at worst
    loop_lags: int  # how often that was worth a warning
    transport: Mapping[str, int]
    membership: Mapping[str, int]
    timers: int = 0  # set, and still to fire


@dataclass(frozen=True, slots=True)
class Peer:
    """Another live node of the group."""

    id: NodeId
    name: str
    address: str
    heard_ago: float | None  # seconds since it was last heard; None: known from the membership only
    suspected: bool  # it did not answer lately, and is asked, or looked for
    silent: bool = False  # it was asked in every way and did not answer; it still counts
