"""What security costs and holds: `python benchmarks/security.py [--rounds N] [--json] [--only seal,flood,...]`.

    seal       a token's hop between two nodes on loopback, with sealed frames and without       at most 1.15 times
    identity   the same with signed hand-overs                                                   told, no limit
    flood      p99 of a hop under 20,000 garbage or forged frames a second                      at most twice, no growth
    replay     an hour of a real group, recorded to the last frame, played back at full speed    nothing accepted
    registry   acquisitions a second while the registry is down                                  as before

All are ratios of things that took turns in one run, so that a busy machine is busy for all of them; the median of the
rounds counts. Traffic goes to loopback only, and is bounded: FLOOD_RATE frames a second for some seconds.

The hour of `replay` is virtual: the group's nodes, machines and seals are the real ones, the clock is not, and every
frame that was sent in it is kept. The outage of `registry` is shorter than an hour, and so is the lease (1 s instead of
60 s): what ends in an outage are leases and back-offs, and it lasts as many leases as an hour has with the default.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from softmutex_adapters.memberships.static import StaticMembership

from softmutex import Node
from softmutex.cli.benching.rounds import InterleavedRounds
from softmutex.core.messages import Withdraw
from softmutex.core.wire import Frame
from softmutex.runtime import keyfile
from softmutex.runtime.identity import Vouching, issue
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, MemoryTransport, virtual_time

KEY = bytes(range(32))
FLOOD_RATE = 20_000
PHASE_S = 2.0
HOPS = 400
HOLD_S = 0.01  # where acquisitions a second are counted
Figures = dict[str, Any]


# --- seal, identity: two nodes in this process, so that nothing of their work is hidden on another core ---------------


@contextlib.asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Node, Node]]:
    async with Node(transport="udp://127.0.0.1:0", membership="static://127.0.0.1:1", **options) as a:
        port = a.address.rpartition(":")[2]
        async with Node(transport="udp://127.0.0.1:0", membership=f"static://127.0.0.1:{port}", **options) as b:
            async with asyncio.timeout(10):
                while not (a.peers() and b.peers()):  # noqa: ASYNC110 nobody tells
                    await asyncio.sleep(0.01)
            await hop_us((a, b), 50)  # the first ones find each other
            yield a, b


async def hop_us(nodes: Sequence[Node], hops: int = HOPS) -> float:
    """Both want it all the time and hold it for no time: how long a token takes from one to the other."""
    before = handed_over(nodes)

    async def work(node: Node) -> None:
        mutex = node.mutex("x")
        for _ in range(hops // 2):
            async with mutex:
                pass

    began = time.perf_counter()
    await asyncio.gather(*map(work, nodes))
    return (time.perf_counter() - began) / max(1, handed_over(nodes) - before) * 1e6


def handed_over(nodes: Sequence[Node]) -> int:
    return sum(node.mutex("x").statistics().facts.get("handed_over", 0) for node in nodes)


class AnswersAtOnce(StaticMembership):
    """An authority that needs no server."""

    group = "lab"

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"])
        self._authority = Vouching(group=0, authority=b"", authority_group="lab", required=False, secret=bytes(32))
        self.public_key = self._authority.public

    async def certify(self, name: str, public: bytes, proof: bytes) -> bytes:
        now = int(time.time())
        return issue(self._authority.prove, name, public, "lab", now, now + 3600)


async def measure_seal(rounds: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        identity = Path(folder, "identity")
        keyfile.make(identity)
        papers = {"identity": identity, "require_identity": True, "authority": AnswersAtOnce()}
        return await measure_seals(rounds, papers)


async def measure_seals(rounds: int, papers: dict[str, Any]) -> Figures:
    async with pair() as plain, pair(key=KEY) as sealed, pair(key=KEY, **papers) as signed:
        pairs = {"plain": plain, "sealed": sealed, "signed": signed}
        taken = await InterleavedRounds.arun({name: partial(hop_us, nodes) for name, nodes in pairs.items()}, rounds)
    return {
        "hop_us": round(taken.fastest("plain")),
        "hop_sealed_us": round(taken.fastest("sealed")),
        "hop_signed_us": round(taken.fastest("signed")),
        "sealed / not sealed": round(taken.ratio("sealed", "plain"), 3),
        "signed / sealed": round(taken.ratio("signed", "sealed"), 2),
    }


# --- workers: nodes in processes of their own -------------------------------------------------------------------------


async def serve_as_worker(options: dict[str, Any]) -> None:
    """One node that acquires all the time. For each line of input: what it waited since the last one for the token to
    come from elsewhere."""
    hold_s = options.pop("hold_s", 0.0)
    if "key" in options:
        options["key"] = base64.b64decode(options["key"])
    loop, waited, reader = asyncio.get_running_loop(), list[float](), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Node(**options) as node:
        mutex = node.mutex("x")

        async def work() -> None:
            last = (0, 0)
            while True:
                async with mutex as hold:
                    if (hold.epoch, hold.hop) != last:
                        waited.append(hold.waited)
                    last = (hold.epoch, hold.hop)
                    if hold_s:
                        await asyncio.sleep(hold_s)

        working = asyncio.create_task(work())
        print(json.dumps({"address": node.address, "pid": os.getpid()}), flush=True)
        while await reader.readline():
            batch, waited[:] = list(waited), []
            counted = node.statistics()
            told = {"dropped": dict(counted.dropped), "peers": counted.peers, "cpu_s": time.process_time()}
            told["acquired"] = mutex.statistics().acquisitions
            print(json.dumps({"waited": batch, **told}), flush=True)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


class Worker:
    def __init__(self, **options: Any) -> None:
        command = [sys.executable, __file__, "--worker", json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.born = self._hears()

    def _hears(self) -> dict[str, Any]:
        assert self.process.stdout
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def tells(self) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._hears()

    @property
    def port(self) -> int:
        return int(self.born["address"].rpartition(":")[2])

    @property
    def resident_kb(self) -> int:
        lines = Path(f"/proc/{self.born['pid']}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def ends(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@contextlib.contextmanager
def crew(*options: Callable[[Sequence[Worker]], dict[str, Any]]) -> Iterator[list[Worker]]:
    """Workers, each of which may be told of those before it."""
    workers: list[Worker] = []
    try:
        for option in options:
            workers.append(Worker(**option(workers)))
        deadline = time.monotonic() + 20
        while any(worker.tells()["peers"] + 1 < len(workers) for worker in workers):
            assert time.monotonic() < deadline, "they do not meet"
            time.sleep(0.1)
        time.sleep(0.5)
        yield workers
    finally:
        for worker in workers:
            worker.ends()


def phase(workers: Sequence[Worker], during: Callable[[], object]) -> Figures:
    """What they waited while something happened, both hops of it: to the other one and back."""
    before = [worker.tells() for worker in workers]
    began = time.perf_counter()
    during()
    after = [worker.tells() for worker in workers]
    seconds = time.perf_counter() - began
    waited = sorted(wait for told in after for wait in told["waited"])
    return {
        "a_second": sum(new["acquired"] - old["acquired"] for old, new in zip(before, after, strict=True)) / seconds,
        "hops_a_second": len(waited) / seconds,
        "p50_us": quantile(waited, 0.5) / 2 * 1e6,
        "p99_us": quantile(waited, 0.99) / 2 * 1e6,
        "cpu": sum(new["cpu_s"] - old["cpu_s"] for old, new in zip(before, after, strict=True)) / seconds,
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


# --- flood ------------------------------------------------------------------------------------------------------------


def garbage(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 1400))


def forger(chance: random.Random) -> Callable[[random.Random], bytes]:
    """Frames that look right in everything that can be read without the key: made with the right key id."""
    number = next(iter(KeyRing.of(KEY).keys))
    strangers = [Sealer(KeyRing({number: bytes(32)}, number), "default", 1 + chance.getrandbits(63)) for _ in range(64)]

    def forge(chance: random.Random) -> bytes:
        stranger = chance.choice(strangers)
        return stranger.seal(Frame(stranger.me, 1 + chance.getrandbits(63), "x", Withdraw(chance.getrandbits(64))))

    return forge


def serve_as_flooder(kind: str, ports: Sequence[int], seconds: float) -> None:
    """FLOOD_RATE frames a second in all, in bursts of a millisecond's worth; says how many it sent."""
    chance = random.Random(1)
    make = garbage if kind == "garbage" else forger(chance)
    frames = [make(chance) for _ in range(4000)]
    sent, began = 0, time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * FLOOD_RATE:
                stranger.sendto(frames[sent % len(frames)], ("127.0.0.1", ports[sent % len(ports)]))
                sent += 1
            time.sleep(0.001)
    print(sent, flush=True)


