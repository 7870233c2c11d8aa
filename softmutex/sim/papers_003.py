"""Seed 003's figures: how soon a token that goes round is with somebody who waits, with and without a search for it.

What it decides: the figures' one unit of time is the way of a message, here a millisecond; nothing else takes time, the
token rests nowhere, and changes hands in one message. What is measured is the paper's definition 3, *responsiveness*:
the time in which somebody waits, until anybody who waits is served. The figures print curves and no numbers; what is
judged is what the text reads off them: the ring approaches 10, and n/2 = 50; the search stays below log2 n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from softmutex import plugins
from softmutex.core.algorithms.ring_words import Gimme, Missed
from softmutex.core.events import SECOND, Effect, Event, Instant, NodeId, RequestId, Send
from softmutex.sim.papers_cells import Cell, Effort, Exhibit, Panel, Series, Shown, Verdict, mean_and_spread
from softmutex.sim.papers_runs import PaperRun, Runner
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH, PastRun

UNIT_S: Final = 0.001
SIZES: Final = (10, 20, 50, 100, 200)
GAPS: Final = (10, 30, 100, 300, 1000)  # units from one request of the group to the next, on average
POWERS: Final = (16, 64, 256, 1024)
ROUNDS: Final = 1000  # of the token, in each of the paper's runs
WHOLE: Final = 100  # nodes that figure 10 is about
SEARCHES: Final = 100  # at least, in a run that counts them
RING: Final = (("initiative", "none"),)
BINARY: Final = (("discipline", "fair"),)
DIRECTED: Final = (("discipline", "fair"), ("search", "directed"))


class RingRun(NamedTuple):
    """One run. `gap`, `units`: units of time."""

    nodes: int
    gap: int
    units: int
    seed: int
    options: tuple[tuple[str, Any], ...]


class RingFindings(NamedTuple):
    responsiveness: float  # mean, in units of time
    searches: Sequence[int]  # messages for each request that was searched for


def perform(job: RingRun) -> RingFindings:
    counts: Counter[tuple[NodeId, RequestId]] = Counter()
    first_round = EPOCH + round(job.nodes * UNIT_S * SECOND)
    result = simulate(
        Scenario(
            algorithm=_counted(
                plugins.algorithm("ring-search" if job.options == RING else "binary-search"), counts, first_round
            ),
            nodes=job.nodes,
            duration_s=job.units * UNIT_S,
            seed=job.seed,
            op_s=1e-6,
            skip_s=1e-6,
            delay_s=UNIT_S,
            jitter=0.0,
            demand=f"poisson:{1 / (job.gap * UNIT_S):g}",
            hold="fixed:0",
            options={"passing": "direct", "rest": 1e-6, "slowest": 1e-6, **dict(job.options)},
            keep_holds=True,
        )
    )
    waits = responsiveness(result.holds or ())
    return RingFindings(fmean(waits) / (UNIT_S * SECOND) if waits else 0.0, tuple(counts.values()))


def responsiveness(holds: Iterable[PastRun]) -> list[int]:
    """For each grant, how long at least one waited since the grant before it."""
    granted = sorted(holds, key=lambda hold: hold.start)
    waiting = sorted(granted, key=lambda hold: hold.asked)
    served: set[tuple[NodeId, RequestId]] = set()
    first, before, found = 0, 0, []
    for hold in granted:
        while (waiting[first].node, waiting[first].request) in served:
            first += 1
        found.append(hold.start - max(before, waiting[first].asked))
        served.add((hold.node, hold.request))
        before = hold.start
    return found


def _counted(machine: Any, counts: Counter[tuple[NodeId, RequestId]], since: Instant) -> Any:
    """The same machine, and the messages of each search are counted."""

    class CountsMessages(machine):  # type: ignore[misc]
        __slots__ = ()

        def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
            effects: Sequence[Effect] = super().handle(event, now)
            for effect in effects if now > since else ():
                if isinstance(effect, Send) and isinstance(effect.message, Gimme):
                    counts[effect.message.node, effect.message.request] += 1
                elif isinstance(effect, Send) and isinstance(effect.message, Missed):
                    counts[effect.to, effect.message.request] += 1
            return effects

    return CountsMessages


def _run(nodes: int, gap: int, effort: Effort, options: tuple[tuple[str, Any], ...], seed: int) -> RingRun:
    rounds = max(20, ROUNDS * effort.share / (2 if effort.is_quick else 1))
    requests = 40 if effort.is_quick else 100
    return RingRun(nodes, gap, round(max(rounds * nodes, requests * gap)), seed, options)


def _curves(points: Sequence[tuple[int, int]], effort: Effort, runner: Runner) -> tuple[list[Cell], list[Cell]]:
    """Of (nodes, gap): the ring's cells, not judged, and those of the search."""
    seeds = range(1, 1 + (1 if effort.is_quick else 2))
    wanted = [_run(*point, effort, way, seed) for way in (RING, BINARY) for point in points for seed in seeds]
    found = dict(zip(wanted, runner.map(perform, wanted), strict=True))
    curves: list[list[Cell]] = []
    for way, name in ((RING, "ring"), (BINARY, "binary search")):
        cells = []
        for nodes, gap in points:
            each = [found[_run(nodes, gap, effort, way, seed)].responsiveness for seed in seeds]
            mean, spread = mean_and_spread(each)
            cells.append(Cell(f"{name}, n={nodes}, gap {gap}", "-", None, mean, spread, Verdict.SHOWN))
        curves.append(cells)
    return curves[0], curves[1]


