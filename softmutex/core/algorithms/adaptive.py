"""`adaptive`, seed 000: a wandering token, and a patience that grows with every token made in vain.

What it decides: a token is spurious where another one with a lower key, so an older one, has enabled A on this node
less than `min` ago. And a token is missing when none was received for `gen`. A fixed `gen` is the naive way: when the
token is lost, many nodes lose patience at the same time, and their tokens remove one another before the first could
be seen by all, again and again (figure 1). So whoever makes a token waits longer the next time:

    token received        gen -= decay * (gen - max)      0.05: back to normal, slowly
    silence for gen       gen *= growth                   1.5: and a token is made

Where the seed's pseudo-code and its prose differ, the prose holds: the time of the last access is not reset by a skip,
a node may use the same token again, precedence is by timestamp and then by id (decision 0005).

Invariants, with those of `walker.py`
    G1  gen >= max.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from softmutex.core.algorithms.walker import Walker, WalkerOptions
from softmutex.core.events import Instant, Token
from softmutex.core.machine import Setup
from softmutex.core.options import within
from softmutex.core.timing import Pace


@dataclass(frozen=True)
class AdaptiveOptions(WalkerOptions):
    growth: float = within(1.5, 1.0, 10.0)  # 1: the timeout is fixed
    decay: float = within(0.05, 0.0, 1.0)


class Adaptive(Walker):
    name: ClassVar[str] = "adaptive"
    Options = AdaptiveOptions
    pace = Pace(skips_per_op=4, needs_pause=True)  # seed 000: a skip of 1 for an op of 4

    __slots__ = ("_decay", "_gen", "_growth", "_max", "_window")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options = AdaptiveOptions.read(setup.options, self.name)
        constants = setup.timing.constants(self.pace)
        self._growth = options.growth
        self._decay = options.decay
        self._max = constants.max_ns
        self._window = constants.min_ns
        self._gen = self._max

    def _spurious(self, token: Token, now: Instant) -> bool:
        return now - self._last_access < self._window and self._enabler < (token[1], token[2])

    def _heard(self, now: Instant) -> Instant:
        gen = self._gen
        if gen != self._max:
            gen -= int((gen - self._max) * self._decay)
            self._gen = gen
        return now + gen

    def _restart(self, now: Instant) -> Instant:
        return now + self._gen

    def _made(self, token: Token, regenerated: bool) -> None:
        if regenerated:
            self._gen = int(self._gen * self._growth)
