"""What a run showed. `to_json` is the promised object; attributes hold more, for tests and pictures."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softmutex.core.events import SECOND, FactKind, NodeId
from softmutex.core.laws import Law
from softmutex.sim.checkers import Violation
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import PastRun


@dataclass(frozen=True)
class Result:
    """Times in nanoseconds where the name ends in `_ns`, and in the arrays."""

    scenario: Scenario
    settings: Mapping[str, float | int | None]
    concurrency_ns: Mapping[int, int]  # time with so many running A
    tokens_ns: Mapping[int, int]  # time with so many live tokens
    acquisitions: int
    acquired: Mapping[NodeId, int]  # by node that was there at the end
    elders: frozenset[NodeId]  # who was there at the beginning
    asked: int
    withdrawn: int
    waits: array[int]  # from request to grant
    intervals: array[int]  # start to start of A on one node
    holds: Sequence[PastRun] | None  # every run of A, with `keep_holds`
    sent: Mapping[str, int]  # messages by kind
    idle_ns: int  # time when nobody waited or ran
    idle_messages: int
    generated: int
    discarded: int
    lost: int
    recoveries_ns: Sequence[int]  # from the loss of the last live token to the next grant
    outages_ns: Sequence[int]  # of these, the time in which somebody waited
    bereft_ns: int  # the same of a loss after which nobody was granted by the end; 0: there was none
    facts: Mapping[FactKind, int]
    violations: Sequence[Violation]
    violation_count: int
    looked: Mapping[Law, int]  # how often each law had something to look at that no fault excused
    seen: Mapping[str, int]  # what machines did beside messages: timers, facts, losses told
    untold: int  # overlaps of which one side could not be told
    alarms: Mapping[str, int]  # holds that were told that they may not be alone, by reason
    false_alarms: Mapping[str, int]  # of these, those that were alone from the beginning to the end (one slot)
    unserved: int  # requests that still waited at the very end
    calm_s: float  # how long the calm phase was
    settled_s: float | None  # how long the calm phase took until all was in order
    events: int
    hops: int  # messages with a token's right in them
    wall_s: float
    digest: str

    @property
    def fairness(self) -> float:
        """Jain's index over the nodes that were there from the beginning to the end."""
        return jain([count for node, count in self.acquired.items() if node in self.elders])

    @property
    def busy(self) -> float:
        """Share of the time in which somebody ran A."""
        return 1.0 - self.concurrency_ns.get(0, 0) / max(1, sum(self.concurrency_ns.values()))

    @property
    def overlap(self) -> float:
        """Share of the time in which more ran A than there are slots."""
        over = sum(spent for level, spent in self.concurrency_ns.items() if level > self.scenario.slots)
        return over / max(1, sum(self.concurrency_ns.values()))

    @property
    def messages(self) -> int:
        return sum(self.sent.values())

    @property
    def messages_per_acquisition(self) -> float:
        return self.messages / self.acquisitions if self.acquisitions else 0.0

    def wait_s(self, share: float) -> float:
        return percentile(sorted(self.waits), share) / SECOND

    def interval_edges(self) -> dict[float, int]:
        """Intervals by the lower edge of their bucket, in seconds."""
        bucket_s = self.scenario.bucket_s
        bucket_ns = round(bucket_s * SECOND)
        counts: dict[int, int] = {}
        for interval in self.intervals:
            counts[interval // bucket_ns] = counts.get(interval // bucket_ns, 0) + 1
        return {number * bucket_s: counts[number] for number in sorted(counts)}

    def to_json(self) -> dict[str, Any]:
        scenario = self.scenario
        rate = self.events / self.wall_s if self.wall_s else 0.0
        out: dict[str, Any] = {
            "algorithm": scenario.algorithm_name,
            "nodes": scenario.nodes,
            "duration": float(scenario.duration_s),
            "seed": scenario.seed,
            "settings": dict(self.settings),
            "concurrency": {str(level): spent / SECOND for level, spent in self.concurrency_ns.items()},
            "acquisitions": self.acquisitions,
            "intervals": {
                "count": len(self.intervals),
                "edges": {_plain(edge): count for edge, count in self.interval_edges().items()},
                "bucket": scenario.bucket_s,
                **spread_s(self.intervals),
            },
            "wait": {"count": len(self.waits), **spread_s(self.waits)},
            "fairness": self.fairness,
            "messages": {
                "total": self.messages,
                "per_acquisition": self.messages_per_acquisition,
                "idle_per_second": self.idle_messages * SECOND / self.idle_ns if self.idle_ns else 0.0,
                "by_kind": dict(self.sent),
            },
            "tokens": {
                "generated": self.generated,
                "discarded": self.discarded,
                "lost": self.lost,
                "time_with": {str(level): spent / SECOND for level, spent in self.tokens_ns.items()},
            },
            "recoveries": [recovery / SECOND for recovery in self.recoveries_ns],
            "outages": [outage / SECOND for outage in self.outages_ns],
            "events": self.events,
            "wall_seconds": self.wall_s,
            "events_per_second": rate,
            "digest": self.digest,
            "alarms": {"told": dict(self.alarms), "false": dict(self.false_alarms)},
            "facts": {str(kind): count for kind, count in self.facts.items()},
            "violations": [violation._asdict() for violation in self.violations],
        }
        if scenario.settle_s:
            out["liveness"] = {"unserved": self.unserved, "settled": self.settled_s}
        return out


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def jain(shares: Sequence[int]) -> float:
    """Jain's index: 1 when all have the same, 1/n when one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def percentile(ordered: Sequence[int], share: float) -> int:
    """Nearest rank: the smallest value that `share` of all do not exceed; 0 of nothing."""
    if not ordered:
        return 0
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def spread_s(values: array[int]) -> dict[str, float]:
    ordered = sorted(values)
    out = {f"p{share}": percentile(ordered, share / 100) / SECOND for share in (50, 90, 99)}
    out["max"] = ordered[-1] / SECOND if ordered else 0.0
    return out
