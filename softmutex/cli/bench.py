"""`softmutex bench`: what this machine gets out of softmutex, next to what it gets without, measured in the same run.

Every part starts its own processes on loopback, and ends them. PostgreSQL and Redis are measured where their servers
and their Python packages are installed; where they are not, the report says so and what installs them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from softmutex.cli.benching import contended, crowd, footprint, hop, recovery
from softmutex.cli.benching.servers import NotInstalled

Report = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="half a minute: shorter, smaller, fewer faults; noisier")
    parser.add_argument("--json", action="store_true", help="one object on standard output")


def main(arguments: argparse.Namespace) -> int:
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        print(f"softmutex bench: there is no part {unknown[0]!r} (there are {', '.join(PARTS)})", file=sys.stderr)
        return 64
    report: Report = {}
    parts = arguments.parts or list(PARTS)
    for number, part in enumerate(parts, 1):
        if arguments.json:  # minutes may pass, and standard output is for the object
            print(f"softmutex bench: {number}/{len(parts)} {part}: {PARTS[part][0]}", file=sys.stderr, flush=True)
        else:
            print(f"\n{part}: {PARTS[part][0]}", flush=True)
        rows = asyncio.run(PARTS[part][1](arguments.quick))
        report[part] = rows
        if not arguments.json:
            print_rows(rows)
    if arguments.json:
        print(json.dumps(report))
    return 0


async def hops(quick: bool) -> list[Report]:
    return [await hop.measure_hop(1.0 if quick else 4.0)]


async def parked(quick: bool) -> list[Report]:
    return [await hop.measure_parked(500 if quick else 5000)]


async def contention(quick: bool) -> list[Report]:
    rows: list[Report] = []
    for hold_s in (0.01,) if quick else (0.0, 0.001, 0.01):
        for clients in (8,) if quick else (8, 32, 128):
            for shape, backend in contended.beside_each_other(clients):
                try:
                    rows.append(await contended.measure(backend, clients, hold_s, 0.6 if quick else 6.0, shape))
                except NotInstalled as missing:
                    rows.append({"backend": backend, "clients": clients, "hold_s": hold_s, "left_out": str(missing)})
    return rows


async def costs(quick: bool) -> list[Report]:
    return [await footprint.measure_footprint(20 if quick else 100, 1.5 if quick else 20.0)]


async def starts(quick: bool) -> list[Report]:
    return [footprint.measure_start(3 if quick else 50)]


async def crowds(quick: bool) -> list[Report]:
    return [await crowd.measure_crowd(20 if quick else 1000)]


PARTS: dict[str, tuple[str, Callable[[bool], Coroutine[Any, Any, list[Report]]]]] = {
    "hop": ("one hand-over between two processes, and a bare UDP ping-pong", hops),
    "parked": ("taking a free mutex again whose token is here", parked),
    "contended": ("clients that want one mutex, beside PostgreSQL and Redis; the worst of them", contention),
    "footprint": ("memory and processor of nodes that do little", costs),
    "start": ("import, and what `softmutex run` takes beyond Python's own start, beside flock", starts),
    "recovery": ("after processes die, stop or are cut off: until the next one is in", recovery.measure_recovery),
    "crowd": ("many nodes at once, each gets its turn", crowds),
}


def print_rows(rows: list[Report]) -> None:
    """One figure a line for a single row, one row a line for several."""
    if len(rows) == 1:
        for name, value in rows[0].items():
            print(f"  {name:<28}{show(value):>12}")
        return
    names = list(dict.fromkeys(name for row in rows for name in row if name != "left_out"))
    width = {name: max(len(name), *(len(show(row.get(name, ""))) for row in rows)) for name in names}
    print("  " + "  ".join(name.rjust(width[name]) for name in names))
    for row in rows:
        cells = "  ".join(show(row.get(name, "")).rjust(width[name]) for name in names)
        print(f"  {cells}  {row.get('left_out', '')}".rstrip())


def show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return str(value)
