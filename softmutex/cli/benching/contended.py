"""Many clients want one mutex: hand-overs, use, waits, fairness, the worst client, and what each costs.

In the field each client is mostly a process or a host of its own, so a node of its own. Three shapes tell what that is:

    a node for each client      clients in four processes, each client with a node: the protocol, without the tax of
                                more processes than cores
    a process for each client   the same as it is on a host, with that tax
    a node for each process     clients in four processes share four nodes: most hand-overs stay within a process

Beside ours: advisory locks of a real PostgreSQL, and redis-py's `Lock` on a real Redis, started here with the settings
that their users would have, a connection for each client. All clients begin at one moment and stop asking at another;
holds that began before the end are let finish. A hand-over is a hold that follows the hold of another client. A round
is as long as each client takes to be served once, on average; the longest gap of a client is the longest time in which
it was not served although it asked, in rounds. Jain's index is told twice: of the whole run, and from when each has
been served once. Until the first tickets arrive, whoever came first uses the mutex alone: with holds of no time and
hosts far from each other that is most of all acquisitions of a short run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from enum import StrEnum
from itertools import cycle, pairwise
from typing import Any

from softmutex.cli.benching import servers
from softmutex.cli.benching.workers import Line, cpu_s, in_processes
from softmutex.sim.result import jain

PROCESSES = 4
NAME = "bench-contended"
PATIENCE_S = 60.0  # until the nodes of one run know each other
Enter = Callable[[], AbstractAsyncContextManager[object]]
Span = tuple[float, float, float]  # when a client asked, was in and was out


class Shape(StrEnum):
    NODES = "a node for each client"
    PROCESSES = "a process for each client"
    SHARED = "a node for each process"


async def measure(
    backend: str, clients: int, hold_s: float, duration_s: float, shape: Shape = Shape.NODES
) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        url, server = "", 0
        if backend != "softmutex":
            url, server = await stack.enter_async_context(getattr(servers, backend)())
        processes = clients if shape is Shape.PROCESSES else min(PROCESSES, clients)
        name = f"{NAME}-{clients}"
        task = {
            "backend": backend,
            "url": url,
            "hold_s": hold_s,
            "duration_s": duration_s,
            "name": name,
            "nodes": processes if shape is Shape.SHARED else clients,
            "is_shared": shape is Shape.SHARED,
            "node": {"transport": "udp://127.0.0.1:0", "membership": f"local://{name}"},
        }
        shares = [clients // processes + (i < clients % processes) for i in range(processes)]
        cpu, packets = servers.cpu_of_tree_s(server) if server else 0.0, loopback_packets()
        answers = await in_processes(f"{__name__}:work", [{**task, "clients": share} for share in shares])
        packets = loopback_packets() - packets
        cpu = (servers.cpu_of_tree_s(server) if server else 0.0) - cpu
    cpu += sum(answer["cpu_s"] for answer in answers)
    head = {"backend": backend, "shape": str(shape), "clients": clients, "hold_s": hold_s}
    return {**head, **summary(answers, clients, cpu, packets)}


async def work(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    log: list[list[Span]] = [[] for _ in range(task["clients"])]
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(BACKENDS[task["backend"]](task))
        doors = [make() for _ in range(task["clients"])]
        await ready()
        cpu, end = cpu_s(), time.monotonic() + task["duration_s"]

        async def client(enter: Enter, done: list[Span]) -> None:
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
    first_round = max((done[0][1] for done in per_client if done), default=0.0)
    later = [sum(began >= first_round for _, began, _ in done) for done in per_client]
    round_s = span * clients / len(holds)
    end = max(asked for done in per_client for asked, _, _ in done)
    gaps = [longest_gap(done, holds[0][0], end) for done in per_client]
    changes = sum(1 for one, two in pairwise(holds) if one[2] != two[2])
    return {
        "acquisitions": len(holds),
        "acquisitions_per_second": len(holds) / span,
        "handovers_per_second": changes / span,
        "share_in_use": in_use / span,
        "overlap_s": overlap,
        "wait_p50_s": waits[len(waits) // 2],
        "wait_p99_s": waits[int(len(waits) * 0.99)],
        "jain": jain(counts),
        "jain_after_first_round": jain(later),
        "fewest_of_a_client": min(counts),
        "longest_gap_s": max(gaps),
        "longest_gap_rounds": max(gaps) / round_s,
        "cpu_per_acquisition_us": cpu / len(holds) * 1e6,
        "packets_per_acquisition": packets / len(holds),
    }


def longest_gap(done: list[Span], begin: float, end: float) -> float:
    """The longest time that a client was out, between the first hold of all and the last time that anybody asked."""
    edges = [begin, *(began for _, began, _ in done), end]
    return max(max(0.0, later - earlier) for earlier, later in pairwise(edges))


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

    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(**task["node"]))
            for _ in range(1 if task["is_shared"] else task["clients"])
        ]
        async with asyncio.timeout(PATIENCE_S):
            while any(len(node.peers()) + 1 < task["nodes"] for node in nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        doors = cycle([node.mutex(task["name"]).hold for node in nodes])
        yield lambda: next(doors)


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

MOST_PROCESSES = 32  # more clients than that are not given a process each


def beside_each_other(clients: int) -> list[tuple[Shape, str]]:
    """What is measured of so many clients; to the others a shape makes no difference but the number of processes."""
    ours = [shape for shape in Shape if shape is not Shape.PROCESSES or clients <= MOST_PROCESSES]
    others = [backend for backend in BACKENDS if backend != "softmutex"]
    return [*((shape, "softmutex") for shape in ours), *((Shape.NODES, backend) for backend in others)]
