"""The service: a process that operators start and stop, and one that works and is in no hurry to end.

    systemd, a shell --> guard ===pipe===> worker: node, releaser, the holds of the jobs that were let go
                          |  SIGTERM: closes the pipe, waits until the worker is no longer the releaser, ends
                          '- kill -9: the kernel closes the pipe
                                                  worker: lets another be the releaser, stays until its jobs are over

What it decides: a hold is bound to the node that has it, and there is no way to hand one to a certain other node. The
naive way, to release all holds on SIGTERM, lets others of the group in beside the jobs that run, and a service that
waits for its jobs cannot be restarted for hours. So the holds stay where they are, in a process that outlives the
service, and the next worker starts at once beside it. Under systemd that wants `KillMode=process` (`softmutex slurm
unit`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from typing import Final

from softmutex import Node
from softmutex.saying import logger
from softmutex_adapters.schedulers.slurm.jobs import ask
from softmutex_adapters.schedulers.slurm.releaser import Releaser

RESIGNED: Final = b"resigned\n"
RESIGN_LIMIT_S: Final = 20.0
log = logger("slurm")


# --- the guard --------------------------------------------------------------------------------------------------------


def guard(words: list[str]) -> int:
    """Starts the worker with these words of the command line. Its exit code, where it ends by itself."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "softmutex", "slurm", *words, "--worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for the guard
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    told_to_end = False

    def end(number: int, frame: object) -> None:
        nonlocal told_to_end
        if not told_to_end:
            told_to_end = True
            signal.alarm(int(RESIGN_LIMIT_S))
            pipe.close()

    pipe = worker.stdin
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))  # the worker ends when it can
    if worker.stdout.readline() == RESIGNED:
        return 0
    return worker.wait()


# --- the worker -------------------------------------------------------------------------------------------------------


def work(arguments: argparse.Namespace, slots: dict[str, int]) -> None:
    logging.raiseExceptions = False  # where the log went may be gone before this ends
    asyncio.run(serve(arguments, slots))


async def serve(arguments: argparse.Namespace, slots: dict[str, int]) -> None:
    cluster = await name_of_cluster()
    name = arguments.node_name or f"slurm-{cluster}-{socket.gethostname().partition('.')[0]}-{os.getpid()}"[-60:]
    config = arguments.config
    node = Node(name=name) if config is None else Node.from_config(config, name=name)
    async with node:
        releaser = Releaser(node, slots, arguments.start_within, arguments.bridge)
        await watch_guard(releaser.is_ending)
        await releaser.run(cluster)
        try:
            os.write(sys.stdout.fileno(), RESIGNED)
        except OSError:
            log.debug("the guard is gone")
        await releaser.finish()
        log.info("%s has ended", name)


async def watch_guard(is_ending: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_ending.set)

    def guard_is_gone() -> None:
        loop.remove_reader(sys.stdin.fileno())
        is_ending.set()

    loop.add_reader(sys.stdin.fileno(), guard_is_gone)


async def name_of_cluster() -> str:
    for line in (await ask("scontrol", "show", "config")).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "ClusterName":
            return value.strip()
    return "cluster"
