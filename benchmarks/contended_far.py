"""Everybody wants one mutex, each on a host of its own, far from each other: `python benchmarks/contended_far.py`.

Each host is a network namespace with a process and a node; between each two hosts every packet takes the delay, each
way. Told is what `softmutex bench contended` tells, and how many hand-overs there were of those that one way each
would allow. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from softmutex.cli.benching import contended  # noqa: E402 from the source tree
from softmutex.cli.benching.workers import in_processes  # noqa: E402
from tests.faults.far import FarHosts, address  # noqa: E402

PORT = 9431
SHOWN = (
    ("handovers_per_second", "{:>8.1f}"),
    ("of_the_possible", "{:>8.1%}"),
    ("share_in_use", "{:>7.1%}"),
    ("jain", "{:>7.3f}"),
    ("jain_after_first_round", "{:>7.3f}"),
    ("longest_gap_rounds", "{:>7.2f}"),
    ("fewest_of_a_client", "{:>7}"),
    ("packets_per_acquisition", "{:>8.2f}"),
    ("overlap_s", "{:>8.3f}"),
)


async def measure(hosts: int, delay_s: float, hold_s: float, duration_s: float, key: str) -> dict[str, Any]:
    with FarHosts(hosts, delay_s) as far:
        everybody = ",".join(f"{address(host)}:{PORT}" for host in far.hosts)
        tasks = [
            {
                "backend": "softmutex",
                "name": "far",
                "is_shared": False,
                "clients": 1,
                "nodes": hosts,
                "hold_s": hold_s,
                "duration_s": duration_s,
                "node": {
                    "transport": f"udp://{address(host)}:{PORT}",
                    "membership": f"static://{everybody}",
                    "key": key,
                },
            }
            for host in far.hosts
        ]
        prefixes = [far.prefix(host) for host in far.hosts]
        answers = await in_processes(f"{contended.__name__}:work", tasks, prefixes)
        cpu_s = sum(answer["cpu_s"] for answer in answers)
        found = contended.summary(answers, hosts, cpu_s, far.packets)
    found["of_the_possible"] = found["handovers_per_second"] * (delay_s + hold_s)
    return {"hosts": hosts, "delay_s": delay_s, "hold_s": hold_s, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--delays", type=float, nargs="+", default=[0.001, 0.02], help="seconds, each way")
    parser.add_argument("--holds", type=float, nargs="+", default=[0.0, 0.01], help="seconds")
    parser.add_argument("--duration", type=float, default=20.0, help="seconds of each line")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json:
        heads = "hand-overs/s  possible  in use   Jain  later  gap (rounds)  fewest  packets  overlap s"
        print(f"hosts  one way ms  hold ms  {heads}")
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "group.key")
        key.write_text(secrets.token_hex(32), "utf-8")
        key.chmod(0o600)
        for hosts in arguments.hosts:
            for delay_s in arguments.delays:
                for hold_s in arguments.holds:
                    found = asyncio.run(measure(hosts, delay_s, hold_s, arguments.duration, str(key)))
                    if arguments.json:
                        print(json.dumps(found), flush=True)
                    else:
                        cells = "  ".join(form.format(found[name]) for name, form in SHOWN)
                        print(f"{hosts:>5}  {delay_s * 1e3:>10g}  {hold_s * 1e3:>7g}  {cells}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
