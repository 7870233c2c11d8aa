"""From a scenario to a result: finds the algorithm, runs the world, adds up.

result = simulate(Scenario(algorithm="sandwich", nodes=300, duration_s=1e5, seed=1))
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from softmutex import plugins
from softmutex.core.events import SECOND
from softmutex.core.machine import Algorithm
from softmutex.core.messages import KINDS
from softmutex.sim.checkers import Laws
from softmutex.sim.result import Result
from softmutex.sim.scenario import Scenario
from softmutex.sim.world import EPOCH, World

Progress = Callable[[float], None]  # from 0 to 1

_NAME = {kind: name for name, kind in KINDS.values()}


def simulate(
    scenario: Scenario, progress: Progress | None = None, sink: Callable[[bytes], None] | None = None
) -> Result:
    make = plugins.algorithm(scenario.algorithm)
    world = World(scenario, make, _options(make, scenario), Laws(EPOCH), sink)
    if progress is not None:
        _report(world, progress, max(1, round(scenario.duration_s * SECOND / 200)))
    begun = time.perf_counter()
    world.run()
    return _result(world, time.perf_counter() - begun)


def _options(make: type[Algorithm], scenario: Scenario) -> dict[str, Any]:
    """Where messages cannot be lost or late, a token needs no acknowledgement: the papers' own model."""
    options = dict(scenario.options)
    if scenario.slots != 1:
        options["slots"] = scenario.slots
    if scenario.instant and "passing" in getattr(make, "options", ()):
        options.setdefault("passing", "direct")
    return options


def _report(world: World, progress: Progress, every: int) -> None:
    progress(min(1.0, (world.now - EPOCH) / (world.scenario.duration_s * SECOND)))
    world.after(every, _report, world, progress, every)


def _result(world: World, wall_s: float) -> Result:
    scenario, tally = world.scenario, world.tally
    generated, discarded, lost = tally.counts
    timing = scenario.timing()
    return Result(
        scenario=scenario,
        settings={
            "skip": timing.skip,
            "op": timing.op,
            "min_interval": timing.min_interval,
            "max_interval": timing.max_interval,
            "nodes_max": timing.nodes_max,
        },
        concurrency_ns=tally.concurrency,
        tokens_ns=tally.time_with,
        acquisitions=tally.acquisitions,
        acquired=world.acquired,
        withdrawn=tally.withdrawn,
        waits=tally.waits,
        intervals=tally.intervals,
        holds=tally.holds,
        sent={_NAME.get(kind, kind.__name__.upper()): count for kind, count in world.measured_sent.items()},
        idle_ns=tally.idle_time,
        idle_messages=tally.idle_messages,
        generated=generated,
        discarded=discarded,
        lost=lost,
        recoveries_ns=tally.recoveries,
        facts=dict(world.facts),
        violations=world.laws.violations,
        violation_count=world.laws.count,
        events=world.events,
        hops=world.measured_sent.get(world.carrier, 0),
        wall_s=wall_s,
        digest=world.recorder.digest(),
        unserved=world.unserved,
        settled_s=world.settled_s,
    )
