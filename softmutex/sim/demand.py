"""Who wants the resource, when, and for how long A then runs.

saturated   everybody always: a new request right after each release
bursts      everybody for a while, then nobody for a while, and so on
periodic    each node once a period, at its own phase, unless its last request still waits
poisson     requests arrive at random moments, each at a random node; one node may have several
none        nobody, which shows what a group costs that nobody uses
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from softmutex.core.chance import Rng, exponential
from softmutex.core.events import SECOND, Duration, NodeId

if TYPE_CHECKING:
    from softmutex.sim.node import SimNode
    from softmutex.sim.world import World


def hold_length(spec: str, op_s: float, rng: Rng) -> Callable[[], Duration]:
    """Draws how long A runs, for one of the kinds that `Scenario.hold` names."""
    kind, *numbers = spec.split(":")
    op = round(op_s * SECOND)
    if kind == "exponential":
        return lambda: 1 + exponential(rng, op)
    if kind == "uniform":
        low, high = (round(float(number) * SECOND) for number in numbers)
        return lambda: low + int(rng.random() * (high - low))
    if numbers:
        op = round(float(numbers[0]) * SECOND)
    return lambda: op


def start(world: World) -> None:
    """Sets the scenario's demand going. It asks on for as long as the run is `rough`."""
    kind, _, number = world.scenario.demand.partition(":")
    if kind == "poisson":
        gap = round(SECOND / float(number))
        world.after(exponential(world.rng, gap), _arrive, world, gap)
    for node in list(world.nodes.values()):
        newcomer(world, node)
    if kind == "bursts":
        length, pause = (round(float(part) * SECOND) for part in number.split(":"))
        world.after(length, _pause, world, length, pause)


def newcomer(world: World, node: SimNode) -> None:
    kind, _, number = world.scenario.demand.partition(":")
    if kind in ("saturated", "bursts"):
        again(world, node)
    elif kind == "periodic":
        period = round(float(number or world.scenario.default_period_s) * SECOND)
        world.after(int(world.chance() * period), _ask_periodically, world, node.id, period)


def again(world: World, node: SimNode) -> None:
    if world.rough and world.wanted and not node.leaving:
        world.ask(node)


def _pause(world: World, length: Duration, pause: Duration) -> None:
    world.wanted = False
    world.after(pause, _burst, world, length, pause)


def _burst(world: World, length: Duration, pause: Duration) -> None:
    world.wanted = True
    for node in list(world.nodes.values()):
        if not node.pending and not node.holds:
            again(world, node)
    if world.rough:
        world.after(length, _pause, world, length, pause)


def _arrive(world: World, gap: Duration) -> None:
    if not world.rough:
        return
    living = world.group.living
    node = world.nodes[living[int(world.chance() * len(living))]]
    if not node.leaving:
        world.ask(node)
    world.after(exponential(world.rng, gap), _arrive, world, gap)


def _ask_periodically(world: World, node_id: NodeId, period: Duration) -> None:
    node = world.nodes.get(node_id)
    if node is None or node.leaving or not world.rough:
        return
    if not node.pending:
        world.ask(node)
    world.after(period, _ask_periodically, world, node_id, period)
