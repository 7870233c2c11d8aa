"""The figure of the main job: `sudo python benchmarks/ftp.py [--clients 64] [--slots 2] [--rounds 3] [--json]`.

The subscribers of `softmutex demo`, each a process with a node of its own, against vsftpd behind 40 Mbit/s of the
kernel's `tbf` (tests/ftp/link.py). Coordinated and ideal take turns, so that a busy machine is busy for both; the
uncoordinated run comes once. Needs root, vsftpd, ip, tc.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from softmutex_adapters.demo.plan import Plan
from softmutex_adapters.demo.run import Demo
from softmutex_adapters.demo.screen import Screen, sentence
from softmutex_adapters.demo.summary import table
from softmutex_adapters.demo.tally import Tally

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.ftp.link import SERVER, link

FTP = 21


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-clients", type=int, default=0, help="vsftpd's own limit; 0: none")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plan = Plan(clients=arguments.clients, slots=arguments.slots, connections=arguments.max_clients)
    rounds = asyncio.run(measure(plan, arguments.rounds))
    stages = {
        stage: [tally.figures() for tally in rounds if tally.stage == stage]
        for stage in dict.fromkeys(tally.stage for tally in rounds)
    }
    share = goodput(stages["coordinated"]) / goodput(stages["ideal"])
    if arguments.json:
        print(json.dumps({**stages, "share_of_ideal": round(share, 4)}))
        return
    print(f"\n{sentence(plan)}; vsftpd behind tbf")
    print("\n".join(table(rounds[:3])))
    for tally in rounds[1:]:
        seen = tally.figures()
        print(f"{tally.stage}: {seen['finished']} of {plan.clients}, {seen['goodput_mbit_s']} Mbit/s", end="")
        print(f", overlap {seen['overlap_s']} s, {tally.lost} told")
    print(f"coordinated has {share:.1%} of the ideal semaphore's goodput (medians of {arguments.rounds} rounds)")


async def measure(plan: Plan, rounds: int) -> list[Tally]:
    screen = Screen(plan, sys.stderr)
    with (
        link(plan.capacity_mbit_s, plan.size, max_clients=plan.connections) as way,
        tempfile.TemporaryDirectory() as directory,
    ):
        demo = Demo(plan, directory, screen.news, within=way.within)
        for stage in ["uncoordinated", *["coordinated", "ideal"] * rounds]:
            await demo.stage(stage, SERVER, FTP)
    screen.close()
    return demo.tallies


def goodput(figures: list[dict[str, Any]]) -> float:
    return statistics.median(each["goodput_mbit_s"] for each in figures)


if __name__ == "__main__":
    main()
