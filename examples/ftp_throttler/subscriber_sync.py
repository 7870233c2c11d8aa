"""The same without asyncio: the standard library's ftplib inside `softmutex.sync`.

    python subscriber_sync.py ftp://ftp.example.org/outgoing incoming

Exit codes: 0 nothing is missing now; 75 not this time (what came so far is kept); 77 the server refuses.
"""

import argparse
import ftplib
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from progress import Bar, Link

from softmutex import AcquireTimeout, sync

SILENCE_S = 20.0  # of the socket: without it ftplib waits for ever for a server that says nothing any more
PAUSE_S, PAUSE_MOST_S = 1.0, 60.0  # between two turns when the server is away
BLOCK = 65_536


class Late(Exception):
    """The deadline of this turn is over."""


def fetch_new(url: str, incoming: Path, ends_at: float) -> None:
    """Once. Who holds the turn does not wait for a server that is away: others may have it meanwhile."""
    place, link, refused = urlsplit(url), Link(), []
    with ftplib.FTP(timeout=SILENCE_S) as ftp:
        ftp.connect(place.hostname or "localhost", place.port or 21)
        ftp.login(place.username or "", place.password or "")
        ftp.cwd(place.path or "/")
        names = ftp.nlst()
        ftp.voidcmd("TYPE I")  # a listing is text; SIZE is wanted of the binary file
        for name in names:
            if not (incoming / name).exists() and (size := size_of(ftp, name)) is not None:
                try:
                    fetch(ftp, name, size, incoming / name, ends_at, link)
                except ftplib.error_perm as error:
                    refused.append(f"{name}: {error}")  # this one; the others may be had
    if refused:
        raise ftplib.error_perm("; ".join(refused))


def size_of(ftp: ftplib.FTP, name: str) -> int | None:
    try:
        return ftp.size(name)
    except ftplib.error_perm:  # a directory
        return None


def fetch(ftp: ftplib.FTP, name: str, size: int, target: Path, ends_at: float, link: Link) -> None:
    part = target.with_name(target.name + ".part")  # under its own name a file is always whole
    offset = part.stat().st_size if part.exists() else 0
    if offset > size:  # it became another file meanwhile
        offset = 0
    with Bar(name, size, link, offset) as bar, part.open("r+b" if offset else "wb") as out:
        out.seek(offset)

        def take(block: bytes) -> None:
            out.write(block)
            bar.add(len(block))
            # Between blocks, since nothing interrupts a thread: it comes a block late, or SILENCE_S where none comes.
            if time.monotonic() > ends_at:
                raise Late("the deadline of this turn is over")

        ftp.retrbinary(f"RETR {name}", take, BLOCK, rest=offset or None)
    if part.stat().st_size != size:
        raise ConnectionError(f"{name} ended early")
    part.rename(target)


def main(arguments: argparse.Namespace) -> int:
    arguments.incoming.mkdir(parents=True, exist_ok=True)
    give_up_at, pause_s = time.monotonic() + arguments.wait, PAUSE_S
    while True:
        had = sum(1 for _ in arguments.incoming.iterdir())
        try:
            wait_s = max(0.0, give_up_at - time.monotonic())
            with sync.SoftMutex("ftp-server", slots=arguments.slots, timeout=wait_s):
                fetch_new(arguments.url, arguments.incoming, time.monotonic() + arguments.deadline)
            return 0
        except (AcquireTimeout, Late) as error:
            print(f"not this time: {error}", file=sys.stderr)
            return 75
        except ftplib.error_perm as error:  # 5xx: asking again does not help
            print(f"refused: {error}", file=sys.stderr)
            return 77
        except ftplib.all_errors as error:
            # The server is away, full (421) or broke off. What came is on disk: the next turn goes on there.
            if sum(1 for _ in arguments.incoming.iterdir()) > had:
                pause_s = PAUSE_S  # there was progress
            rest_s = pause_s * random.uniform(0.5, 1.0)
            if time.monotonic() + rest_s > give_up_at:
                print(f"not this time: {type(error).__name__} {error}", file=sys.stderr)
                return 75
            print(f"{type(error).__name__} {error}; asking for a turn again in {rest_s:.1f} s", file=sys.stderr)
            time.sleep(rest_s)
            pause_s = min(2 * pause_s, PAUSE_MOST_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="ftp://[user:password@]host[:port]/directory")
    parser.add_argument("incoming", type=Path, help="where files go")
    parser.add_argument("--slots", type=int, default=2, help="how many fetch at a time; the same for all subscribers")
    parser.add_argument("--deadline", type=float, default=600.0, help="of one turn, in seconds")
    parser.add_argument("--wait", type=float, default=7200.0, help="for turns and for the server, in seconds")
    sys.exit(main(parser.parse_args()))
