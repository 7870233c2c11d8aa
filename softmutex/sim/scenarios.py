"""The fault matrix: each thing that may go wrong, by name, as a seeded scenario that all laws watch.

    for name in MATRIX: simulate(scenario(name, "wandering", seed)).violations == []

A seed chooses more than the dice: it also decides how much is asked for (everybody always; half of what the resource
can bear; hardly anything), since a fault that is harmless under load may be fatal to a token that nobody uses, and
the other way round. Each run ends with a calm phase, in which everything asked for must be granted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex.core.machine import Algorithm
from softmutex.sim.faults import Churn, Clocks, Clog, Kill, Partition, Pause, Replay, TokenLoss
from softmutex.sim.result import Result
from softmutex.sim.run import Progress, simulate
from softmutex.sim.scenario import Scenario

DAY_S = 86_400.0
DEMANDS = ("saturated", "poisson:0.25", "poisson:0.02")
BASE: Mapping[str, Any] = {
    "nodes": 9,
    "duration_s": 300.0,
    "op_s": 2.0,
    "delay_s": 0.05,
    "settle_s": 900.0,
}

# name -> what differs from `BASE`; the comment is the line of the fault matrix that it stands for
MATRIX: dict[str, dict[str, Any]] = {
    "nothing": {},
    "loss-1": {"loss": 0.01},  # 1
    "loss-5": {"loss": 0.05},
    "loss-20": {"loss": 0.2},
    "loss-40": {"loss": 0.4},
    "delay-30ms": {"delay_s": 0.03, "jitter": 1 / 6},  # 2
    "delay-200ms": {"delay_s": 0.2, "jitter": 0.5},
    "duplication-10": {"duplication": 0.1},  # 3
    "duplication-50": {"duplication": 0.5},
    "reordering": {"reordering": 0.2},  # 4
    "corruption": {"corruption": 0.05},  # 5
    "partition": {"faults": (Partition(60, 120, 0.4),)},  # 6
    "partition-seen": {"faults": (Partition(60, 150, 0.4, seen_after_s=10),), "own_views": True},
    "one-way-cut": {"faults": (Partition(60, 120, 0.4, one_way=True),)},  # 7
    "holder-cut-off": {"faults": (Partition(31, 71, 0.1, target="holder", every_s=90, times=3),)},  # 8
    "flapping": {"faults": (Partition(60, 61, 0.5, every_s=2, times=60),)},  # 9
    "clogged-links": {"faults": (Clog(8, 4),)},  # 10
    "kill-holder": {"faults": (Kill(31),)},  # 11
    "kill-holder-for-good": {"faults": (Kill(67, restart_s=None, times=3),)},
    "kill-waiter": {"faults": (Kill(17, "waiter"),)},
    "kill-passer": {"faults": (Kill(23, "passer"),)},
    "kill-holder-and-passer": {"faults": (Kill(47, "both"),)},
    "kill-anybody": {"faults": (Kill(13, "random"),)},
    "kill-sender-of-offer": {"faults": (Kill(29, at_message="OFFER"),)},
    "kill-sender-of-accept": {"faults": (Kill(29, at_message="ACCEPT"),)},
    "kill-sender-of-commit": {"faults": (Kill(29, at_message="COMMIT"),)},
    "kill-sender-of-done": {"faults": (Kill(29, at_message="DONE"),)},
    "lost-tokens": {"faults": (TokenLoss(41),)},
    "pause-3s": {"faults": (Pause(37, 3),)},  # 12
    "pause-past-lease": {"faults": (Pause(71, 40),)},
    "pause-anybody": {"faults": (Pause(19, 12, "random"),)},
    "cpu-starved": {"faults": (Pause(0.7, 0.5, "random"),)},  # 13
    "blocked-loop": {"faults": (Pause(23, 3, "holder"), Pause(29, 3, "waiter"))},  # 14
    "clocks-off": {"faults": (Clocks(0.5, offset_s=2 * 3600), Kill(43))},  # 15
    "clocks-off-by-days": {"faults": (Clocks(0.3, offset_s=5 * DAY_S), Kill(43))},
    "clock-rates": {"faults": (Clocks(0.5, rate=1.5),)},  # 16
    "clock-jumps": {"faults": (Clocks(0.5, jump_s=3600, at_s=100),)},
    "restart-at-once": {"faults": (Kill(31, restart_s=0.08),)},  # 17
    "churn-30": {"faults": (Churn(0.3),)},  # 19
    "churn-unseen": {"faults": (Churn(0.3),), "own_views": True},
    "cold-start": {"founders": 0},  # 20
    "everybody-founds": {"founders": 9},
    "views-differ": {"faults": (Kill(31), Churn(0.3)), "own_views": True, "detection_s": 15},  # 22
    "replayed": {"faults": (Replay(0.3, 100),)},  # 25
    "cancellations": {"changes_mind": 0.5, "patience_s": 20.0},  # 28
    "uneven-holds": {"hold": "exponential"},
    "long-holds": {"hold": "uniform:20:60", "demand": "saturated", "duration_s": 900.0, "settle_s": 2400.0},
    "three-slots": {"slots": 3},
    "three-slots-kill": {"slots": 3, "faults": (Kill(31),)},
    "two-nodes": {"nodes": 2, "faults": (Pause(61, 10, "random"),), "loss": 0.02},
    "storm": {
        "loss": 0.05,
        "duplication": 0.1,
        "reordering": 0.05,
        "own_views": True,
        "changes_mind": 0.1,
        "faults": (Kill(43, "random"), Pause(31, 8, "random"), Churn(0.2), Partition(100, 130, 0.3), Clog(20, 1)),
    },
}
# Too long to be a part of every sweep: by name only.
LONG: dict[str, dict[str, Any]] = {
    "soak-72h": {  # 29
        "duration_s": 3 * DAY_S,
        "loss": 0.01,
        "own_views": True,
        "faults": (Kill(3600), Pause(5000, 20, "random"), Churn(0.02), Partition(40_000, 40_300, 0.4)),
    },
}


def find(name: str) -> str:
    if name in MATRIX or name in LONG:
        return name
    known = [*MATRIX, *LONG]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"no scenario is named {name!r}: {hint}there are {', '.join(known)}")


def fitting(algorithm: type[Algorithm]) -> list[str]:
    """The scenarios of the matrix that this algorithm can be put into at all."""
    return [name for name, differs in MATRIX.items() if differs.get("slots", 1) <= algorithm.slots_most]


def scenario(name: str, algorithm: str | type[Algorithm], seed: int, **changes: Any) -> Scenario:
    differs = {**MATRIX, **LONG}[find(name)]
    demand = DEMANDS[seed % len(DEMANDS)]
    return Scenario(**{**BASE, "algorithm": algorithm, "seed": seed, "demand": demand, **differs, **changes})


def sweep(
    name: str, algorithm: str | type[Algorithm], seeds: Sequence[int], progress: Progress | None = None
) -> list[Result]:
    results = []
    for number, seed in enumerate(seeds):
        results.append(simulate(scenario(name, algorithm, seed)))
        if progress is not None:
            progress((number + 1) / len(seeds))
    return results


def command(name: str, run: Scenario) -> str:
    return f"softmutex sim check --scenario {name} --algorithm {run.algorithm_name} --seed {run.seed}"


def line(name: str, results: Iterable[Result]) -> str:
    """What a sweep showed, for a person."""
    runs = list(results)
    broken = [result for result in runs if result.violation_count]
    laws = sorted({violation.law for result in broken for violation in result.violations})
    verdict = f"{len(broken)} of {len(runs)} runs break the law of {', '.join(laws)}" if broken else f"{len(runs)} runs"
    overlap = max((result.overlap for result in runs), default=0.0)
    outages = [outage / 1e9 for result in runs for outage in result.outages_ns]
    slowest = f"recovery within {max(outages):.1f} s, " if outages else ""
    return (
        f"{'broken' if broken else 'holds ':<7} {name:<24} {verdict}; {slowest}overlap up to {overlap:.2%} of the time"
    )
