"""The moving picture of a token: an SVG that animates one real run of the simulator. Made when the docs are built.

Eight nodes on a circle, requests at random, and after a while the holder is killed. Nothing is drawn by hand: each
colour and each flight of the token is what the machines did.

    python docs/moving_picture.py > token.svg
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from softmutex.core.events import SECOND, Effect, Event, FactKind, Instant, NodeId, Note
from softmutex.sim.faults import Kill
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH, PastRun

SCENARIO = Scenario(
    nodes=8,
    duration_s=36.0,
    seed=11,
    op_s=2.0,
    hold="uniform:1.5:3",
    demand="poisson:0.4",
    delay_s=0.1,
    faults=(Kill(every_s=20.0, target="holder", restart_s=None, times=1),),
    keep_holds=True,
)
CENTRE, RADIUS, SPOT, DOT = 180, 130, 24, 10
LENGTH_S = SCENARIO.duration_s


class Made(NamedTuple):
    at_s: float
    node: NodeId


class Story(NamedTuple):
    holds: Sequence[PastRun]
    made: Sequence[Made]  # tokens made anew
    killed: tuple[NodeId, float]


def story() -> Story:
    made: list[Made] = []
    last_heard: dict[NodeId, float] = {}

    def spy(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        now_s = (now - EPOCH) / SECOND
        last_heard[node] = now_s
        made.extend(Made(now_s, node) for each in effects if isinstance(each, Note) and each.kind is FactKind.GENERATED)

    result = simulate(SCENARIO, spy=spy)
    holds = sorted(result.holds or (), key=lambda hold: hold.start)
    if result.overlap or len(holds) < 5 or len(made) < 2:
        raise SystemExit("the run shows no recovery, or an overlap: choose another seed")
    at_s = 20.0  # the kill is the scenario's own
    victim = min((hold for hold in holds if hold.end / SECOND >= at_s - 1e-6), key=lambda hold: hold.start).node
    return Story(holds, made, (victim, at_s))


def place(node: NodeId) -> tuple[float, float]:
    angle = 2 * math.pi * (node - 1) / SCENARIO.nodes - math.pi / 2
    return CENTRE + RADIUS * math.cos(angle), CENTRE + RADIUS * math.sin(angle)


def seconds(ns: int) -> float:
    return ns / SECOND


def keyed(attribute: str, frames: Sequence[tuple[float, object]], *, smooth: bool = False) -> str:
    """One animated attribute: its value from each moment on."""
    ordered = sorted(frames, key=lambda frame: frame[0])
    times = ";".join(f"{min(at / LENGTH_S, 1):.5f}" for at, _ in ordered)
    values = ";".join(str(value) for _, value in ordered)
    mode = "linear" if smooth else "discrete"
    return (
        f'<animate attributeName="{attribute}" dur="{LENGTH_S:g}s" repeatCount="indefinite" '
        f'calcMode="{mode}" keyTimes="{times}" values="{values}"/>'
    )


def looks(node: NodeId, told: Story) -> list[tuple[float, str]]:
    mine = [hold for hold in told.holds if hold.node == node]
    victim, killed_s = told.killed

    def look(at_s: float) -> str:
        if node == victim and at_s >= killed_s:
            return "gone"
        if any(seconds(hold.start) <= at_s < seconds(hold.end) for hold in mine):
            return "holds"
        return "waits" if any(seconds(hold.asked) <= at_s < seconds(hold.start) for hold in mine) else "idle"

    moments = {0.0, killed_s, *(seconds(at) for hold in mine for at in (hold.asked, hold.start, hold.end))}
    return [(at_s, look(at_s)) for at_s in sorted(moments)]


FILLS = {"idle": "#e8edf2", "waits": "#f3c969", "holds": "#4c9f70", "gone": "#d9d9d9"}
STROKES = {"idle": "#8a98a8", "waits": "#b98a1d", "holds": "#2d6b48", "gone": "#c8452f"}


def flights(told: Story) -> tuple[list[tuple[float, float]], list[tuple[float, float]], list[tuple[float, int]]]:
    """Where the token is (x and y over time), and whether there is one."""
    first = told.holds[0].node
    x, y = place(first)
    xs, ys, shown = [(0.0, x)], [(0.0, y)], [(0.0, 1)]
    free_since = 0.0
    victim, killed_s = told.killed
    for hold in told.holds:
        at = place(hold.node)
        start = seconds(hold.start)
        leaves = max(free_since, start - 0.3)  # the flight is drawn slower than it is: 0.1 s is not seen
        if free_since == killed_s:
            back_s = next(made.at_s for made in told.made if made.at_s > killed_s)
            shown += [(killed_s, 0), (back_s, 1)]
            x, y = place(next(made.node for made in told.made if made.at_s > killed_s))
            xs += [(killed_s, x)]
            ys += [(killed_s, y)]
            leaves = max(leaves, back_s)
        xs += [(leaves, x), (start, at[0])]
        ys += [(leaves, y), (start, at[1])]
        x, y = at
        free_since = killed_s if hold.node == victim and seconds(hold.end) >= killed_s - 1e-6 else seconds(hold.end)
        xs.append((free_since, x))
        ys.append((free_since, y))
    return [*xs, (LENGTH_S, x)], [*ys, (LENGTH_S, y)], shown


def says(told: Story) -> list[tuple[float, str]]:
    _, killed_s = told.killed
    back_s = next(made.at_s for made in told.made if made.at_s > killed_s)
    return [
        (0.0, "the token waits where it was used last"),
        (seconds(told.holds[0].asked), "who wants it asks, and is queued in the token"),
        (killed_s, "the holder was killed: the token is gone"),
        (back_s, f"noticed, and made anew after {back_s - killed_s:.1f} s"),
        (back_s + 4.0, "and on it goes"),
    ]


def draw(told: Story) -> str:
    width, height = 2 * CENTRE, 2 * CENTRE + 46
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>Eight nodes and a wandering token; the holder is killed and the token made anew</title>",
        f'<circle cx="{CENTRE}" cy="{CENTRE}" r="{RADIUS}" fill="none" stroke="#8a98a8" stroke-dasharray="2 5"/>',
    ]
    for node in range(1, SCENARIO.nodes + 1):
        x, y = place(node)
        frames = looks(node, told)
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{SPOT}" fill="{FILLS["idle"]}" stroke="{STROKES["idle"]}" '
            f'stroke-width="2">{keyed("fill", [(at, FILLS[look]) for at, look in frames])}'
            f"{keyed('stroke', [(at, STROKES[look]) for at, look in frames])}</circle>"
            f'<text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" fill="#1f3b57">{node}</text>'
        )
    xs, ys, shown = flights(told)
    out.append(
        f'<circle r="{DOT}" fill="#c8452f" stroke="#fff" stroke-width="2" cx="{xs[0][1]:.1f}" cy="{ys[0][1]:.1f}">'
        f"{keyed('cx', [(at, f'{value:.1f}') for at, value in xs], smooth=True)}"
        f"{keyed('cy', [(at, f'{value:.1f}') for at, value in ys], smooth=True)}"
        f"{keyed('opacity', shown)}</circle>"
    )
    lines = says(told)
    for number, (at, line) in enumerate(lines):
        until = lines[number + 1][0] if number + 1 < len(lines) else LENGTH_S
        frames = [(0.0, 0), (at, 1), (until, 0)] if at else [(0.0, 1), (until, 0)]
        out.append(
            f'<text x="{CENTRE}" y="{height - 30}" text-anchor="middle" fill="#6d7c8c" '
            f'opacity="{0 if at else 1}">{line}{keyed("opacity", frames)}</text>'
        )
    for number, (look, word) in enumerate(
        (("idle", "idle"), ("waits", "waits"), ("holds", "holds"), ("gone", "killed"))
    ):
        x = 40 + 78 * number
        out.append(
            f'<circle cx="{x}" cy="{height - 10}" r="6" fill="{FILLS[look]}" stroke="{STROKES[look]}"/>'
            f'<text x="{x + 11}" y="{height - 6}" fill="#6d7c8c">{word}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw(story()))
