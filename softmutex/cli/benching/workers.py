"""Runs measuring processes: each is a fresh interpreter that gets one JSON object and answers with one.

Between the two there is a starting line: a worker says `ready` once it is set up, and begins on `go`, so that starting
Python is never part of what is measured. Clocks: `time.monotonic` is one clock for all processes of a Linux machine.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

Line = Callable[[], Awaitable[None]]  # says ready, returns on go
Work = Callable[[dict[str, Any], Line], Coroutine[Any, Any, dict[str, Any]]]

PATIENCE_S = 180.0


class WorkerFailed(RuntimeError):
    pass


async def in_processes(
    work: str, tasks: Sequence[dict[str, Any]], prefixes: Sequence[Sequence[str]] = ()
) -> list[dict[str, Any]]:
    """`work` is `module:coroutine function`, run once for each of `tasks`, all at the same time. `prefixes`: what each
    command is preceded by."""
    workers = [
        await asyncio.create_subprocess_exec(
            *prefix,
            sys.executable,
            "-m",
            "softmutex.cli.benching.workers",
            work,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        for prefix in prefixes or [()] * len(tasks)
    ]
    try:
        async with asyncio.timeout(PATIENCE_S):
            for worker, task in zip(workers, tasks, strict=True):
                await _tell(worker, json.dumps(task))
            for worker in workers:
                await _hear(worker)
            for worker in workers:
                await _tell(worker, "go")
            return [json.loads(await _hear(worker)) for worker in workers]
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()


async def _tell(worker: asyncio.subprocess.Process, line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line.encode() + b"\n")
    await worker.stdin.drain()


async def _hear(worker: asyncio.subprocess.Process) -> bytes:
    assert worker.stdout is not None
    line = await worker.stdout.readline()
    if not line:
        raise WorkerFailed(f"a measuring process ended early, exit code {await worker.wait()}: see its message above")
    return line


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_kib() -> float:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def _serve(work: str) -> None:
    module, _, name = work.partition(":")
    run: Work = getattr(importlib.import_module(module), name)
    task = json.loads(sys.stdin.readline())

    async def ready() -> None:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

    print(json.dumps(asyncio.run(run(task, ready))), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
