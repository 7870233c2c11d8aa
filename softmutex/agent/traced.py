"""The trace of a job goes on in its agent: the wait and the hold are below the span in which the job asked.

    job: span --want(trace: traceparent)--> agent: context of the session --> softmutex.wait, softmutex.hold

Nothing is loaded for that by a job that does not trace: who sets up an SDK must have imported the API.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def here() -> dict[str, str]:
    """Of the span that is current, as W3C headers; empty where there is none."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
    return carrier


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
