"""The same without asyncio: the standard library's ftplib inside `softmutex.sync`.

    python subscriber_sync.py ftp://ftp.example.org/outgoing incoming

Exit codes: 0 nothing is missing now, 75 not this time (what came so far is kept).
"""

import argparse
import ftplib
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from progress import Bar

from softmutex import AcquireTimeout, sync

TRIES = 5
SILENCE_S = 20.0  # of the socket: without it ftplib waits for ever for a server that says nothing any more
BLOCK = 65_536


class Late(Exception):
    """The deadline of this turn is over."""


def fetch_new(url: str, incoming: Path, ends_at: float) -> None:
    place = urlsplit(url)
    for left in reversed(range(TRIES)):
        try:
            with ftplib.FTP(timeout=SILENCE_S) as ftp:
                ftp.connect(place.hostname or "localhost", place.port or 21)
                ftp.login(place.username or "", place.password or "")
                ftp.cwd(place.path or "/")
                names = ftp.nlst()
                ftp.voidcmd("TYPE I")  # a listing is text; SIZE is wanted of the binary file
                for name in names:
                    if not (incoming / name).exists() and (size := size_of(ftp, name)) is not None:
                        fetch(ftp, name, size, incoming / name, ends_at)
            return
        except ftplib.all_errors as error:
            # The connection broke, or the server is full (421). What came is on disk: the next try goes on there.
            if not left:
                raise
            print(f"{type(error).__name__} {error}; trying again", file=sys.stderr)
            time.sleep(1.0)


def size_of(ftp: ftplib.FTP, name: str) -> int | None:
    try:
        return ftp.size(name)
    except ftplib.error_perm:  # a directory
        return None


def fetch(ftp: ftplib.FTP, name: str, size: int, target: Path, ends_at: float) -> None:
    part = target.with_name(target.name + ".part")  # under its own name a file is always whole
    offset = part.stat().st_size if part.exists() else 0
    if offset > size:  # it became another file meanwhile
        offset = 0
    with Bar(name, size, offset) as bar, part.open("r+b" if offset else "wb") as out:
        out.seek(offset)

        def take(block: bytes) -> None:
            out.write(block)
            bar.add(len(block))
            # Between blocks, since nothing interrupts a thread: it comes a block late, or SILENCE_S where none comes.
            if time.monotonic() > ends_at:
                raise Late

        ftp.retrbinary(f"RETR {name}", take, BLOCK, rest=offset or None)
    if part.stat().st_size != size:
        raise ConnectionError(f"{name} ended early")
    part.rename(target)


def main(arguments: argparse.Namespace) -> int:
    arguments.incoming.mkdir(parents=True, exist_ok=True)
    try:
        with sync.SoftMutex("ftp-server", slots=arguments.slots, timeout=arguments.wait):
            fetch_new(arguments.url, arguments.incoming, time.monotonic() + arguments.deadline)
    except (AcquireTimeout, Late, *ftplib.all_errors) as error:
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
    sys.exit(main(parser.parse_args()))
