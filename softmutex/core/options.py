"""The switches of an algorithm: a frozen dataclass with a default for each, which checks itself.

    @dataclass(frozen=True)
    class AdaptiveOptions(WalkerOptions):
        growth: float = within(1.5, 1.0, 10.0)

Drivers pass on what the user wrote (`Setup.options`), so a misspelt switch that is silently ignored would be a setting
that the user believes in and the group does not have. What JSON can say is what a switch may be: a bool, an int, a
float, a str, one of a StrEnum, or None beside one of these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self, get_args, get_type_hints

from softmutex.core.errors import ConfigError
from softmutex.core.tuples import NamedTuple


def within(default: Any, low: float, high: float = math.inf) -> Any:
    """A number from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class Options:
    """No switches. Derive from it, and give every field a default."""

    def __post_init__(self) -> None:
        for name, kind, may_be_none, bounds in _switches(type(self)):  # type: ignore[arg-type]  # a class has a hash
            value = getattr(self, name)
            if value is None and may_be_none:
                continue
            if issubclass(kind, StrEnum) and value in list(kind):
                object.__setattr__(self, name, kind(value))
            elif wanted := _what_it_should_be(kind, value, bounds):
                raise ConfigError(f"{name} is {value!r}, give {wanted}")

    @classmethod
    def read(cls, given: Mapping[str, Any], algorithm: str) -> Self:
        """From what the user wrote. What is unknown or out of range is said in one sentence."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                import difflib  # slow to import

                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else "Leave it out."
                there = ", ".join(sorted(known)) or "none"
                raise ConfigError(f"{algorithm!r} has no option {name!r} (there are: {there}). {hint}")
        try:
            return cls(**given)
        except ConfigError as error:
            raise ConfigError(f"{algorithm!r}: {error}") from None


class _Switch(NamedTuple):
    name: str
    kind: type
    may_be_none: bool
    bounds: Mapping[str, float]


@functools.cache
def _switches(options: type[Options]) -> list[_Switch]:
    hints = get_type_hints(options)
    found = []
    for each in fields(options):
        kinds = get_args(hints[each.name]) or (hints[each.name],)
        kind = next(kind for kind in kinds if kind is not type(None))
        found.append(_Switch(each.name, kind, type(None) in kinds, each.metadata))
    return found


def _what_it_should_be(kind: type, value: object, bounds: Mapping[str, float]) -> str:
    """In words; empty where it is that."""
    if kind is bool:
        return "" if isinstance(value, bool) else "true or false"
    if issubclass(kind, StrEnum):
        return f"one of {', '.join(kind)}"
    if kind is str:
        return "" if isinstance(value, str) else "a text"
    low, high = bounds.get("low", -math.inf), bounds.get("high", math.inf)
    is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and low <= value <= high:  # type: ignore[arg-type,operator]
        return ""
    number = "a whole number" if kind is int else "a number"
    if high != math.inf:
        return f"{number} from {low:g} to {high:g}"
    return number if low == -math.inf else f"{number} of at least {low:g}"
