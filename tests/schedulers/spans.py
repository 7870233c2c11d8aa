"""OpenTelemetry in a worker of a scheduler, set up as its operator would: spans go to a file, a line each.

    worker: a task begins --instrumentation opens `task`--> the plug-in waits and holds --> the file

What opens `task` is not ours: each test does what the instrumentations of that scheduler do.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from tests.schedulers.contract import SchedulerContract, Site, wait_until

VARIABLE = "TESTS_SPANS"


class Told(NamedTuple):
    name: str
    id: str
    parent: str | None
    trace: str


def set_up(path: str) -> None:
    def line(span: ReadableSpan) -> str:
        assert span.context is not None
        parent = format(span.parent.span_id, "x") if span.parent else None
        return json.dumps([span.name, f"{span.context.span_id:x}", parent, f"{span.context.trace_id:x}"]) + "\n"

    provider = TracerProvider()
    file = Path(path).open("a")  # noqa: SIM115 for as long as the process lives
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=line)))
    trace.set_tracer_provider(provider)


def set_up_where_wanted() -> bool:
    if path := os.environ.get(VARIABLE):
        set_up(path)
    return bool(path)


def task() -> AbstractContextManager[Any]:
    return trace.get_tracer("scheduler").start_as_current_span("task")


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The scheduler's own function that runs a job, patched as instrumentations do."""

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with task():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def on_the_loop(*args: Any, **kwargs: Any) -> Any:
        with task():
            return await function(*args, **kwargs)

    return on_the_loop if inspect.iscoroutinefunction(function) else plain


def told(path: Path) -> list[Told]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Told(*json.loads(line)) for line in lines]


def tasks_that_waited_and_held(path: Path) -> int:
    """Tasks whose wait and hold are right below them, in one trace."""
    spans = told(path)
    return sum(
        {(below.name, below.trace) for below in spans if below.parent == span.id}
        >= {("softmutex.wait", span.trace), ("softmutex.hold", span.trace)}
        for span in spans
        if span.name == "task"
    )


class SpansContract(SchedulerContract):
    """Also for schedulers whose workers trace. `traced` is a site that does; `spans` is the file to which it writes."""

    def test_the_span_of_a_task_is_the_parent_of_its_wait_and_hold(self, traced: Site, spans: Path) -> None:
        jobs = [traced.submit(worker, 0.1) for worker in (0, 1)]
        wait_until(lambda: all(traced.outcome(job) for job in jobs), "they are not over")
        outcomes = [traced.outcome(job) for job in jobs]
        assert outcomes == [(True, "")] * 2, outcomes
        wait_until(lambda: tasks_that_waited_and_held(spans) >= 2, f"the spans are {told(spans)}")
