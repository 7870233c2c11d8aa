"""APScheduler 3: an executor whose jobs run only while they hold a soft mutex.

    scheduler.add_executor(SoftMutexExecutor("nightly-ftp", slots=2), "ftp")
    scheduler.add_job(fetch, "cron", hour=2, executor="ftp")

What it decides: a job is *late* by when its thread took it up, not by when it got its turn. APScheduler asks right
before the call; were the wait in front of that, each job that waited a second would count as missed (the default
`misfire_grace_time`) and not run at all. So the wait is inside the call: a job that does not get its turn in `timeout`
ends with `AcquireTimeout`, which listeners see as EVENT_JOB_ERROR.

    scheduler --submit--> pool thread: misfire? --no--> [wait for the mutex | the job's function] --> events

A waiting job occupies a thread of this executor's own pool and no other: give `max_workers` as many as may wait.
The node is opened when the scheduler starts the executor, and leaves when it shuts it down.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.executors.pool import ThreadPoolExecutor

from softmutex import SoftMutex, sync
from softmutex_adapters.schedulers.options import refuse_what_never_works, split


class InTurn:
    """A job as APScheduler knows it, but its function waits for its turn first."""

    def __init__(self, job: Any, guard: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._job = job
        self.func = guard(job.func)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def __str__(self) -> str:
        return str(self._job)


class SoftMutexExecutor(ThreadPoolExecutor):  # type: ignore[misc]
    """For jobs that are plain functions, in any scheduler of APScheduler 3. The options are those of `SoftMutex`."""

    def __init__(self, name: str, max_workers: int = 10, **options: Any) -> None:
        super().__init__(max_workers)
        of_node, of_mutex = split(options, default_name=f"apscheduler-{name}")
        self._wanted = name, of_node, of_mutex
        self._node = sync.Node(**of_node)
        self._mutex = self._node.mutex(name, **of_mutex)

    def start(self, scheduler: Any, alias: str) -> None:
        refuse_what_never_works(*self._wanted)
        super().start(scheduler, alias)
        self._node.open()

    def shutdown(self, wait: bool = True) -> None:
        super().shutdown(wait)
        self._node.close()

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        super()._do_submit_job(InTurn(job, self._mutex.guard()), run_times)


class AsyncIOSoftMutexExecutor(AsyncIOExecutor):  # type: ignore[misc]
    """For `AsyncIOScheduler`: coroutine functions wait on the loop and occupy no thread; plain ones go to a thread.

    APScheduler gives an executor no moment to await anything at start or shutdown: the node joins with the first job
    that waits and leaves after the last that ran.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self._wanted = name, *split(options, default_name=f"apscheduler-{name}")
        self._mutex = SoftMutex(name, **options)
        self._for_threads = sync.SoftMutex(name, **options)

    def start(self, scheduler: Any, alias: str) -> None:
        refuse_what_never_works(*self._wanted)
        super().start(scheduler, alias)

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        function = inspect.unwrap(getattr(job.func, "func", job.func))
        mutex: Any = self._mutex if inspect.iscoroutinefunction(function) else self._for_threads
        super()._do_submit_job(InTurn(job, mutex.guard()), run_times)
