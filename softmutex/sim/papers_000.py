"""Seed 000's tables and figure: random access, and the adaptive token, at its nominal and at twice its nominal load."""

from __future__ import annotations

import math
from itertools import accumulate

from softmutex.sim.papers_cells import (
    Cell,
    Effort,
    Exhibit,
    Panel,
    Series,
    Shown,
    Verdict,
    count_cell,
    mean_and_spread,
    range_cell,
    seconds_at,
)
from softmutex.sim.papers_runs import BIN_S, Findings, PaperRun, Runner, stabilisations, steps

UNITS = 1e6
BUCKET = 500

# As printed. By how many run A at once, from 1 on; by an interval's lower edge; by a duration's upper edge.
TABLE_1 = {
    150: (360_945, 144_035, 38_048, 7_535, 1_292, 149, 8, 1),
    300: (322_428, 258_358, 138_910, 55_138, 17_644, 4_670, 1_017, 172, 26, 3, 2),
}
TABLE_3 = {150: (661_678, 4_275, 19), 300: (378_512, 80_719, 8_485, 616, 30, 0, 4)}
TABLE_4 = {
    150: (123_817, 35_750, 6_311, 585, 1),
    300: (64_785, 41_289, 17_251, 3_029, 134, 3, 3, 2, 1),
}
TABLE_5_EDGES = tuple(range(10_000, 80_001, 5_000))
TABLE_5_MIDDLES = (5_000, *(edge - 2_500 for edge in TABLE_5_EDGES[1:]))
TABLE_5 = {
    150: (39, 4, 13, 10, 10, 13, 7, 2, 2, 0, 0, 0, 0, 0, 0),
    300: (1, 2, 2, 3, 12, 12, 22, 8, 14, 7, 6, 6, 2, 1, 1),
}

# The columns for N=300 of tables 3 and 4 fit a run of this length with this decay, and not the one that is described.
FITTED_UNITS = 5.6e5
FITTED = (("decay", 0.5),)
FITTED_NAME = "N=300 as fitted"

CALM = 1200.0  # "stable again": exactly one token for longer than this
LOSS_EVERY = {150: 60_000.0, 300: 200_000.0}
FIXED = (("growth", 1.0),)  # figure 1: the timeout does not adapt
LOST_AT = 1_700.0
CROWD = 5
CALM_AFTER = 5_000.0


# --- tables 1, 3, 4 --------------------------------------------------------------------------------------------------


def random_access_jobs(effort: Effort) -> list[PaperRun]:
    return [PaperRun("random-access", n, UNITS * effort.share, seed) for n in TABLE_1 for seed in effort.over_seeds()]


def adaptive_jobs(effort: Effort) -> list[PaperRun]:
    jobs = [PaperRun("adaptive", 150, UNITS * effort.share, seed) for seed in effort.over_seeds()]
    jobs += [
        PaperRun("adaptive", 300, FITTED_UNITS * effort.share, seed, options=FITTED) for seed in effort.over_seeds()
    ]
    return [*jobs, PaperRun("adaptive", 300, UNITS * effort.share, 1)]


def table_1(effort: Effort, runner: Runner) -> Shown:
    findings = runner.perform(random_access_jobs(effort))
    cells, panels = [], []
    for n, column in TABLE_1.items():
        group = [each for each in findings if each.job.nodes == n]
        part, panel = _concurrency(f"N={n}", column, group, effort)
        cells += part
        panels.append(panel)
    return Shown(cells, panels, ("period: uniform from 600 to 900, from start to start",))


def table_3(effort: Effort, runner: Runner) -> Shown:
    nominal, fitted, described = _adaptive_groups(effort, runner)
    cells, panel_150 = _concurrency("N=150", TABLE_3[150], nominal, effort)
    more, panel_300 = _concurrency(FITTED_NAME, TABLE_3[300], fitted, effort)
    cells += more
    cells += [
        count_cell(
            f"N=300 as described, {level} running",
            paper,
            seconds_at([described], level, 1 / effort.share),
            judged=False,
        )
        for level, paper in enumerate(TABLE_3[300][:4], 1)
    ]
    return Shown(cells, (panel_150, panel_300), NOTES_300)


def table_4(effort: Effort, runner: Runner) -> Shown:
    nominal, fitted, described = _adaptive_groups(effort, runner)
    cells, panel_150 = _intervals("N=150", TABLE_4[150], nominal, effort, last_judged=2000)
    more, panel_300 = _intervals(FITTED_NAME, TABLE_4[300], fitted, effort)
    as_described, _ = _intervals("N=300 as described", TABLE_4[300][:5], [described], effort, judged=False)
    note = "intervals that end with a run of A by which a node used a token it had just made are not counted"
    return Shown(cells + more + as_described, (panel_150, panel_300), (note, *NOTES_300))


