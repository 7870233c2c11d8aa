"""Pictures of runs, for people. Matplotlib is imported when one is asked for, and not needed otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmutex.core.errors import ConfigError
from softmutex.core.events import SECOND
from softmutex.sim.compare import Compared
from softmutex.sim.result import Result
from softmutex.sim.tally import PastRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FILL, ALARM, QUIET = "#1f3b57", "#4c86b8", "#c8452f", "#8a8f94"
SHOWN_HOLDS = 120  # of the last runs of A, who held when

Draw = Callable[[Callable[["Figure", Any], None], Any], None]


def prepare(name: str) -> Draw:
    """Whatever may be in the way of a picture is found out now, before the run: then call what this returns."""
    path = Path(name)
    try:
        import matplotlib.figure
    except ImportError:
        raise ConfigError('pictures need matplotlib: pip install "softmutex[plot]", or leave --plot out') from None
    kinds = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ConfigError(f"cannot draw {name!r}: give a name that ends in .png, or one of {', '.join(sorted(kinds))}")
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {name}: {error.strerror}. Give a path in a directory of yours") from None
    if not existed:
        path.unlink()

    def draw(draw_into: Callable[[Figure, Any], None], what: Any) -> None:
        figure = matplotlib.figure.Figure(figsize=(12, 8), layout="constrained")
        draw_into(figure, what)
        figure.savefig(path, dpi=110)

    return draw


# --- one run ---------------------------------------------------------------------------------------------------------


def run(figure: Figure, result: Result) -> None:
    scenario = result.scenario
    title = f"{scenario.algorithm_name}: {scenario.nodes} nodes, {scenario.duration_s:g} s, seed {scenario.seed}"
    faults = ", ".join(fault.kind for fault in scenario.faults)
    figure.suptitle(title + (f", with {faults}" if faults else ""), color=INK, fontsize=14)
    (at_once, waits), (intervals, who) = figure.subplots(2, 2)
    _at_once(at_once, result)
    _waits(waits, result)
    _intervals(intervals, result)
    _who(who, result)


def _at_once(axes: Axes, result: Result) -> None:
    total = sum(result.concurrency_ns.values()) or 1
    levels = {level: spent / total for level, spent in result.concurrency_ns.items() if spent}
    slots = result.scenario.slots
    colours = [QUIET if level == 0 else FILL if level <= slots else ALARM for level in levels]
    bars = axes.bar([str(level) for level in levels], list(levels.values()), color=colours)
    axes.bar_label(bars, [f"{share:.2%}" for share in levels.values()], color=INK)
    axes.set(title="How many run A at once", xlabel="nodes that run A", ylabel="share of the time", ylim=(0, 1.08))


def _waits(axes: Axes, result: Result) -> None:
    axes.set(title="How long a request waits", xlabel="seconds", ylabel="share served by then", ylim=(0, 1.02))
    ordered = sorted(wait / SECOND for wait in result.waits)
    if not ordered:
        axes.text(0.5, 0.5, "nobody was served", transform=axes.transAxes, ha="center", color=QUIET)
        return
    axes.plot(ordered, [(at + 1) / len(ordered) for at in range(len(ordered))], color=FILL, drawstyle="steps-post")
    for share in (0.5, 0.99):
        wait = result.wait_s(share)
        axes.axvline(wait, color=QUIET, lw=0.8, ls=":")
        axes.annotate(f" {share:.0%}: {wait:.3g} s", (wait, share - 0.06), color=INK)
    axes.set_xlim(left=0)


def _intervals(axes: Axes, result: Result) -> None:
    axes.set(title="From start to start of A on one node", xlabel="seconds", ylabel="how often")
    seconds = [interval / SECOND for interval in result.intervals]
    if seconds:
        axes.hist(seconds, bins=min(60, max(8, len(seconds) // 20)), color=FILL)
        axes.set_xlim(left=0)
    else:
        axes.text(0.5, 0.5, "no node ran A twice", transform=axes.transAxes, ha="center", color=QUIET)


def _who(axes: Axes, result: Result) -> None:
    """The last runs of A, by node; one that overlapped is red."""
    holds = sorted(result.holds or (), key=lambda hold: hold.start)[-SHOWN_HOLDS:]
    axes.set(title=f"Who ran A, the last {len(holds)} times", xlabel="seconds", ylabel="node")
    for hold in holds:
        colour = ALARM if _overlaps(hold, holds) > result.scenario.slots - 1 else FILL
        width = (hold.end - hold.start) / SECOND
        left = hold.start / SECOND
        axes.barh(hold.node, width, left=left, height=0.8, color=colour, edgecolor=colour, linewidth=1.5)
    axes.margins(y=0.02)
    axes.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]


def _overlaps(hold: PastRun, holds: Sequence[PastRun]) -> int:
    return sum(other.start < hold.end and hold.start < other.end for other in holds) - 1


# --- several algorithms ----------------------------------------------------------------------------------------------


def comparison(figure: Figure, rows: Sequence[Compared]) -> None:
    figure.suptitle("Equal conditions, A takes 20 message times", color=INK, fontsize=14)
    (messages_rare, messages_busy), (delay_rare, delay_busy), (use_killed, load) = figure.subplots(3, 2)
    _by_algorithm(messages_rare, "Messages per entry, rarely wanted", rows, lambda row: row.messages_rare)
    _by_algorithm(messages_busy, "Messages per entry, always wanted", rows, lambda row: row.messages_busy)
    _by_algorithm(delay_rare, "Message times before entry, rarely wanted", rows, lambda row: row.delay_rare)
    _by_algorithm(delay_busy, "Message times between two holders, always wanted", rows, lambda row: row.delay_busy)
    _by_algorithm(use_killed, "Share of the time in use, holders killed", rows, lambda row: row.use_killed)
    _by_algorithm(load, "Messages of the busiest node per entry", rows, lambda row: row.load_busiest)
    handles, labels = delay_busy.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _by_algorithm(axes: Axes, title: str, rows: Sequence[Compared], value: Callable[[Compared], float | None]) -> None:
    names = list(dict.fromkeys(row.algorithm for row in rows))
    sizes = sorted({row.nodes for row in rows})
    height = 0.8 / len(sizes)
    for number, nodes in enumerate(sizes):
        here = [row for row in rows if row.nodes == nodes and value(row) is not None]
        values = [value(row) or 0.0 for row in here]
        places = [names.index(row.algorithm) + number * height for row in here]
        shade = 0.4 + 0.6 * (number + 1) / len(sizes)
        axes.barh(places, values, height, color=FILL, alpha=shade, label=f"{nodes} nodes")
        for place, found in zip(places, values, strict=True):
            axes.annotate(f" {_short(found)}", (found, place), va="center", color=INK, fontsize=8)
    axes.set_yticks([at + height * (len(sizes) - 1) / 2 for at in range(len(names))], names)
    axes.set_title(title)
    axes.invert_yaxis()
    axes.set_xscale(
        "asinh", linear_width=max(0.1, min(value(row) or 0.0 for row in rows))
    )  # as a logarithm, and it has a place for 0
    axes.set_xticks([])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("length of a bar: by the logarithm", color=INK, fontsize=7)
    axes.margins(x=0.2)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
