"""Ordinary days of each algorithm, and what they cost: messages by kind, waits, recoveries, alarms.

A law says what must never be; a mutant of the core that breaks none may still ask twice as often, or find a lost token
a minute later. `days.txt` has, for each algorithm and each kind of day, between what each figure lies, whatever the
seed. It is no trace: a change that draws other dice stays within, and one that leaves it changed what peers pay or for
how long people wait. Then it is for the better, and its lines are made anew, or it is a bug:

    python -m tests.sim.days [ALGORITHM ...]      prints the lines of these (a minute each), or of all

What a line does not name is nought.
"""

from __future__ import annotations

import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from softmutex import plugins
from softmutex.core.events import SECOND
from softmutex.sim import Churn, Kill, Partition, Pause, Result, Scenario, simulate
from softmutex.sim.result import percentile

RANGES = Path(__file__).with_suffix(".txt")
SEEDS = range(1, 13)
SIGMAS, SHARE, LEAST = 5, 0.1, 0.02  # how far from the mean: the largest of these
SHARE_OF_KIND, LEAST_OF_KIND = 0.2, 0.05
RARE = 0.25  # kinds of message of which fewer are sent an acquisition only must not be sent twice as often

CUT = Partition(31, 61, 0.3, target="holder", every_s=90, times=4)
DAYS: dict[str, dict[str, Any]] = {
    "calm": {"demand": "poisson:0.03", "duration_s": 1500.0},
    "busy": {"duration_s": 300.0},
    "half": {"demand": "poisson:0.5", "duration_s": 500.0, "hold": "exponential"},
    "loss": {"duration_s": 1000.0, "demand": "poisson:0.2", "loss": 0.1, "duplication": 0.1, "reordering": 0.1},
    "holders die": {"duration_s": 600.0, "faults": (Kill(17),), "bound_s": 20.0},
    "others die": {"duration_s": 600.0, "faults": (Kill(11, "random"),), "own_views": True, "bound_s": 20.0},
    "churn": {"duration_s": 500.0, "faults": (Churn(0.3),), "own_views": True, "changes_mind": 0.3},
    "cuts": {"duration_s": 400.0, "faults": (CUT,)},
    "pauses": {"duration_s": 600.0, "faults": (Pause(29, 4), Pause(37, 12, "random")), "bound_s": 20.0},
}
OF_TWO = ("keeper", "wandering")  # what is meant for whole groups of people
DAYS_OF_TWO: dict[str, dict[str, Any]] = {
    "three slots": {"duration_s": 300.0, "demand": "poisson:1.5", "slots": 3},
    "three slots, holders die": {"duration_s": 300.0, "demand": "poisson:1.5", "slots": 3, "faults": (Kill(17),)},
    "on without the others": {"duration_s": 400.0, "faults": (CUT,), "when_isolated": "proceed"},
    "hosts die": {"duration_s": 600.0, "faults": (Kill(101, silent=True, times=2),)},
    "many": {"duration_s": 200.0, "demand": "poisson:0.5", "nodes": 40},
    "late messages": {
        "duration_s": 300.0,
        "delay_s": 0.3,
        "jitter": 0.9,
        "reordering": 0.2,
        "loss": 0.05,
        "faults": (Kill(31), Kill(47, "first")),
    },
    "cuts are seen": {
        "duration_s": 400.0,
        "own_views": True,
        "faults": (Partition(31, 71, 0.4, every_s=90, times=4, seen_after_s=10),),
    },
    "keepers die": {"duration_s": 600.0, "own_views": True, "faults": (Kill(23, "first"), Kill(61, "both"))},
    "all at once": {
        "nodes": 9,
        "duration_s": 400.0,
        "own_views": True,
        "known": 0.5,
        "late_s": 5.0,
        "loss": 0.05,
        "faults": (Kill(13, "random"), Kill(29, "first"), Kill(41), Churn(0.2)),
    },
}
# Walks without a hint, which have the pace of the papers: hours would tell no more.
OF_PAPERS = ("adaptive", "random-access", "sandwich")
DAYS_OF_PAPERS = ("busy",)


