"""Many seeds of what is promised of security, spread over machines as one likes, and T measured:

    python -m tests.security.campaign [adversary ...] [--seeds 0:5000]

A line for each fault: how many seeds, which of them broke a law, and how long it took until everybody was back. The
same seed is the same run. Exit code 1 where one broke. Who ends it before its end (Ctrl-C, SIGTERM) is told of the
seeds that were done.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.security import banned, moving, ousted, real_lists, test_flaps, under_attack


class Fault(NamedTuple):
    what: str
    run: Callable[[int, Path], float]  # seed, a folder for keys --> seconds until everybody was back
    bound_s: float


FAULTS = {
    "adversary": Fault(
        "somebody without the key has the network: drops, delays, reflects, replays, mixes, forges",
        under_attack.attack,
        under_attack.BACK_S,
    ),
    "flaps": Fault(
        "lists forget members and remember them, the network is cut",
        lambda seed, folder: test_flaps.flap(seed, bool(seed & 1), bool(seed & 2), folder),
        test_flaps.T_S,
    ),
    "addresses": Fault(
        "members move to other addresses, and to those of others; lists show it late",
        lambda seed, _folder: moving.move(seed),
        moving.T_S,
    ),
    "clones": Fault(
        "two members are clones of each other",
        lambda seed, folder: under_attack.clones(seed, folder if seed & 1 else None),
        under_attack.CLONES_S,
    ),
    "ban": Fault("a member is banned, at a real registry, over real sockets", banned.ban, banned.BAN_S),
    "oust": Fault(
        "a banned member keeps all it has, heeds nothing and lies; one in three has lied before",
        ousted.oust,
        ousted.LIED_S,
    ),
    **{
        kind: Fault(
            f"the server of the list fails, forgets, goes back in time, or lies: {kind}; in real time",
            lambda seed, folder, kind=kind: asyncio.run(real_lists.flap(kind, seed, folder)),
            real_lists.T_S,
        )
        for kind in real_lists.KINDS
    },
}


class End:
    """Somebody asks for it. The seed that runs is finished: an exception in its midst would look like a broken law."""

    def __init__(self) -> None:
        self.is_near = False
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._come)

    def _come(self, *_: object) -> None:
        self.is_near = True


def campaign(fault: Fault, seeds: range, end: End) -> tuple[list[float], list[int]]:
    """How long each took, in order; and which broke."""
    took: list[float] = []
    broken: list[int] = []
    for seed in seeds:
        if end.is_near:
            break
        with tempfile.TemporaryDirectory() as folder:  # keys of an earlier seed would make it another run
            try:
                took.append(fault.run(seed, Path(folder)))
            except Exception:
                broken.append(seed)
                print(f"seed {seed}:", traceback.format_exc(limit=-1), file=sys.stderr, flush=True)
    return sorted(took), broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; by default all that need no server"
    )
    parser.add_argument("--seeds", default="0:20", help="FIRST:END")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition(":")
    logging.getLogger().addHandler(logging.NullHandler())  # what is logged is judged, and shown nowhere
    is_broken, end = False, End()
    for name in asked.faults or [name for name in FAULTS if name not in real_lists.KINDS]:
        fault, began = FAULTS[name], time.process_time()
        took, broken = campaign(fault, range(int(first), int(last)), end)
        is_broken = is_broken or bool(broken)
        done = len(took) + len(broken)
        print(f"{name} ({fault.what}): seeds {first}:{int(first) + done}, {len(broken)} broken {broken or ''}".rstrip())
        if took:
            told = (took[len(took) // 2], took[int(0.99 * (len(took) - 1))], took[-1])
            spent_s = (time.process_time() - began) / done
            print("  back after {:.1f} s median, {:.1f} s at 99 %, {:.1f} s at most".format(*told), end="")
            print(f" (bound {fault.bound_s:g} s); {spent_s:.2f} s of CPU a seed", flush=True)
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main())
