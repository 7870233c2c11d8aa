"""`softmutex slurm release` lets held jobs go in turn; `softmutex slurm lua` prints what makes Slurm hold them.

Where it runs: on one host that has Slurm's commands and may release jobs (the controller, as SlurmUser or root), as a
service. Exit codes: 0 after SIGTERM or SIGINT, 69 where the node could not start, 64 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from importlib.resources import files

from softmutex import Node
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.runtime.config import count, duration_s
from softmutex_adapters.schedulers.slurm.jobs import ask
from softmutex_adapters.schedulers.slurm.releaser import START_WITHIN_S, Releaser

UNAVAILABLE = 69


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("release", "lua"), help="release: the service; lua: print job_submit.lua")
    parser.add_argument(
        "--slots", action="append", default=[], metavar="NAME=K", help="so many jobs of that mutex at once; default 1"
    )
    parser.add_argument(
        "--start-within",
        type=duration_s,
        default=START_WITHIN_S,
        metavar="2m",
        help="a job that was released and does not start gives its turn to others; default 2m",
    )
    parser.add_argument("--config", metavar="FILE", help="settings; else the environment and softmutex.toml")


def main(arguments: argparse.Namespace) -> int:
    if arguments.what == "lua":
        sys.stdout.write(files(__package__).joinpath("job_submit.lua").read_text())
        return 0
    logging.basicConfig(level=logging.INFO, format="softmutex slurm: %(message)s", stream=sys.stderr)
    slots = dict(read_slots(each) for each in arguments.slots)
    try:
        asyncio.run(serve(arguments.config, slots, arguments.start_within))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        sys.stderr.write(f"softmutex slurm: {error}\n")
        return UNAVAILABLE
    return 0


def read_slots(said: str) -> tuple[str, int]:
    name, _, number = said.rpartition("=")
    try:
        return name, count(number)
    except ValueError as error:
        raise ConfigError(f"--slots {said}: {error}. Write --slots nightly-ftp=2") from None


async def serve(config: str | None, slots: dict[str, int], start_within_s: float) -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, me.cancel)
    cluster = next(
        (
            line.split("=", 1)[1].strip()
            for line in (await ask("scontrol", "show", "config")).splitlines()
            if line.startswith("ClusterName")
        ),
        "cluster",
    )
    name = f"slurm-{cluster}"[:60]
    node = Node(name=name) if config is None else Node.from_config(config, name=name)
    try:
        async with node:
            await Releaser(node, slots, start_within_s).run(cluster)
    except asyncio.CancelledError:
        logging.getLogger("softmutex.slurm").info("stopping; jobs that run go on")
