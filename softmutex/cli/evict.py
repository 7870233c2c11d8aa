"""`softmutex evict -n NAME --reason TEXT`: takes a mutex from whoever holds it, and lets the next one in.

For a holder that hangs. Its hold is declared lost ("evicted", with the reason): a command of `softmutex run` is ended
where it was started with --on-lost term, and goes on unprotected where not. Exit code 1: nobody held it; 69: the group
cannot be joined. With `require_identity` holders obey only members whom their `evictors` names.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from softmutex.cli import complain
from softmutex.cli.settings import add_node_flags, node_settings
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import check_name, printable

NOBODY, NOT_STARTED = 1, 69


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", required=True, help="the mutex")
    parser.add_argument("--reason", required=True, help="for the holder and its log")
    add_node_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    from softmutex import Node

    name = check_name(arguments.name)

    async def evict() -> int:
        async with Node._of(node_settings(arguments)) as node:
            mutex = node.mutex(name)
            seen = await mutex.look()
            ended = await mutex.evict(arguments.reason)
            for one in seen.holders:
                sys.stdout.write(printable(f"{one.node} held it{f' ({one.purpose})' if one.purpose else ''}") + "\n")
            sys.stdout.write(f"{ended} of {len(seen.holders)} holds ended\n")
            return 0 if ended else NOBODY

    try:
        return asyncio.run(evict())
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        return complain(f"softmutex evict: {error}", NOT_STARTED)
