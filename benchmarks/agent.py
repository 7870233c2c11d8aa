"""What an agent is good for: `python benchmarks/agent.py [--json] [--jobs N]`.

Two parts, each in a directory of its own under /tmp, on this machine alone:

    start    what `softmutex run` adds to `true`: bare Python, with an agent, without; in turns, medians
    churn    N short jobs one after the other, with and without an agent: time, and how often a member that is there
             all the while saw the membership change
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from softmutex import Node
from softmutex.cli.benching.rounds import InterleavedRounds
from softmutex.ports import Observation

SOFTMUTEX = str(Path(sys.executable).with_name("softmutex"))


class Counts:
    """An observer that counts how often the list of members changed."""

    messages = False

    def __init__(self) -> None:
        self.changes = 0

    def notice(self, observation: Observation) -> None:
        self.changes += observation.what == "members"


def job(*flags: str) -> list[str]:
    return [SOFTMUTEX, "run", "-n", "bench-agent", *flags, "--", "true"]


async def took_s(command: list[str]) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL)
    if await process.wait():
        sys.exit(f"{command} failed")
    return time.perf_counter() - began


async def measure_start(times: int) -> dict[str, Any]:
    commands = {
        "true": ["true"],
        "python": [sys.executable, "-c", "pass"],
        "agent": job(),
        "no agent": job("--no-agent"),
    }
    took = await InterleavedRounds.arun({name: partial(took_s, command) for name, command in commands.items()}, times)
    median = {name: took.median(name) for name in commands}
    best = {name: took.fastest(name) for name in commands}
    before = cpu_of_children_s()
    for _ in range(times):
        await took_s(commands["agent"])
    cpu = (cpu_of_children_s() - before) / times
    return {
        "python_ms": (median["python"] - median["true"]) * 1e3,
        "added_by_run_with_agent_ms": (median["agent"] - median["true"]) * 1e3,
        "added_by_run_without_ms": (median["no agent"] - median["true"]) * 1e3,
        "best_with_agent_ms": (best["agent"] - best["true"]) * 1e3,
        "cpu_of_run_with_agent_ms": cpu * 1e3,  # Python's start and all; of a busy machine the better figure
        "imports_ms": imports_ms(),
    }


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imports_ms() -> float:
    """What the front imports, as `python -X importtime` has it, the least of five."""
    command = [sys.executable, "-X", "importtime", "-c", "import softmutex.cli.run"]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stderr for _ in range(5)]
    return min(int(re.findall(r"\| +(\d+) \| softmutex\.cli\.run$", run, re.MULTILINE)[0]) / 1e3 for run in runs)


async def measure_churn(jobs: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"jobs": jobs}
    for name, flags in (("with_agent", ()), ("without", ("--no-agent",))):
        counts = Counts()
        async with Node(observers=[counts]) as node:
            while not node.peers():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            before, began = counts.changes, time.perf_counter()
            for _ in range(jobs):
                await took_s(job(*flags))
            figures[f"{name}_s"] = time.perf_counter() - began
            figures[f"{name}_membership_changes"] = counts.changes - before
    return figures


@asynccontextmanager
async def agent() -> AsyncIterator[None]:
    with tempfile.TemporaryDirectory(prefix="softmutex-bench-") as home:
        os.environ["SOFTMUTEX_AGENT"] = f"{home}/agent.sock"
        os.environ["SOFTMUTEX_MEMBERSHIP"] = f"local://?directory={home}/group"
        process = await asyncio.create_subprocess_exec(SOFTMUTEX, "agent", "-v", stderr=subprocess.PIPE)
        assert process.stderr is not None
        await process.stderr.readline()  # it is there
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            await process.communicate()


async def measure(jobs: int) -> dict[str, Any]:
    async with agent():
        return {"start": await measure_start(20), "churn": await measure_churn(jobs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=1000)
    arguments = parser.parse_args()
    report = asyncio.run(measure(arguments.jobs))
    if arguments.json:
        print(json.dumps(report))
        return
    for part, figures in report.items():
        print(part)
        for name, value in figures.items():
            print(f"  {name:32} {value:>10.1f}" if isinstance(value, float) else f"  {name:32} {value:>10}")


if __name__ == "__main__":
    main()