def _judged(cell: Cell, paper: str, value: float, low: float, high: float) -> Cell:
    holds = Verdict.OK if low <= cell.measured <= high else Verdict.FAIL
    return Cell(cell.what, paper, value, cell.measured, cell.spread, holds, f"{low:g} to {high:.3g}")


def _below(cell: Cell, nodes: int) -> Cell:
    return _judged(cell, f"<= {math.log2(nodes):.2f}", math.log2(nodes), 0, math.log2(nodes) * 1.02)


def _panel(title: str, x: str, xs: Sequence[int], ring: Sequence[Cell], search: Sequence[Cell], limit: float) -> Panel:
    logs = [math.log2(each) for each in xs] if x == "nodes" else [math.log2(WHOLE)] * len(xs)
    series = (
        Series("ring", xs, [cell.measured for cell in ring], "line"),
        Series("binary search", xs, [cell.measured for cell in search], "line"),
        Series("log2 n", xs, logs, "goal"),
        Series("what the text says of the ring", xs, [limit] * len(xs), "goal"),
    )
    return Panel(title, x, "responsiveness, in ways of a message", series, log_x=True)


def figure_9(effort: Effort, runner: Runner) -> Shown:
    ring, search = _curves([(nodes, 10) for nodes in SIZES], effort, runner)
    ring = [_judged(c, "-> 10", 10, 8.5, 11.5) if n >= WHOLE else c for n, c in zip(SIZES, ring, strict=True)]
    search = [_below(cell, nodes) for nodes, cell in zip(SIZES, search, strict=True)]
    panel = _panel("One request every 10 units", "nodes", SIZES, ring, search, 10)
    return Shown([*ring, *search], (panel,), (_READING,))


def figure_10(effort: Effort, runner: Runner) -> Shown:
    ring, search = _curves([(WHOLE, gap) for gap in GAPS], effort, runner)
    ring[-1] = _judged(ring[-1], "-> 50", WHOLE / 2, 42, 58)
    search = [_below(cell, WHOLE) for cell in search]
    search[-1] = _judged(search[-1], "-> 6.64", math.log2(WHOLE), 5.6, 1.02 * math.log2(WHOLE))
    panel = _panel(f"{WHOLE} nodes", "units from one request to the next", GAPS, ring, search, WHOLE / 2)
    return Shown([*ring, *search], (panel,), (_READING, "judged with 2 % for the noise of some hundred requests"))


def searches(effort: Effort, runner: Runner) -> Shown:
    gap = 50
    wanted = [RingRun(nodes, gap, nodes + SEARCHES * gap, 1, way) for way in (BINARY, DIRECTED) for nodes in POWERS]
    found = runner.map(perform, wanted)
    cells, most = [], []
    for job, findings in zip(wanted, found, strict=True):
        log = math.log2(job.nodes)
        limit = log + 2 if job.options == BINARY else 2 * log
        what = "delegated, forwarded" if job.options == BINARY else "directed, messages"
        counts = findings.searches
        verdict = Verdict.OK if counts and max(counts) <= limit else Verdict.FAIL
        rule = "log2 n + 2" if job.options == BINARY else "2 log2 n"
        cells.append(Cell(f"{what}, n={job.nodes}, most", f"<= {limit:g}", None, max(counts), None, verdict, rule))
        cells.append(Cell(f"{what}, n={job.nodes}, mean", f"O({log:g})", None, fmean(counts), None, Verdict.SHOWN))
        most.append(max(counts))
    half = len(POWERS)
    series = (
        Series("delegated: most for one request", POWERS, most[:half], "line"),
        Series("directed: most for one request", POWERS, most[half:], "line"),
        Series("log2 n + 2", POWERS, [math.log2(nodes) + 2 for nodes in POWERS], "goal"),
        Series("2 log2 n", POWERS, [2 * math.log2(nodes) for nodes in POWERS], "goal"),
    )
    panel = Panel("Messages of one search", "nodes", "messages", series, log_x=True)
    notes = (
        "lemma 6 says O(log N); the most that any request of the run took is judged",
        "without the first round: most have no history yet, and search where the token was made first, a step more",
    )
    return Shown(cells, (panel,), notes)


def _no_jobs(effort: Effort) -> list[PaperRun]:
    return []


_READING = "responsiveness is definition 3: from when somebody waits, and nobody was served since, to the next grant"
EXHIBITS = (
    Exhibit("003-figure9", "Responsiveness, one request every 10 units", _no_jobs, figure_9),
    Exhibit("003-figure10", "Responsiveness of 100 nodes, by load", _no_jobs, figure_10),
    Exhibit("003-searches", "How many messages find the token", _no_jobs, searches),
)
