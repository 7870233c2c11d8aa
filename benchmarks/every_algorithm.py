"""Each algorithm with real processes: 200 turns of five over UDP and of three over HTTP, then one is killed.

    python benchmarks/every_algorithm.py                        all that promise one at a time where nothing is wrong
    python benchmarks/every_algorithm.py central raymond        these
    python benchmarks/every_algorithm.py --turns 2000           more
    python benchmarks/every_algorithm.py --command              by `softmutex run`, a process and a node for each turn

All write into one file when a hold begins and ends, by the machine's one clock (`tests/faults/harness.py`). Nobody else
may be in there meanwhile, before the death and after it; whoever is killed waits for nothing then, and holds nothing.
With `--command` the first one is killed while it holds, with what it runs, and the others, who wait, take all turns: a
directory shows whether somebody is in there, as seen from outside, and who meets somebody writes that down.
The exit code is 1 where two were in there at once, or somebody was not served within a hundred seconds, or a command
ended with another code than 0. Of `voting`, which promises nothing while members come and go, and with `--command` they
do with each turn, two at once are only counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from softmutex import plugins
from softmutex.core.laws import Law, Weather, watched
from tests.cli.processes import children_of, eventually, kill, started
from tests.faults.harness import Worker, group, overlaps, stays, take_turns

STRICT = ("central", "token-ring", "suzuki-kasami", "raymond", "ricart-agrawala", "voting", "binary-search")
STRICT += ("ring-search", "sigma", "e2e", "non-e2e")
ALL = ("wandering", "keeper", *STRICT)
TASKS = 2  # of each process: `take_turns`
AFTERWARDS = 5  # turns of each task, when one is dead
LOOP = r"""
for turn in $(seq {turns}); do
  {softmutex} run -n x -q {flags} --algorithm {algorithm} -- \
    sh -c 'mkdir inside || {{ echo >> both; exit 0; }}; sleep 0.01; rmdir inside; echo >> ran' || exit $?
done
"""
HELD_S = 3600.0  # a loop of turns that takes longer is ended
COME_AND_GO = Weather.COMINGS | Weather.DEATHS


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


def by_command(algorithm: str, transport: str, count: int, turns: int) -> Run:
    softmutex = Path(sys.executable).with_name("softmutex")
    own = {name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")}
    flags = f"--no-agent --transport {transport}://127.0.0.1:0"
    rounds = -(-turns // (count - 1))
    loop = LOOP.format(softmutex=softmutex, flags=flags, algorithm=algorithm, turns=rounds)
    command = (softmutex, "run", "-n", "x", "-q", *flags.split(), "--algorithm", algorithm, "--", "sh", "-c")
    with tempfile.TemporaryDirectory(prefix="softmutex-every-") as folder, ExitStack() as stack:
        here = Path(folder)
        (here / "both").touch()
        where = {"env": {**own, "SOFTMUTEX_MEMBERSHIP": f"local://?directory={here}/runtime"}, "cwd": here}
        work = "mkdir inside; echo > held; exec sleep 3600"
        holder = stack.enter_context(started(*command, work, **where))
        eventually((here / "held").exists, "the first one runs")
        loops = [stack.enter_context(started("sh", "-c", loop, **where)) for _ in range(count - 1)]
        time.sleep(2.0)  # they wait
        below = [each for child in children_of(holder.pid) for each in (child, *children_of(child))]
        (here / "inside").rmdir()  # while it holds: whoever comes next may come at any time
        began = time.monotonic()
        for pid in (holder.pid, *below):
            kill(pid)
        ran = here / "ran"
        both = here / "both"
        try:
            eventually(ran.exists, "another one runs", 100.0)
        except AssertionError as error:
            return Run(algorithm, transport, 0, float("nan"), float("nan"), len(both.read_text()), str(error))
        after_s = time.monotonic() - began
        said = [each.communicate(timeout=HELD_S)[1] for each in loops]
        ended = [each.returncode for each in loops]
        wrong = "" if not any(ended) else f"ended with {ended}: {' '.join(said)}"[:100]
        took_s = time.monotonic() - began
        return Run(algorithm, transport, len(ran.read_text()), took_s, after_s, len(both.read_text()), wrong)


def promises(algorithm: str, by_commands: bool) -> bool:
    """Whether two at once break a promise, where nothing is wrong but that somebody dies."""
    return Law.OVERLAP in watched(plugins.algorithm(algorithm).laws, COME_AND_GO if by_commands else Weather.FAIR)


def timed(workers: list[Worker], rounds: int) -> float:
    began = time.monotonic()
    take_turns(workers, rounds)
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("algorithms", nargs="*", default=ALL)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--command", action="store_true", help="by softmutex run, a process for each turn")
    asked = parser.parse_args()
    print(f"{'algorithm':<16} {'over':<5} {'turns':>6} {'took':>8} {'after a death':>14} {'two at once':>12}")
    is_well = True
    for algorithm in asked.algorithms:
        for transport, count in (("udp", 5), ("http", 3)):
            found = (by_command if asked.command else run)(algorithm, transport, count, asked.turns)
            is_well = is_well and not found.said and not (found.both and promises(algorithm, asked.command))
            print(
                f"{algorithm:<16} {transport:<5} {found.turns:>6} {found.took_s:>6.1f} s "
                f"{found.after_death_s:>12.1f} s {found.both:>12}  {found.said}",
                flush=True,
            )
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
