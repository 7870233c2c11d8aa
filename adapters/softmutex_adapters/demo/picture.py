"""The three runs in one picture: who waited, who transferred, whose transfer was thrown away, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmutex_adapters.demo.plan import MEGA
from softmutex_adapters.demo.screen import name_of, sentence
from softmutex_adapters.demo.tally import Client, Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, PAPER = "#1f3b57", "#8a8f94", "#ffffff"
COLOUR = {"waits": "#e3e7eb", "done": "#4c86b8", "deadline": "#c8452f", "refused": "#c8452f", "broken": "#c8452f"}
LEGEND = {"waits": "waits", "done": "transfer that came through", "deadline": "transfer that was thrown away"}


def in_order(tally: Tally) -> list[Client]:
    """From the top: who transferred first."""
    return sorted(tally.clients, key=lambda client: client.tries[0].began if client.tries else float("inf"))


def draw(path: Path, measured: Sequence[Tally]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(12, 2.6 * len(measured) + 1.6), layout="constrained", facecolor=PAPER)
    panels = figure.subplots(len(measured), 1, sharex=True, squeeze=False)[:, 0]
    longest = max(tally.ended - tally.began for tally in measured)
    for axes, tally in zip(panels, measured, strict=True):
        _panel(axes, tally, longest)
    panels[-1].set_xlabel("seconds", color=INK)
    figure.suptitle(sentence(measured[0].plan) + "\n", color=INK, fontsize=13, x=0.01, ha="left")
    figure.legend(
        handles=[Patch(color=COLOUR[kind], label=label) for kind, label in LEGEND.items()],
        loc="outside lower left",
        ncols=len(LEGEND),
        frameon=False,
        labelcolor=INK,
    )
    figure.savefig(path, dpi=110)


def _panel(axes: Axes, tally: Tally, longest: float) -> None:
    seen: dict[str, Any] = tally.figures()
    for row, client in enumerate(in_order(tally)):
        for kind, begins, ends in client.strips(tally.ended):
            # A refused login takes a millisecond: it is drawn wide enough to be seen.
            width = max(ends - begins, longest / 400 if kind == "refused" else 0.0)
            axes.barh(row, width, left=begins - tally.began, height=0.8, color=COLOUR[kind], linewidth=0)
            if kind not in ("waits", "transfers"):  # where one try ends and the next begins
                axes.plot([ends - tally.began] * 2, [row - 0.4, row + 0.4], color=PAPER, linewidth=0.8)
    axes.set_xlim(0, longest * 1.01)
    axes.set_ylim(len(tally.clients) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_ylabel(f"{len(tally.clients)} clients", color=QUIET, fontsize=9)
    axes.tick_params(colors=QUIET, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(name_of(tally.plan, tally.stage), loc="left", color=INK, fontsize=11, fontweight="bold")
    good = seen["finished"] == seen["clients"]
    for height, text, size, weight, colour in (
        (0.72, f"{seen['goodput_mbit_s']:.1f} Mbit/s", 19, "bold", COLOUR["done"] if good else COLOUR["deadline"]),
        (0.50, f"{seen['finished']} of {seen['clients']} finished", 11, "normal", INK),
        (0.34, f"{seen['wasted_bytes'] / MEGA:.0f} MB thrown away", 11, "normal", INK),
        (0.18, mean(seen), 11, "normal", INK),
    ):
        axes.text(1.02, height, text, transform=axes.transAxes, fontsize=size, fontweight=weight, color=colour)


def mean(seen: dict[str, Any]) -> str:
    if not seen["finished"]:
        return "nobody has the file"
    whose = "" if seen["finished"] == seen["clients"] else " of these"
    return f"{seen['completion_mean_s']:.1f} s on average{whose}"
