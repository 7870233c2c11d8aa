"""What is counted and measured, as OpenTelemetry metrics.

What it decides: counters are sums that are kept here and read when the SDK collects, so that counting one more costs
a fraction of a microsecond, and a counter is there, at 0, as soon as its mutex is used. The naive counter appears with
its first event; then `increase(softmutex_overlaps_total[1h])` is 0 in the very hour in which it happened.

To record a duration costs the SDK more than all else here. So durations are recorded some at a time: when the SDK
collects, or when the node hands them out (`read`), while this process would only wait. One by one, between other work,
each takes twice as long.

Metrics say `softmutex.node` by a name that lasts: the one that the node was given, else host and process. With the
names in the spans, new each time that a node opens, a program that joins a thousand times has a thousand series.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry import metrics
from opentelemetry.metrics import Observation as Point

from softmutex.core.events import FactKind, NodeId, to_seconds
from softmutex.ports import Diary, Lately, NodeSeen, Observation

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

Labels: TypeAlias = tuple[tuple[str, str], ...]

OUTCOMES = ("granted", "timeout", "cancelled", "closed")
THE_FIRST = "the first one"  # what every machine says of a token that replaces none

ACQUISITIONS = "softmutex.acquisitions"
COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    ACQUISITIONS: ("{acquisition}", "Acquisitions that ended, by softmutex.outcome"),
    "softmutex.handovers": ("{handover}", "Tokens that this node passed on, and knows to have arrived"),
    "softmutex.regenerations": ("{token}", "Tokens that this node made in place of one that was gone; not the first"),
    "softmutex.discards": ("{token}", "Tokens that this node removed on purpose"),
    "softmutex.overlaps": ("{overlap}", "Times that this node saw two holders at once"),
    "softmutex.overruns": ("{hold}", "Holds that took longer than max_hold without touch()"),
}
MESSAGES = ("softmutex.messages", "{message}", "Messages sent for a mutex, by softmutex.kind")
MEMBERS = ("softmutex.members", "{node}", "Members of the group that this node knows, itself included")
WAIT = ("softmutex.wait.duration", "s", "From asking for the mutex until it is granted or given up")
HOLD = ("softmutex.hold.duration", "s", "From the grant to its end")
LAG = ("softmutex.loop.lag", "s", "How late the event loop of the node was, measured twice a second")

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000)
LEFT_KEPT = 64
LAG_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1, 2, 5, 10, 30)


class Line:
    """The labels of one mutex on one node, made once."""

    __slots__ = ("ended", "held", "plain", "used", "waited")

    def __init__(self, held: dict[str, str]) -> None:
        self.used = False  # by this process, not only by others of the group
        self.held = held
        self.waited = {outcome: {**held, "softmutex.outcome": outcome} for outcome in OUTCOMES}
        self.plain: Labels = tuple(held.items())
        self.ended: dict[str, Labels] = {outcome: tuple(labels.items()) for outcome, labels in self.waited.items()}


class Meters:
    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("softmutex", meter_provider=provider)
        self._lock = threading.Lock()
        self._nodes: dict[NodeId, NodeSeen] = {}
        self._left: dict[NodeId, str] = {}  # names of nodes that are closed: the last of them may still be told
        self._lines: dict[tuple[NodeId, str], Line] = {}
        self._counts: dict[str, dict[Labels, int]] = {name: {} for name in COUNTERS}
        self._sent_before: dict[Labels, int] = {}  # by nodes that are closed
        self._instruments = [meter.create_observable_counter(*self._counter(name)) for name in COUNTERS]
        self._messages = meter.create_observable_counter(MESSAGES[0], [self._see_messages], *MESSAGES[1:])
        self._members = meter.create_observable_up_down_counter(MEMBERS[0], [self._see_members], *MEMBERS[1:])
        self._wait, self._hold = self._durations(meter, WAIT, SECONDS), self._durations(meter, HOLD, SECONDS)
        self._lag = self._durations(meter, LAG, LAG_SECONDS)
        self.takers: Mapping[str, Callable[[Observation], None]] = {
            "wait_ended": self._wait_ended,
            "loop_lag": lambda seen: self._lag.record(seconds(seen), self._node_label(seen.node)),
            "overrun": lambda seen: self._count("softmutex.overruns", self._line(seen).plain),
            FactKind.DISCARDED.value: lambda seen: self._count("softmutex.discards", self._line(seen).plain),
            FactKind.OVERLAP.value: lambda seen: self._count("softmutex.overlaps", self._line(seen).plain),
            FactKind.GENERATED.value: self._generated,
        }

    def _counter(self, name: str) -> tuple[str, list[Callable[[CallbackOptions], Iterable[Point]]], str, str]:
        def see(_: CallbackOptions) -> Iterable[Point]:
            if name == ACQUISITIONS:  # the first that the SDK asks for; it looks at its histograms after all these
                self._settle()
            with self._lock:
                return [Point(count, dict(labels)) for labels, count in self._counts[name].items()]

        return (name, [see], *COUNTERS[name])

    @staticmethod
    def _durations(meter: Meter, what: tuple[str, str, str], bounds: tuple[float, ...]) -> metrics.Histogram:
        return meter.create_histogram(*what, explicit_bucket_boundaries_advisory=list(bounds))

    # --- nodes ------------------------------------------------------------------------------------------------------

    def opened(self, node: NodeSeen) -> None:
        with self._lock:
            self._nodes[node.id] = node

    def closed(self, node: NodeSeen) -> None:
        with self._lock:
            if self._nodes.pop(node.id, None) is not None:
                self._add_sent(node, self._sent_before)
                self._left[node.id] = node.lasting_name
                if len(self._left) > LEFT_KEPT:
                    del self._left[next(iter(self._left))]
            for key in [key for key in self._lines if key[0] == node.id]:
                del self._lines[key]

    def _node_label(self, id: NodeId) -> dict[str, str]:
        node = self._nodes.get(id)
        return {"softmutex.node": node.lasting_name if node else self._left.get(id, f"{id:x}")}

    def _line(self, seen: Observation) -> Line:
        line = self._lines.get((seen.node, seen.mutex))
        if line is None:
            node = self._nodes.get(seen.node)
            algorithm = str(seen.values.get("algorithm") or (node.algorithm(seen.mutex) if node else ""))
            line = Line({"softmutex.name": seen.mutex, "softmutex.algorithm": algorithm, **self._node_label(seen.node)})
            if node and algorithm:
                self._lines[seen.node, seen.mutex] = line
        return line

    # --- what happened ----------------------------------------------------------------------------------------------

    def _count(self, name: str, labels: Labels, by: int = 1) -> None:
        with self._lock:
            counts = self._counts[name]
            counts[labels] = counts.get(labels, 0) + by

    def read(self, diary: Diary, lately: Lately) -> None:
        line = self._line(Observation(diary.mutex, diary.node, "", {"algorithm": diary.algorithm}))
        if diary.is_used() and not line.used:
            line.used = True
            for name in COUNTERS:
                for labels in line.ended.values() if name == ACQUISITIONS else [line.plain]:
                    self._count(name, labels, 0)
        self._count(ACQUISITIONS, line.ended["granted"], len(lately.waits))
        self._count("softmutex.handovers", line.plain, lately.handed_over)
        for waited in lately.waits:
            self._wait.record(to_seconds(waited), line.waited["granted"])
        for begin, end in lately.holds:
            self._hold.record(to_seconds(end - begin), line.held)

    def _wait_ended(self, seen: Observation) -> None:
        outcome = str(seen.values["outcome"])
        if outcome != "granted":  # those that were are read
            line = self._line(seen)
            self._count(ACQUISITIONS, line.ended[outcome])
            self._wait.record(seconds(seen), line.waited[outcome])

    def _generated(self, seen: Observation) -> None:
        if seen.values["detail"] != THE_FIRST:
            self._count("softmutex.regenerations", self._line(seen).plain)

    # --- what is looked at ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        with self._lock:
            nodes = list(self._nodes.values())
        for node in nodes:
            node.settle()

    def _add_sent(self, node: NodeSeen, sums: dict[Labels, int]) -> None:
        for (mutex, kind), count in node.sent().items():
            algorithm = node.algorithm(mutex)
            labels = {"softmutex.name": mutex, "softmutex.algorithm": algorithm, "softmutex.node": node.lasting_name}
            key = (*labels.items(), ("softmutex.kind", kind))
            sums[key] = sums.get(key, 0) + count

    def _see_messages(self, _: CallbackOptions) -> Iterable[Point]:
        with self._lock:
            sums = dict(self._sent_before)
            for node in self._nodes.values():
                self._add_sent(node, sums)
        return [Point(count, dict(labels)) for labels, count in sums.items()]

    def _see_members(self, _: CallbackOptions) -> Iterable[Point]:
        with self._lock:
            known = [(node.members(), node.lasting_name) for node in self._nodes.values()]
        largest = {name: count for count, name in sorted(known) if count}
        return [Point(count, {"softmutex.node": name}) for name, count in largest.items()]


def seconds(seen: Observation) -> float:
    return float(seen.values["seconds"])
