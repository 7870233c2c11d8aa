"""Random numbers of other shapes, made from `rng.random()` alone and the same to the bit on every machine.

`math.log` is left to the machine's C library, and two of those may differ in the last bit: one nanosecond here,
another order of events there, and a seed no longer gives the same run. Additions, multiplications and divisions are
fixed by IEEE 754, so this logarithm is made of them.
"""

from __future__ import annotations

from math import frexp
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from softmutex.core.events import Duration

LN_2: Final = 0.6931471805599453
SQRT_HALF: Final = 0.7071067811865476


class Rng(Protocol):
    """The one source of randomness: `random.Random().random` keeps its sequence for ever, its other methods do not."""

    def random(self) -> float: ...


def drawn(rng: Rng) -> int:
    """53 random bits: all that `random` gives. Two nodes that draw do not draw the same."""
    return int(rng.random() * 2**53)


def natural_log(x: float) -> float:
    """ln x for x > 0, within a few units of the last place."""
    mantissa, exponent = frexp(x)
    if mantissa < SQRT_HALF:
        mantissa *= 2.0
        exponent -= 1
    t = (mantissa - 1.0) / (mantissa + 1.0)  # |t| < 0.172, so t**24 is below the last bit
    square = t * t
    total = 0.0
    for odd in range(23, 0, -2):
        total = total * square + 1.0 / odd
    return 2.0 * t * total + exponent * LN_2


def exponential(rng: Rng, mean_ns: Duration) -> Duration:
    """How long until the next event of a Poisson process that has one every `mean_ns` on average."""
    return round(-mean_ns * natural_log(1.0 - rng.random()))
