"""`keeper`: every interleaving of two or three, with what time may do to a lease; and machines broken on purpose.

Time has the two moments of the explorer: before the first timer fired, and so much later that every lease is over. A
hold is told of that at the moment when it becomes later, as its own timer would tell it. A hold that was told is no
rival of those that begin later, and who calls the roll hears how many live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.keeper import Keeper
from softmutex.core.algorithms.keeper.installer import Installer, InstallRound
from softmutex.core.events import CallRoll, Effect, Event, Fired, Grant, Instant, Level, Lose, NodeId, Reach, Started
from softmutex.sim import Partition, simulate
from softmutex.sim.scenario import Scenario
from tests.algorithms.explorer import Act, Bounds, Explorer, Found, Path, State
from tests.depth import DEEP


class KeeperExplorer(Explorer):
    def __init__(self, algorithm: type[Keeper], **bounds: Any) -> None:
        super().__init__(algorithm, Bounds(finish=bounds.pop("finish", False), **bounds))
        self.calls = 0

    def tell(self, state: State, node_id: NodeId, event: Event, act: Act, path: Path | None) -> State:
        state = super().tell(state, node_id, event, act, path)
        while self.calls:
            self.calls -= 1
            alive, count = sum(node.machine is not None for node in state.nodes), len(state.nodes)
            level = Level.MORE if 2 * alive > count else Level.HALF if 2 * alive == count else Level.LESS
            state = self.tell(state, node_id, Reach(level), act, path)
        return state

    def perform(self, state: State, node_id: NodeId, effects: Any, act: Act, path: Path | None) -> State:
        self.calls += sum(isinstance(effect, CallRoll) for effect in effects)
        if any(isinstance(effect, Lose) for effect in effects):
            state = held(state, {node_id: -1})
        told = {node.id: node.holding for node in state.nodes if node.holding < 0 and node.id != node_id}
        rest = tuple(effect for effect in effects if not isinstance(effect, Lose))
        if told and any(isinstance(effect, Grant) for effect in rest):
            state = super().perform(held(state, dict.fromkeys(told, 0)), node_id, rest, act, path)
            return held(state, told)
        return super().perform(state, node_id, rest, act, path)

    def after(self, state: State, act: Act, path: Path | None) -> State:
        if act.what == "fire" and not state.late:
            state = state._replace(late=1)
            for node in state.nodes:
                if node.machine is not None and node.holding > 0:
                    state = self.tell(state, node.id, Fired(("seat", 0)), act, path)
        if act.what == "release":
            state = held(state, {act.node: 1})
        return super().after(state, act, path)


def held(state: State, what: dict[NodeId, int]) -> State:
    """As `Node.holding`: negative where it was told."""
    changed = (
        node._replace(holding=what[node.id] and (abs(node.holding) or 1) * what[node.id] // abs(what[node.id]))
        if node.id in what
        else node
        for node in state.nodes
    )
    return state._replace(nodes=tuple(changed))


SMALL: dict[str, dict[str, Any]] = {
    "two, all can finish": {"nodes": 2, "finish": True},
    "loss": {"nodes": 2, "losses": 1},
    "repetition": {"nodes": 2, "askers": (2,), "repeats": 1},
    "cancellation": {"nodes": 2, "withdrawn": 1},
    "death, all can finish": {"nodes": 2, "kills": 1, "finish": True},
    "leave": {"nodes": 2, "askers": (2,), "leaves": 1},
    "join": {"nodes": 2, "askers": (3,), "joins": 1},
    "leases that end": {"nodes": 2, "askers": (2,), "timers": 1},
    "three": {"nodes": 3, "askers": (2,), "losses": 1},
}
LARGE: dict[str, dict[str, Any]] = {
    "repetition": {"nodes": 2, "repeats": 1},
    "three, and a death": {"nodes": 3, "askers": (2, 3), "kills": 1},
    "three, loss, leases that end": {"nodes": 3, "askers": (2,), "timers": 1, "losses": 1},
}
DEEPEST: dict[str, dict[str, Any]] = {
    "leases that end, and a death": {"nodes": 2, "askers": (2,), "timers": 1, "kills": 1},
    "leave": {"nodes": 2, "leaves": 1},
    "leases that end, twice": {"nodes": 2, "askers": (2,), "timers": 2},
}


@pytest.mark.parametrize("name", SMALL)
def test_no_interleaving_of_a_few_breaks_it(name: str):
    assert KeeperExplorer(Keeper, **SMALL[name]).explore() > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LARGE, *DEEP * tuple(DEEPEST)])
def test_no_longer_interleaving_of_a_few_breaks_it(name: str):
    assert KeeperExplorer(Keeper, **(LARGE | DEEPEST)[name]).explore() > 1000


class FoundsAlone(Keeper):
    """A newcomer believes that it is the first."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return super().handle(Started(founder=True) if isinstance(event, Started) else event, now)


@pytest.mark.parametrize("bounds", [{"nodes": 2}, {"nodes": 1, "joins": 1}])
def test_the_search_finds_a_newcomer_that_makes_its_own_token(bounds: dict[str, Any]):
    with pytest.raises(Found, match="run A at once"):
        KeeperExplorer(FoundsAlone, **bounds).explore()


class AsksNobody(Installer):
    """office.O2 is missing: what the keeper misses is gone."""

    def is_gone(self, current: InstallRound, slot: int) -> bool:
        return True


def test_the_search_finds_a_keeper_that_makes_a_token_beside_one_that_is_passed_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("softmutex.core.algorithms.keeper.machine.Installer", AsksNobody)
    with pytest.raises(Found, match="run A at once"):
        KeeperExplorer(Keeper, nodes=2, timers=2, holds=False).explore()


class NoMajority(Installer):
    """installer.I2 is missing: whoever answers is enough."""

    def is_majority(self, current: InstallRound) -> bool:
        return current.tries > 2


def test_the_laws_see_a_keeper_that_needs_no_majority(monkeypatch: pytest.MonkeyPatch):
    """In one world of a few: in most of them the smaller side has nobody who asks at the right moment."""
    fields: dict[str, Any] = {"algorithm": "keeper", "nodes": 6, "duration_s": 150.0, "settle_s": 60.0}
    cuts = tuple(Partition(20.0 + 40 * n, 45.0 + 40 * n, 0.34, target="holder") for n in range(3))
    scenario = Scenario(**fields, op_s=2.0, delay_s=0.3, bound_s=10.0, faults=cuts)
    worlds = [scenario.but(seed=seed) for seed in range(1, 17)]
    assert not any(simulate(world).violations for world in worlds[:4])
    monkeypatch.setattr("softmutex.core.algorithms.keeper.machine.Installer", NoMajority)
    assert any(simulate(world).violations for world in worlds)
