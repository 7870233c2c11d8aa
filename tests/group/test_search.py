"""Who is missing is looked for once a second at most, and no call puts the look off."""

from __future__ import annotations

import random

from softmutex.core.events import SECOND
from softmutex.core.group.effects import SetTimer
from softmutex.core.group.search import Search


class Nobody:
    """Nobody is silent, and whoever is on the list was met; or somebody is."""

    def __init__(self, *silent: int) -> None:
        self.found, self.looked = list(silent), list[int]()
        self.timers: list[SetTimer] = []

    def silent(self) -> list[int]:
        return self.found

    def unmet(self) -> list[str]:
        return []

    def look(self, node: int, now: int) -> None:
        self.looked.append(node)

    def put(self, effect: SetTimer) -> None:
        self.timers.append(effect)


def search_among(*silent: int) -> tuple[Search, Nobody]:
    world = Nobody(*silent)
    return Search(world, world, world, random.Random(1)), world  # type: ignore[arg-type]


def test_a_look_that_is_due_is_not_put_off_by_the_next_one_who_is_missed():
    search, world = search_among(7)
    for now in range(0, SECOND // 2, SECOND // 10):
        search.later(now)
    (timer,) = world.timers
    assert 0.7 * SECOND < timer.at < 1.3 * SECOND
    search.fired(timer.at)
    assert world.looked == [7] and len(world.timers) == 2  # and again, as long as somebody is missing


def test_when_nobody_is_missing_any_more_it_ends_and_can_begin_anew():
    search, world = search_among()
    search.later(0)
    search.fired(SECOND)
    assert world.looked == [] and len(world.timers) == 1
    search.later(2 * SECOND)
    assert len(world.timers) == 2
