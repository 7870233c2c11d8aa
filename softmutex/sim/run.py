"""From a scenario to a result: finds the algorithm, runs its two phases, adds up.

rough    `duration_s`: demand and faults go on; this is what the statistics cover
calm     `settle_s`, if asked for: the network is healed, nobody asks for more but a few who ask once, and before it
         is over everybody who waits is granted and the tokens are as many as there should be
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable

from softmutex import plugins
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import SECOND, Duration, Instant, to_seconds
from softmutex.core.laws import watched
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import name_of
from softmutex.sim import demand, weather
from softmutex.sim.result import Result
from softmutex.sim.scenario import Scenario
from softmutex.sim.spy import Spy, spied_on
from softmutex.sim.tally import EPOCH
from softmutex.sim.world import MachineFailed, Storm, World

Progress = Callable[[float], None]  # from 0 to 1
Sink = Callable[[bytes], None]
Look = Callable[[World], None]
Watch = Callable[[], None]

STEPS = 100  # pauses during a phase, to look at it
LOOKS = 10_000  # at single nodes for the law of tokens, in all these pauses together
CALM_BOUNDS = 3  # with `bound_s` the calm phase lasts for so many of it at least: what is late by one is seen
LATE_ASKERS = 10  # nodes that ask once more when the network has healed: a token that nobody wants may stay lost


def simulate(
    scenario: Scenario,
    progress: Progress | None = None,
    sink: Sink | None = None,
    spy: Spy | None = None,
    look: Look | None = None,
    most_events: int | None = None,
) -> Result:
    """Runs it. `progress` and `look` are called about a hundred times; `sink` gets the numbers of `trace.py`.

    Raises `TooLong` soon after `most_events`.
    """
    machine = plugins.algorithm(scenario.algorithm)
    make: Callable[[Setup], Algorithm] = machine if spy is None else spied_on(machine, spy)
    laws = scenario.laws if scenario.laws is not None else watched(machine.laws, scenario.weather())
    world = World(scenario, machine, make, laws, sink)
    if most_events is not None:
        world.most_events = most_events

    def watch() -> None:
        if look is not None:
            look(world)
        if progress is not None:
            progress((world.now - EPOCH) / SECOND / (scenario.duration_s + scenario.settle_s))

    begun = time.perf_counter()
    settled_s = _live(world, watch)
    return _result(world, settled_s, time.perf_counter() - begun)


def _live(world: World, watch: Watch) -> float | None:
    collecting = gc.isenabled()
    gc.disable()  # nothing in the loop makes cycles, and a collection would look at every node
    try:
        return _two_phases(world, watch)
    except MachineFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, BrokenPipeError):  # whoever read along (`spy.py`) is gone: no fault of a machine
            raise cause from None
        text = (
            str(cause)
            if isinstance(cause, InvariantBreach | Storm)
            else "".join(traceback.format_exception(cause)).strip()
        )
        world.laws.illegal(world.now, failed.node, f"{type(cause).__name__}: {text}")
        world.freeze()
        return None
    finally:
        if collecting:
            gc.enable()


def _two_phases(world: World, watch: Watch) -> float | None:
    scenario = world.scenario
    end = EPOCH + round(scenario.duration_s * SECOND)
    world.group.populate()
    weather.start(world)
    demand.start(world)
    step = max(1, (end - EPOCH) // STEPS)
    stride = -(-STEPS * scenario.nodes // LOOKS)
    for number, at in enumerate(range(EPOCH + step, end, step), 1):
        _step(world, at, watch)
        if number % stride == 0:
            world.laws.audit()
    _step(world, end, watch)
    world.laws.audit()
    world.freeze()
    if not scenario.settle_s:
        return None
    weather.heal(world)
    living = world.group.living
    for at in range(0, len(living), max(1, len(living) // LATE_ASKERS)):
        world.ask(world.nodes[living[at]])
    return _settle(world, end, round(scenario.settle_s * SECOND), watch)


def _settle(world: World, start: Instant, patience: Duration, watch: Watch) -> float | None:
    """How long it took until all was in order, and stayed so for a while; None when it did not get there.

    Whoever waits behind many others, or behind a long turn, is not let down while these take their time: there is as
    much more. Nobody asks for more, so it ends.
    """
    step = max(1, patience // STEPS)
    least = 0 if world.scenario.bound_s is None else round(CALM_BOUNDS * world.scenario.bound_s * SECOND)
    since, fewest, until = None, world.tally.demand, start + patience
    at = start + step
    while at <= until:
        _step(world, at, watch)
        world.laws.audit()
        if not world.laws.at_rest():
            since = None
        elif since is None:
            since = at
        elif at - since >= 5 * step and at - start >= least:
            break
        if world.tally.demand < fewest or len(world.running) >= world.scenario.slots:
            fewest, until = world.tally.demand, max(until, at + max(5 * step, least))
        at += step
    world.laws.verdict()
    return None if since is None else to_seconds(since - start)


def _step(world: World, at: Instant, watch: Watch) -> None:
    world.run_until(at)
    watch()


def _result(world: World, settled_s: float | None, wall_s: float) -> Result:
    scenario, tally = world.scenario, world.tally
    return Result(
        scenario=scenario,
        settings=scenario.settings(world.algorithm.pace),
        concurrency_ns=tally.concurrency,
        tokens_ns=tally.time_with,
        acquisitions=len(tally.waits),
        acquired=world.acquired,
        elders=world.group.elders,
        asked=tally.counts.asked,
        withdrawn=tally.counts.withdrawn,
        waits=tally.waits,
        intervals=tally.intervals,
        holds=tally.holds,
        sent={name_of(kind): count for kind, count in world.measured_sent.items()},
        idle_ns=tally.idle_time,
        idle_messages=tally.idle_messages,
        generated=tally.counts.generated,
        discarded=tally.counts.discarded,
        lost=tally.counts.lost,
        recoveries_ns=tally.counts.recoveries,
        outages_ns=tally.counts.outages,
        bereft_ns=tally.counts.bereft,
        facts=dict(world.facts),
        violations=world.laws.violations,
        violation_count=world.laws.count,
        looked=dict(world.laws.looked),
        seen=_done(world),
        untold=world.laws.untold,
        alarms=world.laws.alarms,
        false_alarms=world.laws.false_alarms,
        unserved=sum(len(node.pending) for node in world.nodes.values()),
        calm_s=max(0.0, to_seconds(world.now - EPOCH) - scenario.duration_s),
        settled_s=settled_s,
        events=world.events,
        hops=world.measured_sent.get(tally.carrier, 0),
        wall_s=wall_s,
        digest=world.recorder.digest(),
    )


def _done(world: World) -> dict[str, int]:
    """What machines did, beside messages, and how often."""
    facts = {f"fact {kind}": count for kind, count in world.facts.items() if count}
    return {**facts, **{f"timer {kind}": count for kind, count in world.fired.items()}, **world.seen}
