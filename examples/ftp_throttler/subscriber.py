"""Fetches what is new on a plain FTP server, in turns with everybody else who does. Nothing changes on the server.

    python subscriber.py ftp://ftp.example.org/outgoing incoming
    python subscriber.py --slots 2 --deadline 600 --wait 7200 ftp://ftp.example.org/outgoing incoming

Made for cron: it runs once. Exit codes: 0 nothing is missing now; 75 not this time (what came so far is kept); 77 the
server refuses, and asking again does not help.
Which group, transport and key: SOFTMUTEX_GROUP, SOFTMUTEX_TRANSPORT, ... or softmutex.toml, as for every node.
"""

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import aioftp
from opentelemetry import trace
from progress import Bar, Link

from softmutex import AcquireTimeout, Hold, SoftMutex

SILENCE_S = 20.0  # without socket_timeout aioftp waits for ever when an overloaded server says nothing any more
PAUSE_S, PAUSE_MOST_S = 1.0, 60.0  # between two turns when the server is away
tracer = trace.get_tracer("ftp-throttler")  # does nothing until an SDK is set up, see README.md


class Refused(Exception):
    """The server said no for good (5xx): no such directory, wrong password."""


class Late(Exception):
    """The deadline of this turn is over."""


async def fetch_new(url: str, incoming: Path, hold: Hold) -> None:
    """Once. Who holds the turn does not wait for a server that is away: others may have it meanwhile."""
    place, link = urlsplit(url), Link()
    client = aioftp.Client(socket_timeout=SILENCE_S, connection_timeout=SILENCE_S)
    try:
        await client.connect(place.hostname or "localhost", place.port or 21)
        await client.login(place.username or "anonymous", place.password or "anonymous@")
        refused = []
        for path, facts in await client.list(place.path or "/"):
            if facts["type"] == "file" and not (incoming / path.name).exists():
                try:
                    await fetch(client, path, int(facts["size"]), incoming / path.name, hold, link)
                except aioftp.StatusCodeError as error:
                    if not is_refusal(error):
                        raise
                    refused.append(f"{path.name}: {error}")  # this one; the others may be had
        await client.quit()
        if refused:
            raise Refused("; ".join(refused))
    except aioftp.StatusCodeError as error:
        if is_refusal(error):
            raise Refused(str(error)) from None
        raise
    finally:
        client.close()


def is_refusal(error: aioftp.StatusCodeError) -> bool:
    return any(code.matches("5xx") for code in error.received_codes)


async def fetch(client: aioftp.Client, path: PurePosixPath, size: int, target: Path, hold: Hold, link: Link) -> None:
    part = target.with_name(target.name + ".part")  # under its own name a file is always whole
    offset = part.stat().st_size if part.exists() else 0
    if offset > size:  # it became another file meanwhile
        offset = 0
    with tracer.start_as_current_span("ftp.fetch", attributes={"file": path.name, "size": size, "offset": offset}):
        with Bar(path.name, size, link, offset) as bar, part.open("r+b" if offset else "wb") as out:
            out.seek(offset)
            async with client.download_stream(path, offset=offset) as stream:  # REST
                async for block in stream.iter_by_block(65_536):
                    out.write(block)
                    bar.add(len(block))
                    hold.touch()  # progress: the max_hold of the mutex, if it has one, begins anew
                    end_if_cancelled()
        if part.stat().st_size != size:
            raise ConnectionError(f"{path.name} ended early")
        part.rename(target)


def end_if_cancelled() -> None:
    """aioftp reads by `asyncio.wait_for`, which in Python 3.11 forgets a cancellation where a block comes just then."""
    task = asyncio.current_task()
    if task and task.cancelling():
        raise asyncio.CancelledError


async def one_turn(arguments: argparse.Namespace, wait_s: float) -> None:
    # Two at a time fill the link while one of them is between two files. on_lost stays "continue": too many transfers
    # for a moment cost speed, not data.
    async with SoftMutex("ftp-server", slots=arguments.slots, timeout=wait_s) as hold:
        # The deadline counts from here: who waits for a turn has not begun. It bounds what a stuck server can take from
        # the others.
        try:
            async with asyncio.timeout(arguments.deadline) as deadline:
                await fetch_new(arguments.url, arguments.incoming, hold)
        except TimeoutError:
            if deadline.expired():
                raise Late(f"not done in {arguments.deadline:g} s") from None
            raise


@tracer.start_as_current_span("ftp.turn")  # waiting, holding and all files of this run are one trace
async def main(arguments: argparse.Namespace) -> int:
    arguments.incoming.mkdir(parents=True, exist_ok=True)
    give_up_at, pause_s = time.monotonic() + arguments.wait, PAUSE_S
    while True:
        had = sum(1 for _ in arguments.incoming.iterdir())
        try:
            await one_turn(arguments, max(0.0, give_up_at - time.monotonic()))
            return 0
        except (AcquireTimeout, Late) as error:
            print(f"not this time: {error}", file=sys.stderr)
            return 75
        except Refused as error:
            print(f"refused: {error}", file=sys.stderr)
            return 77
        except (OSError, aioftp.StatusCodeError) as error:
            # The server is away, full (421) or broke off. What came is on disk: the next turn goes on there.
            if sum(1 for _ in arguments.incoming.iterdir()) > had:
                pause_s = PAUSE_S  # there was progress
            rest_s = pause_s * random.uniform(0.5, 1.0)
            if time.monotonic() + rest_s > give_up_at:
                print(f"not this time: {type(error).__name__} {error}", file=sys.stderr)
                return 75
            print(f"{type(error).__name__} {error}; asking for a turn again in {rest_s:.1f} s", file=sys.stderr)
            await asyncio.sleep(rest_s)
            pause_s = min(2 * pause_s, PAUSE_MOST_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="ftp://[user:password@]host[:port]/directory")
    parser.add_argument("incoming", type=Path, help="where files go")
    parser.add_argument("--slots", type=int, default=2, help="how many fetch at a time; the same for all subscribers")
    parser.add_argument("--deadline", type=float, default=600.0, help="of one turn, in seconds")
    parser.add_argument("--wait", type=float, default=7200.0, help="for turns and for the server, in seconds")
    sys.exit(asyncio.run(main(parser.parse_args())))
