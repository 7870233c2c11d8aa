"""`softmutex history -n NAME`: who held it lately, for how long, and what went wrong; kept by the members.

Each member remembers the last 64 holds that it knows of, and who leaves tells two others of the last 12. So nothing has
to run for it, and where everybody leaves at once the past is gone. `--json` prints objects, a line each, the oldest
first:

    {"node": "web1-4711-ab12", "user": "ada", "purpose": "lftp", "epoch": 1, "hop": 17,
     "ended": 1700000000.0, "held": 12.3, "waited": 0.1, "lost": ""}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from softmutex.cli import complain
from softmutex.cli.settings import add_node_flags, node_settings
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import check_name, printable
from softmutex.runtime.config import Settings
from softmutex.seen import PastSeen, doing, span

NOT_STARTED = 69


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", required=True, help="the mutex")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_node_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    name = check_name(arguments.name)
    try:
        found = asyncio.run(ask(node_settings(arguments), name))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        return complain(f"softmutex history: {error}", NOT_STARTED)
    if arguments.json:
        shown = [json.dumps(asdict(past)) for past in found]
    else:
        shown = [line(past) for past in found] or [f"no member remembers a hold of {name}"]
    sys.stdout.write("\n".join(map(printable, shown)) + "\n" if shown else "")
    return 0


async def ask(settings: Settings, name: str) -> Sequence[PastSeen]:
    from softmutex import Node

    async with Node._of(settings) as node:
        return await node.mutex(name).history()


def line(past: PastSeen) -> str:
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(past.ended))
    lost = f"  lost: {past.lost}" if past.lost else ""
    return f"{when}  {past.node}{doing(past)}  held {span(past.held)}, after {span(past.waited)}{lost}"
