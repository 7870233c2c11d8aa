"""The trace of a job goes on in its agent: the wait and the hold are below the span in which the job asked. And that of
the hold goes on in the command that runs under it.

    job: span, or TRACEPARENT --want(trace: traceparent)--> agent: context of the session --> softmutex.wait
    command: TRACEPARENT <-----------go(trace: traceparent)--------------------------------- softmutex.hold

Nothing is loaded for that by a job that does not trace: who sets up an SDK must have imported the API.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

HEADERS: Final = ("traceparent", "tracestate")


def here() -> dict[str, str]:
    """Of the span that is current, as W3C headers; empty where there is none."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
    return carrier


def of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What whoever started this process says of its span, by the names that OpenTelemetry gives to variables."""
    return {name: environ[name.upper()] for name in HEADERS if environ.get(name.upper())}


def for_environment(carrier: Mapping[str, str]) -> dict[str, str]:
    """The same for a process that is started; empty where there is nothing to be said."""
    return {name.upper(): carrier[name] for name in HEADERS if carrier.get(name)}


def is_of_one_trace(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether both name the same trace, or one names none. (version-trace-span-flags)"""
    said = [carrier["traceparent"] for carrier in (one, other) if carrier.get("traceparent", "").count("-") >= 2]
    return len({each.split("-")[1] for each in said}) < 2


@contextmanager
def below(carrier: Mapping[str, str]) -> Iterator[None]:
    """What begins inside is below that span. What is no trace context is ignored."""
    if not carrier:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