def flood(kind: str, ports: Sequence[int]) -> int:
    command = [sys.executable, __file__, "--flooder", json.dumps([kind, list(ports), PHASE_S])]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def measure_flood(rounds: int) -> Figures:
    key = base64.b64encode(KEY).decode()
    url = {"transport": "udp://127.0.0.1:0", "key": key}
    figures: Figures = {}
    with crew(
        lambda _: {**url, "membership": "static://127.0.0.1:1"},
        lambda others: {**url, "membership": f"static://127.0.0.1:{others[0].port}"},
    ) as workers:
        ports = [worker.port for worker in workers]
        for kind in ("garbage", "forged"):
            phase(workers, lambda kind=kind: flood(kind, ports))  # type: ignore[misc]
            grown_from, sent, calm, flooded = [worker.resident_kb for worker in workers], 0, [], []
            for _ in range(rounds):
                calm.append(phase(workers, lambda: time.sleep(PHASE_S)))
                counts: list[int] = []
                flooded.append(phase(workers, lambda kind=kind, into=counts: into.append(flood(kind, ports))))  # type: ignore[misc]
                sent += sum(counts)
            grown = max(worker.resident_kb - was for worker, was in zip(workers, grown_from, strict=True))
            p99, p50 = (
                InterleavedRounds([{"calm": a[what], "flooded": b[what]} for a, b in zip(calm, flooded, strict=True)])
                for what in ("p99_us", "p50_us")
            )
            figures[kind] = {
                "frames_a_second": round(sent / (rounds * PHASE_S)),
                "p99_us": round(p99.median("calm")),
                "p99_flooded_us": round(p99.median("flooded")),
                "p99 flooded / calm": round(p99.ratio("flooded", "calm"), 2),
                "p50 flooded / calm": round(p50.ratio("flooded", "calm"), 2),
                "grown_kb": grown,
            }
        figures["dropped"] = [worker.tells()["dropped"] for worker in workers]
    return figures


