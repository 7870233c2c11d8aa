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

from typing import ClassVar

from softmutex.core.algorithms.options import Options
from softmutex.core.algorithms.walker import Walker
from softmutex.core.events import Instant, Token
from softmutex.core.machine import Setup

GROWTH = 1.5
DECAY = 0.05


class Adaptive(Walker):
    """Options: `growth` (1: the timeout is fixed) and `decay`, and those of every random walk."""

    name: ClassVar[str] = "adaptive"
    options: ClassVar[tuple[str, ...]] = (*Walker.options, "growth", "decay")

    __slots__ = ("_decay", "_gen", "_growth", "_max", "_window")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options = Options(self.name, self.options, setup.options)
        constants = setup.timing.constants(self.name)
        self._growth = options.number("growth", GROWTH, low=1.0, high=10.0)
        self._decay = options.number("decay", DECAY, low=0.0, high=1.0)
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
