"""`softmutex sim reproduce wandering`: what the wandering token is to reach, measured, with and without its helpers.

The goals are those of the design (decision 0004 says where they come from); d is the one-way delay between two nodes,
A runs for 50 d, N is the size of the group. Everything is run by the real machines. So that the watch is seen at
work, the membership tells of a death only after a minute here: a failure detector would hide it.

Columns that are not the algorithm as it is (without hints, watch or census) are shown and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from softmutex.core.events import SECOND
from softmutex.sim.faults import Kill
from softmutex.sim.papers_cells import QUICK, Cell, Effort, Exhibit, Panel, Series, Shown, Verdict
from softmutex.sim.papers_runs import Job, Runner
from softmutex.sim.result import Result, percentile
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario

D_S = 0.01
A_S = 50 * D_S
UNSEEN_S = 60.0  # until the membership tells of a death
BASE: Mapping[str, Any] = {
    "algorithm": "wandering",
    "delay_s": D_S,
    "jitter": 0.5,
    "op_s": A_S,
    "detection_s": UNSEEN_S,
}
SIZES = (10, 300, 10_000)
LARGEST = 100_000
RARE_MESSAGES = {10: 9, 300: 12, 10_000: 16, LARGEST: 16}
RARE_WAIT_D = {10: 5, 300: 9, 10_000: 13, LARGEST: 13}
LOADS = (0.3, 0.6, 0.9)


@dataclass(frozen=True)
class Variant:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        return not self.options


AS_IT_IS = Variant("")
WITHOUT = (
    Variant("no hints", {"hints": False}),
    Variant("no watch", {"watch": False}),
    Variant("no census", {"census": False}),
    Variant("no early offers", {"early": False}),
    Variant("one watcher", {"watchers": 1}),
)


@cache
def _simulate(scenario: tuple[tuple[str, Any], ...]) -> Result:
    given = dict(scenario)
    given["options"] = dict(given.pop("options", ()))
    return simulate(Scenario(**{**BASE, **given}))


def run(variant: Variant, **changes: Any) -> Result:
    return _simulate(tuple(sorted({**changes, "options": tuple(variant.options.items())}.items())))


def cell(
    what: str, variant: Variant, goal: str, value: float | None, measured: float, good: bool, unit: str = ""
) -> Cell:
    verdict = Verdict.SHOWN if not variant.judged else Verdict.OK if good else Verdict.FAIL
    name = f"{what}, {variant.name}" if variant.name else what
    return Cell(name, goal, value, measured, None, verdict, "", unit)


# --- the rows --------------------------------------------------------------------------------------------------------


def recovery(variant: Variant, nodes: int, duration_s: float) -> list[Cell]:
    """From the death of the holder to the next grant, everybody wanting it all the time."""
    killed = run(variant, nodes=nodes, duration_s=duration_s, demand="saturated", faults=(Kill(20),), settle_s=0.0)
    times = sorted(killed.recoveries_ns)
    if not times:
        return [cell(f"N={nodes}, recoveries", variant, "> 0", None, 0, False)]
    middle, worst = percentile(times, 0.5) / SECOND, percentile(times, 0.99) / SECOND
    share = 100 * killed.overlap
    return [
        cell(f"N={nodes}, holder killed, median", variant, "<= 3 s", 3, middle, middle <= 3, "s"),
        cell(f"N={nodes}, holder killed, p99", variant, "<= 8 s", 8, worst, worst <= 8, "s"),
        cell(f"N={nodes}, killed each 20 s, two hold", variant, "< 1 %", 1, share, share < 1, "%"),
    ]


def both_die(variant: Variant, nodes: int, duration_s: float) -> list[Cell]:
    killed = run(variant, nodes=nodes, duration_s=duration_s, demand="saturated", faults=(Kill(60, "first"),))
    times = sorted(killed.recoveries_ns)
    worst = times[-1] / SECOND if times else float("inf")
    return [cell(f"N={nodes}, watcher killed too, worst", variant, "<= 30 s", 30, worst, worst <= 30, "s")]


def under_load(variant: Variant, nodes: int, rounds: int) -> list[Cell]:
    """Everybody wants it. Messages are counted between two moments of the same run, when the queue stands."""
    length_s = max(400.0, rounds * nodes * A_S * 1.02)
    half = run(variant, nodes=nodes, duration_s=length_s / 2, demand="saturated")
    full = run(variant, nodes=nodes, duration_s=length_s, demand="saturated")
    each = (full.messages - half.messages) / max(1, full.acquisitions - half.acquisitions)
    busy, worst_s = 100 * full.busy, max(full.waits, default=0) / SECOND
    bound_s = 3 * nodes * A_S
    return [
        cell(f"N={nodes}, saturated, in use", variant, ">= 97.5 %", 97.5, busy, busy >= 97.5, "%"),
        cell(f"N={nodes}, saturated, messages each", variant, "<= 7", 7, each, each <= 7),
        cell(f"N={nodes}, saturated, Jain index", variant, ">= 0.99", 0.99, full.fairness, full.fairness >= 0.99),
        cell(f"N={nodes}, saturated, longest wait", variant, "<= 3 N A", bound_s, worst_s, worst_s <= bound_s, "s"),
        cell(f"N={nodes}, no fault, two hold", variant, "0", 0, 100 * full.overlap, full.overlap == 0, "%"),
    ]


def with_loss(variant: Variant, nodes: int, duration_s: float) -> list[Cell]:
    lossy = run(variant, nodes=nodes, duration_s=duration_s, demand="saturated", loss=0.01)
    share = 100 * lossy.overlap
    return [cell(f"N={nodes}, 1 % loss, two hold", variant, "< 0.1 %", 0.1, share, share < 0.1, "%")]


def rare(variant: Variant, nodes: int, duration_s: float) -> list[Cell]:
    """A request each ten seconds, of whoever it may be. The wait is that of requests that found it idle."""
    seldom = run(variant, nodes=nodes, duration_s=duration_s, demand="poisson:0.1", keep_holds=True)
    waits = waits_on_idle(seldom)
    mean_d = sum(waits) / max(1, len(waits)) / SECOND / D_S
    each = seldom.messages_per_acquisition
    goal_d, goal = RARE_WAIT_D[nodes], RARE_MESSAGES[nodes]
    return [
        cell(f"N={nodes}, rare, messages each", variant, f"<= {goal}", goal, each, each <= goal),
        cell(f"N={nodes}, rare, wait on idle", variant, f"<= {goal_d} d", goal_d, mean_d, mean_d <= goal_d, "d"),
    ]


def waits_on_idle(result: Result) -> list[int]:
    """Of requests that came when nobody ran A, nor waited."""
    holds = sorted(result.holds or (), key=lambda hold: hold.asked)
    out, free_at = [], 0
    for hold in holds:
        if hold.asked >= free_at:
            out.append(hold.start - hold.asked)
        free_at = max(free_at, hold.end)
    return out


def idle(variant: Variant, nodes: int) -> list[Cell]:
    """An hour in which nobody wants it."""
    quiet = run(variant, nodes=nodes, duration_s=3600.0, demand="none")
    rate = quiet.messages / 3600
    return [cell(f"N={nodes}, idle, whole group", variant, "<= 0.5/s", 0.5, rate, rate <= 0.5, "/s")]


def queueing(variant: Variant, nodes: int, duration_s: float) -> list[Cell]:
    """Beside M/D/1, the limit of every queue that serves first come first served, whose service is A and one d: no
    two holders can follow each other faster. Allowed: 10 % and one hand-over of an idle token (5 d, as above) more."""
    cells = []
    service_s = A_S + D_S
    for load in LOADS:
        rate = load / service_s
        result = run(variant, nodes=nodes, duration_s=duration_s, demand=f"poisson:{rate:.6f}")
        mean_s = sum(result.waits) / max(1, len(result.waits)) / SECOND
        best_s = load * service_s / (2 * (1 - load))
        bound_s = 1.1 * best_s + 5 * D_S
        what = f"N={nodes}, {load:.0%} load, mean wait (M/D/1)"
        cells.append(cell(what, variant, f"{best_s:.3f} s", best_s, mean_s, mean_s <= bound_s, "s"))
    return cells


# --- the exhibit -----------------------------------------------------------------------------------------------------


def _size(variant: Variant, nodes: int, effort: Effort) -> list[Cell]:
    small = effort is QUICK or nodes > SIZES[1]
    rounds = 4 if small else 20
    cells = recovery(variant, nodes, 1000.0 if nodes > SIZES[1] else 10_000.0)
    cells += under_load(variant, nodes, rounds) + with_loss(variant, nodes, 1000.0 if small else 5000.0)
    return cells + rare(variant, nodes, 4000.0 if small else 20_000.0) + idle(variant, nodes)


def show(effort: Effort, runner: Runner) -> Shown:
    sizes = SIZES[:2] if effort is QUICK else SIZES
    parts: list[Callable[[], list[Cell]]] = [
        *(partial(_size, AS_IT_IS, nodes, effort) for nodes in sizes),
        partial(both_die, AS_IT_IS, 10, 6000.0),
        partial(both_die, AS_IT_IS, 300, 3000.0),
        partial(queueing, AS_IT_IS, 300, 20_000.0 if effort is QUICK else 100_000.0),
        *(partial(_helper, variant) for variant in WITHOUT),
    ]
    cells: list[Cell] = []
    for number, part in enumerate(parts, 1):
        cells += part()
        if runner.progress is not None:
            runner.progress(number / len(parts))
    notes = (
        f"d = {D_S * 1000:g} ms with jitter ± 50 %, A = {A_S:g} s; the membership tells of deaths after {UNSEEN_S:g} s",
        "no hints: the token walks at random, as in the seeds; what it then costs is the price of hints' absence",
    )
    return Shown(cells, _growth(cells), notes)


def _helper(variant: Variant) -> list[Cell]:
    """What one helper is for: the rows at N=10, without it."""
    nodes = 10
    return [
        *recovery(variant, nodes, 2000.0),
        *under_load(variant, nodes, 20),
        *rare(variant, nodes, 4000.0),
        *idle(variant, nodes),
    ]


def _growth(cells: Sequence[Cell]) -> list[Panel]:
    """Messages, wait and recovery against N."""
    panels = []
    rows = (("rare, messages each", "messages"), ("rare, wait on idle", "d"), ("holder killed, median", "s"))
    for row, unit in rows:
        found = [(int(c.what.split(",")[0][2:]), c.measured) for c in cells if c.what.endswith(row)]
        xs, ys = [float(nodes) for nodes, _ in found], [value for _, value in found]
        panels.append(Panel(row, "N", unit, (Series("measured", xs, ys, "line"),)))
    return panels


def largest() -> list[Cell]:
    """N = 100,000, minutes and a gigabyte: recorded in decision 0004, not part of a reproduction."""
    return [
        *recovery(AS_IT_IS, LARGEST, 400.0),
        *rare(AS_IT_IS, LARGEST, 1000.0),
        *idle(AS_IT_IS, LARGEST),
        *under_load(AS_IT_IS, LARGEST, 3),
    ]


def _no_jobs(effort: Effort) -> list[Job]:
    return []


EXHIBITS = (
    Exhibit("wandering", "the goals of the wandering token, and what each of its helpers is for", _no_jobs, show),
)
