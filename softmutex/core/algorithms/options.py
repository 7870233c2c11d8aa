"""The switches of an algorithm, checked: what is unknown, out of range or not to be had is said in one sentence.

Drivers pass on what the user wrote (`Setup.options`), so a misspelt switch that is silently ignored would be a setting
that the user believes in and the group does not have.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex.core.events import Duration, from_seconds
from softmutex.core.handover import Passing


class Options:
    """What was given to `algorithm`, of which only `known` names are allowed."""

    def __init__(self, algorithm: str, known: Sequence[str], given: Mapping[str, Any]) -> None:
        self._algorithm = algorithm
        self._given = given
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else "Leave it out."
                raise ConfigError(
                    f"{algorithm!r} has no option {name!r} (there are: {', '.join(sorted(known)) or 'none'}). {hint}"
                )
        if given.get("slots", 1) != 1:
            raise ConfigError(
                f"{algorithm!r} passes one token for one holder and cannot do slots={given['slots']!r}. "
                "Use slots=1, or algorithm 'wandering'."
            )

    def passing(self) -> Passing:
        """How a token changes hands; four-way unless asked for otherwise."""
        given = self._given.get("passing", Passing.FOUR_WAY)
        try:
            return Passing(given)
        except ValueError:
            raise ConfigError(
                f"passing={given!r} is not a way to pass a token: write one of {', '.join(Passing)}"
            ) from None

    def pause(self, default_ns: Duration) -> Duration:
        """`min_interval` in seconds: how long a node pauses between two runs of A; the group's min unless given."""
        if "min_interval" not in self._given:
            return default_ns
        return from_seconds(self.number("min_interval", 0.0))

    def number(self, name: str, default: float, low: float = 0.0, high: float = math.inf) -> float:
        value = self._given.get(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
            or value == math.inf
        ):
            bounds = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ConfigError(f"{self._algorithm!r}: {name} is {value!r}, give a number {bounds}")
        return float(value)
