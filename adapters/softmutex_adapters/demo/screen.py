"""What is seen while the demo runs: who holds, who waits, how much came through.

On a terminal one picture is drawn over and over, in place, and never more than it has lines for; elsewhere (a pipe, a
log of CI) a line every other second says the same. All of it goes to standard error: standard output is for results.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from typing import TextIO

from softmutex_adapters.demo.plan import MEGA, SCENARIOS, Plan
from softmutex_adapters.demo.tally import Client, Tally

FRAME_S = 0.1
LINE_S = 2.0
BAR = 8
UP, CLEAR, HIDE, SHOW = "\x1b[{}A\r", "\x1b[J", "\x1b[?25l", "\x1b[?25h"
STYLES = {"": "", "bold": "1", "dim": "2", "red": "31", "green": "32", "blue": "34", "yellow": "33"}
STYLE_OF = {
    "transfers": "blue",
    "waits": "dim",
    "pauses": "yellow",
    "finished": "green",
    "gave up": "red",
    "idle": "dim",
}
MARK_OF = {"transfers": ">", "waits": ".", "pauses": "-", "finished": "+", "gave up": "x", "idle": " "}

Piece = tuple[str, str]  # text and style


def sentence(plan: Plan) -> str:
    what = f"{plan.clients} clients, {plan.size_mb:g} MB each, one FTP server, {plan.capacity_mbit_s:g} Mbit/s"
    deadline = f"{plan.deadline_s:g} s a transfer, {plan.tries} tries" if plan.deadline_s else "no deadline"
    limit = f", {plan.connections} logins at once" if plan.connections else ""
    return f"{what}; {deadline}{limit}"


def name_of(plan: Plan, stage: str) -> str:
    return {
        "uncoordinated": "uncoordinated",
        "coordinated": f"coordinated by softmutex, {plan.slots} at a time",
        "ideal": f"ideal local semaphore, {plan.slots} at a time",
    }[stage]


def result(tally: Tally) -> str:
    seen = tally.figures()
    return ("" if tally.complete else "interrupted; ") + (
        f"{seen['finished']} of {seen['clients']} finished in {seen['makespan_s']:.1f} s, "
        f"{seen['goodput_mbit_s']:.1f} Mbit/s, {seen['wasted_bytes'] / MEGA:.0f} MB thrown away"
    )


class Screen:
    """`news` after each line that was heard; `close` in the end."""

    def __init__(self, plan: Plan, out: TextIO) -> None:
        self._plan, self._out = plan, out
        self._live = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._coloured = self._live and "NO_COLOR" not in os.environ
        self._next = 0.0
        self._lines = 0
        self._done: list[Tally] = []
        self._say([[(sentence(plan), "bold")], [(SCENARIOS[plan.scenario], "dim")], []])
        if self._live:
            out.write(HIDE)

    def news(self, tally: Tally) -> None:
        now = time.monotonic()
        if tally.complete:
            self._finish(tally)
        elif now >= self._next:
            self._next = now + (FRAME_S if self._live else LINE_S)
            if self._live:
                self._draw(tally, now)
            else:
                self._say([[(f"{name_of(self._plan, tally.stage)}: {state(tally, now)}", "")]])

    def close(self, tally: Tally | None = None) -> None:
        """`tally`: what was under way."""
        if tally is not None:
            self._finish(tally)
        if self._live:
            self._out.write(SHOW)
            self._out.flush()

    def _finish(self, tally: Tally) -> None:
        self._wipe()
        ok = tally.count("finished") == self._plan.clients
        what = f"{name_of(self._plan, tally.stage)}: "
        self._say([[(what, "bold"), (result(tally), "green" if ok else "red")]])
        self._next = 0.0

    def _draw(self, tally: Tally, now: float) -> None:
        size = shutil.get_terminal_size()
        self._wipe()
        lines = frame(tally, now, size.columns - 1, size.lines - 6)
        self._say(lines)
        self._lines = len(lines)

    def _wipe(self) -> None:
        if self._lines:
            self._out.write(UP.format(self._lines) + CLEAR)
            self._lines = 0

    def _say(self, lines: Iterable[list[Piece]]) -> None:
        width = shutil.get_terminal_size().columns - 1 if self._live else 10_000
        encoding = self._out.encoding or "ascii"
        for line in lines:
            text = render(line, width, self._coloured) + "\n"
            self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()


def state(tally: Tally, now: float) -> str:
    if tally.ready < tally.plan.clients:
        return f"{tally.ready} of {tally.plan.clients} subscribers are ready"
    at_work = [f"{number:02}" for number, client in enumerate(tally.clients) if client.state == "transfers"]
    who = f" ({' '.join(at_work)})" if 0 < len(at_work) <= 4 else ""
    since = now - tally.began if tally.began else 0.0
    return (
        f"{since:4.1f} s  {len(at_work)} transfer{who}, {tally.count('waits')} wait, "
        f"{tally.count('finished')} finished, {tally.count('gave up')} gave up, "
        f"{tally.goodput_mbit_s(now):.1f} Mbit/s"
    )


def frame(tally: Tally, now: float, width: int, height: int) -> list[list[Piece]]:
    head: list[list[Piece]] = [
        [(name_of(tally.plan, tally.stage), "bold")],
        [(state(tally, now), "")],
        [],
    ]
    return head + grid(tally, width, height - len(head))


def grid(tally: Tally, width: int, height: int) -> list[list[Piece]]:
    """All clients, as large as they fit: with a bar, with a number, with a letter."""
    for cell, cell_width in CELLS:
        cells = [cell(number, client, tally.plan.size) for number, client in enumerate(tally.clients)]
        rows = -(-len(cells) // max(1, width // cell_width))
        if rows <= height:
            break
    lines = [cells[row::rows] for row in range(min(rows, height))]  # numbered downwards, as columns of a list are
    return [[piece for one in line for piece in one] for line in lines]


def with_bar(number: int, client: Client, size: int) -> list[Piece]:
    style = STYLE_OF[client.state]
    full = BAR if client.state == "finished" else round(BAR * client.got / size) if client.state == "transfers" else 0
    mark = {"finished": "✓", "gave up": "✗"}.get(client.state, " ")
    return [(f"{number:02} ", style), ("█" * full, style), ("░" * (BAR - full), "dim"), (f"{mark}  ", style)]


def with_number(number: int, client: Client, size: int) -> list[Piece]:
    return [(f"{number:02}{MARK_OF[client.state]} ", STYLE_OF[client.state])]


def with_letter(number: int, client: Client, size: int) -> list[Piece]:
    return [(MARK_OF[client.state], STYLE_OF[client.state])]


CELLS = ((with_bar, BAR + 6), (with_number, 4), (with_letter, 1))


def render(line: list[Piece], width: int, coloured: bool) -> str:
    """No more than `width` characters, of which colours are none."""
    out, room = "", width
    for text, style in line:
        text = text[:room]
        room -= len(text)
        out += f"\x1b[{STYLES[style]}m{text}\x1b[0m" if coloured and style and text else text
    return out
