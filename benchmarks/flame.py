"""Where the processor's time of a hop goes: `python benchmarks/flame.py [--samples N] DIRECTORY`.

Two processes want one mutex all the time and hold it for no time, so that every acquisition is a hand-over. Each notes
by a timer of its own CPU time what it is calling. DIRECTORY gets `hop.svg`, a flame graph: the wider, the more time;
what is above is called by what is below. Printed is the share of each room, by what was at the top.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

from softmutex import Node
from softmutex.cli.benching.workers import Line, in_processes

EVERY_S = 0.002
BELOW = "_run_once"  # everything is called by this part of the loop
WIDTH, ROW, LETTER = 1200, 17, 6.6
NARROWEST = 0.002  # of the width; what is less is left out
ROOMS = {
    "the machine (softmutex.core)": ("softmutex.core", "#8fbf7f"),
    "frames: codec and seal": ("softmutex.core.wire softmutex.core.codec softmutex.runtime.sealing", "#e0b35c"),
    "the node (softmutex.runtime)": ("softmutex", "#e58f65"),
    "the socket (softmutex_adapters)": ("softmutex_adapters", "#7fa8d0"),
    "the loop, and the rest of Python": ("", "#bdbdbd"),
}


async def work(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    stacks: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None and frame.f_code.co_name != BELOW:
            names.append(f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        stacks[";".join(reversed(names))] += 1

    async with Node(transport="udp://127.0.0.1:0", membership="local://softmutex-flame", observers=[]) as node:
        mutex = node.mutex("flame")
        async with mutex:  # what is made with the first one is no part of a hop
            pass
        await ready()
        signal.signal(signal.SIGPROF, sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        while stacks.total() < task["samples"]:
            async with mutex:
                pass
        signal.setitimer(signal.ITIMER_PROF, 0)
    return dict(stacks)


@dataclass
class Called:
    """One function, as it was called by the one below it."""

    count: int = 0
    by_name: dict[str, "Called"] = field(default_factory=dict)

    def add(self, names: list[str], count: int) -> None:
        self.count += count
        if names:
            self.by_name.setdefault(names[0], Called()).add(names[1:], count)

    def height(self, least: float) -> int:
        return max((1 + each.height(least) for each in self.by_name.values() if each.count >= least), default=0)


def room_of(name: str) -> str:
    module = name.partition(":")[0]
    fits = [
        (len(prefix), room)
        for room, (prefixes, _) in ROOMS.items()
        for prefix in (prefixes.split() or [""])
        if not prefix or module == prefix or module.startswith(f"{prefix}.")
    ]
    return max(fits)[1]


def drawn(root: Called) -> str:
    least = root.count * NARROWEST
    height = (root.height(least) + 2) * ROW
    parts: list[str] = []

    def draw(called: Called, left: float, row: int) -> None:
        for name, each in sorted(called.by_name.items()):
            width = each.count / root.count * WIDTH
            if each.count >= least:
                draw_one(name, each, left, row, width)
                draw(each, left, row + 1)
            left += width

    def draw_one(name: str, each: Called, left: float, row: int, width: float) -> None:
        top, color = height - (row + 1) * ROW, ROOMS[room_of(name)][1]
        label = name.rpartition(":")[2].replace("<locals>.", "")
        room = int((width - 4) / LETTER)
        text = label if len(label) <= room else f"{label[: room - 1]}…" if room > 2 else ""
        parts.append(
            f'<g><title>{escape(name)} {each.count / root.count:.1%}</title><rect x="{left:.1f}" y="{top}" '
            f'width="{max(width - 0.5, 0.3):.1f}" height="{ROW - 1}" fill="{color}"/>'
            + (f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(text)}</text>' if text else "")
            + "</g>"
        )

    draw(root, 0.0, 1)
    keys = "".join(
        f'<rect x="{10 + at * 235}" y="{height - ROW + 3}" width="11" height="11" fill="{color}"/>'
        f'<text x="{26 + at * 235}" y="{height - 4}">{escape(room)}</text>'
        for at, (room, (_, color)) in enumerate(ROOMS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        f'font-size="11">\n<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n{keys}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


async def measure(samples: int) -> Called:
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    root = Called()
    for stacks in await in_processes("flame:work", [{"samples": samples}] * 2):
        for names, count in stacks.items():
            if names:  # else the loop itself
                root.add(names.split(";"), count)
            else:
                root.add(["asyncio.base_events:BaseEventLoop._run_once"], count)
    return root


def tops(called: Called, name: str = "") -> Counter[str]:
    found = Counter({room_of(name): called.count - sum(each.count for each in called.by_name.values())})
    for inner, each in called.by_name.items():
        found += tops(each, inner)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--samples", type=int, default=2000, help="of each process, one in 2 ms of its CPU time at most"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    root = asyncio.run(measure(arguments.samples))
    (arguments.directory / "hop.svg").write_text(drawn(root), "utf-8")
    shares = {room: count / root.count for room, count in tops(root).most_common()}
    if arguments.json:
        print(json.dumps(shares))
        return
    for room, share in shares.items():
        print(f"| {room} | {share:.0%} |")


if __name__ == "__main__":
    sys.exit(main())
