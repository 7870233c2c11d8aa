"""What the lock tests of other implementations put theirs through: conflicts, an owner that fails, one that is silent.

For every algorithm that takes turns and claims to keep two apart in that weather; each with its own claims watched.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from softmutex import plugins
from softmutex.core.laws import Law, Weather, watched
from softmutex.sim import Kill, Pause, Scenario, simulate
from softmutex.sim.faults import Fault

KNOWN = {name: plugins.algorithm(name) for name in plugins.installed(plugins.Role.ALGORITHM)}
TURNS = [name for name, machine in KNOWN.items() if not machine.elects and machine.__module__.startswith("softmutex.")]


def claiming(law: Law, weather: Weather) -> list[str]:
    return [name for name in TURNS if law in watched(KNOWN[name].laws, weather)]


def story(algorithm: str, *faults: Fault, seed: int = 1) -> Scenario:
    return Scenario(
        algorithm, 5, 60.0, seed, op_s=1.0, nodes_max=5, delay_s=0.02, faults=faults, settle_s=120.0, keep_holds=True
    )


@pytest.mark.parametrize("algorithm", claiming(Law.OVERLAP, Weather.FAIR))
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_ask_at_once_and_each_has_its_turn_alone(algorithm: str, seed: int):
    result = simulate(story(algorithm, seed=seed))
    holds = sorted(result.holds or (), key=lambda hold: hold.start)
    assert not result.violation_count and result.unserved == 0
    assert {hold.node for hold in holds} == {1, 2, 3, 4, 5}
    assert all(one.end <= other.start for one, other in pairwise(holds))


@pytest.mark.parametrize("algorithm", claiming(Law.OVERLAP, Weather.DEATHS))
def test_when_the_owner_fails_the_others_go_on(algorithm: str):
    result = simulate(story(algorithm, Kill(20, "holder", restart_s=None, times=1)))
    assert not result.violation_count and result.unserved == 0
    assert sum(hold.start > 30e9 for hold in result.holds or ()) > 5


STRICT = claiming(Law.EXCLUSION, Weather.PAUSES)


@pytest.mark.parametrize("algorithm", STRICT)
@pytest.mark.parametrize("who", ["holder", "waiter"])
def test_one_that_does_not_respond_is_waited_for_or_done_without_but_never_joined(algorithm: str, who: str):
    result = simulate(story(algorithm, Pause(20, 8, who)))
    assert not result.violation_count and result.unserved == 0
    assert set(result.concurrency_ns) <= {0, 1}
    assert sum(hold.start > 30e9 for hold in result.holds or ()) > 5


@pytest.mark.parametrize("algorithm", sorted({*claiming(Law.OVERLAP, Weather.PAUSES)} - {*STRICT}))
@pytest.mark.parametrize("who", ["holder", "waiter"])
def test_a_soft_one_goes_on_without_the_one_that_does_not_respond_and_tells_it(algorithm: str, who: str):
    result = simulate(story(algorithm, Pause(20, 20, who, times=1)))
    assert not result.violation_count and result.unserved == 0
    assert sum(30e9 < hold.start < 40e9 for hold in result.holds or ()) > 3
