"""`softmutex demo`: the papers' case in a minute, on this machine, without root.

    softmutex demo [--scenario deadline|connections|plain] [--clients 32] [--slots 2] [--report DIR] [--json]

`--json` prints one object on standard output:

    {"uncoordinated": {"clients": 32, "finished": 9, "goodput_mbit_s": 4.54, "wasted_bytes": 140509184,
                       "completion_mean_s": 22.55, "completion_p99_s": 30.64, "makespan_s": 31.7, "overlap_s": 31.5},
     "coordinated": {...}, "ideal": {...}}

Completions are null where nobody finished. `overlap_s` is how long more than `--slots` transferred at once.
Exit codes: 0 measured, 64 something is in the way (found before the run), 69 it could not be run, 130 interrupted: what
was measured until then is printed all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex_adapters.demo.plan import SCENARIOS, Plan
from softmutex_adapters.demo.run import Demo, DemoFailed
from softmutex_adapters.demo.screen import Screen
from softmutex_adapters.demo.summary import sentences, table

UNAVAILABLE, INTERRUPTED = 69, 130
CLIENTS_MAX = 500
LIMIT = 8  # logins at once, in the scenario of connections
EXTRA = ("aioftp", "matplotlib", "pyftpdlib")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plan = Plan()
    parser.add_argument(
        "--scenario",
        choices=tuple(SCENARIOS),
        default=plan.scenario,
        help="; ".join(f"{name}: {what}" for name, what in SCENARIOS.items()).replace("%", "%%"),
    )
    parser.add_argument("--clients", type=int, default=plan.clients, metavar="N", help="subscribers; default 32")
    parser.add_argument("--slots", type=int, default=plan.slots, metavar="K", help="how many at a time; default 2")
    for flag, default, what in (
        ("capacity", plan.capacity_mbit_s, "of the link, in Mbit/s; default 40"),
        ("size", plan.size_mb, "of the file, in MB; default 2"),
        ("deadline", plan.deadline_s, "of a transfer, in seconds from its start; default 10"),
    ):
        parser.add_argument(f"--{flag}", type=float, default=default, metavar="X", help=what)
    parser.add_argument(
        "--port", type=int, default=0, help="of the FTP server, on 127.0.0.1; default: any that is free"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("softmutex-demo"), metavar="DIR", help="for the pictures; softmutex-demo"
    )
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise ConfigError(
            f'the demo needs {", ".join(missing)}. Install it: pip install "softmutex[demo]", '
            'or in a clone: pip install ".[demo]"'
        )
    plan = plan_of(arguments)
    check_port(arguments.port)
    check_report(arguments.report)
    screen = Screen(plan, sys.stderr)
    with tempfile.TemporaryDirectory(prefix="softmutex-demo-") as directory:
        demo = Demo(plan, directory, screen.news)
        code = 0
        try:
            asyncio.run(until_told(demo, arguments.port))
        except (KeyboardInterrupt, Stopped):
            code = INTERRUPTED
        except DemoFailed as error:
            code = UNAVAILABLE
            sys.stderr.write(f"softmutex demo: {error}\n")
        finally:
            under_way = [tally for tally in demo.tallies if not tally.complete and tally.began]
            screen.close(*under_way)
    measured = [tally for tally in demo.tallies if tally.began]
    if arguments.json:
        sys.stdout.write(json.dumps({tally.stage: tally.figures() for tally in measured}) + "\n")
    elif measured:
        sys.stdout.write("\n" + "\n".join([*table(measured), "", *sentences(measured)]) + "\n")
    if code == 0:
        draw(arguments.report, measured)
    elif code == INTERRUPTED:
        sys.stderr.write("softmutex demo: interrupted; nothing is left running, no picture was drawn\n")
    return code


def plan_of(arguments: argparse.Namespace) -> Plan:
    for flag, least, most in (
        ("clients", 1, CLIENTS_MAX),
        ("slots", 1, CLIENTS_MAX),
        ("capacity", 0.1, 10_000),
        ("size", 0.01, 10_000),
        ("deadline", 0.1, 3600),
    ):
        value = getattr(arguments, flag)
        if not least <= value <= most:
            raise ConfigError(f"--{flag} {value:g} is not between {least:g} and {most:g}.")
    return Plan(
        scenario=arguments.scenario,
        clients=arguments.clients,
        slots=arguments.slots,
        capacity_mbit_s=arguments.capacity,
        size_mb=arguments.size,
        deadline_s=0.0 if arguments.scenario == "plain" else arguments.deadline,
        connections=LIMIT if arguments.scenario == "connections" else 0,
    )


def check_port(port: int) -> None:
    """Before the run: whether the server could have it."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port {port} is not between 0 and 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port in TIME_WAIT is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
            raise ConfigError(f"port {port} {why}. Give another --port, or none: any free one will do.") from None


def check_report(report: Path) -> None:
    """Before the run: whether pictures can be written there."""
    try:
        report.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=report):
            pass
    except OSError as error:
        raise ConfigError(
            f"nothing can be written to {report}: {error.strerror}. Give --report DIR, a directory of yours"
        ) from None


class Stopped(Exception):
    """By SIGTERM."""


async def until_told(demo: Demo, port: int) -> None:
    """SIGTERM ends it as Ctrl-C does: asyncio sees to that one itself."""
    work = asyncio.ensure_future(demo.run(port))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if work.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise Stopped from None
        raise


def draw(report: Path, measured: list[Any]) -> None:
    from softmutex_adapters.demo import page, picture  # matplotlib takes half a second

    written = [report / "demo.png", report / "demo.html"]
    with suppress(KeyboardInterrupt):
        picture.draw(written[0], measured)
        page.write(written[1], measured)
    for path in written:
        sys.stderr.write(f"{path.resolve()}\n")
