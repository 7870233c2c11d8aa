"""Each rule of the wandering token is missed by the laws of the simulator when it is left out."""

import pytest

from softmutex.core.algorithms.wandering import Wandering
from softmutex.sim import simulate
from softmutex.sim.scenarios import scenario
from tests.wandering.broken import BREAKS, SEEDS, Break


def broken_laws(machine: type[Wandering], one: Break, seed: int) -> set[str]:
    result = simulate(scenario(one.scenario, machine, seed, settle_s=300.0))
    return {violation.law for violation in result.violations}


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.machine.__name__)
def test_a_machine_without_this_rule_is_caught_where_the_true_one_is_not(one: Break):
    seeds = sorted(SEEDS, key=lambda seed: seed < one.first)
    caught = (seed for seed in seeds if one.law in broken_laws(one.machine, one, seed))
    assert any(one.law not in broken_laws(Wandering, one, seed) for seed in caught), (
        f"in {one.scenario!r} no seed of {SEEDS.start} to {SEEDS.stop - 1} has {one.machine.__name__} break "
        f"{one.law!r} and the true machine keep it. Name the scenario and the law that miss the rule "
        "(`softmutex/sim/scenarios.py` has their names), or take the machine out: what nothing misses is not needed."
    )
