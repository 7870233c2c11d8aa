"""What a registry bears: `python benchmarks/registry.py [--members 10000] [--json]`.

A registry with its embedded store runs in a process of its own, all members in this one. They are bare sockets that
speak HTTP, so that what is measured is the registry: with real clients this machine would measure those. Heartbeats
share some connections; every member has a stream of its own. One real client at the end is timed from call to call.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from softmutex_adapters.memberships.registry import RegistryMembership

from softmutex import Node
from softmutex.ports import Member

CONNECTIONS = 32
BEATS_EVERY_S = 20.0  # a third of the default lease
Figures = dict[str, Any]


class Watcher(asyncio.Protocol):
    """One stream. Knows the last version that it was told, and counts bytes."""

    waiting = 0
    all_told: "asyncio.Future[None] | None" = None
    last = b""

    def __init__(self) -> None:
        self.is_open = asyncio.get_running_loop().create_future()
        self.bytes = 0
        self.told_at: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        if not self.is_open.done() and b": here" in data:
            self.is_open.set_result(None)
        if Watcher.last and Watcher.last in data:
            self.told_at.append(time.perf_counter())
            Watcher.waiting -= 1
            if not Watcher.waiting and Watcher.all_told is not None and not Watcher.all_told.done():
                Watcher.all_told.set_result(None)


class Caller:
    """A connection that stays open; one request after the other."""

    async def open(self, port: int) -> "Caller":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def call(self, method: str, path: str, body: str = "") -> tuple[int, Any]:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write((head + body).encode())
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        told = await self.reader.readexactly(length)
        return int(answer.split()[1]), json.loads(told)


def put(number: int, lease: str) -> tuple[str, str, str]:
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:9431"
    body = json.dumps({"address": address, "id": f"{number:016x}", "name": f"worker-{number}"})
    return "PUT", f"/v1/groups/lab/members/{lease}", body


async def each(callers: Sequence[Caller], calls: Sequence[tuple[str, str, str]], rate: float = 0.0) -> Figures:
    """All calls over all callers, as fast as they are answered, or so many a second; how long each took."""
    took_ms: list[float] = []
    todo = iter(enumerate(calls))
    began = time.perf_counter()

    async def work(caller: Caller) -> None:
        for number, call in todo:
            if rate:
                await asyncio.sleep(began + number / rate - time.perf_counter())
            at = time.perf_counter()
            status, told = await caller.call(*call)
            assert status == 200, told
            took_ms.append((time.perf_counter() - at) * 1e3)

    await asyncio.gather(*map(work, callers))
    seconds = time.perf_counter() - began
    return {
        "count": len(calls),
        "seconds": round(seconds, 2),
        "per_second": round(len(calls) / seconds),
        "p50_ms": round(statistics.median(took_ms), 2),
        "p99_ms": round(sorted(took_ms)[int(len(took_ms) * 0.99)], 2),
    }


async def watch(port: int, leases: Sequence[str], after: int) -> list[Watcher]:
    loop = asyncio.get_running_loop()
    watchers: list[Watcher] = []
    for start in range(0, len(leases), 200):
        some = []
        for lease in leases[start : start + 200]:
            transport, watcher = await loop.create_connection(Watcher, "127.0.0.1", port)
            path = f"/v1/groups/lab/events?after={after}&lease={lease}"
            transport.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            some.append(watcher)
        await asyncio.gather(*(watcher.is_open for watcher in some))
        watchers += some
    return watchers


async def change(watchers: Sequence[Watcher], caller: Caller, call: tuple[str, str, str], mark: str) -> list[float]:
    """Seconds from the request of the change until each watcher has it."""
    Watcher.waiting, Watcher.last = len(watchers), mark.encode()
    Watcher.all_told = asyncio.get_running_loop().create_future()
    for watcher in watchers:
        watcher.told_at.clear()
    at = time.perf_counter()
    status, told = await caller.call(*call)
    assert status == 200, told
    async with asyncio.timeout(30):
        await Watcher.all_told
    Watcher.last = b""
    return [watcher.told_at[0] - at for watcher in watchers]


def spread(seconds: Sequence[float]) -> Figures:
    ordered = sorted(seconds)
    return {
        "first_ms": round(ordered[0] * 1e3, 1),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 1),
        "last_ms": round(ordered[-1] * 1e3, 1),
    }


class Server:
    def __init__(self, folder: str, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [str(Path(sys.executable).with_name("softmutex")), "registry", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--store", f"sqlite:{folder}/registry.db", "--insecure", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        with self.process.stdout as said:
            assert "public_key" in said.readline()
        self.seen = psutil.Process(self.process.pid)

    def memory_mib(self) -> float:
        return round(self.seen.memory_info().rss / 2**20, 1)

    def cpu_s(self) -> float:
        used = self.seen.cpu_times()
        return float(used.user + used.system)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


async def measure_load(server: Server, members: int) -> Figures:
    callers = [await Caller().open(server.port) for _ in range(CONNECTIONS)]
    leases = [secrets.token_urlsafe(24) for _ in range(members)]
    found: Figures = {"memory_empty_mib": server.memory_mib()}
    joins = [put(number, lease) for number, lease in enumerate(leases, 1)]
    found["registration"] = await each(callers, joins)
    found["memory_registered_mib"] = server.memory_mib()
    _, whole = await callers[0].call("GET", "/v1/groups/lab/members")
    found["whole_list_bytes"] = len(json.dumps(whole, separators=(",", ":")))
    at, cpu = time.perf_counter(), server.cpu_s()
    watchers = await watch(server.port, leases, whole["version"])
    found["streams"] = {"count": len(watchers), "seconds": round(time.perf_counter() - at, 2)}
    found["streams"]["server_cpu_s"] = round(server.cpu_s() - cpu, 2)
    found["memory_watched_mib"] = server.memory_mib()
    joined, left, cpu_s = [], [], []
    for number in range(members + 1, members + 6):
        lease, cpu = secrets.token_urlsafe(24), server.cpu_s()
        address = json.loads(put(number, lease)[2])["address"]
        joined.append(await change(watchers, callers[0], put(number, lease), address))
        cpu_s.append(server.cpu_s() - cpu)
        left.append(await change(watchers, callers[0], ("DELETE", put(number, lease)[1], ""), '"left":["'))
    found["a_member_joins"] = spread(max(joined, key=max)) | {"server_cpu_ms": round(max(cpu_s) * 1e3)}
    found["a_member_leaves"] = spread(max(left, key=max))
    rate, cpu, at = members / BEATS_EVERY_S, server.cpu_s(), time.perf_counter()
    beats = await each(callers, [joins[n % members] for n in range(int(rate * 10))], rate)
    found["heartbeats_as_usual"] = beats | {
        "server_cpu_percent": round((server.cpu_s() - cpu) / (time.perf_counter() - at) * 100)
    }
    found["heartbeats_as_many_as_go"] = await each(callers, joins)
    restless = [put(members + 100 + n, f"restless-lease-{n:04}") for n in range(20)]
    at, cpu, told = time.perf_counter(), server.cpu_s(), watchers[0].bytes
    await each(callers[:1], restless, 10.0)
    found["ten_joins_a_second"] = {
        "server_cpu_percent": round((server.cpu_s() - cpu) / (time.perf_counter() - at) * 100),
        "bytes_a_watcher_a_join": round((watchers[0].bytes - told) / len(restless)),
    }
    found["memory_at_the_end_mib"] = server.memory_mib()
    for watcher in watchers:
        watcher.transport.abort()
    for caller in callers:
        caller.writer.close()
    return found


async def measure_whole_lists(server: Server, watchers: int) -> Figures:
    """So many come at once and have nothing: what a cold start costs."""
    _, told = await (await Caller().open(server.port)).call("GET", "/v1/groups/lab/members")
    last, at, cpu = told["joined"][-1][1], time.perf_counter(), server.cpu_s()
    Watcher.waiting, Watcher.last = watchers, last.encode()
    Watcher.all_told = asyncio.get_running_loop().create_future()
    found = await watch(server.port, [secrets.token_urlsafe(24) for _ in range(watchers)], 0)
    await Watcher.all_told
    Watcher.last = b""
    seconds, bytes = time.perf_counter() - at, sum(watcher.bytes for watcher in found)
    for watcher in found:
        watcher.transport.abort()
    return {
        "count": watchers,
        "seconds": round(seconds, 2),
        "megabytes": round(bytes / 1e6),
        "server_cpu_s": round(server.cpu_s() - cpu, 2),
    }


async def measure_members(port: int, count: int) -> Figures:
    """Real members: from the call of `join` or `leave` until every other one shows it."""
    members = [RegistryMembership.from_url(f"registry+http://127.0.0.1:{port}/people") for _ in range(count)]
    for number, one in enumerate(members[1:], 1):
        await one.join(Member(f"10.0.0.1:{number}", number))

    async def seconds(act: Callable[[], Any], is_there: bool) -> float:
        async def shown(one: RegistryMembership) -> None:
            while ("10.0.0.1:9999" in [other.address for other in await one.watch()]) != is_there:
                pass

        for one in members[1:]:
            one._shown = None
        at = time.perf_counter()
        waiting = [asyncio.ensure_future(shown(one)) for one in members[1:]]
        await act()
        await asyncio.gather(*waiting)
        return time.perf_counter() - at

    joined = await seconds(lambda: members[0].join(Member("10.0.0.1:9999", 9999)), True)
    left = await seconds(members[0].leave, False)
    for one in members:
        await one.aclose()
    return {"members": count, "known_to_all_ms": round(joined * 1e3, 1), "gone_for_all_ms": round(left * 1e3, 1)}


async def measure_outage(folder: str, seconds: float) -> Figures:
    """Acquisitions a second of two nodes that both want the mutex all the time, before and after a kill -9."""
    server = Server(folder)
    url = f"registry+http://127.0.0.1:{server.port}/lab"
    nodes = [Node(transport="udp://127.0.0.1:0", membership=url, key=b"k" * 32) for _ in range(2)]
    async with nodes[0], nodes[1]:
        rates = []
        for turn in ("warm", "with", "without"):
            if turn == "without":
                server.process.kill()
                server.process.wait()
            counts = await asyncio.gather(*(acquire(node, seconds) for node in nodes))
            rates.append(sum(counts) / seconds)
    return {"acquisitions_a_second_with": int(rates[1]), "acquisitions_a_second_without": int(rates[2])}


async def acquire(node: Node, seconds: float) -> int:
    mutex, count, until = node.mutex("it"), 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        async with mutex:
            count += 1
    return count


async def run(members: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        wide = ["--rate-address", "1000000", "--rate-group", "1000000", "--ttl", "600"]
        server = Server(folder, *wide)
        try:
            found = await measure_load(server, members)
            found["whole_lists"] = await measure_whole_lists(server, min(members, 1000))
            found["real_members"] = await measure_members(server.port, 20)
        finally:
            server.end()
    with tempfile.TemporaryDirectory() as folder:
        found["outage"] = await measure_outage(folder, 5.0)
    return {"members": members, "processors": os.cpu_count()} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        import uvloop

        loop_factory: Any = uvloop.new_event_loop
    except ImportError:
        loop_factory = None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        found = runner.run(run(arguments.members))
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        shown = "  ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value
        print(f"{name:26} {shown}")


if __name__ == "__main__":
    main()
