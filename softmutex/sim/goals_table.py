"""`softmutex sim reproduce wandering`: the table of goals, with and without each of the algorithm's helpers.

    sizes x rows x variants --> trials --> runs, in as many processes as allowed --> a table for each size

What it decides: how long each run is. The algorithm as it is gets the longest ones, since only its column is judged; a
column without a helper shows what that helper is for, which shorter runs do as well. The larger the group, the longer a
virtual second takes, and the less of them are needed: at N = 10,000 a single round has ten thousand hand-overs.

`wandering-growth` asks for some of the same rows at more sizes, and draws them against N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from softmutex.sim.goals import A_S, AS_IT_IS, D_S, ROUND_S, ROWS, UNSEEN_S, VARIANTS, Figure, Trial, measure
from softmutex.sim.papers_cells import Cell, Effort, Exhibit, Panel, Series, Shown, Table, Verdict
from softmutex.sim.papers_runs import PaperRun, Runner

SIZES: Final = (10, 300, 10_000)
GROWTH_SIZES: Final = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
HUGE: Final = 30_000  # from here on columns without a helper would take hours
# From which size on a run is how long: as it is, and without a helper. Rounds for `load`, else virtual seconds.
LENGTHS: Final[Mapping[str, Mapping[int, tuple[float, float]]]] = {
    "recovery": {0: (10_000, 2000), 1000: (2000, 200), HUGE: (600, 200)},
    "both": {0: (6000, 2000), 1000: (1500, 200), HUGE: (600, 200)},
    "load": {0: (80, 80), 100: (20, 20), 1000: (3, 1), HUGE: (1, 1)},
    "loss": {0: (5000, 1000), 1000: (1000, 200), HUGE: (200, 200)},
    "rare": {0: (20_000, 4000), 1000: (4000, 1000), HUGE: (2000, 1000)},
    "idle": {0: (3600, 3600), 1000: (3600, 600), HUGE: (3600, 600)},
}
NO_CENSUS_S: Final = 220.0  # under load, where a round takes longer: at 225 s thousands of waiters make tokens at once
QUICK_SHARE: Final = 0.2
QUICK_VARIANTS: Final = 4
NO_HINTS: Final = "no hints"

Measured = Mapping[Trial, Sequence[float]]


def length(row: str, nodes: int, variant: str, effort: Effort) -> float:
    by_size = LENGTHS[row]
    judged, helped = by_size[max(size for size in by_size if size <= nodes)]
    if (row, variant) == ("load", "no census") and nodes >= 1000:
        return NO_CENSUS_S / (nodes * ROUND_S)
    is_short = effort.is_quick and (nodes > SIZES[0] or variant != AS_IT_IS)
    return (QUICK_SHARE if is_short else 1.0) * (judged if variant == AS_IT_IS else helped)


def trial(row: str, nodes: int, variant: str, effort: Effort) -> Trial:
    return Trial(row, nodes, variant, length(row, nodes, variant, effort))


def _measure(trials: Sequence[Trial], runner: Runner) -> Measured:
    costly_first = sorted(trials, key=lambda each: -each.nodes)
    return dict(zip(costly_first, runner.map(measure, costly_first), strict=True))


# --- the table -------------------------------------------------------------------------------------------------------


def show(effort: Effort, runner: Runner) -> Shown:
    sizes = effort.sizes or (SIZES[:2] if effort.is_quick else SIZES)
    trials = [
        trial(row, nodes, variant, effort)
        for nodes in sizes
        for row in ROWS
        for variant in list(VARIANTS)[: QUICK_VARIANTS if effort.is_quick else None]
        if variant == AS_IT_IS or nodes < HUGE
    ]
    measured = _measure(trials, runner)
    cells = [cell for each in trials for cell in cells_of(each, measured[each])]
    return Shown(cells, _pictures(trials, measured), NOTES, [_table(nodes, trials, measured) for nodes in sizes])


NOTES: Final = (
    f"d = {D_S * 1000:g} ms with jitter ± 50 %, A = {A_S:g} s; the membership tells of deaths after {UNSEEN_S:g} s; "
    "one seed; only the column 'as it is' is judged",
    "two hold: share of the time; in use: share of the time; wait on idle: mean; never: no grant after the loss, as "
    "long as it was watched",
    "no hints: the token walks at random, as in the seeds, for ever, and whoever wants it waits until it comes by; its "
    "Jain index grows with the number of rounds",
    "no watch: waiters find out by themselves; no census: whoever misses the token makes one without asking around, "
    f"which at N = 10,000 is watched for {NO_CENSUS_S:g} s only: where waits exceed the regeneration time of "
    "225 s, thousands make tokens",
)


def cells_of(each: Trial, values: Sequence[float]) -> list[Cell]:
    out = []
    for figure, value in zip(ROWS[each.row].figures, values, strict=True):
        holds = figure.holds(each.nodes, value) if each.variant == AS_IT_IS else None
        verdict = Verdict.SHOWN if holds is None else Verdict.OK if holds else Verdict.FAIL
        what = f"N={each.nodes}, {figure.what}" + ("" if each.variant == AS_IT_IS else f", {each.variant}")
        goal = figure.goal(each.nodes)
        out.append(Cell(what, figure.goal_text(each.nodes), goal, value, None, verdict, "", figure.unit))
    return out


def _table(nodes: int, trials: Sequence[Trial], measured: Measured) -> Table:
    here = [each for each in trials if each.nodes == nodes]
    variants = list(dict.fromkeys(each.variant for each in here))
    rows = []
    for name in dict.fromkeys(each.row for each in here):
        by_variant = {each.variant: measured[each] for each in here if each.row == name}
        for at, figure in enumerate(ROWS[name].figures):
            values = [by_variant[variant][at] for variant in variants]
            shown = [number(value, figure.unit) for value in values]
            if figure.holds(nodes, values[0]) is False:
                shown[0] += " FAIL"
            rows.append([figure.what, figure.goal_text(nodes), *shown])
    return Table(f"N = {nodes:,}", ["", "goal", *variants], rows)


def number(value: float, unit: str) -> str:
    if math.isinf(value):
        return "never"
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1.005 else 3
    text = f"{value:,.{digits}f}" if value else "0"
    return f"{text} {unit}" if unit else text


# --- pictures --------------------------------------------------------------------------------------------------------


def _pictures(trials: Sequence[Trial], measured: Measured) -> list[Panel]:
    """What each helper is for, at the size at which they differ most: the rows in which they do."""
    sizes = {each.nodes for each in trials if each.variant != AS_IT_IS}
    nodes = SIZES[1] if SIZES[1] in sizes else max(sizes, default=0)
    panels = []
    for name, at, title in (
        ("recovery", 3, "in use while a holder is killed each 20 s"),
        ("recovery", 2, "two hold while a holder is killed each 20 s"),
        ("rare", 0, "messages each, rarely wanted"),
    ):
        here = [each for each in trials if each.row == name and each.nodes == nodes]
        values = [measured[each][at] for each in here]
        labels = [each.variant.replace(" ", "\n", 1) for each in here]
        unit = {"%": "% of the time"}.get(ROWS[name].figures[at].unit, "messages")
        bars = Series("measured", range(len(here)), values, "bars")
        panels.append(
            Panel(f"N = {nodes:,}: {title}", "", unit, (bars,), log=name != "recovery", ticks=range(len(here)),
                  tick_labels=labels)
        )  # fmt: skip
    return panels if nodes else growth_panels(trials, measured)


def growth(effort: Effort, runner: Runner) -> Shown:
    """Messages, wait and recovery against N."""
    sizes = effort.sizes or (GROWTH_SIZES[:5] if effort.is_quick else GROWTH_SIZES)
    trials = [trial(row, nodes, AS_IT_IS, effort) for nodes in sizes for row in ("rare", "load", "recovery")]
    trials += [trial("rare", nodes, NO_HINTS, effort) for nodes in sizes if nodes < HUGE]
    measured = _measure(trials, runner)
    columns = [("rare", 0), ("load", 1), ("rare", 1), ("recovery", 0), ("recovery", 1)]
    figures = [ROWS[row].figures[at] for row, at in columns]
    rows = []
    for nodes in sizes:
        by_row = {each.row: measured[each] for each in trials if each.nodes == nodes and each.variant == AS_IT_IS}
        shown = [_marked(figure, nodes, by_row[row][at]) for figure, (row, at) in zip(figures, columns, strict=True)]
        rows.append([f"{nodes:,}", *shown])
    cells = [cell for each in trials for cell in cells_of(each, measured[each])]
    table = Table("Growth with N", ["N", *(figure.what for figure in figures)], rows)
    return Shown(cells, growth_panels(trials, measured), NOTES[:1], [table])


def _marked(figure: Figure, nodes: int, value: float) -> str:
    return number(value, figure.unit) + (" FAIL" if figure.holds(nodes, value) is False else "")


def growth_panels(trials: Sequence[Trial], measured: Measured) -> list[Panel]:
    def line(label: str, row: str, at: int, variant: str = AS_IT_IS) -> Series:
        found = sorted(
            (each.nodes, measured[each][at]) for each in trials if (each.row, each.variant) == (row, variant)
        )
        return Series(label, [float(nodes) for nodes, _ in found], [value for _, value in found], "line")

    def goal(row: str, at: int, label: str, like: int) -> Series:
        sizes = sorted({each.nodes for each in trials})
        goals = [ROWS[row].figures[at].goal(nodes) or 0.0 for nodes in sizes]
        return Series(label, [float(nodes) for nodes in sizes], goals, "goal", like=like)

    def panel(title: str, y: str, log: bool, *series: Series) -> Panel:
        shown = [each for each in series if each.xs]
        return Panel(title, "N, members of the group", y, shown, log=log, log_x=True, bottom=1)

    walk = "random walk of the seeds (no hints), rarely wanted"
    return [
        panel(
            "Messages for each use",
            "messages",
            True,
            line("rarely wanted", "rare", 0),
            line("everybody wants it", "load", 1),
            line(walk, "rare", 0, NO_HINTS),
            goal("rare", 0, "goal, rarely wanted", 0),
            goal("load", 1, "goal, everybody wants it", 1),
        ),
        panel(
            "Wait on an idle resource",
            "one-way delays d",
            True,
            line("mean", "rare", 1),
            line(walk.removesuffix(", rarely wanted"), "rare", 1, NO_HINTS),
            goal("rare", 1, "goal", 0),
        ),
        panel(
            "Recovery after the holder was killed",
            "s",
            False,
            line("median", "recovery", 0),
            line("p99", "recovery", 1),
            goal("recovery", 0, "goal, median", 0),
            goal("recovery", 1, "goal, p99", 1),
        ),
    ]


def _no_jobs(effort: Effort) -> list[PaperRun]:
    return []


EXHIBITS = (
    Exhibit("wandering", "The goals of the wandering token, and what each of its helpers is for", _no_jobs, show),
    Exhibit("wandering-growth", "The wandering token from ten members to a hundred thousand", _no_jobs, growth),
)