# --- replay -----------------------------------------------------------------------------------------------------------


class Tape(MemoryTransport):
    """Keeps all that was sent to it."""

    def __init__(self, network: MemoryNetwork, address: str, frames: list[tuple[str, bytes]]) -> None:
        super().__init__(network, address)
        self._frames = frames

    def send(self, address: str, payload: bytes) -> None:
        self._frames.append((address, payload))
        super().send(address, payload)


async def record_and_replay(hour_s: float) -> Figures:
    network, taped = MemoryNetwork(seed=1, delay=0.0005), list[tuple[str, bytes]]()
    chance = random.Random(1)
    names = ("a", "b", "c")

    def node(name: str) -> Node:
        return Node(transport=Tape(network, name, taped), membership=network.membership(), key=KEY, name=name)

    async def work(one: Node) -> None:
        while True:
            async with one.mutex("x"):
                await asyncio.sleep(chance.expovariate(2.0))
            await asyncio.sleep(chance.expovariate(1.0))

    nodes = [node(name) for name in names]
    for one in nodes:
        await one.open()
    working = [asyncio.create_task(work(one)) for one in nodes]
    await asyncio.sleep(hour_s)
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    await asyncio.sleep(10)  # what is on its way arrives
    acquired = sum(one.mutex("x").statistics().acquisitions for one in nodes)
    frames = list(taped)
    same = replay(nodes, frames)
    for one in nodes:
        await one.close()
    again = [node(name) for name in names]
    for one in again:
        await one.open()
    restarted = replay(again, frames)
    for one in again:
        await one.close()
    return {"acquisitions": acquired, "frames": len(frames), "same lives": same, "restarted": restarted}


def replay(nodes: Sequence[Node], frames: Sequence[tuple[str, bytes]]) -> Figures:
    """To whom they were sent, at full speed, past the transport. What is opened, and what refused."""
    seals = {node.address: node.running().seal for node in nodes}
    before = {address: dict(seal.refusals) for address, seal in seals.items()}
    accepted = greetings = 0
    began = time.perf_counter()
    for address, payload in frames:
        opened = seals[address].open(payload)
        if isinstance(opened, Frame):
            greetings += not opened.receiver
            accepted += bool(opened.receiver)
    seconds = time.perf_counter() - began
    refused: dict[str, int] = {}
    for address, seal in seals.items():
        for why, count in seal.refusals.items():
            refused[why.value] = refused.get(why.value, 0) + count - before[address][why]
    told = {why: count for why, count in refused.items() if count}
    return {
        "accepted": accepted,
        "greetings, answered by a cookie": greetings,
        "refused": told,
        "frames_a_second": round(len(frames) / seconds),
    }


