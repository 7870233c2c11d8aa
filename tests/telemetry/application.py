"""An application like any other: it sets up the SDK and uses a mutex. Nothing in it knows of softmutex's telemetry.

    python application.py otlp MEMBERSHIP HOLDS         exports where OTEL_EXPORTER_OTLP_ENDPOINT says
    python application.py prometheus MEMBERSHIP HOLDS   is scraped at the port that it prints

It prints `ready` when it knows OTHERS (environment) others, and begins on a line of standard input; then it prints
`done`, and leaves on the next line.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import start_http_server

from softmutex import AcquireTimeout, Node


def set_up(how: str) -> None:
    resource = Resource.create({"service.name": "application", "process.pid": os.getpid()})
    reader: MetricReader
    if how == "otlp":
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    else:
        reader = PrometheusMetricReader()
        server, _ = start_http_server(0, "127.0.0.1")
        say(str(server.server_port))
    metrics.set_meter_provider(MeterProvider([reader], resource=resource))


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


async def line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def main(how: str, membership: str, holds: str) -> None:
    set_up(how)
    came_from = TraceContextTextMapPropagator().extract(os.environ)
    async with Node(transport="udp://127.0.0.1:0", membership=membership) as node:
        while len(node.peers()) < int(os.environ.get("OTHERS", "0")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        say("ready")
        await line()
        with trace.get_tracer("application").start_as_current_span("job", came_from):
            mutex = node.mutex("nightly-ftp", max_hold=0.001)
            for _ in range(int(holds)):
                async with mutex:
                    await asyncio.sleep(0.005)
            async with mutex:
                with suppress(AcquireTimeout):
                    await asyncio.create_task(try_it(node))
        say("done")
        await line()
    if how == "otlp":
        trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]
        metrics.get_meter_provider().shutdown()  # type: ignore[attr-defined]


async def try_it(node: Node) -> None:
    async with node.mutex("nightly-ftp").hold(timeout=0):
        pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
