"""That nothing is lost on the way to workers and back, whenever which of them is done."""

import random
from collections import deque
from itertools import count

import pytest

from softmutex.sim.engine import in_order

CALLS = 20


class Job:
    """Done when somebody has looked so often at any of them."""

    def __init__(self, number: int, looks: "count[int]", due: int) -> None:
        self.number, self._looks, self._due = number, looks, due

    def done(self) -> bool:
        return next(self._looks) >= self._due


@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_done_between_two_looks_all_come_back_in_their_order(seed: int):
    """Once 18 of 20 did: while there was no room for a new one, all that had been begun were done."""
    dice, looks, numbers = random.Random(seed), count(), count()

    def begin(_: object) -> Job:
        return Job(next(numbers), looks, next(looks) + dice.randint(0, 8))

    calls = iter([(int, ())] * CALLS)
    jobs = in_order(calls, deque(), begin, lambda running: None, at_once=lambda: dice.randint(1, 4))
    assert [job.number for job in jobs] == list(range(CALLS))