class Range(NamedTuple):
    low: float
    high: float


def algorithms() -> list[str]:
    found = plugins.installed(plugins.Role.ALGORITHM).items()
    return [name for name, entry in found if entry.value.startswith("softmutex.")]


def days(algorithm: str) -> list[str]:
    if algorithm in OF_PAPERS:
        return list(DAYS_OF_PAPERS)
    return [*DAYS, *(DAYS_OF_TWO if algorithm in OF_TWO else ())]


def run(algorithm: str, day: str, seed: int) -> Result:
    usual: dict[str, Any] = {"nodes": 6, "op_s": 1.0, "delay_s": 0.02, "settle_s": 30.0, "demand": "poisson:0.3"}
    usual |= {"demand": "saturated"} if day == "busy" else {}
    usual |= {"laws": ()} if algorithm in OF_PAPERS else {}
    return simulate(Scenario(**{**usual, "algorithm": algorithm, "seed": seed, **{**DAYS, **DAYS_OF_TWO}[day]}))


def figures(result: Result) -> dict[str, float]:
    """Messages are those an acquisition, times are seconds."""
    count = max(1, result.acquisitions)
    waits = sorted(result.waits) or [0]
    recoveries = result.recoveries_ns or [0]
    found = {
        "acquisitions": result.acquisitions,
        "wait": statistics.fmean(waits) / SECOND,
        "long wait": percentile(waits, 0.9) / SECOND,
        "recovery": statistics.fmean(recoveries) / SECOND,
        "messages": result.messages / count,
        "when idle": result.idle_messages * SECOND / max(1, result.idle_ns),
        "passes": result.hops / count,
        "made": result.generated,
        "discarded": result.discarded,
        "alarms": sum(result.alarms.values()),
        "false": sum(result.false_alarms.values()),
        "violations": len(result.violations),
    }
    return {**found, **{kind: sent / count for kind, sent in result.sent.items()}}


def measured(algorithm: str, day: str) -> dict[str, Range]:
    """Over all seeds."""
    each = [figures(run(algorithm, day, seed)) for seed in SEEDS]
    found = {}
    for name in sorted({name for one in each for name in one}):
        values = [one.get(name, 0.0) for one in each]
        mean = statistics.fmean(values)
        share, least = (SHARE_OF_KIND, LEAST_OF_KIND) if name.isupper() else (SHARE, LEAST)
        off = max(SIGMAS * statistics.stdev(values), share * mean, least)
        if max(values) > 0 and not (name.isupper() and mean < RARE):
            found[name] = Range(max(0.0, mean - off), mean + off)
    return found


def as_line(algorithm: str, day: str, found: dict[str, Range]) -> str:
    return "; ".join([algorithm, day, *(f"{name} {low:.4g}..{high:.4g}" for name, (low, high) in found.items())])


@cache
def ranges() -> dict[tuple[str, str], dict[str, Range]]:
    found: dict[tuple[str, str], dict[str, Range]] = {}
    for line in RANGES.read_text().splitlines():
        algorithm, day, *shown = line.split("; ")
        mine = found[algorithm, day] = {}
        for each in shown:
            name, _, between = each.rpartition(" ")
            low, _, high = between.partition("..")
            mine[name] = Range(float(low), float(high))
    return found


def outside(result: Result, known: dict[str, Range]) -> list[str]:
    found = figures(result)
    rare = {name: value for name, value in found.items() if name.isupper() and name not in known}
    wrong = [f"{name} {value:.3g}, and it is rare" for name, value in rare.items() if value > 2 * RARE]
    for name in sorted((found.keys() | known.keys()) - rare.keys()):
        low, high = known.get(name, Range(0.0, 0.0))
        value = found.get(name, 0.0)
        if not low * 0.999 <= value <= high * 1.001:  # four digits are shown
            wrong.append(f"{name} {value:.4g}, not {low:g}..{high:g}")
    return wrong


if __name__ == "__main__":
    for name in sys.argv[1:] or algorithms():
        for day in days(name):
            sys.stdout.write(as_line(name, day, measured(name, day)) + "\n")
