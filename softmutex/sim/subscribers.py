"""`softmutex sim reproduce 001-subscribers`: seed 001's case at its own scale, by three ways of taking turns.

300 subscribers follow a stream of 650 kB/s each, from one FTP server over one link of 200 MB/s, in downloads of 4 s.
Two at a time are delivered, and billed; more are not guaranteed. What nobody has fetched yet stays on the server.

    uncoordinated   each one downloads 600 to 1800 s after its last download, as the paper's own benchmark
    sandwich        the paper's token, by the paper's settings, on a network that takes no time and loses a token each
                    10,000 s
    wandering       the default algorithm, on a network that takes 50 ms a message and loses a token as often

What it decides: a download takes its 4 s whoever else downloads, as in the paper, so what bursts cost is told by the
time and the data above the link's capacity. A server keeps what its slowest reader has not read: that is measured in
two ways. The longest time between two downloads of one subscriber, as the paper's figure 4; and what piles up when a
download fetches no more than 4 s of the whole link, since who comes late needs more than one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from softmutex.core.events import SECOND, NodeId
from softmutex.sim.faults import TokenLoss
from softmutex.sim.papers_cells import Cell, Effort, Exhibit, Shown, Table, Verdict, mean_and_spread
from softmutex.sim.papers_runs import PaperRun, Runner
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import PastRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUBSCRIBERS: Final = 300
STREAM_MB_S, LINK_MB_S, OP_S = 0.65, 200.0, 4.0
DURATION_S: Final = 1e5
DAY_S: Final = 86_400.0
LOST: Final = (TokenLoss(1e4),)
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "uncoordinated": {"algorithm": "random-access", "max_interval_s": 1800.0},
    "sandwich": {"algorithm": "sandwich", "faults": LOST},
    "wandering": {"algorithm": "wandering", "faults": LOST, "delay_s": 0.05},
}
OURS: Final = "wandering"
BUFFER_GB: Final = 1800 * STREAM_MB_S / 1000  # what the paper grants its benchmark: data older than 1800 s is flushed
WINDOW_S: Final = (19_400.0, 20_900.0)  # what the picture shows of one run: one of nine losses of a token is in it
COLOURS: Final = {"uncoordinated": "#d55e00", "sandwich": "#56b4e9", "wandering": "#0072b2"}
LEAST_PERCENT: Final = 1e-3
INK, ALARM = "#333333", "#b2182b"


class Run(NamedTuple):
    way: str
    seed: int


class Downloads(NamedTuple):
    at_once: tuple[float, ...]  # share of the time with 0, 1, 2 and more downloads
    over_gb_day: tuple[float, float]  # data above the link: billed, and not guaranteed
    gaps_s: tuple[float, ...]  # between two downloads of one subscriber, sorted
    unread_gb: float  # the most that ever waited for one subscriber
    spans_s: tuple[tuple[float, float], ...]  # downloads in the picture's window


def measure(run: Run) -> Downloads:
    base = {"nodes": SUBSCRIBERS, "duration_s": DURATION_S, "op_s": OP_S, "nodes_max": SUBSCRIBERS, "keep_holds": True}
    result = simulate(Scenario(**{**base, **WAYS[run.way], "seed": run.seed}))
    spent = {level: time / SECOND for level, time in result.concurrency_ns.items()}
    more = sum(time for level, time in spent.items() if level > 2)
    shares = (spent.get(0, 0.0), spent.get(1, 0.0), spent.get(2, 0.0), more)
    to_gb_day = LINK_MB_S / 1000 * DAY_S / DURATION_S
    billed = sum(time for level, time in spent.items() if level >= 2)
    beyond = sum((level - 2) * time for level, time in spent.items() if level > 2)
    holds = sorted(result.holds or (), key=lambda hold: hold.start)
    starts = _starts_s(holds)
    seconds = [(hold.start / SECOND, hold.end / SECOND) for hold in holds]
    return Downloads(
        tuple(time / DURATION_S for time in shares),
        (billed * to_gb_day, beyond * to_gb_day),
        tuple(sorted(after - before for times in starts.values() for before, after in pairwise(times))),
        max(most_unread_mb(times) for times in starts.values()) / 1000,
        tuple(span for span in seconds if span[1] > WINDOW_S[0] and span[0] < WINDOW_S[1]),
    )


def _starts_s(holds: Sequence[PastRun]) -> dict[NodeId, list[float]]:
    starts: dict[NodeId, list[float]] = defaultdict(list)
    for hold in holds:
        starts[hold.node].append(hold.start / SECOND)
    return starts


def most_unread_mb(starts_s: Sequence[float]) -> float:
    """Of one subscriber, from its first download on, which leaves nothing unread."""
    most = unread = 0.0
    for before, after in pairwise([*starts_s, DURATION_S]):
        unread += (after - before) * STREAM_MB_S
        most = max(most, unread)
        unread = max(0.0, unread - OP_S * LINK_MB_S)
    return most


# --- the exhibit -----------------------------------------------------------------------------------------------------


def show(effort: Effort, runner: Runner) -> Shown:
    runs = [Run(way, seed) for way in WAYS for seed in effort.over_seeds()]
    found = runner.map(measure, runs)
    seen = {way: [each for run, each in zip(runs, found, strict=True) if run.way == way] for way in WAYS}
    figures = {way: _figures(group) for way, group in seen.items()}
    rows = [[name, *(values[name] for values in figures.values())] for name in figures[OURS]]
    cells = [*_judged("", seen[OURS]), *(cell for way in WAYS if way != OURS for cell in _judged(way, seen[way]))]
    notes = (
        f"{SUBSCRIBERS} subscribers, {DURATION_S:,.0f} s, mean of {effort.seeds} seeds (longest and most: the worst of "
        "them); a token is lost each 10,000 s; the network takes 50 ms for wandering, and nothing for the others",
        "billed: data above 200 MB/s; not guaranteed: above 400 MB/s; no more than 800 MB are fetched in one download",
        "judged: at most one at a time for 99.9 % of the time, and a buffer within the 1.17 GB of 1800 s",
    )
    table = Table("", ["", *WAYS], rows)
    return Shown(cells, (), notes, [table], draw=partial(draw, seen))


def _mean(values: Sequence[float]) -> float:
    return mean_and_spread(values)[0]


def _figures(group: Sequence[Downloads]) -> dict[str, str]:
    def share(level: int) -> str:
        return f"{100 * _mean([each.at_once[level] for each in group]):.2f} %"

    def gap(part: float) -> float:
        return _mean([each.gaps_s[min(len(each.gaps_s) - 1, int(part * len(each.gaps_s)))] for each in group])

    longest_s = max(each.gaps_s[-1] for each in group)
    return {
        "link idle": share(0),
        "one downloads": share(1),
        "two download (billed)": share(2),
        "more download (not guaranteed)": share(3),
        "billed, a day": f"{_mean([each.over_gb_day[0] for each in group]):,.0f} GB",
        "not guaranteed, a day": f"{_mean([each.over_gb_day[1] for each in group]):,.0f} GB",
        "between two downloads, median": f"{gap(0.5):,.0f} s",
        "between two downloads, p99": f"{gap(0.99):,.0f} s",
        "between two downloads, longest": f"{longest_s:,.0f} s",
        "buffer of the server, by the longest": f"{longest_s * STREAM_MB_S / 1000:.2f} GB",
        "most that waited for one subscriber": f"{max(each.unread_gb for each in group):.2f} GB",
    }


def _judged(way: str, group: Sequence[Downloads]) -> list[Cell]:
    """Only the default algorithm is judged."""
    crowded, spread = mean_and_spread(100 * (each.at_once[2] + each.at_once[3]) for each in group)
    buffer = max(each.gaps_s[-1] for each in group) * STREAM_MB_S / 1000
    unread = max(each.unread_gb for each in group)

    def verdict(holds: bool) -> Verdict:
        return Verdict.SHOWN if way else Verdict.OK if holds else Verdict.FAIL

    name, goal = f", {way}" if way else "", "<= 1.17 GB"
    return [
        Cell(f"more than one downloads{name}", "<= 0.1 %", 0.1, crowded, spread, verdict(crowded <= 0.1), "", "%"),
        Cell(f"buffer of the server{name}", goal, BUFFER_GB, buffer, None, verdict(buffer <= BUFFER_GB), "", "GB"),
        Cell(f"most that waited for one{name}", goal, BUFFER_GB, unread, None, verdict(unread <= BUFFER_GB), "", "GB"),
    ]


# --- the picture -----------------------------------------------------------------------------------------------------


def draw(seen: Mapping[str, Sequence[Downloads]], figure: Figure) -> None:
    figure.set_size_inches(12, 6.2)
    figure.suptitle(
        "300 subscribers, 650 kB/s each, one link of 200 MB/s: downloads of 4 s, taken in turns", fontsize=13, color=INK
    )
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.45, 1))[0]
    strips = left.subplots(len(WAYS), 1, sharex=True)
    for axes, (way, group) in zip(strips, seen.items(), strict=True):
        _strip(axes, way, group)
    strips[-1].set_xlabel("seconds of one day (a token is lost at 20,000 s)")
    _tail(right.subplots(), seen)


def _strip(axes: Axes, way: str, group: Sequence[Downloads]) -> None:
    first, last = WINDOW_S
    moments = sorted({first, last, *(at for span in group[0].spans_s for at in span if first < at < last)})
    starts = sorted(start for start, _ in group[0].spans_s)
    ends = sorted(end for _, end in group[0].spans_s)
    rates = [LINK_MB_S * (bisect_right(starts, at) - bisect_right(ends, at)) for at in moments]
    within = [min(rate, LINK_MB_S) for rate in rates]
    axes.fill_between(moments, within, step="post", color=COLOURS[way], linewidth=0)
    axes.fill_between(moments, within, rates, step="post", color=ALARM, linewidth=0)
    axes.axhline(LINK_MB_S, color=INK, lw=0.8, ls="--")
    idle, over = (100 * _mean([sum(each.at_once[a:b]) for each in group]) for a, b in ((0, 1), (2, 4)))
    axes.set_title(f"{way}: idle {idle:.1f} %, over capacity {over:.1f} % of the time", fontsize=10, color=INK)
    axes.set(ylim=(0, 5.2 * LINK_MB_S), xlim=WINDOW_S, ylabel="MB/s", yticks=range(0, 1001, 200))


def _tail(axes: Axes, seen: Mapping[str, Sequence[Downloads]]) -> None:
    for way, group in seen.items():
        longest_s = max(each.gaps_s[-1] for each in group)
        points = [longest_s * at / 500 for at in range(501)]
        shares = [_mean([1 - bisect_left(each.gaps_s, at) / len(each.gaps_s) for each in group]) for at in points]
        shown = [*(100 * share for share in shares), LEAST_PERCENT]  # and down to nothing at the longest
        axes.plot([*points, longest_s], shown, color=COLOURS[way], lw=2, label=f"{way}: {longest_s:,.0f} s at most")
    axes.set_yscale("log")
    axes.set(xlabel="seconds between two downloads of one subscriber", ylabel="% that take longer")
    axes.set_ylim(LEAST_PERCENT, 130)
    axes.set_title("What the server must keep", fontsize=10, color=INK)
    gb_s = STREAM_MB_S / 1000
    to_gb: Any = (lambda seconds: seconds * gb_s, lambda gb: gb / gb_s)
    buffer = axes.secondary_xaxis("top", functions=to_gb)
    buffer.set_xlabel("GB of the stream", labelpad=2)
    axes.set_xlim(left=0)
    axes.grid(True, alpha=0.3)
    axes.legend()


def _no_jobs(effort: Effort) -> list[PaperRun]:
    return []


EXHIBITS = (Exhibit("001-subscribers", "300 subscribers and one link: seed 001's case, three ways", _no_jobs, show),)
