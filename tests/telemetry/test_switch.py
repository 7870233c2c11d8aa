"""On when an SDK is set up, else asleep; and what goes wrong in it never reaches the application."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from softmutex_adapters.observers.otel import OpenTelemetry

from softmutex import Node, plugins
from softmutex.testing import MemoryNetwork
from tests.runtime.group import until
from tests.telemetry.sdk import Kept

USE = """
import asyncio, sys
from softmutex import Node

async def use(mutex):
    async with mutex:
        pass

def imported():
    return sorted(name for name in sys.modules if name.startswith("opentelemetry"))
"""


def run(code: str, **environ: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE + code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip()


ONE_USE = """
async def main():
    async with Node(transport="memory://a", membership="memory://a") as node:
        await use(node.mutex("x"))
        assert "observers" not in node.statistics().told
"""


def test_without_an_sdk_not_even_the_api_is_imported():
    assert run(ONE_USE + "asyncio.run(main())\nprint(imported())") == "[]"


def test_with_the_api_alone_nothing_is_made():
    code = ONE_USE + (
        "import opentelemetry.trace, opentelemetry.metrics\nasyncio.run(main())\n"
        "print([name for name in sys.modules if name in "
        "('softmutex_adapters.observers.spans', 'softmutex_adapters.observers.meters', 'opentelemetry.sdk')])"
    )
    assert run(code) == "[]"


SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()

def set_up():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
"""
SHOW = "asyncio.run(main())\nprint([span.name for span in kept.get_finished_spans()])"


def test_an_sdk_of_the_process_is_used_without_a_word_to_softmutex():
    assert run(SET_UP + ONE_USE + "set_up()\n" + SHOW) == "['softmutex.wait', 'softmutex.hold']"


def test_an_sdk_that_is_set_up_later_wakes_nodes_that_are_open():
    code = """
async def main():
    async with Node(transport="memory://a", membership="memory://a") as node:
        await use(node.mutex("x"))
        set_up()
        while not kept.get_finished_spans():
            await use(node.mutex("x"))
"""
    assert run(SET_UP + code + SHOW) == "['softmutex.wait', 'softmutex.hold']"


def test_it_can_be_switched_off_by_the_environment():
    assert run(SET_UP + ONE_USE + "set_up()\n" + SHOW, SOFTMUTEX_OBSERVERS=",") == "[]"


def test_it_is_installed_as_opentelemetry():
    [observer] = plugins.observers(["opentelemetry"])
    assert observer is plugins.observers(["opentelemetry"])[0], "one for all nodes of a process"
    assert isinstance(observer, OpenTelemetry)


# --- what goes wrong in it -------------------------------------------------------------------------------------------


class Broken(SpanProcessor):
    def on_start(self, span: Span, parent_context: object = None) -> None:
        raise ZeroDivisionError("telemetry is broken")

    def on_end(self, span: ReadableSpan) -> None:
        raise ZeroDivisionError("telemetry is broken")


async def use(node: Node, times: int = 1) -> None:
    for _ in range(times):
        async with node.mutex("x").hold(timeout=60):
            pass


async def test_an_error_of_the_sdk_never_reaches_the_application(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken())
    observer = OpenTelemetry(tracer_provider=provider, meter_provider=MeterProvider(shutdown_on_exit=False))
    async with Node(transport=network.transport(), membership=network.membership(), observers=[observer]) as node:
        await use(node, 3)
        assert node.mutex("x").statistics().acquisitions == 3
        assert node.statistics().told["observers"] >= 3
    assert [record.message for record in caplog.records if "telemetry is broken" in record.message], "told once"


def test_an_observer_that_cannot_be_imported_is_no_reason_not_to_start():
    code = ONE_USE.replace('assert "observers" not in', 'assert "observers" in') + (
        "sys.modules['softmutex_adapters.observers.otel'] = None\nasyncio.run(main())"
    )
    run(code)


class Hung(SpanExporter):
    """Takes the first batch and never comes back, until it is let go."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.let_go.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


async def test_no_hop_waits_for_an_exporter_that_hangs(network: MemoryNetwork):
    hung, provider = Hung(), TracerProvider(shutdown_on_exit=False)
    # A queue of two batches: most spans find it full.
    provider.add_span_processor(
        BatchSpanProcessor(hung, max_queue_size=16, max_export_batch_size=8, schedule_delay_millis=1)
    )
    kept = Kept()
    observer = OpenTelemetry(tracer_provider=provider, meter_provider=kept.meter_provider)
    async with (
        Node(transport=network.transport(), membership=network.membership(), observers=[observer]) as here,
        Node(transport=network.transport(), membership=network.membership(), observers=[observer]) as there,
    ):
        await use(here)
        await until(hung.entered.is_set)
        for _ in range(50):
            await use(here)
            await use(there)
        assert not hung.let_go.is_set()
        assert kept.sum("softmutex.acquisitions", outcome="granted") == 101
        await until(lambda: kept.sum("softmutex.handovers") >= 99)
    hung.let_go.set()
    provider.shutdown()
    kept.close()
