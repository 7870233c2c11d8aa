"""A small run, live on the terminal: where the token is, who runs A, who waits, who is gone.

One look a step, as many steps as `run.py` makes of a run, at a pace that a person can follow. The picture is drawn
over itself, and the last one stays.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from softmutex.core.events import NodeId, to_seconds
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH

if TYPE_CHECKING:
    from softmutex.sim.world import World

MOST_NODES: Final = 400
FRAME_S: Final = 0.1
RUNS, HAS_TOKEN, WAITS, PAUSED, IDLE = "\x1b[7;32m", "\x1b[7;33m", "\x1b[33m", "\x1b[35m", "\x1b[2m"
PLAIN: Final = "\x1b[0m"
LEGEND: Final = (
    f"{RUNS} runs A {PLAIN} {HAS_TOKEN} token {PLAIN} {WAITS}waits{PLAIN} {PAUSED}paused{PLAIN} {IDLE}idle{PLAIN}"
)


class Watcher:
    """`simulate(..., look=Watcher(scenario))`."""

    def __init__(
        self,
        scenario: Scenario,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._scenario = scenario
        self._write = write or sys.stderr.write
        self._height = 0

    def __call__(self, world: World) -> None:
        lines = self.frame(world)
        up = f"\x1b[{self._height}A" if self._height else ""
        self._write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._height = len(lines)
        time.sleep(FRAME_S)

    def frame(self, world: World) -> list[str]:
        now_s = to_seconds(world.now - EPOCH)
        phase = "" if world.rough else ", healed"
        head = f"{self._scenario.algorithm_name}  {now_s:10.1f} s{phase}   {LEGEND}"
        width = len(str(max(world.nodes, default=1))) + 1
        cells = [self._cell(world, node_id, width) for node_id in world.nodes]
        across = max(1, min(shutil.get_terminal_size().columns, 100) // width)
        rows = ["".join(cells[at : at + across]) for at in range(0, len(cells), across)]
        waiting = sum(len(node.pending) for node in world.nodes.values())
        alive = len(world.tally.alive)
        foot = f"{len(world.tally.waits)} times A, {waiting} wait, {alive} token{'s' * (alive != 1)} alive"
        return [head, *rows, foot]

    def _cell(self, world: World, node_id: NodeId, width: int) -> str:
        node = world.nodes[node_id]
        if node.holds:
            look = RUNS
        elif not node.awake:
            look = PAUSED
        elif node.machine.view().tokens:
            look = HAS_TOKEN
        else:
            look = WAITS if node.pending else IDLE
        return f"{look}{node_id:>{width}}{PLAIN}"
