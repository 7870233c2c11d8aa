"""How often something is done that others can bring about: warnings that a user reads, answers to who is not known.

What it decides: which warnings are written. The naive ways lose the one that matters: one budget for all reasons and
for a whole life is used up by whoever repeats the cheapest mistake (a thousand datagrams of three bytes); no budget at
all fills the disk. So each reason has its own, which is renewed with time, and what was said is not said again for as
long as it is remembered. What strangers can bring about without a key is counted and not warned of: see who calls.

L1  Of one reason WARNINGS_AN_HOUR are written in an hour at most, whatever happens under the others.
L2  Memory: REMEMBERED things said for each reason; reasons are written in the code.
"""

from __future__ import annotations

from softmutex.core.events import SECOND, Duration, Instant

WARNINGS_AN_HOUR = 50
REMEMBERED = 1000
HOUR: Duration = 3600 * SECOND


class Quota:
    """So many in each period."""

    __slots__ = ("_count", "_most", "_number", "_period")

    def __init__(self, most: int, period: Duration = SECOND) -> None:
        self._most = most
        self._period = period
        self._number = 0
        self._count = 0

    def take(self, now: Instant) -> bool:
        number = now // self._period
        if number != self._number:
            self._number, self._count = number, 0
        self._count += 1
        return self._count <= self._most


class _Said:
    __slots__ = ("keys", "quota")

    def __init__(self) -> None:
        self.quota = Quota(WARNINGS_AN_HOUR, HOUR)
        self.keys: dict[str, None] = {}  # in the order of saying


class Budgets:
    def __init__(self) -> None:
        self._of: dict[str, _Said] = {}

    def take(self, reason: str, key: str, now: Instant) -> bool:
        """Whether this is to be said now. `key`: what makes it the same thing said again."""
        said = self._of.setdefault(reason, _Said())
        if key in said.keys or not said.quota.take(now):
            return False
        if len(said.keys) >= REMEMBERED:
            del said.keys[next(iter(said.keys))]
        said.keys[key] = None
        return True
