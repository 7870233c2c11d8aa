"""A server that goes away while subscribers take turns, and comes back: `python benchmarks/ftp_away.py [--away 14]`.

Sixteen of examples/ftp_throttler, one slot, 12 Mbit/s; the server is killed in the middle of a file. Told is how many
ended well, by which exit codes, how many broken files went on where they stopped, and for how long the link idled after
the server was back.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.ftp.test_throttler import Server, serving, wait_until  # noqa: E402 from the source tree

EXAMPLES = ("subscriber.py", "subscriber_sync.py", "subscriber.sh")
MBIT_S, LIMIT_S = 12, 300.0


def some(here: Path, example: str, server: Server, count: int) -> list[subprocess.Popen[str]]:
    server.environ |= {"SLOTS": "1"}
    words = [example] if example.endswith(".sh") else [example, "--slots", "1"]
    running = []
    for number in range(count):
        with (here / f"said{number}").open("w") as out:
            running.append(server.subscribe(here / f"in{number}", words, out=out))
    return running


def received(here: Path) -> int:
    files = [path for path in here.glob("in*/*") if path.is_file()]
    return sum(path.stat().st_size for path in files if path.exists())


def measure(example: str, count: int, size: int, away_s: float, here: Path) -> str:
    content = os.urandom(size)
    running: list[subprocess.Popen[str]] = []
    try:
        with serving(here, mbit_s=MBIT_S) as server:
            (server.served / "image.bin").write_bytes(content)
            running = some(here, example, server, count)
            wait_until(lambda: received(here) > 1.5 * size, "nobody begins")
            port = int(server.url.rstrip("/").rsplit(":", 1)[1])
        time.sleep(away_s)
        had, back_s = received(here), time.monotonic()
        with serving(here, mbit_s=MBIT_S, port=port):
            wait_until(lambda: received(here) > had, "nobody comes back")
            idle_s = time.monotonic() - back_s
            codes = Counter(each.wait(LIMIT_S) for each in running)
    finally:
        for each in running:
            each.kill()
            each.wait()
    files = [here / f"in{number}" / "image.bin" for number in range(count)]
    whole = sum(file.exists() and file.read_bytes() == content for file in files)
    on = sum((here / f"said{number}").read_text().count("went on at") for number in range(count))
    said = ", ".join(f"{number} with {code}" for code, number in sorted(codes.items()))
    return f"{whole} of {count} whole | {said} | {on} | {idle_s:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away", type=float, default=14.0, help="seconds")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--size", type=int, default=1_000_000, help="bytes of the file")
    arguments = parser.parse_args()
    print(
        "| example | files | exit codes | went on | idle after the return |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    for example in EXAMPLES:
        with tempfile.TemporaryDirectory() as here:
            told = measure(example, arguments.clients, arguments.size, arguments.away, Path(here))
            print(f"| {example} | {told} |", flush=True)


if __name__ == "__main__":
    main()
