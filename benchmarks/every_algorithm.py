"""Each algorithm with real processes: 200 turns of five over UDP and of three over HTTP, then one is killed.

    python benchmarks/every_algorithm.py                        all that promise one at a time where nothing is wrong
    python benchmarks/every_algorithm.py central raymond        these
    python benchmarks/every_algorithm.py --turns 2000           more

All write into one file when a hold begins and ends, by the machine's one clock (`tests/faults/harness.py`). Nobody else
may be in there meanwhile, before the death and after it; whoever is killed waits for nothing then, and holds nothing.
The exit code is 1 where two were in there at once, or somebody was not served within a hundred seconds: `voting`, which
is no queue, is not through by then.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.faults.harness import Worker, group, overlaps, stays, take_turns

STRICT = ("central", "token-ring", "suzuki-kasami", "raymond", "ricart-agrawala", "voting", "binary-search")
STRICT += ("ring-search", "sigma", "e2e", "non-e2e")
ALL = ("wandering", "keeper", *STRICT)
TASKS = 2  # of each process: `take_turns`
AFTERWARDS = 5  # turns of each task, when one is dead


class Run(NamedTuple):
    algorithm: str
    transport: str
    turns: int
    took_s: float
    after_death_s: float
    both: int
    said: str


def run(algorithm: str, transport: str, count: int, turns: int) -> Run:
    rounds = -(-turns // (TASKS * count))
    nodes = [{"transport": f"{transport}://127.0.0.1:0"}] * count
    took_s = after_s = float("nan")
    said = ""
    with tempfile.TemporaryDirectory(prefix="softmutex-every-") as folder:
        here = Path(folder)
        try:
            with group(here, nodes, algorithm=algorithm) as workers:
                took_s = timed(workers, rounds)
                workers[-1].kill()
                after_s = timed(workers[:-1], AFTERWARDS)
        except AssertionError as error:
            said = str(error).partition("\n")[0][:100]
        seen = stays(here)
        return Run(algorithm, transport, len(seen), took_s, after_s, len(overlaps(seen)), said)


def timed(workers: list[Worker], rounds: int) -> float:
    began = time.monotonic()
    take_turns(workers, rounds)
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("algorithms", nargs="*", default=ALL)
    parser.add_argument("--turns", type=int, default=200)
    asked = parser.parse_args()
    print(f"{'algorithm':<16} {'over':<5} {'turns':>6} {'took':>8} {'after a death':>14} {'two at once':>12}")
    is_well = True
    for algorithm in asked.algorithms:
        for transport, count in (("udp", 5), ("http", 3)):
            found = run(algorithm, transport, count, asked.turns)
            is_well = is_well and not found.both and not found.said
            print(
                f"{algorithm:<16} {transport:<5} {found.turns:>6} {found.took_s:>6.1f} s "
                f"{found.after_death_s:>12.1f} s {found.both:>12}  {found.said}",
                flush=True,
            )
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
