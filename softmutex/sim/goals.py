"""What the wandering token is to reach: how each row of the table of goals is measured.

The goals are those of the design; d is the one-way delay between two nodes, A runs for 50 d, N is the size of the
group. Everything is run by the real machines. So that the watch is seen at work, the membership tells of a death only
after a minute here: a failure detector would hide it.

An `Trial` is one row at one size by one variant of the algorithm: it says all that its run depends on, so that rows can
be measured in other processes, and each once. What a run counts is told by `ROWS`; `goals_table.py` says how long runs
are and prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from softmutex.core.events import SECOND
from softmutex.sim.faults import Kill
from softmutex.sim.result import Result, percentile
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.steady import messages_each

D_S: Final = 0.01
A_S: Final = 50 * D_S
UNSEEN_S: Final = 60.0  # until the membership tells of a death
KILL_EVERY_S: Final = 20.0
ROUND_S: Final = 1.02 * A_S  # of a round under load, for each node
IDLE_S: Final = 3600.0
BASE: Final[Mapping[str, Any]] = {
    "algorithm": "wandering",
    "delay_s": D_S,
    "jitter": 0.5,
    "op_s": A_S,
    "detection_s": UNSEEN_S,
}
# What is left out in each column: the first one is the algorithm as it is, and the one that is judged.
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "as it is": {},
    "no hints": {"hints": False},
    "no watch": {"watch": False},
    "no census": {"census": False},
    "no early offers": {"early": False},
    "one watcher": {"watchers": 1},
}
AS_IT_IS: Final = "as it is"


class Trial(NamedTuple):
    """One row, at one size, by one variant. `length`: virtual seconds; under load, how many turns each node gets."""

    row: str
    nodes: int
    variant: str
    length: float


@dataclass(frozen=True)
class Figure:
    """A number of a row. The goal may depend on N; None: it is shown, for there is no goal."""

    what: str
    unit: str
    goal: Callable[[int], float | None]
    least: bool = False  # the goal is a lower bound

    def goal_text(self, nodes: int) -> str:
        goal = self.goal(nodes)
        return "" if goal is None else f"{'>=' if self.least else '<='} {goal:,g}{' ' if self.unit else ''}{self.unit}"

    def holds(self, nodes: int, value: float) -> bool | None:
        goal = self.goal(nodes)
        if goal is None:
            return None
        return value >= goal if self.least else value <= goal


@dataclass(frozen=True)
class Row:
    figures: Sequence[Figure]
    measure: Callable[[Trial], Sequence[float]]


def measure(trial: Trial) -> Sequence[float]:
    """As many numbers as the row has figures; infinite where it never came to that."""
    return ROWS[trial.row].measure(trial)


def scenario(trial: Trial, **changes: Any) -> Scenario:
    return Scenario(**{**BASE, "nodes": trial.nodes, "options": VARIANTS[trial.variant], **changes})


def run(trial: Trial, **changes: Any) -> Result:
    return simulate(scenario(trial, **changes))


# --- the rows --------------------------------------------------------------------------------------------------------


def _recovery(trial: Trial) -> Sequence[float]:
    """From the death of the holder to the next grant, everybody wanting it all the time."""
    killed = run(trial, duration_s=trial.length, faults=(Kill(KILL_EVERY_S),))
    times = sorted(outages_ns(killed))
    middle, most = (percentile(times, share) / SECOND if times else math.inf for share in (0.5, 0.99))
    return middle, most, 100 * killed.overlap, 100 * killed.busy


def outages_ns(result: Result) -> list[int]:
    """A loss that nobody made good by the end counts for as long as it was seen, unless it had just begun."""
    still_open = result.bereft_ns > KILL_EVERY_S * SECOND
    return [*result.recoveries_ns, *([result.bereft_ns] if still_open else [])]


def _both_die(trial: Trial) -> Sequence[float]:
    """The holder and the first watcher at once."""
    killed = run(trial, duration_s=trial.length, faults=(Kill(3 * KILL_EVERY_S, "first"),))
    return (max(outages_ns(killed), default=math.inf) / SECOND,)


def _under_load(trial: Trial) -> Sequence[float]:
    """Everybody wants it."""
    length_s = trial.length * trial.nodes * ROUND_S
    full, each = messages_each(scenario(trial, duration_s=length_s))
    longest_s = max(full.waits, default=0) / SECOND
    return 100 * full.busy, each, full.fairness, longest_s / (trial.nodes * A_S), 100 * full.overlap


def _with_loss(trial: Trial) -> Sequence[float]:
    return (100 * run(trial, duration_s=trial.length, loss=0.01).overlap,)


def _rare(trial: Trial) -> Sequence[float]:
    """A request each ten seconds, of whoever it may be. The wait is that of requests that found it idle."""
    seldom = run(trial, duration_s=trial.length, demand="poisson:0.1", keep_holds=True)
    waits = waits_on_idle(seldom)
    mean_d = sum(waits) / len(waits) / SECOND / D_S if waits else math.inf
    return seldom.messages_per_acquisition or math.inf, mean_d


def waits_on_idle(result: Result) -> list[int]:
    """Of requests that came when nobody ran A, nor waited."""
    holds = sorted(result.holds or (), key=lambda hold: hold.asked)
    out, free_at = [], 0
    for hold in holds:
        if hold.asked >= free_at:
            out.append(hold.start - hold.asked)
        free_at = max(free_at, hold.end)
    return out


def _idle(trial: Trial) -> Sequence[float]:
    """Nobody wants it."""
    return (run(trial, duration_s=trial.length, demand="none").messages / trial.length,)


def _always(goal: float | None) -> Callable[[int], float | None]:
    return lambda _: goal


def _by_size(goals: Mapping[int, float]) -> Callable[[int], float | None]:
    """The goal of the next size that the design names."""
    return lambda nodes: next((goal for size, goal in goals.items() if nodes <= size), list(goals.values())[-1])


ROWS: Final[Mapping[str, Row]] = {
    "recovery": Row(
        (
            Figure("holder killed: recovery, median", "s", _always(3)),
            Figure("holder killed: recovery, p99", "s", _always(8)),
            Figure("killed each 20 s: two hold", "%", _always(1)),
            Figure("killed each 20 s: in use", "%", _always(None)),
        ),
        _recovery,
    ),
    "both": Row((Figure("killed with its watcher: worst", "s", _always(30)),), _both_die),
    "load": Row(
        (
            Figure("all want it: in use", "%", _always(97.5), least=True),
            Figure("all want it: messages each", "", _always(7)),
            Figure("all want it: Jain index", "", _always(0.99), least=True),
            Figure("all want it: longest wait", "N A", _always(3)),
            Figure("no fault: two hold", "%", _always(0)),
        ),
        _under_load,
    ),
    "loss": Row((Figure("1 % loss: two hold", "%", _always(0.1)),), _with_loss),
    "rare": Row(
        (
            Figure("rarely wanted: messages each", "", _by_size({10: 9, 300: 12, 10_000: 16})),
            Figure("rarely wanted: wait on idle", "d", _by_size({10: 5, 300: 9, 10_000: 13})),
        ),
        _rare,
    ),
    "idle": Row((Figure("idle: messages a second, all", "", _always(0.5)),), _idle),
}
