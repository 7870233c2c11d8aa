"""Fetches what is new on a plain FTP server, in turns with everybody else who does. Nothing changes on the server.

    python subscriber.py ftp://ftp.example.org/outgoing incoming
    python subscriber.py --slots 2 --deadline 600 --wait 7200 ftp://ftp.example.org/outgoing incoming

Made for cron: it runs once. Exit codes: 0 nothing is missing now, 75 not this time (what came so far is kept).
Which group, transport and key: SOFTMUTEX_GROUP, SOFTMUTEX_TRANSPORT, ... or softmutex.toml, as for every node.
"""

import argparse
import asyncio
import sys
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import aioftp
from opentelemetry import trace
from progress import Bar

from softmutex import AcquireTimeout, Hold, SoftMutex

TRIES = 5
SILENCE_S = 20.0  # without socket_timeout aioftp waits for ever when an overloaded server says nothing any more
tracer = trace.get_tracer("ftp-throttler")  # does nothing until an SDK is set up, see README.md


async def fetch_new(url: str, incoming: Path, hold: Hold) -> None:
    place = urlsplit(url)
    for left in reversed(range(TRIES)):
        client = aioftp.Client(socket_timeout=SILENCE_S, connection_timeout=SILENCE_S)
        try:
            await client.connect(place.hostname or "localhost", place.port or 21)
            await client.login(place.username or "anonymous", place.password or "anonymous@")
            for path, facts in await client.list(place.path or "/"):
                if facts["type"] == "file" and not (incoming / path.name).exists():
                    await fetch(client, path, int(facts["size"]), incoming / path.name, hold)
            await client.quit()
            return
        except (OSError, aioftp.StatusCodeError) as error:
            # The connection broke, or the server is full (421). What came is on disk: the next try goes on there.
            if not left:
                raise
            print(f"{type(error).__name__} {error}; trying again", file=sys.stderr)
            await asyncio.sleep(1.0)
        finally:
            client.close()


async def fetch(client: aioftp.Client, path: PurePosixPath, size: int, target: Path, hold: Hold) -> None:
    part = target.with_name(target.name + ".part")  # under its own name a file is always whole
    offset = part.stat().st_size if part.exists() else 0
    if offset > size:  # it became another file meanwhile
        offset = 0
    with tracer.start_as_current_span("ftp.fetch", attributes={"file": path.name, "size": size, "offset": offset}):
        with Bar(path.name, size, offset) as bar, part.open("r+b" if offset else "wb") as out:
            out.seek(offset)
            async with client.download_stream(path, offset=offset) as stream:  # REST
                async for block in stream.iter_by_block(65_536):
                    out.write(block)
                    bar.add(len(block))
                    hold.touch()  # progress: the max_hold of the mutex, if it has one, begins anew
        if part.stat().st_size != size:
            raise ConnectionError(f"{path.name} ended early")
        part.rename(target)


@tracer.start_as_current_span("ftp.turn")  # waiting, holding and all files of this turn are one trace
async def main(arguments: argparse.Namespace) -> int:
    arguments.incoming.mkdir(parents=True, exist_ok=True)
    try:
        # Two at a time fill the link while one of them is between two files. on_lost stays "continue": too many
        # transfers for a moment cost speed, not data.
        async with SoftMutex("ftp-server", slots=arguments.slots, timeout=arguments.wait) as hold:
            # The deadline counts from here: who waits for a turn has not begun. It bounds what a stuck server can take
            # from the others.
            async with asyncio.timeout(arguments.deadline):
                await fetch_new(arguments.url, arguments.incoming, hold)
    except AcquireTimeout as error:
        print(error, file=sys.stderr)
        return 75
    except (OSError, aioftp.StatusCodeError) as error:  # TimeoutError is one of them: the deadline
        print(f"not this time: {type(error).__name__} {error}", file=sys.stderr)
        return 75
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="ftp://[user:password@]host[:port]/directory")
    parser.add_argument("incoming", type=Path, help="where files go")
    parser.add_argument("--slots", type=int, default=2, help="how many fetch at a time; the same for all subscribers")
    parser.add_argument("--deadline", type=float, default=600.0, help="of one turn, in seconds")
    parser.add_argument("--wait", type=float, default=7200.0, help="for a turn, in seconds")
    sys.exit(asyncio.run(main(parser.parse_args())))
