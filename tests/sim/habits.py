"""What machines do without being told: how often a timer of each algorithm goes off, how often in vain, and for how
long it is set; and what their messages say, on average, in each field.

A timer that is not ended when its question is answered wakes a process for nothing, one that is set for twice as long
keeps people waiting, a message that says one hop too many is dropped a little sooner: none of it breaks a law.
`habits.txt` has, for each algorithm and world, between what each figure lies, whatever the seed, as `days.txt` has it
for what a day costs. Whoever changes one on purpose makes those lines anew, and says in the commit why:

    python -m tests.sim.habits [ALGORITHM ...]      prints the lines of these (some seconds each), or of all

What a line does not name is nought. What messages of the wandering token say is told in sentences (`tests/wandering`).
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from softmutex import plugins
from softmutex.core.events import SECOND, Effect, Event, Fired, Instant, Send, SetTimer, TimerName
from softmutex.sim import Churn, Kill, Partition, Pause, Scenario, simulate
from tests.sim.days import OF_PAPERS, OF_TWO, Range, algorithms

RANGES = Path(__file__).with_suffix(".txt")
SEEDS = range(1, 13)
WIDER = 0.2  # than the least and the largest of all seeds, by so much of the difference and by a twentieth of each
LARGE = 10_000  # names and numbers of messages are larger
USUAL: dict[str, Any] = {"nodes": 6, "op_s": 1.0, "delay_s": 0.02, "settle_s": 10.0, "duration_s": 80.0}
WORLDS: dict[str, dict[str, Any]] = {
    "quiet": {"demand": "poisson:0.05", "duration_s": 200.0},
    "half": {"demand": "poisson:0.5"},
    "holders die": {"demand": "saturated", "faults": (Kill(17),)},
    "churn": {
        "demand": "poisson:0.3",
        "own_views": True,
        "changes_mind": 0.3,
        "loss": 0.05,
        "faults": (Churn(0.3), Kill(23, "random")),
    },
    "cut": {"demand": "poisson:0.5", "faults": (Partition(11, 31, 0.3, target="holder"),)},
    "on without the others": {
        "demand": "poisson:0.5",
        "when_isolated": "proceed",
        "faults": (Partition(11, 31, 0.4, target="random"),),
    },
    "hosts die": {"demand": "poisson:0.5", "faults": (Kill(29, silent=True, times=1), Kill(37, "first"))},
    "pauses": {"demand": "poisson:0.5", "faults": (Pause(17, 4), Pause(23, 9, "random"))},
    "far": {
        "demand": "poisson:0.3",
        "delay_s": 0.2,
        "jitter": 0.5,
        "loss": 0.1,
        "duplication": 0.05,
        "reordering": 0.1,
    },
}
SLOTS: dict[str, dict[str, Any]] = {"slots": {"demand": "poisson:1.5", "slots": 3, "faults": (Kill(29),)}}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {  # by other switches
    "adaptive": {"in minutes": {"options": {"min_interval": 0.5}, "demand": "poisson:0.3", "op_s": 0.02}},
    "sandwich": {"in minutes": {"options": {"min_interval": 0.5}, "demand": "poisson:0.3", "op_s": 0.02}},
    "random-access": {"in minutes": {"options": {"min_interval": 0.5}, "demand": "poisson:0.3", "op_s": 0.02}},
    "binary-search": {
        "directed": {"options": {"search": "directed", "throttle": False}, "demand": "poisson:0.5"},
        "inverse": {"options": {"cleanup": "inverse"}, "demand": "saturated", "faults": (Kill(31, "random"),)},
    },
    "central": {
        "by a ring": {"options": {"election": "ring"}, "demand": "poisson:0.5", "faults": (Kill(13, "first"),)}
    },
    "e2e": {
        "few": {"options": {"replicas": 3, "lease_s": 2.0}, "demand": "saturated", "faults": (Kill(31, "random"),)}
    },
    "keeper": {
        "in a row": {"options": {"row": 3, "row_time": 1.0, "min_interval": 2.0}, "demand": "poisson:0.9"},
        "short lives": {"demand": "poisson:0.5", "faults": (Churn(2.0), Kill(37, "both")), "own_views": True},
    },
    "non-e2e": {"all votes": {"options": {"replicas": 4, "votes": 4}, "demand": "poisson:0.5"}},
    "ring-search": {
        "directed, fair, inverse": {
            "options": {"search": "directed", "cleanup": "inverse", "discipline": "fair"},
            "demand": "poisson:0.8",
            "faults": (Kill(31, "random"),),
        },
        "pushed": {"options": {"initiative": "push", "passing": "3-way"}, "demand": "poisson:0.3"},
        "pushed and pulled": {"options": {"initiative": "both", "rest": 0.05, "slowest": 0.4}, "demand": "poisson:0.3"},
        "left alone": {"options": {"initiative": "none"}, "demand": "poisson:0.3", "faults": (Kill(31),)},
    },
    "sigma": {
        "few": {"options": {"replicas": 3, "lease_s": 2.0}, "demand": "saturated", "faults": (Kill(31, "random"),)}
    },
    "token-ring": {"without rest": {"options": {"rest": 0.0}, "demand": "poisson:0.3"}},
    "voting": {"all of three": {"options": {"coordinators": 3, "votes": 3}, "demand": "poisson:0.3"}},
}


def of(algorithm: str) -> dict[str, dict[str, Any]]:
    usual = {} if algorithm in OF_PAPERS else {**WORLDS, **(SLOTS if algorithm in OF_TWO else {})}
    return {**usual, **VARIANTS.get(algorithm, {})}


def worlds(algorithm: str) -> list[str]:
    return list(of(algorithm))


def kind(timer: TimerName) -> str:
    return timer if isinstance(timer, str) else str(timer[0])


def told(message: Any) -> Iterator[tuple[str, float]]:
    """How much each field says: a number that names nothing, a time in seconds, how many things there are in it."""
    for field, value in zip(message._fields, message, strict=True):
        if isinstance(value, int) and (value < LARGE or SECOND // 1000 <= value < 1000 * SECOND):
            yield field, value if value < LARGE else value / SECOND
        elif isinstance(value, tuple):
            yield field, len(value)


def figures(algorithm: str, world: str, seed: int) -> dict[str, float]:
    """Of each timer: how often it goes off a minute, and in vain, and for how many seconds it is set on average. What
    each field of a message says on average."""
    fired, vain = defaultdict[str, int](int), defaultdict[str, int](int)
    waits, says = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)

    class Timed(plugins.algorithm(algorithm)):  # type: ignore[misc]
        name = algorithm

        def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
            effects: Sequence[Effect] = super().handle(event, now)
            if isinstance(event, Fired):
                fired[kind(event.timer)] += 1
                vain[kind(event.timer)] += not effects
            for effect in effects:
                if isinstance(effect, SetTimer):
                    waits[kind(effect.timer)].append((effect.at - now) / SECOND)
                elif isinstance(effect, Send) and algorithm != "wandering":
                    for field, value in told(effect.message):
                        says[f"{type(effect.message).__name__}.{field}"].append(value)
            return effects

    use = {**USUAL, **of(algorithm)[world], "seed": seed}
    use |= {"laws": ()} if algorithm in OF_PAPERS else {}
    simulate(Scenario(algorithm=Timed, **use))
    minutes = use["duration_s"] / 60
    found = {f"{name} fires": times / minutes for name, times in fired.items()}
    found |= {f"{name} in vain": times / minutes for name, times in vain.items() if times}
    found |= {f"{name} waits": statistics.fmean(its) for name, its in waits.items()}
    return found | {name: statistics.fmean(its) for name, its in says.items()}


def measured(algorithm: str, world: str) -> dict[str, Range]:
    each = [figures(algorithm, world, seed) for seed in SEEDS]
    found = {}
    for name in sorted({name for one in each for name in one}):
        values = [one.get(name, 0.0) for one in each]
        low, high = min(values), max(values)
        found[name] = Range(max(0.0, 0.95 * low - WIDER * (high - low)), 1.05 * high + WIDER * (high - low))
    return found


def lines(*of_these: str) -> Iterator[str]:
    for algorithm in of_these or algorithms():
        for world in worlds(algorithm):
            shown = [f"{name} {low:.4g}..{high:.4g}" for name, (low, high) in measured(algorithm, world).items()]
            yield "; ".join([algorithm, world, *shown])


@cache
def ranges() -> dict[tuple[str, str], dict[str, Range]]:
    found: dict[tuple[str, str], dict[str, Range]] = {}
    for line in RANGES.read_text().splitlines():
        algorithm, world, *shown = line.split("; ")
        mine = found[algorithm, world] = {}
        for each in shown:
            name, _, between = each.rpartition(" ")
            low, _, high = between.partition("..")
            mine[name] = Range(float(low), float(high))
    return found


def outside(found: dict[str, float], known: dict[str, Range]) -> list[str]:
    wrong = []
    for name in sorted(found.keys() | known.keys()):
        low, high = known.get(name, Range(0.0, 0.0))
        value = found.get(name, 0.0)
        if not low * 0.999 <= value <= high * 1.001:  # four digits are shown
            wrong.append(f"{name} {value:.4g}, not {low:g}..{high:g}")
    return wrong


if __name__ == "__main__":
    for line in lines(*sys.argv[1:]):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
