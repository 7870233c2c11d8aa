"""Draws an exhibit: what was printed beside what was measured. matplotlib is imported only when something is drawn."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex.sim.papers_cells import Panel, Series, Shown

# Distinguishable without colour vision, and on paper: after Okabe and Ito.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
PRINTED = "#555555"


def check_installed() -> None:
    if find_spec("matplotlib") is None:
        raise ConfigError("pictures need matplotlib, which is not installed. Run: pip install 'softmutex[plot]'")


def draw(title: str, shown: Shown, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * max(2, len(shown.panels)), 5), layout="constrained")
    FigureCanvasAgg(figure)
    if shown.draw is not None:
        shown.draw(figure)
        figure.savefig(path, dpi=110)
        return
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(1, len(shown.panels), squeeze=False)[0], shown.panels, strict=True):
        _panel(axes, panel)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, panel: Panel) -> None:
    bars = [series for series in panel.series if series.style == "bars"]
    axes.set_yscale("log" if panel.log else "linear")
    axes.set_xscale("log" if panel.log_x else "linear")
    for number, series in enumerate(panel.series):
        own = COLOURS[(number if series.like is None else series.like) % len(COLOURS)]
        colour = PRINTED if series.label.startswith("printed") and bars else own
        _series(axes, series, colour, bars)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if panel.log:
        axes.set_ylim(bottom=panel.bottom or (0.7 if bars else 0.001))
    else:
        axes.set_ylim(bottom=-0.05 * axes.get_ylim()[1] if panel.series[0].style == "steps" else 0)
    if panel.ticks is not None:
        axes.set_xticks(list(panel.ticks), panel.tick_labels)
    if panel.printed_x is not None:
        axes.axvline(panel.printed_x, color=PRINTED, linestyle="--", label="printed")
    if panel.printed_y is not None:
        axes.axhline(panel.printed_y, color=PRINTED, linestyle="--", label="printed")
    if panel.log_x:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(True, axis="y", alpha=0.3)
    if all(series.style == "steps" for series in panel.series):
        axes.yaxis.get_major_locator().set_params(integer=True)
    if len(panel.series) > 1 or panel.printed_x or panel.printed_y:
        axes.legend()


def _series(axes: Any, series: Series, colour: str, bars: list[Series]) -> None:
    match series.style:
        case "bars":
            step = min((b - a for a, b in zip(series.xs, series.xs[1:], strict=False)), default=1)
            width = 0.8 * step / len(bars)
            shift = (bars.index(series) - (len(bars) - 1) / 2) * width
            places = [x + shift for x in series.xs]
            drawn = axes.bar(places, series.ys, width, yerr=series.errors, color=colour, label=series.label)
            if len(bars) == 1:
                axes.bar_label(drawn, [f"{y:,.0f}" if y >= 100 else f"{y:.3g}" for y in series.ys])
        case "line":
            ys = [y or math.nan for y in series.ys] if axes.get_yscale() == "log" else series.ys
            axes.errorbar(series.xs, ys, yerr=series.errors, color=colour, label=series.label, marker=".")
        case "goal":
            axes.plot(series.xs, series.ys, "--", color=colour, label=series.label, linewidth=1)
        case "points":
            axes.plot(series.xs, series.ys, "x", color=colour, label=series.label, markersize=10, markeredgewidth=2)
        case _:
            axes.step(series.xs, series.ys, where="post", color=colour, label=series.label, linewidth=0.8)
