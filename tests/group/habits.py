"""What a village does in ordinary times and bad ones: how much is sent of each kind, for how long timers are set, what
people are told, who is a member in the end.

A member that is asked twice as often, a roster that is read once more, or a timer that is set for twice as long breaks
no sentence of this room. `habits.txt` has, for each story, between what each figure lies, whatever the seed, as
`tests/sim/habits.txt` has it for the machines. Whoever changes one on purpose makes it anew:

    python -m tests.group.habits > tests/group/habits.txt

What a line does not name is nought.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from softmutex.core.events import SECOND
from softmutex.core.group import Listed
from tests.group.village import TERMS, House, Village
from tests.sim.days import Range
from tests.sim.habits import outside

__all__ = ["STORIES", "figures", "outside", "ranges"]

RANGES = Path(__file__).with_suffix(".txt")
SEEDS = range(1, 13)
WIDER = 0.2  # than the least and the largest of all seeds, by so much of the difference and by a twentieth of each


def together(village: Village) -> list[House]:
    """All know each other, and open at once."""
    houses = village.neighbours(9)
    for house in houses:
        house.open()
    village.run(20)
    return houses


def strangers(village: Village) -> list[House]:
    """Each knows the addresses of two others; rosters and greetings do the rest."""
    houses = [village.house(id) for id in range(1, 11)]
    for at, house in enumerate(houses):
        house.listed(houses[(at + 1) % 10], houses[(at + 3) % 10])
    village.run(3)
    for house in houses[::3]:
        house.open()
    village.run(30)
    return houses


def cut(village: Village) -> list[House]:
    """Half and half, and whole again."""
    houses = village.neighbours(8)
    houses[0].open()
    village.run(5)
    village.cut(houses[:4], houses[4:])
    for one in houses:
        for other in houses:
            if one is not other:
                one.suspect(other)
    houses[5].open("y")
    village.run(30)
    village.heal()
    village.run(20)
    return houses


def deaths(village: Village) -> list[House]:
    """A process and a host; those that know of it ask and call the roll."""
    houses = village.neighbours(7)
    village.run(2)
    village.kill(houses[5])
    village.kill(houses[6], host_lives=False)
    for house in houses[:5]:
        house.do(house.group.call_roll, "x", True, village.now)
        house.open()
    village.run(40)
    houses[0].do(houses[0].group.forget_everywhere, houses[6].id, village.now)
    village.run(20)
    return houses[:5]


def losses(village: Village) -> list[House]:
    """Three of ten messages are lost, and each takes a while."""
    village.loss, village.delay = 0.3, SECOND // 20
    houses = [village.house(id) for id in range(1, 8)]
    for house in houses:
        house.listed(*houses)
    village.run(5)
    for house in houses:
        house.open()
    village.run(40)
    return houses


def comings(village: Village) -> list[House]:
    """Some use it; others come later, one by one, and open it with other terms or the same; some say farewell."""
    houses = [village.house(id) for id in range(1, 10)]
    for at, house in enumerate(houses):
        house.listed(*houses[:at])
        village.run(2)
        house.open("x", TERMS if at != 6 else TERMS._replace(slots=2))
        village.run(2)
    for house in houses[:3]:
        house.do(house.group.say_bye)
        village.kill(house)
    village.run(10)
    return houses[3:]


def one_dead_link(village: Village) -> list[House]:
    """Frames go by way of another."""
    houses = village.neighbours(5)
    village.run(1)
    village.cut(houses[:1], houses[1:2])
    houses[0].suspect(houses[1])
    houses[1].suspect(houses[0])
    village.run(10)
    houses[0].open()
    houses[1].open()
    village.run(20)
    village.heal()
    village.run(10)
    return houses


def many(village: Village) -> list[House]:
    """Sixty, of whom twenty are silent: a sample is asked."""
    houses = village.neighbours(60)
    village.run(2)
    for house in houses[40:]:
        village.kill(house, host_lives=False)
    for house in houses[:3]:
        house.do(house.group.call_roll, "x", False, village.now)
    village.run(20)
    houses[0].open()
    village.run(20)
    return houses[:40]


def nobody(village: Village) -> list[House]:
    """A list that errs: silent hosts, ports that refuse, names that lead nowhere, the own address."""
    village.silent_hosts = {"silent"}
    house = village.house(1)
    house.listed(Listed("silent"), Listed("refuses"), Listed("h1"), pending=("later.lab",), unresolved=("nowhere.lab",))
    house.open()
    village.run(8)
    house.listed(Listed("silent"), Listed("refuses"), Listed("h1"), unresolved=("nowhere.lab",))
    village.run(30)
    return [house]


STORIES: dict[str, Callable[[Village], list[House]]] = {
    story.__name__: story for story in (together, strangers, cut, deaths, losses, comings, one_dead_link, many, nobody)
}


def figures(story: str, seed: int) -> dict[str, float]:
    village = Village(seed)
    houses = STORIES[story](village)
    found = {kind.__name__: float(sent) for kind, sent in village.sent.items()}
    found |= {f"{name} is set": float(len(its)) for name, its in village.waits.items()}
    found |= {f"{name} waits": statistics.fmean(its) / SECOND for name, its in village.waits.items()}
    found["members"] = statistics.fmean(len(house.group.members) for house in houses)
    found["silent"] = statistics.fmean(len(house.group.suspicion.silent()) for house in houses)
    found["said"] = float(sum(len(house.said) for house in houses))
    found["warned"] = float(sum(len(house.warned) for house in houses))
    done = Counter(type(each).__name__ for house in houses for each in (*house.did, *house.told))
    return found | {name: float(times) for name, times in done.items()}


def measured(story: str) -> dict[str, Range]:
    each = [figures(story, seed) for seed in SEEDS]
    found = {}
    for name in sorted({name for one in each for name in one}):
        values = [one.get(name, 0.0) for one in each]
        low, high = min(values), max(values)
        found[name] = Range(max(0.0, 0.95 * low - WIDER * (high - low)), 1.05 * high + WIDER * (high - low))
    return found


@cache
def ranges() -> dict[str, dict[str, Range]]:
    found: dict[str, dict[str, Range]] = {}
    for line in RANGES.read_text().splitlines():
        story, *shown = line.split("; ")
        mine = found[story] = {}
        for each in shown:
            name, _, between = each.rpartition(" ")
            low, _, high = between.partition("..")
            mine[name] = Range(float(low), float(high))
    return found


if __name__ == "__main__":
    for name in STORIES:
        shown = [f"{figure} {low:.4g}..{high:.4g}" for figure, (low, high) in measured(name).items()]
        sys.stdout.write("; ".join([name, *shown]) + "\n")
