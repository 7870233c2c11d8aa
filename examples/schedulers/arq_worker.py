"""arq: one node for the worker, opened and closed with it. Waiting costs the worker a task, no thread and no process.

    arq arq_worker.WorkerSettings

A job that does not get its turn in time is tried again later (`Retry`), so that `job_timeout` counts the transfer only.
"""

import asyncio
import os
import time
from typing import Any, ClassVar

from arq import Retry
from arq.connections import RedisSettings

from softmutex import AcquireTimeout, Node


def transfer(path: str) -> None:
    with open(path, "a") as log:
        log.write("in\n")
    time.sleep(0.1)
    with open(path, "a") as log:
        log.write("out\n")


async def fetch(ctx: dict[str, Any], path: str) -> None:
    try:
        async with ctx["node"].mutex("nightly-ftp").hold(timeout=10):
            await asyncio.to_thread(transfer, path)
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
