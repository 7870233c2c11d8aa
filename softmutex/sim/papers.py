"""`softmutex sim reproduce`: the papers' tables and figures, printed value beside measured value, one line a cell.

    names --> exhibits --> jobs --> runs (each once) --> cells --> text or JSON, and a picture of each exhibit

Everything is run by the default settings, but for what a line says. It ends with 0 where every judged cell holds,
with 1 where one does not. What is ours, and no paper's, is printed only by name: the goals of the default algorithm, as
tables, since there many columns are to be compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex.sim import (
    engine,
    goals_queue,
    goals_table,
    papers_000,
    papers_001,
    papers_002,
    papers_003,
    papers_004,
    subscribers,
)
from softmutex.sim.papers_cells import FULL, QUICK, Cell, Effort, Exhibit, Shown, Table, Verdict, as_json
from softmutex.sim.papers_runs import Runner
from softmutex.sim.progress import bar

PAPERS: dict[str, Exhibit] = {
    each.name: each for paper in (papers_000, papers_001, papers_002, papers_003, papers_004) for each in paper.EXHIBITS
}
SIZED = (*goals_table.EXHIBITS, *goals_queue.EXHIBITS)  # for which --nodes can be given
OURS: dict[str, Exhibit] = {each.name: each for each in (*SIZED, *subscribers.EXHIBITS)}
EXHIBITS: dict[str, Exhibit] = PAPERS | OURS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    ours = "all (default): the papers'; ours: the others"
    add("names", nargs="*", metavar="EXHIBIT", help=f"some of {', '.join(EXHIBITS)}; or {ours}")
    add("--json", action="store_true", help="one JSON object instead of lines")
    add("--markdown", action="store_true", help="tables in Markdown, to be kept")
    add("--plot", metavar="DIR", help="also draw each table and figure, as DIR/NAME.png")
    add("--quick", action="store_true", help="fewer and shorter runs: half a minute instead of four")
    add("--jobs", type=int, default=1, metavar="CORES", help="how many cores to use (default: 1)")
    add("--on", metavar="ADDRESS", help="a Dask scheduler, such as tcp://scheduler:8786: its workers do it")
    add("--nodes", type=int, nargs="+", default=[], metavar="N", help="for wandering: which sizes of the group")


def main(arguments: argparse.Namespace) -> int:
    exhibits = choose(arguments.names)
    directory = _prepare(arguments.plot) if arguments.plot is not None else None
    effort = _effort(arguments, exhibits)
    with engine.on(arguments.on, arguments.jobs) as found:
        return _reproduce(arguments, exhibits, effort, Runner(found), directory)


def _reproduce(
    arguments: argparse.Namespace, exhibits: Sequence[Exhibit], effort: Effort, runner: Runner, directory: Path | None
) -> int:
    begun = time.perf_counter()
    results: dict[str, Shown] = {}
    for exhibit in exhibits:
        with bar(exhibit.name) as runner.progress:
            shown = results[exhibit.name] = exhibit.show(effort, runner)
        if arguments.markdown:
            sys.stdout.write(as_markdown(exhibit, shown, arguments))
        elif not arguments.json:
            sys.stdout.write(as_text(exhibit, shown))
        sys.stdout.flush()
        if directory is not None:
            _draw(exhibit, shown, directory)
    wall_s = time.perf_counter() - begun
    verdicts = [cell.verdict for shown in results.values() for cell in shown.cells]
    failed = verdicts.count(Verdict.FAIL)
    if arguments.json:
        sys.stdout.write(json.dumps(_everything(exhibits, results, effort, failed, wall_s), indent=1) + "\n")
    elif not arguments.markdown:
        held, differ = verdicts.count(Verdict.OK), verdicts.count(Verdict.DIFFERS)
        seeds = "" if set(results) <= set(OURS) else f", {effort.seeds} seeds"
        differing = f", {differ} differ from the print" if differ else ""
        judged = held + failed + differ
        each = _by_paper(results)
        sys.stdout.write(f"{held} of {judged} judged cells hold{differing}{each} ({wall_s:.0f} s{seeds})\n")
    return 1 if failed else 0


def _by_paper(results: dict[str, Shown]) -> str:
    """How many of how many hold, for each paper, where there are several."""
    judged: dict[str, list[Verdict]] = {}
    for name, shown in results.items():
        verdicts = [cell.verdict for cell in shown.cells if cell.verdict is not Verdict.SHOWN]
        judged.setdefault(name.partition("-")[0], []).extend(verdicts)
    if len(judged) < 2:
        return ""
    return ": " + ", ".join(f"{paper} {each.count(Verdict.OK)}/{len(each)}" for paper, each in judged.items())


def _effort(arguments: argparse.Namespace, exhibits: Sequence[Exhibit]) -> Effort:
    effort = QUICK if arguments.quick else FULL
    if not arguments.nodes:
        return effort
    if unsized := [exhibit.name for exhibit in exhibits if exhibit not in SIZED]:
        raise ConfigError(
            f"--nodes does not fit {unsized[0]}: a paper's exhibit has its own sizes. Give it with "
            f"{' or '.join(exhibit.name for exhibit in SIZED)}"
        )
    if small := [nodes for nodes in arguments.nodes if nodes < 3]:
        raise ConfigError(f"--nodes {small[0]}: give sizes of 3 or more")
    return dataclasses.replace(effort, sizes=tuple(sorted(set(arguments.nodes))))


def choose(names: Sequence[str]) -> list[Exhibit]:
    if not names or "all" in names:
        return list(PAPERS.values())
    if "ours" in names:
        return list(OURS.values())
    for name in names:
        if name not in EXHIBITS:
            near = difflib.get_close_matches(name, EXHIBITS, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else "Name one of them, or all."
            raise ConfigError(f"nothing named {name!r} can be reproduced (there are: {', '.join(EXHIBITS)}). {hint}")
    return [EXHIBITS[name] for name in dict.fromkeys(names)]


def as_text(exhibit: Exhibit, shown: Shown) -> str:
    lines = [f"{exhibit.name}  {exhibit.title}"]
    lines += [line for table in shown.tables for line in _aligned(table)] or [_line(cell) for cell in shown.cells]
    lines += [f"  note: {note}" for note in shown.notes]
    return "\n".join(lines) + "\n\n"


def _aligned(table: Table) -> list[str]:
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]

    def line(words: Sequence[str]) -> str:
        others = (f"{word:>{width}}" for word, width in zip(words[1:], widths[1:], strict=True))
        return "  ".join([f"  {words[0]:<{widths[0]}}", *others]).rstrip()

    title = ["", f"  {table.title}"] if table.title else []
    return [*title, line(table.head), *map(line, table.rows)]


def as_markdown(exhibit: Exhibit, shown: Shown, arguments: argparse.Namespace) -> str:
    """To be kept beside the picture: with the command that makes it again, without a date."""
    words = ["softmutex", "sim", "reproduce", exhibit.name]
    words += ["--nodes", *map(str, arguments.nodes)] if arguments.nodes else []
    words += ["--quick"] if arguments.quick else []
    lines = [f"# {exhibit.title}", "", f"`{shlex.join(words)}`", ""]
    if arguments.plot is not None:
        lines += [f"![{exhibit.title}]({exhibit.name}.png)", ""]
    judged = [cell.verdict for cell in shown.cells if cell.verdict is not Verdict.SHOWN]
    tables = shown.tables or [
        Table(
            "",
            ["", "paper", "measured", ""],
            [[c.what, c.paper, _number(c.measured, c.unit), c.verdict] for c in shown.cells],
        )
    ]
    for table in tables:
        lines += [f"## {table.title}", ""] if table.title else []
        rule = [":--", *["--:"] * (len(table.head) - 1)]
        lines += ["| " + " | ".join(row) + " |" for row in (table.head, rule, *table.rows)] + [""]
    lines += [f"{judged.count(Verdict.OK)} of {len(judged)} judged figures hold.", ""]
    return "\n".join(lines + [f"- {note}" for note in shown.notes]) + "\n\n"


def _line(cell: Cell) -> str:
    measured = _number(cell.measured, cell.unit)
    spread = "" if cell.spread is None else f"± {_number(cell.spread, cell.unit)}"
    sign = " points" if cell.unit == "%" else " %"
    difference = "" if cell.difference is None else f"{cell.difference:+.1f}{sign}"
    rule = f"  ({cell.rule})" if cell.rule else ""
    figures = f"paper {cell.paper:>13}  measured {measured:>9} {spread:<10} {difference:>12}"
    return f"  {cell.what:<38} {figures}  {cell.verdict}{rule}"


def _number(value: float, unit: str) -> str:
    if unit:
        return f"{value:.2f} {unit}"
    return f"{value:,.2f}" if abs(value) < 10 and value != round(value) else f"{value:,.0f}"


def _everything(
    exhibits: Sequence[Exhibit], results: dict[str, Shown], effort: Effort, failed: int, wall_s: float
) -> dict[str, Any]:
    return {
        "verdict": "FAIL" if failed else "ok",
        "seeds": effort.seeds,
        "wall_seconds": wall_s,
        "exhibits": [
            {
                "name": exhibit.name,
                "title": exhibit.title,
                "cells": [as_json(cell) for cell in results[exhibit.name].cells],
                "notes": list(results[exhibit.name].notes),
            }
            for exhibit in exhibits
        ],
    }


def _prepare(plot: str) -> Path:
    """A directory that can be written and a library that can draw: found out before the long runs, not after."""
    from softmutex.sim import papers_pictures

    papers_pictures.check_installed()
    directory = Path(plot)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".softmutex-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"--plot {plot}: pictures cannot be written there ({error.strerror or error}). Name a directory of yours"
        ) from error
    return directory


def _draw(exhibit: Exhibit, shown: Shown, directory: Path) -> None:
    from softmutex.sim import papers_pictures

    papers_pictures.draw(f"{exhibit.name}: {exhibit.title}", shown, directory / f"{exhibit.name}.png")
