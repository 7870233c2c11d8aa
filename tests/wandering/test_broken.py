"""Each rule of the wandering token is missed by the laws of the simulator when it is left out."""

import pytest

from softmutex.sim import simulate
from softmutex.sim.scenarios import scenario
from tests.wandering.broken import BREAKS, Break


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.machine.__name__)
def test_a_machine_without_this_rule_is_caught(one: Break):
    result = simulate(scenario(one.scenario, one.machine, one.seed, settle_s=300.0))
    assert one.law in {violation.law for violation in result.violations}


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.machine.__name__)
def test_the_true_machine_keeps_the_laws_in_the_same_run(one: Break):
    result = simulate(scenario(one.scenario, "wandering", one.seed, settle_s=300.0))
    assert not result.violations
