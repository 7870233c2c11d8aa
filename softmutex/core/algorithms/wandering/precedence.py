"""Who comes before whom where there are priorities: whoever asked first, each step of priority counted as a wait.

    due = when it asked - priority * `ageing`            the smallest comes first; where they are equal, the older one

The naive way, the highest priority first, lets a low one wait for as long as high ones come. With a due time of its
own, which never changes, a request is overtaken only by those that ask within (their priority - its own) * `ageing`
after it: from then on it is the oldest. Nobody compares clocks: what is sent is by how much a request counts as older
than now.

Without `ageing` nothing is noted here, and the order is that of the register.
"""

from __future__ import annotations

from collections.abc import Iterable

from softmutex.core.algorithms.wandering.settings import WanderingOptions
from softmutex.core.events import Duration, Instant, from_seconds


class Precedence:
    __slots__ = ("due", "step")

    def __init__(self, options: WanderingOptions) -> None:
        self.step: Duration = from_seconds(options.ageing)
        self.due: dict[int, Instant] = {}

    def asks(self, who: int, since: Instant, again: bool) -> None:
        """A priority counts as a wait: `since` is so much earlier. Of two words of a ticket the first may come last."""
        if self.step:
            self.due[who] = min(since, self.due.get(who, since)) if again else since

    def take(self, those: dict[int, int], but: int = 0) -> tuple[int, int]:
        """The first of them, not `but`. Of whom no due time is known had been at the head, and was given back."""
        able = (each for each in those if each != but)
        if not self.due:
            who = next(able)
        else:
            who = min(able, key=lambda each: (each in self.due, self.due.get(each, 0)))
            self.due.pop(who, None)
        return who, those.pop(who)

    def lead(self, those: Iterable[int], now: Instant) -> Duration:
        """By how much the first of them counts as older than now."""
        if not self.due:
            return 0
        return max((now - self.due[who] for who in those if who in self.due), default=0)
