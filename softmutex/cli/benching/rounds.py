"""Things that are measured in turns, so that a busy moment hits all of them.

What it decides: one thing compares with another by the median of their ratios, each of one round. The naive way, the
median of the one over the median of the other, measured one after the other, compares two moments of a machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence


class InterleavedRounds:
    """What each round measured, by the names of things."""

    def __init__(self, taken: Sequence[Mapping[str, float]]) -> None:
        self.taken = taken

    @classmethod
    def run(cls, things: Mapping[str, Callable[[], float]], times: int) -> InterleavedRounds:
        """Each of `things` measures itself."""
        return cls([{name: measure() for name, measure in things.items()} for _ in range(times)])

    @classmethod
    async def arun(cls, things: Mapping[str, Callable[[], Awaitable[float]]], times: int) -> InterleavedRounds:
        return cls([{name: await measure() for name, measure in things.items()} for _ in range(times)])

    def __getitem__(self, name: str) -> list[float]:
        return [each[name] for each in self.taken]

    def fastest(self, name: str) -> float:
        return min(self[name])

    def median(self, name: str) -> float:
        return statistics.median(self[name])

    def ratio(self, name: str, beside: str) -> float:
        """How many times `beside`, in the middle of all rounds."""
        return statistics.median(each[name] / each[beside] for each in self.taken)
