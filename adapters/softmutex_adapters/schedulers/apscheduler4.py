"""APScheduler 4 (a pre-release): a `JobExecutor` that lets another one run the job while a soft mutex is held.

    AsyncScheduler(job_executors={"ftp": SoftMutexJobExecutor("nightly-ftp", AsyncJobExecutor()), ...})

Waiting costs no thread: it happens on the scheduler's loop, and only then the inner executor is asked. A job that does
not get its turn in `timeout` ends with `AcquireTimeout`: outcome `error`, as of any job that raises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from apscheduler.abc import JobExecutor

from softmutex import Node
from softmutex_adapters.schedulers.options import refuse_what_never_works, split


class SoftMutexJobExecutor(JobExecutor):  # type: ignore[misc]
    """The options are those of `SoftMutex`."""

    def __init__(self, name: str, inner: Any, **options: Any) -> None:
        of_node, of_mutex = split(options, default_name=f"apscheduler-{name}")
        self._wanted = name, of_node, of_mutex
        self._inner = inner
        self._node = Node(**of_node)
        self._mutex = self._node.mutex(name, **of_mutex)

    async def start(self, exit_stack: AsyncExitStack) -> None:
        refuse_what_never_works(*self._wanted)
        await self._inner.start(exit_stack)
        await exit_stack.enter_async_context(self._node)

    async def run_job(self, func: Callable[..., Any], job: Any) -> Any:
        async with self._mutex:
            return await self._inner.run_job(func, job)
