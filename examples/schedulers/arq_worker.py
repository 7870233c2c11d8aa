"""arq: one node for the worker, opened and closed with it. Waiting costs the worker a task, no thread and no process.

    arq arq_worker.WorkerSettings

A job that does not get its turn in time is tried again later (`Retry`), so that `job_timeout` counts the transfer only.
"""

import asyncio
import os
from typing import Any, ClassVar

from arq import Retry
from arq.connections import RedisSettings

from softmutex import AcquireTimeout, Node


async def fetch(ctx: dict[str, Any], path: str) -> None:
    try:
        async with ctx["node"].mutex("nightly-ftp").hold(timeout=10):
            with open(path, "a") as log:
                log.write("in\n")
            await asyncio.sleep(0.1)  # the transfer
            with open(path, "a") as log:
                log.write("out\n")
    except AcquireTimeout:
        raise Retry(defer=30) from None


async def startup(ctx: dict[str, Any]) -> None:
    ctx["node"] = Node.from_env(name="arq-worker")
    await ctx["node"].open()


async def shutdown(ctx: dict[str, Any]) -> None:
    await ctx["node"].close()


class WorkerSettings:
    functions: ClassVar = [fetch]
    on_startup = startup
    on_shutdown = shutdown
    redis_settings = RedisSettings.from_dsn(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
