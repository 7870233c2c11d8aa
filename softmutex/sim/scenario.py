"""What a run is made of: who takes part, who wants the resource, what the network does, what goes wrong.

A `Scenario` is the whole cause of a run: the same scenario gives the same events, on every machine. So it is
frozen, refuses what cannot be at once (with one sentence that says what to do), and can be written to JSON and
read back: that is the header of a trace, and the command that replays a violation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from softmutex.core.chance import Rng
from softmutex.core.errors import ConfigError
from softmutex.core.events import NOBODY, to_seconds
from softmutex.core.laws import Weather
from softmutex.core.machine import Algorithm, Setup, WhenIsolated
from softmutex.core.timing import Pace, Timing
from softmutex.sim.faults import Fault, Kill, Partition, fault_from_json, fault_to_json

DEMANDS = ("saturated", "bursts:LENGTH:GAP", "periodic", "periodic:SECONDS", "poisson:RATE", "none")
HOLDS = ("fixed", "fixed:SECONDS", "exponential", "uniform:LOW:HIGH")
IDS = ("ascending", "random")
ON_LOST = ("continue", "cancel")
MUTE = Weather.LOSS | Weather.CUTS | Weather.LINKS | Weather.PAUSES  # who is well may seem to be gone


@dataclass(frozen=True)
class Scenario:
    """One run. Durations in seconds, probabilities from 0 to 1.

    `duration_s` is what the statistics cover. With `settle_s` a second phase follows it: nothing new is asked
    for, the network is healed, and whatever was asked for must be granted before `settle_s` is over, or one after
    another from then on.
    """

    algorithm: str | type[Algorithm] = "wandering"
    nodes: int = 10
    duration_s: float = 1000.0
    seed: int = 1

    # the group's time constants; None: what `Timing` makes of it
    op_s: float = 4.0
    skip_s: float | None = None
    min_interval_s: float | None = None
    max_interval_s: float | None = None
    nodes_max: int | None = None  # None: what `Timing` takes, however many take part: the papers' own 300

    # who wants the resource, for how long
    demand: str = "saturated"
    hold: str = "fixed"  # how long A really takes: fixed (at op_s), fixed:SECONDS, exponential (mean op_s), uniform:...
    patience_s: float | None = None  # a request that waited for so long is withdrawn
    changes_mind: float = 0.0  # share of requests that are withdrawn at a random moment of the first `op_s`
    on_lost: str = "continue"  # what A does when it is told that it may not be alone; cancel: it ends at once

    # the network; all zero: messages arrive at once and in order, as in the papers
    delay_s: float = 0.0
    jitter: float = 0.5  # share of the delay by which it varies up and down
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0  # share of messages that take up to ten delays more
    corruption: float = 0.0  # a corrupted datagram is one that a checksum eats

    # what goes wrong, and how the others get to know who is there
    faults: tuple[Fault, ...] = ()
    detection_s: float = 3.0  # from a death to the moment when the membership tells of it
    own_views: bool = False  # each node hears of changes at its own moment, up to twice `detection_s`
    known: float = 1.0  # share of the group that a node knows when it begins, one other at the least (own_views)
    late_s: float = 0.0  # by when it knows the rest, and they know it (own_views)
    ids: str = "ascending"  # in the order of joining, or random: then a newcomer may have any place among the others

    founders: int = 1  # how many believe at the start that they make the first token
    settle_s: float = 0.0
    grace_s: float = 30.0  # how long after the last disturbance its consequences may begin
    bound_s: float | None = None  # the laws of `bounds.py`, where no fault excuses anything that comes later than this
    slots: int = 1
    place: int = 0  # what the mutex's name comes to: whoever is chosen by it is another one with another number
    when_isolated: WhenIsolated = "wait"
    isolated_timeout_s: float | None = 600.0  # who is silent for so long no longer counts
    options: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's own switches
    laws: tuple[str, ...] | None = None  # what checkers hold the run to; None: what the algorithm claims
    bucket_s: float = 500.0  # width of the histogram of intervals
    keep_holds: bool = False  # remember every run of A, not only the statistics

    def __post_init__(self) -> None:
        for complaint in self._complaints():
            raise ConfigError(complaint)

    def _complaints(self) -> list[str]:
        wrong = []
        if self.nodes > 1 << 20 and self.ids == "random":
            wrong.append(f"{self.nodes} nodes are too many for random ids: leave `ids` out")
        for name, value, known in (("ids", self.ids, IDS), ("on_lost", self.on_lost, ON_LOST)):
            if value not in known:
                wrong.append(f"{name} is {value!r}: give one of {', '.join(known)}")
        if (self.known < 1 or self.late_s) and not self.own_views:
            wrong.append("known and late_s say how views differ: they need own_views")
        if self.nodes < 2:
            wrong.append(f"{self.nodes} nodes cannot exclude one another: give at least 2")
        wrong += [
            f"{_flag(name)} is {value:g}: give a number of seconds above 0"
            for name, value in (
                ("duration_s", self.duration_s),
                ("op_s", self.op_s),
                ("patience_s", self.patience_s),
                ("bound_s", self.bound_s),
            )
            if value is not None and (not _finite(value) or value <= 0)
        ]
        for name in ("delay_s", "settle_s", "detection_s", "late_s", "skip_s", "min_interval_s", "max_interval_s"):
            value = getattr(self, name)
            if value is not None and (not _finite(value) or value < 0):
                wrong.append(f"{_flag(name)} is {value:g}: give a number of seconds, 0 or above")
        wrong += [
            f"{_flag(name)} is {getattr(self, name):g}: give a share from 0 to 1 (1 % is 0.01)"
            for name in ("loss", "duplication", "reordering", "corruption", "jitter", "changes_mind", "known")
            if not 0 <= getattr(self, name) <= 1
        ]
        if self.skip_s is not None and self.skip_s > self.op_s:
            wrong.append(
                f"--skip {self.skip_s:g} is longer than --op {self.op_s:g}: a node that does not need the token would "
                "keep it longer than one that does; give a skip below op"
            )
        if self.max_interval_s is not None and self.max_interval_s < (self.min_interval_s or 0):
            wrong.append(
                f"--max-interval {self.max_interval_s:g} is below --min-interval {self.min_interval_s:g}: "
                "give a larger --max-interval"
            )
        if self.nodes_max is not None and self.nodes_max < 2:
            wrong.append(f"--nodes-max is {self.nodes_max}: give at least 2")
        if self.slots < 1:
            wrong.append(f"--slots is {self.slots}: give at least 1")
        if self.when_isolated not in get_args(WhenIsolated):
            wrong.append(f"when_isolated is {self.when_isolated!r}: give one of {', '.join(get_args(WhenIsolated))}")
        if self.bucket_s <= 0:
            wrong.append(f"the histogram's bucket is {self.bucket_s:g}: give a number of seconds above 0")
        if not 0 <= self.founders <= self.nodes:
            wrong.append(f"{self.founders} of {self.nodes} nodes cannot be founders: give a number up to the nodes")
        if not self.own_views and any(isinstance(fault, Partition) and fault.seen_after_s for fault in self.faults):
            wrong.append("a partition that the memberships see needs own_views")
        wrong += _demand_complaints(self.demand) + _hold_complaints(self.hold)
        if self.hold in ("fixed:0", "fixed:0.0") and self.demand.startswith(("saturated", "bursts")):
            wrong.append("who asks again after no time, for no time, never gets on: give poisson:RATE or a longer hold")
        return wrong + [complaint for fault in self.faults for complaint in fault.complaints()]

    @property
    def algorithm_name(self) -> str:
        return self.algorithm if isinstance(self.algorithm, str) else self.algorithm.name

    @property
    def default_period_s(self) -> float:
        """Half the load that the resource can bear, unless `max_interval` says how often a node wants it."""
        return self.max_interval_s or 2 * self.op_s * self.nodes

    @property
    def instant(self) -> bool:
        """Messages arrive at once: the papers' own world."""
        return self.delay_s == 0

    def timing(self) -> Timing:
        return Timing(
            op=self.op_s,
            nodes_max=Timing().nodes_max if self.nodes_max is None else self.nodes_max,
            skip=self.skip_s,
            min_interval=self.min_interval_s,
            max_interval=self.max_interval_s,
        )

    def setup(self, rng: Rng) -> Setup:
        """What all machines are told alike; `me` and `members` are nobody's yet."""
        timing, options = self.timing(), dict(self.options)
        return Setup(NOBODY, (), rng, timing, options, self.slots, self.when_isolated, self.place, self.instant)

    def weather(self) -> Weather:
        """All that goes wrong in this run."""
        found = {
            Weather.LOSS: self.loss or self.corruption,
            Weather.REPETITION: self.duplication,
            Weather.LATENESS: self.reordering,
            Weather.VIEWS: self.own_views,
            Weather.FOUNDERS: self.founders != 1,
            Weather.SILENCE: any(isinstance(fault, Kill) and fault.silent for fault in self.faults),
        }
        weather = Weather.FAIR
        for trouble in [trouble for trouble, there in found.items() if there] + [
            fault.weather for fault in self.faults
        ]:
            weather |= trouble
        if self.when_isolated == "proceed" and weather & MUTE:
            weather |= Weather.VIEWS  # who goes on without the silent ones does not count them
        return weather

    def settings(self, pace: Pace) -> dict[str, float | int]:
        """The time constants as the algorithm reckons with them, in seconds."""
        constants = self.timing().constants(pace)
        return {
            "skip": to_seconds(constants.skip_ns),
            "op": to_seconds(constants.op_ns),
            "min_interval": to_seconds(constants.min_ns),
            "max_interval": to_seconds(constants.max_ns),
            "nodes_max": self.timing().nodes_max,
        }

    def but(self, **changes: Any) -> Scenario:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that a header stays readable."""
        out: dict[str, Any] = {"algorithm": self.algorithm_name}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name == "faults":
                value = [fault_to_json(fault) for fault in value]
                default: Any = []
            else:
                default = {} if each.name == "options" else each.default
            if each.name not in ("algorithm", "keep_holds") and value != default:
                out[each.name] = dict(value) if isinstance(value, Mapping) else value
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scenario:
        known = {each.name for each in dataclasses.fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ConfigError(f"this scenario has settings that this version does not know: {', '.join(unknown)}")
        fields = dict(data)
        fields["faults"] = tuple(fault_from_json(fault) for fault in data.get("faults", ()))
        if data.get("laws") is not None:
            fields["laws"] = tuple(data["laws"])
        try:
            return cls(**fields)
        except TypeError as error:  # a text where a number belongs
            raise ConfigError(f"this is no scenario: {error}") from error


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")


def _demand_complaints(demand: str) -> list[str]:
    kind, _, number = demand.partition(":")
    if kind in ("saturated", "none") and not number:
        return []
    if kind == "periodic" and (not number or _positive(number)):
        return []
    if kind == "poisson" and _positive(number):
        return []
    length, _, gap = number.partition(":")
    if kind == "bursts" and _positive(length) and _positive(gap):
        return []
    return [f"demand {demand!r} is not one of {', '.join(DEMANDS)} (RATE: requests a second of the whole group)"]


def _hold_complaints(hold: str) -> list[str]:
    kind, *numbers = hold.split(":")
    if kind in ("fixed", "exponential") and not numbers:
        return []
    if kind == "fixed" and len(numbers) == 1 and (_positive(numbers[0]) or numbers[0] in ("0", "0.0")):
        return []
    if (
        kind == "uniform"
        and len(numbers) == 2
        and all(map(_positive, numbers))
        and float(numbers[0]) < float(numbers[1])
    ):
        return []
    return [f"hold {hold!r} is not one of {', '.join(HOLDS)}"]


def _positive(text: str) -> bool:
    try:
        return _finite(float(text)) and float(text) > 0
    except ValueError:
        return False
