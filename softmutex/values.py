"""What a value of a setting may look like: durations, counts, words. For settings, flags of commands and plug-ins.

What it decides: a value is read in one way, whoever gave it. The naive way, `float(text)` where a flag is read, takes
`2h` for a typing error in one command and for two hours in the next.

Each function takes what was written or given and returns what it stands for, or raises ValueError with the rest of a
sentence: "... wants true or false".
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

TRUE_WORDS: Final = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS: Final = frozenset({"0", "false", "no", "off"})
PRIORITY_MOST: Final = 9
UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
PART: Final = re.compile(r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([a-z]*)\s*")  # and its unit


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("wants a text that is not empty")
    return value


def text_or_nothing(value: Any) -> str:
    """At most 64 bytes; empty for the word `none`."""
    if value == "" or (isinstance(value, str) and value.lower() == "none"):
        return ""
    return text(value).encode()[:64].decode(errors="ignore")


def duration_s(value: Any) -> float:
    """Seconds: a number, or a text with units: `90`, `1.5`, `500ms`, `30s`, `10m`, `2h`, `1h30m`, `1d`."""
    if isinstance(value, str):
        parts = parts_of(value)
        alone = len(parts) == 1
        if not parts or not all(unit in UNITS_S or (alone and not unit) for _, unit in parts):
            raise ValueError("wants seconds, or numbers with the units ms, s, m, h, d: 90, 30m, 1h30m")
        value = sum(float(number) * UNITS_S[unit or "s"] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise ValueError("wants a number of seconds between 0 and 1e9")
    return float(value)


def parts_of(value: str) -> list[tuple[str, str]]:
    """Numbers with their units, or none where something else is between them.

    One after the other. One pattern for all of them would try every way to cut a long number into several, 2 ** digits,
    before it gave up: any user's job comment would stop a service.
    """
    parts: list[tuple[str, str]] = []
    at = 0
    while at < len(value):
        found = PART.match(value, at)
        if found is None:
            return []
        parts.append((found[1], found[2]))
        at = found.end()
    return parts


def duration_or_none_s(value: Any) -> float | None:
    """As `duration_s`; None or the word `none` where there is no limit."""
    return None if value is None or (isinstance(value, str) and value.lower() == "none") else duration_s(value)


def duration_or_never_s(value: Any) -> float:
    """As `duration_s`; None, `none` and `never` are infinity."""
    is_never = value is None or value == math.inf or (isinstance(value, str) and value.lower() in ("none", "never"))
    return math.inf if is_never else duration_s(value)


def count(value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = 0
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 1_000_000:
        raise ValueError("wants a whole number from 1 to 1,000,000")
    return number


def priority(value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = -1
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= PRIORITY_MOST:
        raise ValueError(f"wants a whole number from 0 to {PRIORITY_MOST}")
    return number


def whole(value: Any) -> int:
    """A whole number of any size and sign, also written as `3e3`."""
    try:
        number = float(value) if isinstance(value, str) and "e" in value.lower() else value
        found = int(number)
        if isinstance(value, bool) or (isinstance(number, float) and found != number):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        raise ValueError("wants a whole number") from None
    return found


def flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    if not isinstance(value, bool):
        raise ValueError("wants true or false")
    return value


def adapter(value: Any) -> Any:
    """A URL, or an instance."""
    return text(value) if isinstance(value, str) else value


def names(value: Any) -> tuple[Any, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else tuple(value)


def key(value: Any) -> Any:
    """Bytes of the key itself, or the path of a file that holds it."""
    if isinstance(value, str | os.PathLike):
        return Path(value).expanduser()
    if not isinstance(value, bytes | bytearray):
        raise ValueError("wants the key as bytes, or the path of a file that holds it")
    return bytes(value)


def path(value: Any) -> Path:
    return Path(text(os.fspath(value))).expanduser()


def choice(*allowed: str, or_callable: bool = False) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if (or_callable and callable(value)) or (isinstance(value, str) and value in allowed):
            return value
        raise ValueError(f"wants {' or '.join(allowed)}{' or a function' if or_callable else ''}")

    return read
