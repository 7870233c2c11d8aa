"""What one hop of the token costs, next to a bare UDP ping-pong; and what taking a parked mutex again costs.

The hop: two processes, one task each, that want the mutex all the time and hold it for no time: every acquisition is a
hand-over. The ping-pong: two processes that send a datagram of a token's size back and forth with nothing but asyncio's
own datagram endpoints, half before and half after the hops, since the machine is shared.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from typing import Any

from softmutex.cli.benching import servers
from softmutex.cli.benching.contended import measure as measure_contended
from softmutex.cli.benching.workers import Line, in_processes

DATAGRAM = bytes(160)
END = b"."  # asyncio sends no empty datagram before Python 3.12


async def measure_hop(duration_s: float) -> dict[str, Any]:
    before = await ping_pong(duration_s / 2)
    hops = await measure_contended("softmutex", 2, 0.0, duration_s)
    after = await ping_pong(duration_s / 2)
    round_trip, hop = (before + after) / 2, 1 / hops["handovers_per_second"]
    return {
        "hop_us": hop * 1e6,
        "ping_pong_us": round_trip * 1e6,
        "ratio": hop / round_trip,
        "packets_per_hop": hops["packets_per_acquisition"],
    }


async def ping_pong(duration_s: float) -> float:
    """Seconds a round trip, both ends in processes of their own."""
    ports = [servers.free_port(), servers.free_port()]
    roles = [
        {"mine": ports[i], "theirs": ports[1 - i], "serve": i == 0, "duration_s": duration_s}
        for i in range(2)  # the first one only answers
    ]
    answers = await in_processes(f"{__name__}:bounce", roles)
    return float(answers[1]["round_trip_s"])


async def bounce(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    class Bouncer(asyncio.DatagramProtocol):
        count = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
            self.count += 1
            if over.done():
                return
            if data == END:
                over.set_result(None)
            else:
                self.transport.sendto(DATAGRAM, addr)  # type: ignore[attr-defined]

    transport, bouncer = await loop.create_datagram_endpoint(
        Bouncer, local_addr=("127.0.0.1", task["mine"]), family=socket.AF_INET
    )
    await ready()
    began = time.monotonic()
    if task["serve"]:
        await over
    else:
        transport.sendto(DATAGRAM, ("127.0.0.1", task["theirs"]))
        await asyncio.sleep(task["duration_s"])
        over.set_result(None)
        transport.sendto(END, ("127.0.0.1", task["theirs"]))
    took = time.monotonic() - began
    transport.close()
    return {"round_trip_s": took / max(1, bouncer.count)}


async def measure_parked(times: int) -> dict[str, Any]:
    """Taking and releasing a free mutex whose token is here already, in a group of two."""
    from softmutex import Node

    node, other = (Node(transport="udp://127.0.0.1:0", membership="local://softmutex-bench-parked") for _ in range(2))
    async with node, other:
        mutex = node.mutex("parked")
        other.mutex("parked")
        async with mutex:
            pass
        before = sum(mutex.statistics().sent.values())
        took = []
        for _ in range(times):
            began = time.perf_counter()
            async with mutex:
                pass
            took.append(time.perf_counter() - began)
        messages = sum(mutex.statistics().sent.values()) - before
    lock = asyncio.Lock()
    took_by_lock = []
    for _ in range(times):
        began = time.perf_counter()
        async with lock:
            pass
        took_by_lock.append(time.perf_counter() - began)
    median, by_lock = statistics.median(took), statistics.median(took_by_lock)
    return {
        "median_us": median * 1e6,
        "asyncio_lock_us": by_lock * 1e6,
        "ratio": median / by_lock,
        "messages": messages,
    }
