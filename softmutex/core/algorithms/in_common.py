"""What `wandering` and `keeper` share: turns in a row, the least interval, and what all members must agree on."""

from __future__ import annotations

import hashlib
from typing import Protocol

from softmutex.core.events import Duration, Instant, from_seconds
from softmutex.core.timing import Timing


class RowOptions(Protocol):
    @property
    def row(self) -> int: ...
    @property
    def row_time(self) -> float: ...


def row_goes_on(options: RowOptions, served: int, began: Instant, asked: Instant, now: Instant) -> bool:
    """Whether one more request of this node is served in the turn that began then: it waited already, and the row is
    bounded in number and time."""
    return served < options.row and now - began < from_seconds(options.row_time) and asked <= began


def least_interval(min_interval: float, timing: Timing) -> Duration:
    """Who had its turn less than that ago lets others go first."""
    return from_seconds(min_interval or timing.min_interval or 0.0)


def fingerprint_of(terms: str) -> int:
    """What all members must agree on, in 64 bits. Never 0: that is a token that does not say."""
    return int.from_bytes(hashlib.blake2b(terms.encode(), digest_size=8).digest(), "big") | 1
