"""A process with an APScheduler 3 (`threads` or `loop`) that runs the jobs that it is told."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

from apscheduler.events import EVENT_ALL, JobExecutionEvent
from apscheduler.executors import asyncio as asyncio_executor
from apscheduler.executors import pool
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from softmutex_adapters.schedulers.apscheduler import AsyncIOSoftMutexExecutor, SoftMutexExecutor

from tests.schedulers import spans
from tests.schedulers.contract import transfer


def say(event: Any) -> None:
    if isinstance(event, JobExecutionEvent):
        number = event.job_id.removeprefix("job-")
        failure = f"{type(event.exception).__name__}: {event.exception}".replace("\n", " ")
        print("over", number, failure if event.exception else "ok" if event.code == 4096 else "missed", flush=True)


def add(scheduler: Any, executors: dict[str, Any], make: Any, job: Any, line: str) -> None:
    word, number, seconds, timeout_s = line.split()
    assert word == "job"
    if timeout_s not in executors:
        executors[timeout_s] = make("transfers", timeout=None if timeout_s == "-" else float(timeout_s))
        scheduler.add_executor(executors[timeout_s], timeout_s)
    words = [sys.argv[2], float(seconds)]
    # By default what a thread takes up a second late is not run: the machine may stand still for as long as that.
    scheduler.add_job(job, args=words, id=f"job-{number}", executor=timeout_s, misfire_grace_time=None)


async def slow_transfer(log: str, seconds: float) -> None:
    await asyncio.to_thread(transfer, log, seconds)


async def on_a_loop() -> None:
    scheduler = AsyncIOScheduler()
    scheduler.add_listener(say, EVENT_ALL)
    scheduler.start()
    print("ready", flush=True)
    told = partial(add, scheduler, {}, AsyncIOSoftMutexExecutor, slow_transfer)
    while line := await asyncio.to_thread(sys.stdin.readline):
        told(line)


def on_threads() -> None:
    scheduler = BackgroundScheduler()
    scheduler.add_listener(say, EVENT_ALL)
    scheduler.start()
    print("ready", flush=True)
    executors: dict[str, Any] = {}
    for line in sys.stdin:
        add(scheduler, executors, SoftMutexExecutor, transfer, line)


if __name__ == "__main__":
    if spans.set_up_where_wanted():
        pool.run_job = spans.traced(pool.run_job)
        asyncio_executor.run_coroutine_job = spans.traced(asyncio_executor.run_coroutine_job)
    if sys.argv[1] == "loop":
        asyncio.run(on_a_loop())
    else:
        on_threads()
