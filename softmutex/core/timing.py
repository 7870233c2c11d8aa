"""The few time constants of a group: what the application states, and what the papers make of it.

What it decides: `op` (how long A takes) and `nodes_max` (how many nodes saturate the resource) are what a user knows.
The rest follows, unless it is given: a group whose constants are typed in by hand, each for itself, ends up with
timers that expire while the token is on its way, and then makes tokens faster than it can discard them.

    min       op * nodes_max / 2       half the time in which everybody had its turn once (seed 001, section 2)
    max       3 * min                  seed 000, table 2
    generate  min * nodes_max          mean of the random part of the sandwich time-out (seed 001's gamma)
    skip      op / 40                  seed 001's 0.1 s for 4 s
    kload     op * nodes / min         seed 000, section 3: above 1 the group wants more than the resource has

Where an algorithm's paper has other proportions, the algorithm says so (`Pace`). Seconds outside, integer nanoseconds
inside.

T1  0 < skip <= op, 0 <= min <= max, nothing infinite or NaN, nodes_max >= 2: refused where it is stated.
T2  The constants depend on what is stated and on the algorithm, never on who is there: all members compute the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from softmutex.core.errors import ConfigError
from softmutex.core.events import Duration, from_seconds, to_seconds
from softmutex.core.tuples import NamedTuple


class Pace(NamedTuple):
    """What an algorithm makes of what is stated, where its paper says otherwise."""

    skips_per_op: int = 40
    max_per_min: float = 3.0
    needs_pause: bool = False  # its rules measure everything in units of min: it cannot be 0


class Constants(NamedTuple):
    """What an algorithm reckons with."""

    skip_ns: Duration
    op_ns: Duration
    min_ns: Duration
    max_ns: Duration
    generate_ns: Duration

    def in_seconds(self) -> dict[str, float]:
        return {name.removesuffix("_ns"): to_seconds(value) for name, value in self._asdict().items()}


@dataclass(frozen=True, slots=True)
class Timing:
    """`Timing(op=4.0, nodes_max=300)`: how long A typically takes, and how many nodes saturate the resource."""

    op: float = 4.0
    nodes_max: int = 300
    skip: float | None = None
    min_interval: float | None = None
    max_interval: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.nodes_max, bool) or not isinstance(self.nodes_max, int):
            raise ConfigError(f"nodes_max is {self.nodes_max!r}: give a whole number of nodes, 2 or more")
        if self.nodes_max < 2:
            raise ConfigError(f"nodes_max is {self.nodes_max}: a group has at least 2 nodes, give 2 or more")
        _check("op", self.op)
        for name in ("skip", "min_interval", "max_interval"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, zero_allowed=name == "min_interval")
        if self.skip is not None and self.skip > self.op:
            raise ConfigError(
                f"skip ({self.skip:g} s) is longer than op ({self.op:g} s): nodes that do not need the token would "
                f"keep it longer than those that do. Give a skip of at most {self.op:g} s"
            )
        if self.max_interval is not None and self.max_interval < (self.min_interval or 0):
            raise ConfigError(
                f"max_interval ({self.max_interval:g} s) is below min_interval ({self.min_interval:g} s): a token "
                "would be missed before it may be used again. Give a larger max_interval"
            )

    def constants(self, pace: Pace = Pace()) -> Constants:  # noqa: B008 (it is frozen)
        """All time constants for one algorithm; what was not stated follows from its paper."""
        if pace.needs_pause and self.min_interval == 0:
            raise ConfigError(
                "min_interval is 0, and this algorithm tells a spurious token by what happened within min_interval: "
                "give one above 0, or leave it out"
            )
        skip = self.op / pace.skips_per_op if self.skip is None else self.skip
        shortest = self.op * self.nodes_max / 2 if self.min_interval is None else self.min_interval
        longest = self.max_interval
        if longest is None:
            longest = shortest * pace.max_per_min
        elif longest < shortest:
            raise ConfigError(
                f"max_interval ({longest:g} s) is below the min_interval of {shortest:g} s that follows from op and "
                "nodes_max: give min_interval too, or a larger max_interval"
            )
        return Constants(
            skip_ns=max(1, from_seconds(skip)),
            op_ns=max(1, from_seconds(self.op)),
            min_ns=from_seconds(shortest),
            max_ns=from_seconds(longest),
            generate_ns=from_seconds(shortest * self.nodes_max),
        )

    def kload(self, nodes: int) -> float:
        """How loaded `nodes` nodes make the resource, if each runs A as often as it may: above 1 is overload."""
        shortest = self.constants().min_ns
        return from_seconds(self.op) * nodes / shortest if shortest else math.inf


def _check(name: str, value: object, zero_allowed: bool = False) -> None:
    bound = "0 or above" if zero_allowed else "above 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}: give a number of seconds, {bound}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero_allowed):
        raise ConfigError(f"{name} is {value:g}: give a finite number of seconds, {bound}")
