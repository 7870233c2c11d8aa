"""What a node costs that does little: memory, processor, the time to import, the time that `softmutex run` adds."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from softmutex.cli.benching.rounds import InterleavedRounds
from softmutex.cli.benching.workers import Line, cpu_s, in_processes, resident_kib

TRANSPORT, MEMBERSHIP = "udp://127.0.0.1:0", "local://softmutex-bench-footprint"


async def measure_footprint(further: int, duration_s: float) -> dict[str, Any]:
    """One node, then `further` more in the same process; then two processes that hand over once a second each way."""
    alone, *_ = await in_processes(f"{__name__}:many_nodes", [{"further": further}])
    pair = await in_processes(f"{__name__}:take_part", [{"duration_s": duration_s, "index": i} for i in range(2)])
    return {**alone, "share_of_a_core": max(each["share_of_a_core"] for each in pair)}


async def many_nodes(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    from softmutex import Node

    await ready()
    async with AsyncExitStack() as stack:

        async def one() -> None:
            node = await stack.enter_async_context(Node(transport=TRANSPORT, membership=MEMBERSHIP))
            if hold := await node.mutex("footprint").try_acquire():  # or not: either way its machine is there
                await hold.release()

        await one()
        first = resident_kib()
        for _ in range(task["further"]):
            await one()
        return {"first_node_mib": first / 1024, "further_node_kib": (resident_kib() - first) / task["further"]}


async def take_part(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    from softmutex import Node

    async with Node(transport=TRANSPORT, membership=MEMBERSHIP) as node:
        mutex = node.mutex("hops")
        async with mutex:
            pass
        await ready()
        cpu, began = cpu_s(), time.monotonic()
        await asyncio.sleep(task["index"])  # the two take turns, a second apart
        while time.monotonic() - began < task["duration_s"]:
            async with mutex:
                pass
            await asyncio.sleep(2.0)
        return {"share_of_a_core": (cpu_s() - cpu) / (time.monotonic() - began)}


def measure_start(times: int) -> dict[str, Any]:
    """Whole processes, the median of `times`, taken in turn so that a busy moment hits all of them."""
    python = sys.executable
    softmutex = shutil.which("softmutex") or str(Path(python).with_name("softmutex"))
    with tempfile.TemporaryDirectory(prefix="softmutex-bench-") as home:
        commands = {
            "python": [python, "-c", "pass"],
            "import": [python, "-c", "import softmutex"],
            "true": ["true"],
            "flock": ["flock", f"{home}/lock", "true"],
            "run": [softmutex, "run", "-n", "bench-run", "--membership", "local://softmutex-bench-run", "--", "true"],
        }
        took = InterleavedRounds.run({name: partial(took_s, command) for name, command in commands.items()}, times)
    median = {name: took.median(name) for name in commands}
    return {
        "import_s": median["import"] - median["python"],
        "python_s": median["python"],
        "run_adds_s": median["run"] - median["true"],
        "flock_adds_s": median["flock"] - median["true"],
    }


def took_s(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began
