"""The laws see what they must: each broken machine is caught, no lawful one is, excuses excuse what they say."""

import pytest

from softmutex.sim import Churn, Kill, Partition, Pause, Scenario, simulate
from softmutex.sim.report import violations
from tests.sim.machines import BROKEN, CriesWolf, KeepsACopy, LeavesWithTheToken, Walk

RUN = {"nodes": 6, "duration_s": 200.0, "op_s": 1.0, "settle_s": 100.0}


@pytest.mark.parametrize("seed", range(5))
def test_a_lawful_machine_breaks_no_law(seed: int):
    result = simulate(Scenario(algorithm=Walk, seed=seed, changes_mind=0.2, **RUN))
    assert result.violations == []
    assert result.acquisitions > 100
    assert result.unserved == 0 and result.settled_s is not None


@pytest.mark.parametrize("machine", BROKEN, ids=lambda machine: machine.__name__)
def test_a_machine_that_breaks_a_law_is_caught(machine: type):
    faults = (Churn(2.0),) if machine is LeavesWithTheToken else ()
    result = simulate(Scenario(algorithm=machine, faults=faults, **RUN))
    assert machine.breaks in {violation.law for violation in result.violations}, result.violations


def test_a_law_that_is_not_asked_for_is_not_watched():
    result = simulate(Scenario(algorithm=KeepsACopy, laws=("effects", "requests"), **RUN))
    assert not {violation.law for violation in result.violations} & {"tokens", "overlap", "evidence"}


def test_two_holders_who_are_not_told_of_one_another_break_the_law_of_evidence():
    result = simulate(Scenario(algorithm=Walk, founders=2, grace_s=2.0, **{**RUN, "nodes": 40}))
    assert "evidence" in {violation.law for violation in result.violations}
    overlaps = [violation.at_s for violation in result.violations if violation.law == "overlap"]
    assert overlaps and min(overlaps) > 2, "two founders excuse it, but not for ever"


def test_two_holders_who_cannot_hear_each_other_are_counted_and_excused():
    cut = Partition(5.0, 199.0, 0.5, seen_after_s=0.1)
    run = {**RUN, "nodes": 40, "settle_s": 5.0}
    result = simulate(Scenario(algorithm=Walk, founders=40, faults=(cut,), own_views=True, **run))
    assert result.untold > 10 and result.overlap > 0.5
    assert "overlap" not in {violation.law for violation in result.violations}


def test_a_token_that_dies_with_its_holder_is_seen_to_be_lost():
    result = simulate(Scenario(algorithm=Walk, faults=(Kill(50, times=1),), **RUN))
    assert (result.generated, result.lost) == (1, 1)
    assert set(result.tokens_ns) == {0, 1}
    assert result.tokens_ns[1] == pytest.approx(50e9, abs=2e9)


def test_churn_in_good_order_is_no_excuse_and_needs_none():
    result = simulate(Scenario(algorithm=Walk, faults=(Churn(2.0),), **RUN))
    assert result.violations == []
    assert len(result.acquired) == 6 and max(result.acquired) > 6, "newcomers have ids that nobody had"


def test_a_pause_is_an_excuse_while_it_lasts():
    result = simulate(Scenario(algorithm=Walk, faults=(Pause(20, 5),), **RUN))
    assert result.violations == []


def test_a_violation_says_what_when_who_and_how_to_see_it_again():
    result = simulate(Scenario(algorithm=CriesWolf, seed=7, **RUN))
    text = violations(result)
    assert text.startswith("law of ")
    assert " s by node " in text
    command = "softmutex sim run --algorithm walk --nodes 6 --duration 200.0 --seed 7 --op 1.0 --settle 100.0"
    assert text.endswith(f"replay: {command}\n")
