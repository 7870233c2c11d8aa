"""`softmutex sim reproduce wandering-queue`: the wait under load, beside the best that any queue could do.

Requests arrive at random (Poisson) at whoever it may be, and A takes the same time each time. Whoever serves first
come first served is then at best an M/D/1 queue, whose service is A and one d: no two holders can follow each other
faster than one message travels. Its mean wait is Pollaczek's and Khinchine's, its distribution Erlang's.

Judged is the mean: 10 % and one hand-over of an idle token more are allowed. The naive way compares with a queue
without hand-overs, or with the same machine at another size, and learns nothing about what is left to gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from softmutex.core.events import SECOND
from softmutex.sim.goals import A_S, AS_IT_IS, D_S, Trial, run
from softmutex.sim.goals_table import number
from softmutex.sim.papers_cells import Cell, Effort, Exhibit, Panel, Series, Shown, Table, Verdict
from softmutex.sim.papers_runs import PaperRun, Runner

LOADS: Final = (0.3, 0.6, 0.9)
SHARES: Final = (0.5, 0.9, 0.99)
SIZES: Final = (300,)
SERVICE_S: Final = A_S + D_S
HAND_OVER_S: Final = 5 * D_S  # of an idle token: WANT, FEED, OFFER, ACCEPT, COMMIT
ALLOWED: Final = 1.1
LENGTH_S, QUICK_LENGTH_S = 100_000.0, 10_000.0
STEP_S: Final = 0.1  # of the picture
MANY: Final = 400  # points of a line


class Load(NamedTuple):
    nodes: int
    load: float  # share of the time that A and one d take, of all
    length_s: float


class QueueWaits(NamedTuple):
    mean_s: float
    at_s: tuple[float, ...]  # by `SHARES`
    served_by: tuple[float, ...]  # share of the requests that waited no longer than each multiple of `STEP_S`


def measure(load: Load) -> QueueWaits:
    rate = load.load / SERVICE_S
    result = run(Trial("", load.nodes, AS_IT_IS, 0.0), duration_s=load.length_s, demand=f"poisson:{rate:.9f}")
    waits = sorted(result.waits)
    if not waits:
        return QueueWaits(math.inf, (math.inf,) * len(SHARES), ())
    mean_s = sum(waits) / len(waits) / SECOND
    points = [sum(wait <= at * STEP_S * SECOND for wait in waits) / len(waits) for at in range(MANY)]
    return QueueWaits(mean_s, tuple(result.wait_s(share) for share in SHARES), tuple(points))


# --- M/D/1 -----------------------------------------------------------------------------------------------------------


def mean_wait_s(load: float) -> float:
    return load * SERVICE_S / (2 * (1 - load))


def waited_at_most(load: float, wait_s: float) -> float:
    """The share of requests that waits no longer. The terms alternate, and cancel well enough up to 30 services."""
    ahead = wait_s / SERVICE_S
    terms = []
    for k in range(math.floor(ahead) + 1):
        x = load * (ahead - k)
        terms.append((-x) ** k / math.factorial(k) * math.exp(x))
    return (1 - load) * math.fsum(terms)


def wait_at_s(load: float, share: float) -> float:
    """The wait that this share of requests does not exceed; by bisection. 0 where so many need not wait."""
    if share <= 1 - load:
        return 0.0
    low, high = 0.0, 40 * SERVICE_S
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if waited_at_most(load, middle) < share else (low, middle)
    return high


# --- the exhibit -----------------------------------------------------------------------------------------------------


def show(effort: Effort, runner: Runner) -> Shown:
    length_s = QUICK_LENGTH_S if effort.is_quick else LENGTH_S
    loads = [Load(nodes, load, length_s) for nodes in effort.sizes or SIZES for load in LOADS]
    found = runner.map(measure, loads)
    cells, rows = [], []
    for (nodes, load, _), waits in zip(loads, found, strict=True):
        best_s = mean_wait_s(load)
        bound_s = ALLOWED * best_s + HAND_OVER_S
        holds = waits.mean_s <= bound_s
        verdict = Verdict.SHOWN if effort.is_quick else Verdict.OK if holds else Verdict.FAIL
        cells.append(
            Cell(f"N={nodes}, {load:.0%} load, mean wait (M/D/1)", f"{best_s:.3f} s", best_s, waits.mean_s, None,
                 verdict, f"at most {bound_s:.3f} s", "s")
        )  # fmt: skip
        mark = " FAIL" if verdict is Verdict.FAIL else ""
        rows.append([f"N = {nodes:,}, {load:.0%}", "measured", number(waits.mean_s, "s") + mark, *_spread(waits.at_s)])
        rows.append(["", "M/D/1", number(best_s, "s"), *_spread([wait_at_s(load, share) for share in SHARES])])
        rows.append(["", "allowed", number(bound_s, "s"), *[""] * len(SHARES)])
    too_short = " (too few to judge)" if effort.is_quick else ""
    notes = (
        f"{length_s:,.0f} virtual seconds each{too_short}; d = {D_S * 1000:g} ms with jitter ± 50 %, A = {A_S:g} s",
        f"100 % load is one request each A + d = {SERVICE_S:g} s",
        "allowed: 10 % above M/D/1 and one hand-over of an idle token, 5 d. At 30 % load most find it idle, and wait "
        "for that hand-over, which the queue on paper does not have",
    )
    table = Table("Wait under Poisson load", ["load", "", "mean", *(f"p{share * 100:g}" for share in SHARES)], rows)
    return Shown(cells, _panels(loads, found), notes, [table])


def _spread(values: Sequence[float]) -> list[str]:
    return [number(value, "s") for value in values]


def _panels(loads: Sequence[Load], found: Sequence[QueueWaits]) -> list[Panel]:
    nodes = loads[0].nodes
    panels = []
    for (size, load, _), waits in zip(loads, found, strict=True):
        if size != nodes:
            continue
        until = next((at for at, share in enumerate(waits.served_by) if share > 0.995), MANY)
        xs = [at * STEP_S for at in range(min(until + 2, len(waits.served_by)))]
        panels.append(
            Panel(
                f"N = {nodes:,}, {load:.0%} of capacity",
                "s",
                "% of the requests that waited no longer",
                (
                    Series("measured", xs, [100 * share for share in waits.served_by[: len(xs)]], "line"),
                    Series("M/D/1, the limit", xs, [100 * waited_at_most(load, x) for x in xs], "goal"),
                ),
            )
        )
    return panels


def _no_jobs(effort: Effort) -> list[PaperRun]:
    return []


EXHIBITS = (Exhibit("wandering-queue", "The wait under load, beside the M/D/1 queue", _no_jobs, show),)
