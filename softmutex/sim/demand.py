"""Who wants the resource, when, and for how long A then runs.

All randomness is `rng.random()`. Python leaves `math.log` to the machine's C library, and two of those may differ
in the last bit, so `exponential` computes its own logarithm from additions, multiplications and divisions, which
IEEE 754 fixes to the bit: a seed gives the same run everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp
from typing import TYPE_CHECKING

from softmutex.core.events import SECOND, Duration
from softmutex.core.machine import Rng

if TYPE_CHECKING:
    from softmutex.sim.world import SimNode, World

LN_2 = 0.6931471805599453


def natural_log(x: float) -> float:
    """ln x for x > 0, the same bits on every machine; within 1e-15 of the true value for x in (0, 1]."""
    mantissa, exponent = frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        exponent -= 1
    t = (mantissa - 1.0) / (mantissa + 1.0)  # |t| < 0.172, so t**24 is below the last bit
    square = t * t
    total = 0.0
    for odd in range(23, 0, -2):
        total = total * square + 1.0 / odd
    return 2.0 * t * total + exponent * LN_2


def exponential(rng: Rng, mean: float) -> float:
    return -mean * natural_log(1.0 - rng.random())


def hold_length(spec: str, op_s: float, rng: Rng) -> Callable[[], Duration]:
    """Draws how long A runs, for one of the kinds that `Scenario.hold` names."""
    kind, *numbers = spec.split(":")
    op = round(op_s * SECOND)
    if kind == "exponential":
        return lambda: 1 + int(exponential(rng, op))
    if kind == "uniform":
        low, high = (round(float(number) * SECOND) for number in numbers)
        return lambda: low + int(rng.random() * (high - low))
    return lambda: op


def start(world: World) -> None:
    """Sets the scenario's demand going. It asks on for as long as `world.asking`."""
    kind, _, number = world.scenario.demand.partition(":")
    if kind == "poisson":
        _arrive(world, SECOND / float(number), first=True)
    for node_id in list(world.living):
        newcomer(world, world.nodes[node_id])


def newcomer(world: World, node: SimNode) -> None:
    kind, _, number = world.scenario.demand.partition(":")
    if kind == "saturated" and world.asking:
        world.ask(node)
    elif kind == "periodic":
        period = round(float(number or world.default_period_s) * SECOND)
        world.after(int(world.chance() * period), _ask_again, world, node.id, period)


def _arrive(world: World, mean_gap: float, first: bool = False) -> None:
    if not world.asking:
        return
    if not first and world.living:
        node_id = world.living[int(world.chance() * len(world.living))]
        world.ask(world.nodes[node_id])
    world.after(1 + int(exponential(world.world_rng, mean_gap)), _arrive, world, mean_gap)


def _ask_again(world: World, node_id: int, period: Duration) -> None:
    """Once a period, unless the last request of this node still waits."""
    node = world.nodes.get(node_id)
    if node is None or not world.asking:
        return
    if not node.pending:
        world.ask(node)
    world.after(period, _ask_again, world, node_id, period)
