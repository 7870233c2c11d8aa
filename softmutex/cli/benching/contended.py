"""Many clients in four processes want one mutex: hand-overs, use, waits, fairness, and what each costs.

Beside ours: advisory locks of a real PostgreSQL, and redis-py's `Lock` on a real Redis, started here with the settings
that their users would have. All clients begin at one moment and stop asking at another; holds that began before the
end are let finish. A hand-over is a hold that follows the hold of another client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

from softmutex.cli.benching import servers
from softmutex.cli.benching.workers import Line, cpu_s, in_processes

PROCESSES = 4
NAME = "bench-contended"
Enter = Callable[[], AbstractAsyncContextManager[object]]


async def measure(backend: str, clients: int, hold_s: float, duration_s: float) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        url, server = "", 0
        if backend != "softmutex":
            url, server = await stack.enter_async_context(getattr(servers, backend)())
        task = {"backend": backend, "url": url, "hold_s": hold_s, "duration_s": duration_s, "name": f"{NAME}-{clients}"}
        shares = [clients // PROCESSES + (i < clients % PROCESSES) for i in range(PROCESSES)]
        cpu, packets = servers.cpu_of_tree_s(server) if server else 0.0, loopback_packets()
        answers = await in_processes(f"{__name__}:work", [{**task, "clients": share} for share in shares])
        packets = loopback_packets() - packets
        cpu = (servers.cpu_of_tree_s(server) if server else 0.0) - cpu
    cpu += sum(answer["cpu_s"] for answer in answers)
    return {"backend": backend, "clients": clients, "hold_s": hold_s, **summary(answers, clients, cpu, packets)}


async def work(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    log: list[list[tuple[float, float, float]]] = [[] for _ in range(task["clients"])]
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(BACKENDS[task["backend"]](task))
        doors = [make() for _ in range(task["clients"])]
        await ready()
        cpu, end = cpu_s(), time.monotonic() + task["duration_s"]

        async def client(enter: Enter, done: list[tuple[float, float, float]]) -> None:
            while (asked := time.monotonic()) < end:
                async with enter():
                    began = time.monotonic()
                    if task["hold_s"]:
                        await asyncio.sleep(task["hold_s"])
                    ended = time.monotonic()
                done.append((asked, began, ended))

        async with asyncio.TaskGroup() as group:
            for enter, done in zip(doors, log, strict=True):
                group.create_task(client(enter, done))
        return {"cpu_s": cpu_s() - cpu, "holds": log}


def summary(answers: list[dict[str, Any]], clients: int, cpu: float, packets: int) -> dict[str, Any]:
    per_client = [done for answer in answers for done in answer["holds"]]
    holds = sorted((began, ended, who) for who, done in enumerate(per_client) for _, began, ended in done)
    if not holds:
        return {"acquisitions": 0}
    span = max(ended for _, ended, _ in holds) - holds[0][0]
    overlap = in_use = 0.0
    free_from = holds[0][0]
    for began, ended, _ in holds:
        overlap += max(0.0, min(ended, free_from) - began)
        in_use += max(0.0, ended - max(began, free_from))
        free_from = max(free_from, ended)
    waits = sorted(began - asked for done in per_client for asked, began, _ in done)
    counts = [len(done) for done in per_client]
    changes = sum(1 for one, two in pairwise(holds) if one[2] != two[2])
    return {
        "acquisitions": len(holds),
        "handovers_per_second": changes / span,
        "share_in_use": in_use / span,
        "overlap_s": overlap,
        "wait_p50_s": waits[len(waits) // 2],
        "wait_p99_s": waits[int(len(waits) * 0.99)],
        "jain": sum(counts) ** 2 / (clients * sum(count * count for count in counts)),
        "cpu_per_acquisition_us": cpu / len(holds) * 1e6,
        "packets_per_acquisition": packets / len(holds),
    }


def loopback_packets() -> int:
    """Everything that went over this machine's loopback: on a busy machine, others' packets too."""
    with open("/proc/net/dev", encoding="ascii") as devices:
        for line in devices:
            name, _, rest = line.partition(":")
            if name.strip() == "lo":
                return int(rest.split()[1])
    return 0


@asynccontextmanager
async def softmutex_doors(task: dict[str, Any]) -> AsyncIterator[Callable[[], Enter]]:
    from softmutex import Node

    async with Node(transport="udp://127.0.0.1:0", membership="local://softmutex-bench") as node:
        mutex = node.mutex(task["name"])
        yield lambda: mutex.hold


@asynccontextmanager
async def postgresql_doors(task: dict[str, Any]) -> AsyncIterator[Callable[[], Enter]]:
    import psycopg

    async with AsyncExitStack() as stack:
        spare = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(task["url"], autocommit=True))
            for _ in range(task["clients"])
        ]

        def make() -> Enter:
            connection = spare.pop()

            @asynccontextmanager
            async def enter() -> AsyncIterator[None]:
                await connection.execute("SELECT pg_advisory_lock(42)")
                try:
                    yield
                finally:
                    await connection.execute("SELECT pg_advisory_unlock(42)")

            return enter

        yield make


@asynccontextmanager
async def redis_doors(task: dict[str, Any]) -> AsyncIterator[Callable[[], Enter]]:
    from redis.asyncio import Redis

    client = Redis.from_url(task["url"])
    try:
        yield lambda: lambda: client.lock(task["name"], timeout=60)
    finally:
        await client.aclose()


BACKENDS: dict[str, Callable[[dict[str, Any]], AbstractAsyncContextManager[Callable[[], Enter]]]] = {
    "softmutex": softmutex_doors,
    "postgresql": postgresql_doors,
    "redis": redis_doors,
}
