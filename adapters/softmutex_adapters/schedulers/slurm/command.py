"""`softmutex slurm`: jobs of Slurm that wait for their turn in the queue, where no node waits with them.

    release   the service that lets them go, on a host with Slurm's commands, as root or SlurmUser
    queue     who has a turn and who waits, for everybody
    lua       prints job_submit.lua, which makes Slurm put them off
    unit      prints a unit for systemd

Exit codes: 0 after SIGTERM or SIGINT, 69 where the node could not start or Slurm does not answer, 64 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from importlib.resources import files

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.values import count, duration_s

UNAVAILABLE = 69
START_WITHIN, BRIDGE = "2m", "30s"

RELEASE = """\
The service that lets waiting jobs go, one turn after the other. It runs where Slurm's commands are, as root or
SlurmUser. Several may run, on several hosts: one works, the others take over. On SIGTERM it ends at once; a process
stays behind until the jobs that it let go are over, so that no other is let in beside them, and another releaser may be
started meanwhile.
"""
LUA = """\
Prints job_submit.lua: softmutex slurm lua > /etc/slurm/job_submit.lua, with JobSubmitPlugins=lua in slurm.conf, then
scontrol reconfigure. It puts off the jobs that ask for a turn, tells users what is wrong with a comment that does, and
refuses what would go round the turn. Which mutexes there are, and who are administrators, is said at its top.
"""
QUEUE = """\
Who has a turn and who waits for one, by Slurm's own queue; as any user who may see the jobs of others.
"""
UNIT = """\
Prints a unit for systemd that runs `softmutex slurm release` with this very interpreter:
softmutex slurm unit > /etc/systemd/system/softmutex-slurm.service
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    release = add_part(parts, "release", "the service that lets waiting jobs go", RELEASE)
    release.add_argument(
        "--slots", action="append", default=[], metavar="NAME=K", help="so many jobs of that mutex at once; default 1"
    )
    release.add_argument(
        "--start-within",
        type=duration_s,
        default=duration_s(START_WITHIN),
        metavar=START_WITHIN,
        help=f"a job that was let go and does not start gives its turn to others; default {START_WITHIN}",
    )
    release.add_argument(
        "--bridge",
        type=duration_s,
        default=duration_s(BRIDGE),
        metavar=BRIDGE,
        help=f"job follows job for so long before others of the group have their turn; default {BRIDGE}",
    )
    release.add_argument("--config", metavar="FILE", help="settings; else the environment and softmutex.toml")
    release.add_argument("--node-name", metavar="NAME", help="else slurm-<cluster>-<host>-<process>")
    release.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    queue = add_part(parts, "queue", "who has a turn and who waits for one", QUEUE)
    queue.add_argument("-n", "--name", metavar="NAME", help="of this mutex only")
    queue.add_argument("--json", action="store_true", help="for programs")
    add_part(parts, "lua", "print job_submit.lua, which makes Slurm put jobs off", LUA)
    add_part(parts, "unit", "print a unit for systemd that runs the service", UNIT)


def add_part(
    parts: argparse._SubParsersAction[argparse.ArgumentParser], name: str, line: str, words: str
) -> argparse.ArgumentParser:
    return parts.add_parser(
        name, help=line, description=words, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def main(arguments: argparse.Namespace) -> int:
    try:
        if arguments.what == "release":
            return release(arguments)
        if arguments.what == "queue":
            return asyncio.run(show_queue(arguments.name, arguments.json))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        sys.stderr.write(f"softmutex slurm: {error}\n")
        return UNAVAILABLE
    sys.stdout.write(unit() if arguments.what == "unit" else text_of("job_submit.lua"))
    return 0


def text_of(name: str) -> str:
    return files(__package__).joinpath(name).read_text()


def unit() -> str:
    return text_of("softmutex-slurm.service").replace("@SOFTMUTEX@", f"{sys.executable} -m softmutex")


def release(arguments: argparse.Namespace) -> int:
    from softmutex_adapters.schedulers.slurm import service

    logging.basicConfig(level=logging.INFO, format="softmutex slurm: %(message)s", stream=sys.stderr)
    slots = dict(read_slots(each) for each in arguments.slots)
    if not arguments.worker:
        return service.guard(words_of(arguments))
    service.work(arguments, slots)
    return 0


def words_of(arguments: argparse.Namespace) -> list[str]:
    """The same command line once more."""
    words = ["release", f"--start-within={arguments.start_within:g}", f"--bridge={arguments.bridge:g}"]
    words += [f"--slots={each}" for each in arguments.slots]
    words += [] if arguments.config is None else [f"--config={arguments.config}"]
    return words + ([] if arguments.node_name is None else [f"--node-name={arguments.node_name}"])


def read_slots(said: str) -> tuple[str, int]:
    name, _, number = said.rpartition("=")
    try:
        return name, count(number)
    except ValueError as error:
        raise ConfigError(f"--slots {said}: {error}. Write --slots nightly-ftp=2") from None


async def show_queue(mutex: str | None, as_json: bool) -> int:
    from softmutex_adapters.schedulers.slurm import jobs
    from softmutex_adapters.schedulers.slurm.show import describe, table

    queue = await jobs.queue()
    rows = [row for row in describe(queue) if mutex in (None, row["mutex"])]
    sys.stdout.write(json.dumps(rows, indent=1) + "\n" if as_json else table(rows))
    for id, trouble in queue.troubles.items():
        sys.stderr.write(f"job {jobs.clean(id)}: {jobs.clean(trouble)}\n")
    return 0
