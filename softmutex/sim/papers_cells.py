"""How a measured figure is held against a printed one: a cell has what the paper says, what was measured, a verdict.

What it decides: the papers print single runs of simulators that are not to be had. So a cell holds where the mean over
seeds is within 2 % of the print, or within three standard errors of one run, whatever is wider; small counts, which
are mostly noise, are shown and not judged. A cell that a paper leaves ambiguous says so, and says how it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from statistics import fmean, stdev
from typing import Any

from softmutex.sim.papers_runs import Findings, PaperRun, Runner

CLOSE = 0.02
WORTH_JUDGING = 1000


class Verdict(StrEnum):
    OK = "ok"
    FAIL = "FAIL"
    DIFFERS = "differs"  # from the print, as is known: the notes say why, and it breaks no build
    SHOWN = "shown"  # not judged


@dataclass(frozen=True)
class Cell:
    """One line. `paper` is as printed; `paper_value` is None where the text gives no number."""

    what: str
    paper: str
    paper_value: float | None
    measured: float
    spread: float | None  # standard deviation over the seeds; None of a single value
    verdict: Verdict
    rule: str = ""
    unit: str = ""

    @property
    def difference(self) -> float | None:
        """In percent of the print; of shares, in points."""
        if self.paper_value is None:
            return None
        if self.unit == "%":
            return self.measured - self.paper_value
        return 100 * (self.measured / self.paper_value - 1) if self.paper_value else None


@dataclass(frozen=True)
class Series:
    """What a picture shows of one side: `style` is bars, line, points, steps or goal."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str
    errors: Sequence[float] | None = None
    like: int | None = None  # in the colour of the series with this number


@dataclass(frozen=True)
class Panel:
    title: str
    x: str
    y: str
    series: Sequence[Series]
    log: bool = False
    ticks: Sequence[float] | None = None
    tick_labels: Sequence[str] | None = None
    printed_x: float | None = None  # a vertical and a horizontal line for what a text says
    printed_y: float | None = None
    log_x: bool = False
    bottom: float | None = None  # where a logarithmic y begins


@dataclass(frozen=True)
class Effort:
    """How much is run. `share` shortens the papers' long runs; what is counted is scaled back. `sizes`: of the groups
    for which our own goals are measured; empty: what the exhibit chooses."""

    seeds: int
    share: float
    transients: int
    sizes: tuple[int, ...] = ()

    @property
    def is_quick(self) -> bool:
        return self.share < 1

    def over_seeds(self) -> range:
        return range(1, self.seeds + 1)


FULL = Effort(seeds=10, share=1.0, transients=100)
QUICK = Effort(seeds=3, share=0.2, transients=12)


@dataclass(frozen=True)
class Table:
    """Cells in rows and columns, as text, where one line a cell would hide what is to be compared."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Shown:
    """What came of an exhibit. With `tables` these are printed, instead of the cells. `draw`: a picture of its own."""

    cells: Sequence[Cell]
    panels: Sequence[Panel]
    notes: Sequence[str] = field(default_factory=tuple)
    tables: Sequence[Table] = field(default_factory=tuple)
    draw: Callable[[Any], None] | None = None  # into a figure of matplotlib


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper: what it needs to be run, and what is made of it."""

    name: str
    title: str
    jobs: Callable[[Effort], list[PaperRun]]
    show: Callable[[Effort, Runner], Shown]


def mean_and_spread(values: Iterable[float]) -> tuple[float, float | None]:
    each = list(values)
    return fmean(each), stdev(each) if len(each) > 1 else None


def count_cell(what: str, paper: int, values: Iterable[float], within: float = CLOSE, judged: bool = True) -> Cell:
    """A number that the paper prints, against what several seeds gave."""
    measured, spread = mean_and_spread(values)
    if not judged or (paper <= WORTH_JUDGING and within == CLOSE):
        return Cell(what, f"{paper:,}", paper, measured, spread, Verdict.SHOWN)
    noise = 3 * (spread or 0.0) if within == CLOSE else 0.0
    allowed = max(within * paper, noise)
    rule = f"within {within:.0%}" + (" or 3 standard errors of one run" if within == CLOSE else "")
    return Cell(what, f"{paper:,}", paper, measured, spread, _holds(abs(measured - paper) <= allowed), rule)


def range_cell(
    what: str, paper: str, paper_value: float | None, values: Iterable[float], low: float, high: float, unit: str = ""
) -> Cell:
    """A number that the paper states in words, against the range in which its readings put it."""
    measured, spread = mean_and_spread(values)
    rule = f"{low:g} to {high:g}{unit}"
    return Cell(what, paper, paper_value, measured, spread, _holds(low <= measured <= high), rule, unit)


def _holds(fact: bool) -> Verdict:
    return Verdict.OK if fact else Verdict.FAIL


def seconds_at(findings: Iterable[Findings], level: int, scale: float = 1.0) -> list[float]:
    return [each.running_s.get(level, 0.0) * scale for each in findings]


def share_at(findings: Iterable[Findings], low: int, high: int) -> list[float]:
    """Percent of the time with `low` to `high` running A."""
    return [
        100 * sum(spent for level, spent in each.running_s.items() if low <= level <= high) / each.job.duration_s
        for each in findings
    ]


def as_json(cell: Cell) -> dict[str, Any]:
    return {
        "cell": cell.what,
        "paper": cell.paper,
        "paper_value": cell.paper_value,
        "measured": cell.measured if isfinite(cell.measured) else None,
        "spread": cell.spread,
        "difference": cell.difference,
        "unit": cell.unit or "count",
        "verdict": str(cell.verdict),
        "rule": cell.rule,
    }
