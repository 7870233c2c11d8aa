"""What a node costs that does little: memory, processor, the time to import, the time that `softmutex run` adds."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

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
    """Whole processes, the median of `times`, taken in turn so that a busy moment hits all of them. `..._cpu_s`: of the
    processor, also of their children; on a busy machine the better figure."""
    python = sys.executable
    softmutex = shutil.which("softmutex") or str(Path(python).with_name("softmutex"))
    job = ["-n", "bench-run", "--membership", "local://softmutex-bench-run"]
    with tempfile.TemporaryDirectory(prefix="softmutex-bench-") as home:
        environ = {**os.environ, "SOFTMUTEX_AGENT": f"{home}/agent.sock"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
        commands = {
            "python": [python, "-c", "pass"],
            "import": [python, "-c", "import softmutex"],
            "flock": ["flock", f"{home}/lock", "true"],
            "alone": [softmutex, "run", *job, "--no-agent", "--", "true"],
            "agent": [softmutex, "run", *job, "--", "true"],
        }
        agent = subprocess.Popen([softmutex, "agent", *job[2:]], env=environ, stdin=subprocess.DEVNULL)
        try:
            while agent.poll() is None and not os.path.exists(environ["SOFTMUTEX_AGENT"]):
                time.sleep(0.01)
            took = [{name: took_s(each, environ) for name, each in commands.items()} for _ in range(times)]
        finally:
            agent.terminate()
            agent.wait()

    def beyond_s(name: str, beside: str = "python", of: int = 0) -> float:
        return statistics.median(each[name][of] - each[beside][of] for each in took)

    return {
        "python_s": statistics.median(each["python"][0] for each in took),
        "import_s": beyond_s("import"),
        "flock_s": statistics.median(each["flock"][0] for each in took),
        "run_beyond_python_s": beyond_s("alone"),
        "run_by_agent_beyond_python_s": beyond_s("agent"),
        "run_beyond_python_cpu_s": beyond_s("alone", of=1),
        "run_by_agent_beyond_python_cpu_s": beyond_s("agent", of=1),
    }


def took_s(command: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return took, used.ru_utime + used.ru_stime
