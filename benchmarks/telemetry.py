"""What telemetry costs a hop: `python benchmarks/telemetry.py [--json] [--rounds N]`, with the extra `otel` installed.

Two processes want one mutex all the time and hold it for no time, so that every acquisition is a hand-over. Each has a
node for every way to be told of it, and they take turns, a slot each, so that a busy machine is busy for all of them:

    off            no observer
    api            as installed: opentelemetry-api is imported, nobody has set up an SDK
    sdk            SDK, batch span processor and periodic metric reader, both over OTLP/HTTP to a receiver
    sdk, hung      the same to a receiver that takes connections and never answers
    sdk, all       as `sdk`, but each single acquisition is traced; by default it is 50 a second after the first 1000

`sdk` and `hung` are measured where the first 1000 are over. Costs are medians, over all rounds, of how much more a hop
took than without an observer in the same round: of time, and of the processor's time, exporting included, which other
programs of a busy machine disturb less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from softmutex_adapters.observers.otel import TRACED_A_SECOND, OpenTelemetry

from softmutex import Node, SoftMutex
from softmutex.cli.benching.rounds import InterleavedRounds
from softmutex.cli.benching.workers import Line, in_processes

SLOT_S, PAUSE_S = 0.5, 0.1
METRICS_EVERY_MS = 10_000  # six times as often as by default; spans as by default, each 5 s or 512
MODES = ("off", "api", "sdk", "sdk, hung", "sdk, all")


def observers(mode: str, task: dict[str, Any]) -> list[OpenTelemetry]:
    if mode == "off":
        return []
    if mode == "api":
        return [OpenTelemetry()]
    url = f"http://127.0.0.1:{task['hung' if mode == 'sdk, hung' else 'receiver']}"
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{url}/v1/traces", timeout=2)
    tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics", timeout=2), METRICS_EVERY_MS)
    meter_provider = MeterProvider([reader], shutdown_on_exit=False)
    # The others' slots are not this one's to save up for.
    a_second = float("inf") if mode == "sdk, all" else TRACED_A_SECOND / len(MODES)
    return [
        OpenTelemetry(
            tracer_provider=tracer_provider, meter_provider=meter_provider, traced_at_once=10, traced_a_second=a_second
        )
    ]


async def work(task: dict[str, Any], ready: Line) -> dict[str, Any]:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # that nobody answers is what is measured
    async with AsyncExitStack() as stack:
        mutexes = {}
        for number, mode in enumerate(MODES):
            group = f"local://softmutex-bench-telemetry-{number}"
            node = Node(transport="udp://127.0.0.1:0", membership=group, observers=observers(mode, task))
            mutexes[mode] = (await stack.enter_async_context(node)).mutex("telemetry")
        await ready()
        counts: dict[str, list[tuple[int, float]]] = {mode: [] for mode in MODES}
        at = task["begin"]
        for turn in range(task["rounds"]):
            for mode in (*MODES[turn % len(MODES) :], *MODES[: turn % len(MODES)]):
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                counts[mode].append(await use(mutexes[mode], at + SLOT_S))
                at += SLOT_S + PAUSE_S
        print(json.dumps(counts), flush=True)
        os._exit(0)  # the hung exporters would be waited for


async def use(mutex: SoftMutex, end: float) -> tuple[int, float]:
    """How often it was had, and what that took of the processor."""
    count, began = 0, time.process_time()
    while time.monotonic() < end:
        async with mutex:
            count += 1
    return count, time.process_time() - began


def receiver() -> tuple[socket.socket, Callable[[], Any]]:
    listening = socket.create_server(("127.0.0.1", 0))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return listening, lambda: asyncio.start_server(answer, sock=listening)


async def measure(rounds: int) -> dict[str, Any]:
    hung = socket.create_server(("127.0.0.1", 0), backlog=1000)
    listening, serve = receiver()
    async with await serve():
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        setup_s = 15.0
        task = {
            "rounds": rounds,
            "begin": time.monotonic() + setup_s,
            "hung": hung.getsockname()[1],
            "receiver": listening.getsockname()[1],
        }
        one, other = await in_processes("telemetry:work", [task, task])
    hung.close()
    slots = {mode: list(zip(one[mode], other[mode], strict=True)) for mode in MODES}
    turns = [dict(zip(MODES, turn, strict=True)) for turn in zip(*slots.values(), strict=True)]
    hop_us = InterleavedRounds(
        [{mode: SLOT_S / (a[0] + b[0]) * 1e6 for mode, (a, b) in turn.items()} for turn in turns]
    )
    cpu_us = InterleavedRounds(
        [{mode: (a[1] + b[1]) / (a[0] + b[0]) * 1e6 for mode, (a, b) in turn.items()} for turn in turns]
    )
    return {
        mode: {
            "hop_us": round(hop_us.median(mode), 1),
            "cost": round(hop_us.ratio(mode, "off") - 1, 3),
            "cpu_us": round(cpu_us.median(mode), 1),
            "cpu_cost": round(cpu_us.ratio(mode, "off") - 1, 3),
        }
        for mode in MODES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.rounds))
    if arguments.json:
        print(json.dumps(result))
        return
    for mode, figures in result.items():
        time_, cpu = (f"{figures[f'{what}_us']:>8}" for what in ("hop", "cpu"))
        print(f"  {mode:12} {time_} us a hop {figures['cost']:>+8.1%} {cpu} us of cpu {figures['cpu_cost']:>+8.1%}")


if __name__ == "__main__":
    sys.exit(main())
