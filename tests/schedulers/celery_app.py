"""The application of a Celery worker of the tests. Broker and results: the Redis that REDIS_URL names."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, signals
from celery.exceptions import SoftTimeLimitExceeded
from softmutex_adapters.schedulers.celery import SoftMutexAgent, in_turn

from tests.schedulers import spans
from tests.schedulers.contract import transfer

app = Celery("tests", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    task_track_started=True,
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("VISIBILITY_TIMEOUT", "3600")),
        "unacked_restore_interval": 2,
        "unacked_restore_throttle": 1,
    },
)
app.steps["worker"].add(SoftMutexAgent)
open_spans: dict[str, Any] = {}


def open_span(task_id: str, **_: Any) -> None:
    open_spans[task_id] = spans.task()
    open_spans[task_id].__enter__()


def close_span(task_id: str, **_: Any) -> None:
    open_spans.pop(task_id).__exit__(None, None, None)


if spans.set_up_where_wanted():  # in the worker's main process, where the agent is, and in all that it forks
    signals.task_prerun.connect(open_span)
    signals.task_postrun.connect(close_span)


@app.task(**in_turn("transfers", wait=0.5))
def patient(log: str, seconds: float) -> None:
    transfer(log, seconds)


@app.task(**in_turn("transfers"))
def usual(log: str, seconds: float) -> None:
    """What the benchmark measures: nothing is set."""
    transfer(log, seconds)


@app.task(**in_turn("transfers", wait=30))
def persistent(log: str, seconds: float) -> None:
    """Waits for as long as it takes to replace a holder that is silent."""
    transfer(log, seconds)


@app.task(**in_turn("transfers", wait=0.3, give_up=0.3))
def hurried(log: str, seconds: float) -> None:
    transfer(log, seconds)


@app.task
def unguarded(log: str, seconds: float) -> None:
    """What the benchmark compares with: the scheduler's own limit of one."""
    transfer(log, seconds)


@app.task(soft_time_limit=2, **in_turn("transfers"))
def limited(log: str) -> str:
    try:
        transfer(log, 600.0)
    except SoftTimeLimitExceeded:
        return "stopped"
    return "done"


@app.task(bind=True, max_retries=1, **in_turn("transfers", wait=0.2))
def failing(self, marks: str) -> None:  # type: ignore[no-untyped-def]
    """Fails once of its own, however often it had to wait for its turn."""
    with open(marks, "a") as file:
        file.write(f"{self.request.retries}\n")
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    time.sleep(0)