NOTES_300 = (
    "N=300: the printed columns do not add up to 10^6 units; they fit a run of 5.6 * 10^5 units in which the timeout "
    "decays by 0.5 instead of 0.05. That is judged ('as fitted'); 'as described' is one run of the text's settings",
)


def _adaptive_groups(effort: Effort, runner: Runner) -> tuple[list[Findings], list[Findings], Findings]:
    findings = runner.perform(adaptive_jobs(effort))
    k = effort.seeds
    return findings[:k], findings[k : 2 * k], findings[2 * k]


def _concurrency(what: str, column: tuple[int, ...], group: list[Findings], effort: Effort) -> tuple[list[Cell], Panel]:
    scale = 1 / effort.share
    cells = [
        count_cell(f"{what}, {level} running", paper, seconds_at(group, level, scale))
        for level, paper in enumerate(column, 1)
    ]
    return cells, _panel(
        f"{what}: time with so many running A", "running at once", "units of time", cells, range(1, len(column) + 1)
    )


def _intervals(
    what: str,
    column: tuple[int, ...],
    group: list[Findings],
    effort: Effort,
    last_judged: int | None = None,
    judged: bool = True,
) -> tuple[list[Cell], Panel]:
    scale = 1 / effort.share
    cells = []
    edges = [BUCKET * number for number in range(1, len(column) + 1)]
    for edge, paper in zip(edges, column, strict=True):
        values = [scale * _between(each, edge) for each in group]
        if edge == last_judged:
            cells.append(count_cell(f"{what}, from {edge}", paper, values, within=0.15))
        else:
            cells.append(count_cell(f"{what}, from {edge}", paper, values, judged=judged))
    return cells, _panel(f"{what}: time from one run of A to the next", "from ... units", "intervals", cells, edges)


def _between(findings: Findings, edge: int) -> int:
    return sum(findings.intervals.get(fine, 0) for fine in range(edge, edge + BUCKET, BIN_S))


def _panel(title: str, x: str, y: str, cells: list[Cell], xs: range | list[int]) -> Panel:
    printed = Series("printed", list(xs), [cell.paper_value or 0 for cell in cells], "bars")
    means = [cell.measured for cell in cells]
    errors = [cell.spread or 0.0 for cell in cells]
    return Panel(title, x, y, (printed, Series("measured", list(xs), means, "bars", errors)), log=True, ticks=list(xs))


# --- table 5 and figure 1: after the token is lost --------------------------------------------------------------------


