"""How fast is the simulator, next to SimPy in the same process, on the same machine, in the same minute?

    python benchmarks/simulator.py [--json] [--quick]

SimPy is the usual Python library for this kind of work. Two models of it: a token that hops from node to node without
any rules, and nodes that pass messages through stores. Ours runs the real machines, with requests, statistics, laws
and a digest of every event. Each figure is the best of several runs by processor time, since machines are shared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import simpy

from softmutex.sim import Scenario, simulate
from softmutex.sim.result import Result

REPEATS = 3
PAGE = os.sysconf("SC_PAGE_SIZE")

# The promised figures (issue 2).
LEAST_HOPS_PER_S, LEAST_EVENTS_PER_S, MOST_BYTES_PER_NODE = 150_000, 150_000, 4096


def best_rate(work: Callable[[], int]) -> float:
    """How many a second of processor time, the best of `REPEATS`."""
    rates = []
    for _ in range(REPEATS):
        begun = time.process_time()
        count = work()
        rates.append(count / (time.process_time() - begun))
    return max(rates)


# --- SimPy -----------------------------------------------------------------------------------------------------------


def simpy_walk(hops: int) -> int:
    """One token, one process, no rules: wait, choose another node, go on."""
    env = simpy.Environment()
    rng = random.Random(1)
    visits = [0] * 300

    def token() -> Generator[simpy.Event, None, None]:
        for _ in range(hops):
            yield env.timeout(0.1)
            visits[int(rng.random() * 300)] += 1

    env.process(token())
    env.run()
    return sum(visits)


def simpy_stores(messages: int) -> int:
    """Each node is a process with a store for its mail; one message goes round, each hop with a delay."""
    env = simpy.Environment()
    rng = random.Random(1)
    mail = [simpy.Store(env) for _ in range(300)]
    passed = 0

    def node(me: int) -> Generator[simpy.Event, Any, None]:
        nonlocal passed
        while passed < messages:
            yield mail[me].get()
            yield env.timeout(0.1)
            passed += 1
            mail[int(rng.random() * 300)].put(me)

    for me in range(300):
        env.process(node(me))
    mail[0].put(0)
    env.run()
    return passed


# --- ours ------------------------------------------------------------------------------------------------------------


def hops(scenario: Scenario) -> Callable[[], int]:
    return lambda: simulate(scenario).hops


def events(scenario: Scenario) -> Callable[[], int]:
    return lambda: simulate(scenario).events


def steady_events(algorithm: str, nodes: int, span_s: float) -> float:
    """Events a second once everything stands: the making of the nodes is not an event."""
    seen: list[tuple[float, int]] = []
    scenario = Scenario(algorithm=algorithm, nodes=nodes, duration_s=span_s, delay_s=0.05, demand="none")
    rates = []
    for _ in range(REPEATS):
        seen.clear()
        simulate(scenario, look=lambda world: seen.append((time.process_time(), world.events)))
        (begun, first), (ended, last) = seen[0], seen[-1]
        rates.append((last - first) / (ended - begun))
    return max(rates)


def bytes_per_node(algorithm: str, nodes: int) -> float:
    """Resident memory of a fresh process, at its largest while it simulates, by node."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks.simulator import memory_here;"
        "print(memory_here(sys.argv[2], int(sys.argv[3])))"
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-c", program, root, algorithm, str(nodes)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory_here(algorithm: str, nodes: int) -> float:
    scenario = Scenario(algorithm=algorithm, nodes=nodes, duration_s=20.0, delay_s=0.05)
    simulate(scenario.but(nodes=10))  # whatever is imported late is here now
    before = peak = resident()

    def look(_: object) -> None:
        nonlocal peak
        peak = max(peak, resident())

    result: Result = simulate(scenario, look=look)  # type: ignore[arg-type]
    assert result.acquisitions > 0
    return (peak - before) / nodes


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


# --- the table -------------------------------------------------------------------------------------------------------


def measure(share: float) -> dict[str, Any]:
    many = round(1_000_000 * share)
    span_s = 100_000 * share
    papers = {"nodes": 300, "skip_s": 0.1, "op_s": 4.0, "min_interval_s": 600.0}
    found: dict[str, Any] = {
        "simpy_walk_hops_per_s": best_rate(lambda: simpy_walk(many)),
        "simpy_stores_messages_per_s": best_rate(lambda: simpy_stores(many // 3)),
    }
    for algorithm in ("adaptive", "sandwich"):
        walk = Scenario(algorithm=algorithm, duration_s=span_s, demand="none", **papers)  # type: ignore[arg-type]
        found[f"{algorithm}_hops_per_s"] = best_rate(hops(walk))
        for nodes in (150, 300):
            wanted = walk.but(nodes=nodes, demand="saturated", duration_s=3 * span_s)
            found[f"{algorithm}_hops_per_s_all_want_it_n{nodes}"] = best_rate(hops(wanted))
        delayed = walk.but(demand="saturated", delay_s=0.05, loss=0.001, duration_s=2 * span_s)
        found[f"{algorithm}_events_per_s_with_messages"] = best_rate(events(delayed))
    needed = Scenario(nodes=300, duration_s=span_s / 10, op_s=2.5, delay_s=0.05, demand="poisson:0.2")
    found["wandering_events_per_s_with_messages"] = best_rate(events(needed))
    for nodes in (100, 10_000, 100_000):
        found[f"sandwich_events_per_s_n{nodes}"] = steady_events("sandwich", nodes, span_s / 2)
    for algorithm in ("adaptive", "sandwich", "wandering"):
        found[f"{algorithm}_bytes_per_node_n100000"] = bytes_per_node(algorithm, 100_000)
    return found


def verdicts(found: dict[str, Any]) -> list[str]:
    walk, stores = found["simpy_walk_hops_per_s"], found["simpy_stores_messages_per_s"]
    lines = [
        f"{'SimPy: bare token walk, no rules':<58} {walk:>12,.0f} hops/s",
        f"{'SimPy: messages through stores':<58} {stores:>12,.0f} messages/s",
    ]
    for name, value in found.items():
        if name.startswith("simpy"):
            continue
        label = name.replace("_per_s", "").replace("_", " ")
        if "bytes" in name:
            lines.append(f"{label:<58} {value:>12,.0f} bytes   at most {MOST_BYTES_PER_NODE:,}")
        elif "hops" in name:
            against = f"{value / walk:.2f} of SimPy's walk, at least {LEAST_HOPS_PER_S:,}"
            lines.append(f"{label:<58} {value:>12,.0f} hops/s  {against}")
        else:
            against = f"{value / stores:.2f} of SimPy's stores, at least {LEAST_EVENTS_PER_S:,}"
            lines.append(f"{label:<58} {value:>12,.0f} events/s  {against}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    arguments = parser.parse_args()
    found = measure(0.1 if arguments.quick else 1.0)
    sys.stdout.write(json.dumps(found, indent=1) if arguments.json else "\n".join(verdicts(found)))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
