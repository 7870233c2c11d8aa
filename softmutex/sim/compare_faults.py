"""What each algorithm does under each fault, measured: `softmutex sim compare --faults`.

Nine nodes always want it, A takes 1 s, a message 50 ms, for five minutes, with three seeds. A cell tells:

    94% 2.1s         in use so much of the time; the longest that nobody ran A, though all wanted it
    94% 2.1s 0.3%!   and so much of the time two or more ran it, in the worst run
    94% 2.1s told    and somebody was told that it may not be alone
    61% stops        nobody ran A any more at the end

A dead member is known to be dead after some seconds, but for the power cut: of that nobody tells.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from softmutex import plugins
from softmutex.core.events import SECOND
from softmutex.sim.engine import Engine, InThisProcess
from softmutex.sim.faults import Churn, Kill, Partition, Pause
from softmutex.sim.result import Result
from softmutex.sim.run import Progress, simulate
from softmutex.sim.scenario import Scenario

LENGTH_S = 300.0
SEEDS = 3
STOPPED_S = 60.0  # at the end of a run: it does not go on

# `coordinator`: the highest id is elected by `bully`, the others have nobody special there.
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "loss": {"loss": 0.05},
    "duplication": {"duplication": 0.3, "reordering": 0.1},
    "holder dies": {"faults": (Kill(61),)},
    "waiter dies": {"faults": (Kill(61, "waiter"),)},
    "coordinator dies": {"faults": (Kill(61, "last", restart_s=None, times=3),)},
    "power cut": {"faults": (Kill(61, "waiter", restart_s=None, times=1, silent=True),)},
    "pause": {"faults": (Pause(41, 8),)},
    "cut": {"faults": (Partition(100, 130, 0.4),)},
    "churn": {"faults": (Churn(0.5),)},
}


class FaultCell(NamedTuple):
    algorithm: str
    fault: str
    use: float  # share of the time in which A runs, the mean of all seeds
    standstill_s: float  # the longest of all seeds
    overlap: float  # the same
    told: int  # holds that were told that they may not be alone
    stops: bool

    def __str__(self) -> str:
        two = f" {self.overlap:.1%}!" if self.overlap >= 0.0005 else " told" if self.told else ""
        return f"{self.use:.0%} {'stops' if self.stops else f'{self.standstill_s:.1f}s'}{two}"


def measure(names: Sequence[str], progress: Progress | None = None, engine: Engine | None = None) -> list[FaultCell]:
    chosen = list(names)
    if not chosen:
        chosen = [name for name in plugins.installed(plugins.Role.ALGORITHM) if not plugins.algorithm(name).elects]
    wanted = [(one_cell, (name, fault)) for name in chosen for fault in FAULTS]
    cells = []
    for cell in (engine or InThisProcess()).run(iter(wanted)):
        cells.append(cell)
        if progress is not None:
            progress(len(cells) / len(wanted))
    return cells


def one_cell(algorithm: str, fault: str) -> FaultCell:
    base = {"nodes": 9, "nodes_max": 9, "duration_s": LENGTH_S, "op_s": 1.0, "delay_s": 0.05, "keep_holds": True}
    runs = [simulate(Scenario(algorithm, seed=seed + 1, **{**base, **FAULTS[fault]})) for seed in range(SEEDS)]
    gaps = [standstills_s(run) for run in runs]
    return FaultCell(
        algorithm,
        fault,
        sum(run.busy for run in runs) / len(runs),
        max(max(each) for each in gaps),
        max(run.overlap for run in runs),
        sum(sum(run.alarms.values()) for run in runs),
        any(each[-1] > STOPPED_S for each in gaps),
    )


def standstills_s(result: Result) -> list[float]:
    """Each time in which nobody ran A; the last one goes on to the end."""
    gaps, end = [], 0
    for hold in sorted(result.holds or (), key=lambda hold: hold.start):
        gaps.append(max(0, hold.start - end) / SECOND)
        end = max(end, hold.end)
    return [*gaps, max(0.0, LENGTH_S - end / SECOND)]


def as_json(cells: Sequence[FaultCell]) -> str:
    return json.dumps({"cells": [cell._asdict() for cell in cells]}) + "\n"


def as_text(cells: Sequence[FaultCell]) -> str:
    """A table as Markdown has it, to be pasted."""
    faults = list(dict.fromkeys(cell.fault for cell in cells))
    lines = ["| algorithm | " + " | ".join(faults) + " |", "| --- |" + " --: |" * len(faults)]
    for name in dict.fromkeys(cell.algorithm for cell in cells):
        row = [str(cell) for cell in cells if cell.algorithm == name]
        lines.append(f"| `{name}` | " + " | ".join(row) + " |")
    return "\n".join([*lines, ""])
