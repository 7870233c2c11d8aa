"""A thousand nodes in a few processes form one group over UDP, and each gets its turn."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from softmutex.cli.benching.workers import Line, cpu_s, in_processes

PROCESSES = 4


async def measure_crowd(nodes: int) -> dict[str, Any]:
    task = {"nodes": nodes // PROCESSES, "group": f"local://softmutex-bench-crowd-{nodes}"}
    answers = await in_processes(f"{__name__}:work", [task] * PROCESSES)
    began = min(answer["began"] for answer in answers)
    holds = sorted(hold for answer in answers for hold in answer["holds"])
    overlap = sum(max(0.0, one[1] - two[0]) for one, two in pairwise(holds))
    return {
        "nodes": len(holds),
        "all_open_s": max(answer["opened"] for answer in answers) - began,
        "first_grant_s": holds[0][0] - began,
        "last_grant_s": holds[-1][0] - began,
        "overlap_s": overlap,
        "cpu_per_node_ms": sum(answer["cpu_s"] for answer in answers) / len(holds) * 1e3,
    }


async def work(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    from softmutex import Node

    await ready()
    began, cpu = time.monotonic(), cpu_s()
    holds: list[tuple[float, float]] = []
    async with AsyncExitStack() as stack:

        async def take_turn(node: Node) -> None:
            async with node.mutex("crowd"):
                granted = time.monotonic()
            holds.append((granted, time.monotonic()))

        async with asyncio.TaskGroup() as turns:
            for _ in range(task["nodes"]):
                node = await stack.enter_async_context(Node(transport="udp://127.0.0.1:0", membership=task["group"]))
                turns.create_task(take_turn(node))
            opened = time.monotonic()
    return {"began": began, "opened": opened, "holds": holds, "cpu_s": cpu_s() - cpu}
