"""Who left is forgotten: a machine that runs for months meets lives without end, and each has an id of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex import plugins
from softmutex.core.events import Effect, Event, Instant, MembersChanged, NodeId
from softmutex.core.machine import Setup
from softmutex.sim import Churn, Kill, simulate
from softmutex.sim.scenario import Scenario
from tests.core.within import within
from tests.sim.days import algorithms

A_FEW = 5
MORE = {  # and why
    "wandering": 80,  # the hand-over: the last 64 that it settled; the context: the last sixteen that left
    "keeper": 18,  # the desk: the last sixteen that left
    "binary-search": 16,  # the hand-over
    "ring-search": 16,
    "e2e": 12,  # who had a replica's key from here
}


@pytest.mark.parametrize("algorithm", algorithms())
def test_a_machine_remembers_but_a_few_of_those_who_left(algorithm: str) -> None:
    machines: dict[NodeId, Any] = {}
    left: dict[NodeId, None] = {}
    most_met: dict[NodeId, int] = {}

    class Watched(plugins.algorithm(algorithm)):  # type: ignore[misc]
        name = algorithm

        def __init__(self, setup: Setup) -> None:
            super().__init__(setup)
            self.watched = setup.me
            machines[setup.me] = self

        def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
            if type(event) is MembersChanged:
                left.update(dict.fromkeys(event.left))
                most_met[self.watched] = most_met.get(self.watched, 0) + len(event.left)
            return super().handle(event, now)  # type: ignore[no-any-return]

    use: dict[str, Any] = {"nodes": 16, "ids": "random", "op_s": 0.05, "demand": "poisson:2", "delay_s": 0.01}
    faults = (Churn(12.0), Kill(3, "random"))
    simulate(Scenario(algorithm=Watched, **use, duration_s=40.0, settle_s=10.0, faults=faults))
    there = [machine for node, machine in machines.items() if node not in left]
    assert len(left) > 60 and max(most_met.values()) > 20
    known = [{each for each in within(machine) if isinstance(each, int) and each in left} for machine in there]
    assert max(map(len, known)) <= MORE.get(algorithm, A_FEW)