def table_5_jobs(effort: Effort) -> list[PaperRun]:
    """Several losses a run, far apart; for N=300, which takes longer, half as many."""
    jobs = []
    for n, every in LOSS_EVERY.items():
        runs = max(1, effort.transients // 10)
        losses = math.ceil(effort.transients / runs / (1 if n == 150 else 2))
        jobs += [
            PaperRun("adaptive", n, every * (losses + 1), seed, loss_every_s=every, watched=True)
            for seed in range(1, runs + 1)
        ]
    return jobs


def table_5(effort: Effort, runner: Runner) -> Shown:
    findings = runner.perform(table_5_jobs(effort))
    cells: list[Cell] = []
    panels = []
    for n, column in TABLE_5.items():
        durations = [duration for each in findings if each.job.nodes == n for duration in stabilisations(each, CALM)]
        counts = _binned(durations)
        cells += [
            Cell(f"N={n}, up to {edge}", f"{paper}", paper, count, None, Verdict.SHOWN)
            for edge, paper, count in zip(TABLE_5_EDGES, column, counts, strict=True)
        ]
        printed_mean = sum(paper * middle for middle, paper in zip(TABLE_5_MIDDLES, column, strict=True)) / sum(column)
        mean, spread = mean_and_spread(durations)
        rule = "within a factor of 2: the paper names no criterion"
        holds = Verdict.OK if 0.5 <= mean / printed_mean <= 2 else Verdict.FAIL
        cells.append(Cell(f"N={n}, mean", f"~{printed_mean:,.0f}", printed_mean, mean, spread, holds, rule))
        cells.append(_distance_cell(n, durations, column))
        panels.append(
            Panel(
                f"N={n}: time until stable after a loss ({len(durations)} losses)",
                "up to ... units",
                "of 100",
                (
                    Series("printed", TABLE_5_EDGES, column, "bars"),
                    Series("measured", TABLE_5_EDGES, counts, "bars"),
                ),
            )
        )
    return Shown(
        cells,
        panels,
        (
            "stable again: exactly one token for more than 1200 units; the paper names no criterion",
            "the printed labels are read as upper edges. Longer ones are counted in the last line",
            "N=300 is not reproduced: about 60,000 by this criterion, about 40,000 printed; only the order is judged",
            "what lasts until the next loss (60,000 or 200,000 units later) is counted as that long",
        ),
    )


def _binned(durations: list[float]) -> list[float]:
    """Out of a hundred, by upper edge."""
    counts = [0.0] * len(TABLE_5_EDGES)
    for duration in durations:
        at = next((at for at, edge in enumerate(TABLE_5_EDGES) if duration <= edge), len(counts) - 1)
        counts[at] += 100 / len(durations)
    return counts


def _distance_cell(n: int, durations: list[float], column: tuple[int, ...]) -> Cell:
    """Kolmogorov and Smirnov's distance between two samples, at the printed edges: 1 % of pairs alike exceed it."""
    printed = [100 * count / sum(column) for count in column]
    pairs = zip(accumulate(_binned(durations)), accumulate(printed), strict=True)
    distance = max(abs(mine - theirs) for mine, theirs in pairs) / 100
    count = len(durations)
    limit = 1.63 * math.sqrt((count + 100) / (count * 100))
    holds = Verdict.OK if distance <= limit else Verdict.FAIL
    verdict = holds if n == 150 else Verdict.SHOWN
    return Cell(f"N={n}, distance of the two", "0", None, distance, None, verdict, f"at most {limit:.2f} (1 % level)")


def figure_1_jobs(effort: Effort) -> list[PaperRun]:
    """The only token is lost before there can be a spurious one; the timeout is fixed, or adapts."""
    seeds = range(1, max(5, effort.seeds) + 1)
    return [
        PaperRun("adaptive", 300, LOST_AT + 60_000, seed, kill_at_s=LOST_AT, options=options, watched=True)
        for options in (FIXED, ())
        for seed in seeds
    ]


def figure_1(effort: Effort, runner: Runner) -> Shown:
    findings = runner.perform(figure_1_jobs(effort))
    fixed = [each for each in findings if each.job.options == FIXED]
    adapting = [each for each in findings if each.job.options != FIXED]
    others, spread_of_others = mean_and_spread(_until_calm(each) for each in adapting)
    cells = [
        range_cell("fixed timeout, until calm", "approx 20,000", 20_000, map(_until_calm, fixed), 10_000, 40_000),
        Cell("adapting timeout, until calm", "-", None, others, spread_of_others, Verdict.SHOWN),
    ]
    panels = [
        Panel(
            f"{how} timeout: the token is lost at 0 (N=300)",
            "units of time since the loss",
            "operations running",
            (_course(each),),
            printed_x=20_000 if how == "fixed" else None,
        )
        for how, each in (("fixed", fixed[0]), ("adapting", adapting[0]))
    ]
    return Shown(
        cells,
        panels,
        (
            "the figure belongs to the text before the timeout is made to adapt, so a fixed one (growth=1) is judged",
            f"calm: {CALM_AFTER:,.0f} units with at most {CROWD} running; the text says only 'approx 20000 time units'",
        ),
    )


def _until_calm(findings: Findings) -> float:
    """How long after the loss the last crowd was, before `CALM_AFTER` units without any."""
    last = LOST_AT
    for since, level in steps(findings.spans_s):
        if since > last + CALM_AFTER:
            break
        if level > CROWD:
            last = since
    return last - LOST_AT


def _course(findings: Findings) -> Series:
    points = [(since - LOST_AT, level) for since, level in steps(findings.spans_s) if since < LOST_AT + 40_000]
    return Series("measured, seed 1", [x for x, _ in points], [y for _, y in points], "steps")


EXHIBITS = (
    Exhibit("000-table1", "Random access: time with so many operations running", random_access_jobs, table_1),
    Exhibit("000-table3", "Wandering token: time with so many operations running", adaptive_jobs, table_3),
    Exhibit("000-table4", "Wandering token: intervals between operations of one node", adaptive_jobs, table_4),
    Exhibit("000-table5", "Wandering token: how long until stable after a loss", table_5_jobs, table_5),
    Exhibit("000-figure1", "Operations running after a loss, N=300", figure_1_jobs, figure_1),
)