def measure_replay(hour_s: float) -> Figures:
    with virtual_time() as runner:
        return runner.run(record_and_replay(hour_s))


# --- registry ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_registry(folder: Path, port: int) -> Iterator[str]:
    """Its public key."""
    program = "import sys; from softmutex.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "registry", "--ttl", "1", "--listen", f"127.0.0.1:{port}"]
    command += ["--store", f"sqlite:{folder}/registry.db", "--insecure"]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().strip().rpartition("=")[2]
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout
        process.stdout.close()


def measure_registry(outage_s: float) -> Figures:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        keyfile.make(folder / "key")
        options: dict[str, Any] = {
            "transport": "udp://127.0.0.1:0",
            "key": base64.b64encode(KEY).decode(),
            "hold_s": HOLD_S,
        }
        options["membership"] = f"registry+http://127.0.0.1:{port}/bench?report=no"
        with a_registry(folder, port):
            workers = stack.enter_context(crew(lambda _: options, lambda _: options, lambda _: options))
            up = [phase(workers, lambda: time.sleep(PHASE_S)) for _ in range(3)]
        down = [phase(workers, lambda: time.sleep(PHASE_S)) for _ in range(max(1, round(outage_s / PHASE_S)))]
        peers = [worker.tells()["peers"] for worker in workers]
        with a_registry(folder, port):
            time.sleep(3)
            up += [phase(workers, lambda: time.sleep(PHASE_S)) for _ in range(3)]
        here, there = ([one["a_second"] for one in phases] for phases in (up, down))
        return {
            "outage_s": round(len(down) * PHASE_S),
            "leases_of_1_s": round(len(down) * PHASE_S),
            "a_second": round(statistics.median(here)),
            "a_second_down": round(statistics.median(there)),
            "down / up": round(statistics.median(there) / statistics.median(here), 3),
            "worst 2 s down / median up": round(min(there) / statistics.median(here), 2),
            "peers_known_at_the_end_of_the_outage": peers,
        }


# --- all of it --------------------------------------------------------------------------------------------------------


def verdicts(figures: Figures) -> dict[str, bool]:
    """What must hold; only of what was measured."""
    told: dict[str, bool] = {}
    if seal := figures.get("seal"):
        told["sealing costs at most 15 % of a hop"] = seal["sealed / not sealed"] <= 1.15
    for kind in ("garbage", "forged"):
        if flooded := figures.get("flood", {}).get(kind):
            told[f"{kind}: p99 at most doubles"] = flooded["p99 flooded / calm"] <= 2.0
            told[f"{kind}: no growth"] = flooded["grown_kb"] < 2048
    for lives in ("same lives", "restarted"):
        if replayed := figures.get("replay", {}).get(lives):
            told[f"replay, {lives}: nothing accepted"] = replayed["accepted"] == 0
    if registry := figures.get("registry"):
        told["registry down: acquisitions unchanged (within 10 %)"] = registry["down / up"] >= 0.9
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hour", type=float, default=3600.0, metavar="S", help="virtual seconds that are recorded")
    parser.add_argument("--outage", type=float, default=60.0, metavar="S", help="how long the registry is down")
    parser.add_argument("--only", default="seal,flood,replay,registry")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--flooder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        asyncio.run(serve_as_worker(json.loads(arguments.worker)))
        return
    if arguments.flooder:
        serve_as_flooder(*json.loads(arguments.flooder))
        return
    measured: dict[str, Callable[[], Figures]] = {
        "seal": lambda: asyncio.run(measure_seal(4 * arguments.rounds)),
        "flood": lambda: measure_flood(arguments.rounds),
        "replay": lambda: measure_replay(arguments.hour),
        "registry": lambda: measure_registry(arguments.outage),
    }
    figures: Figures = {name: measured[name]() for name in arguments.only.split(",")}
    figures["verdicts"] = verdicts(figures)
    print(json.dumps(figures) if arguments.json else written(figures))
    sys.exit(not all(figures["verdicts"].values()))


def written(figures: Figures, indent: int = 0) -> str:
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += [f"{' ' * indent}{name}", written(value, indent + 2)]
        else:
            lines.append(f"{' ' * indent}{name:{52 - indent}} {value}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
