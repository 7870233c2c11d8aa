"""Ten thousand acquisitions by eight processes, five of a hundred datagrams lost: all end, alone, and nothing leaks.

    python benchmarks/ten_thousand.py [--acquisitions N] [--loss SHARE]

The datagrams of each pair of processes go through a relay, which loses some. The processes write into one file when
they come in and go out. In the end each closes its node and must have no task, timer, socket or thread left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults.harness import group, overlaps, stays  # noqa: E402 from the source tree
from tests.faults.relay import Relay, Weather  # noqa: E402

PROCESSES, TASKS = 8, 2
PATIENCE_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acquisitions", type=int, default=10_000)
    parser.add_argument("--loss", type=float, default=0.05)
    wanted = parser.parse_args()
    rounds = -(-wanted.acquisitions // (PROCESSES * TASKS))
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        with (
            Relay(PROCESSES, Weather(loss=wanted.loss)) as relay,
            group(here, [{"transport": relay.transport(number)} for number in range(PROCESSES)]) as workers,
        ):
            begun = time.monotonic()
            for worker in workers:
                worker.order(f"turns {TASKS} {rounds}")
            told = sum(int(worker.hears("turned", PATIENCE_S)["lost"]) for worker in workers)
            took_s = time.monotonic() - begun
            for worker in workers:
                worker.ends()  # and says what it has left open: nothing
        seen = stays(here)
    over = overlaps(seen)
    print(f"{len(seen)} acquisitions by {PROCESSES} processes in {took_s:.1f} s ({len(seen) / took_s:.0f} a second)")
    print(f"datagrams: {dict(relay.counts)}")
    print(f"overlaps {len(over)}, holds told that they may not be alone {told}, left open nothing")
    return int(bool(over) or len(seen) != rounds * PROCESSES * TASKS)


if __name__ == "__main__":
    sys.exit(main())
