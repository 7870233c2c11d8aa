"""Telemetry of the commands that have a node: `softmutex run` and `softmutex agent`.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 softmutex run -n nightly-ftp -- rsync ...
        caller (TRACEPARENT) --+-- softmutex.wait
                               '-- softmutex.hold --TRACEPARENT--> the command, and what it traces

What it decides: who runs a command sets up no SDK, so it is set up here, where the environment asks for one by the
names that OpenTelemetry gives them, and only in the process that has the node. A program around it that has set one up
already (`opentelemetry-instrument`) is left alone. The naive way, to leave what is in the batch to the exit of the
interpreter, loses the spans of every short command: a process that was forked ends without one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from softmutex.saying import logger

log = logger("observers")

ASKED_FOR_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
FLUSH_S = 2.0  # a collector that hangs holds up the end of a command so long


def set_up(environ: Mapping[str, str] = os.environ) -> None:
    """An SDK with a batch processor, where the environment wants one and none is there."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if not any(environ.get(name) for name in ASKED_FOR_BY) or exporter == "none":
        return
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or is_set_up():
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("the environment asks for traces, which want: pip install 'softmutex[otel]' (%s)", error)
        return
    try:
        sends = exporter_of(exporter)
    except ImportError as error:
        log.warning("OTEL_TRACES_EXPORTER=%s cannot be had (%s): pip install 'softmutex[otel]'", exporter, error)
        return
    if sends is None:
        log.warning("OTEL_TRACES_EXPORTER=%s is not known here (there are otlp, by HTTP, and none)", exporter)
        return
    named = {} if "OTEL_SERVICE_NAME" in environ else {"service.name": "softmutex"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(sends))
    trace.set_tracer_provider(provider)


def exporter_of(name: str) -> Any:
    if name != "otlp":
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def is_set_up() -> bool:
    if "opentelemetry.trace" not in sys.modules:
        return False
    from opentelemetry import trace

    return not type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace")


def flush() -> None:
    """Sends what is in the batch; what takes longer than FLUSH_S is left."""
    if not is_set_up():
        return
    from opentelemetry import trace

    provider: Any = trace.get_tracer_provider()
    if not hasattr(provider, "force_flush"):  # of an SDK that has no batch
        return
    sending = threading.Thread(target=provider.force_flush, daemon=True)  # its own time limit is not kept
    sending.start()
    sending.join(FLUSH_S)
