"""A process with an APScheduler 4 that runs the jobs that it is told. APScheduler 4 is first on its path."""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from uuid import UUID

from apscheduler import AsyncScheduler, JobOutcome, JobReleased
from apscheduler.executors.async_ import AsyncJobExecutor
from apscheduler.executors.thread import ThreadPoolJobExecutor
from softmutex_adapters.schedulers.apscheduler4 import SoftMutexJobExecutor

from tests.schedulers import spans
from tests.schedulers.contract import transfer


class Traced(SoftMutexJobExecutor):
    """Another executor around it, as a tracing one would be."""

    async def run_job(self, func: Any, job: Any) -> Any:
        with spans.task():
            return await super().run_job(func, job)


async def main() -> None:
    kind = Traced if spans.set_up_where_wanted() else SoftMutexJobExecutor
    log = sys.argv[2]
    executors = {
        "async": AsyncJobExecutor(),
        "-": kind("transfers", ThreadPoolJobExecutor()),
        "0.3": kind("transfers", ThreadPoolJobExecutor(), timeout=0.3, node_name="hurried"),
    }
    numbers: dict[UUID, str] = {}

    def say(event: Any) -> None:
        failure = f"{event.exception_type}: {event.exception_message}".replace("\n", " ")
        print("over", numbers[event.job_id], "ok" if event.outcome is JobOutcome.success else failure, flush=True)

    async with AsyncScheduler(job_executors=executors) as scheduler:
        scheduler.subscribe(say, JobReleased)
        await scheduler.start_in_background()
        await scheduler.configure_task("-", func=transfer, job_executor="-", max_running_jobs=None)
        await scheduler.configure_task("0.3", func=transfer, job_executor="0.3", max_running_jobs=None)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            _, number, seconds, timeout_s = line.split()
            numbers[await scheduler.add_job(timeout_s, args=[log, float(seconds)])] = number


asyncio.run(main())
