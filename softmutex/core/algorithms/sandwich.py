"""`sandwich`, seed 001: a wandering token, removed when it comes back after an older one, made anew at a random time.

What it decides: a token is spurious on a node that received it before and, since then, received one with a lower key:
the three visits lie like a sandwich around the proof. Seed 000's rule, which looks at a single earlier visit, lets the
spurious tokens of a bad moment remove the good one; here a token has always met its elder first. And a token is
missing after a silence of `min` plus an exponentially distributed time: the naive way, the same timeout for all, makes
as many tokens as there are nodes.

The exponential part is a Poisson process of this node's whose time runs only while the silence is longer than `min`:

    silence   0 ......... min ===================> due         `due` moves on with every token received, and never
    received ^  not yet   ^  the process' time runs            back; as the process has no memory, that is the same as
                                                               drawing anew each time (and costs no logarithm)

The history holds the last visit of each of the last `HISTORY` different tokens, in their order. More are not needed:
in 40 runs of 10^5 s with 300 nodes, 36 had at most three tokens alive at once and none more than four, and forgetting
an old visit costs only a delay: the token is removed when it is sandwiched the next time. The earliest visit of a token
needs no place of its own: had an older token come between two visits, the second would have been the end of it.

Invariants, with those of `walker.py`
    H1  The history names no token twice, and at most `HISTORY`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from softmutex.core.algorithms.walker import Walker
from softmutex.core.chance import exponential
from softmutex.core.events import Instant, Token
from softmutex.core.machine import Setup
from softmutex.core.timing import Pace

HISTORY: Final = 8


class Sandwich(Walker):
    name: ClassVar[str] = "sandwich"
    pace = Pace(needs_pause=True)

    __slots__ = ("_generate", "_heard_at", "_min", "_visits")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        constants = setup.timing.constants(self.pace)
        self._min = constants.min_ns
        self._generate = constants.generate_ns
        self._heard_at: Instant = 0
        self._visits: tuple[tuple[Instant, int], ...] = ()  # keys, the latest visit last

    def _spurious(self, token: Token, now: Instant) -> bool:
        key = (token[1], token[2])
        visits = self._visits
        if visits and visits[-1] == key:
            return False
        since = visits[visits.index(key) + 1 :] if key in visits else ()
        self._remember(key)
        return any(other < key for other in since)

    def _remember(self, key: tuple[Instant, int]) -> None:
        others = tuple(other for other in self._visits if other != key)
        self._visits = (*others, key)[-HISTORY:]

    def _heard(self, now: Instant) -> Instant:
        runs_since = self._heard_at + self._min
        left = self._due - (now if now > runs_since else runs_since)
        if left <= 0:  # it had run out already, and the token came before the timer did
            left = exponential(self._rng, self._generate)
        self._heard_at = now
        return now + self._min + left

    def _restart(self, now: Instant) -> Instant:
        self._heard_at = now
        return now + self._min + exponential(self._rng, self._generate)

    def _made(self, token: Token, regenerated: bool) -> None:
        self._remember(token.key)
