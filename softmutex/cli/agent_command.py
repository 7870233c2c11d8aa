"""`softmutex agent`: one node for all jobs of this user on this host, which ask it over a Unix socket.

It is found by `softmutex run`, `softmutex.client` and the plug-ins at /tmp/softmutex-<uid>/agent.sock, or where
SOFTMUTEX_AGENT says. Only this user is let in. With --system it is one node for all users of this host, found at
/run/softmutex/agent.sock by whoever has no agent of his own; the kernel says who asks, and each user has limits.
SIGTERM ends it in good order: who waits asks the next agent, who holds has `leave_timeout` to finish and is told then.
Under systemd it takes the socket that is handed over, and says when it is ready (`softmutex agent --print-units` prints
the units).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from softmutex import Node, SoftMutexError
from softmutex.agent.link import NOT_STARTED
from softmutex.agent.place import OF_HOST, AgentDoor, path_of
from softmutex.agent.server import serve
from softmutex.agent.users import Limits
from softmutex.cli import tracing
from softmutex.cli.settings import add_node_flags, node_settings
from softmutex.core.errors import ConfigError
from softmutex.runtime.config import Settings

UNITS = ("softmutex-agent.socket", "softmutex-agent.service")
UNITS_OF_HOST = ("softmutex-system.socket", "softmutex-system.service")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket", metavar="PATH", help="where to listen; else SOFTMUTEX_AGENT, else /tmp/softmutex-<uid>"
    )
    parser.add_argument(
        "--system", action="store_true", help="for all users of this host, at /run/softmutex/agent.sock"
    )
    most = Limits()
    parser.add_argument(
        "--jobs-per-user", type=at_least_one, metavar="N", help=f"of one user at once, with --system; {most.jobs}"
    )
    parser.add_argument(
        "--turns-per-user", type=at_least_one, metavar="N", help=f"of them in the queue or holding; {most.turns}"
    )
    parser.add_argument(
        "--print-units",
        action="store_true",
        help="print units for systemd --user (with --system: for systemd), and end",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say what happens")
    add_node_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    if arguments.print_units:
        sys.stdout.write(units(arguments.system))
        return 0
    if not arguments.system and (arguments.jobs_per_user or arguments.turns_per_user):
        raise ConfigError("limits for each user are for an agent of all users: --system.")
    limits = Limits(arguments.jobs_per_user or Limits().jobs, arguments.turns_per_user or Limits().turns)
    path = arguments.socket or (OF_HOST if arguments.system else path_of())
    if path is None:
        raise ConfigError("SOFTMUTEX_AGENT=off, so no job would find this agent. Unset it, or give --socket PATH.")
    logging.basicConfig(
        format="softmutex agent: %(message)s", level=logging.INFO if arguments.verbose else logging.WARNING
    )
    tracing.set_up()
    try:
        asyncio.run(run(node_settings(arguments), path, limits if arguments.system else None))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        sys.stderr.write(f"softmutex agent: {error}\n")
        return NOT_STARTED
    finally:
        tracing.flush()
    return 0


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


async def run(settings: Settings, path: str, limits: Limits | None) -> None:
    """The door first: that another agent is there is known at once. Then the node, and only then is anybody let in."""
    door = AgentDoor(path, of_host=limits is not None)
    node = Node._of(settings)
    try:
        await node.open()
    except BaseException:
        door.close()
        raise
    serving = asyncio.create_task(serve(node, door, limits))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, serving.cancel)
    logging.getLogger("softmutex.agent").info("joined as %s; jobs ask at %s", node.name, door.path)
    tell_systemd("READY=1")
    with suppress(asyncio.CancelledError):
        await serving


def tell_systemd(what: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, suppress(OSError):
            notify.sendto(what.encode(), "\0" + address[1:] if address.startswith("@") else address)


def units(of_host: bool) -> str:
    """With this interpreter: what is not on the path of systemd (a virtual environment) is found all the same."""
    here, command = Path(__file__).with_name("units"), f"{sys.executable} -m softmutex"
    names, directory = (UNITS_OF_HOST, "/etc/systemd/system") if of_host else (UNITS, "~/.config/systemd/user")
    texts = {name: (here / name).read_text().replace("@SOFTMUTEX@", command) for name in names}
    return "\n".join(f"# {directory}/{name}\n{text}" for name, text in texts.items())
