"""The laws see what they must: each broken machine is caught, no lawful one is, excuses excuse what they say."""

from typing import Any

import pytest

from softmutex.core.laws import IN_ANY_WEATHER, Law, Weather, claim, watched
from softmutex.sim import Churn, Clocks, Clog, Kill, Partition, Pause, Replay, Scenario, TokenLoss, simulate
from softmutex.sim.report import violations
from tests.sim.machines import BROKEN, CriesWolf, KeepsACopy, LeavesWithTheToken, RunsWithoutToken, Walk

RUN = {"nodes": 6, "duration_s": 200.0, "op_s": 1.0, "settle_s": 100.0}


@pytest.mark.parametrize("seed", range(5))
def test_a_lawful_machine_breaks_no_law(seed: int):
    result = simulate(Scenario(algorithm=Walk, seed=seed, changes_mind=0.2, **RUN))
    assert result.violations == []
    assert result.acquisitions > 100
    assert result.unserved == 0 and result.settled_s is not None


def test_who_waits_behind_a_turn_that_outlasts_the_calm_is_not_let_down():
    result = simulate(Scenario(nodes=2, op_s=60.0, duration_s=10.0, settle_s=20.0, bound_s=1.0))
    assert result.violations == []
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


def test_a_token_that_is_sent_to_a_dead_host_is_lost():
    """It counted as alive until its sender gave up, and who had made another one in its place had made a second one."""
    cut = Kill(13.0, "waiter", restart_s=None, times=1, silent=True)
    result = simulate(Scenario(nodes=5, op_s=10.0, delay_s=0.01, duration_s=100.0, seed=1, faults=(cut,)))
    assert (result.generated, result.lost) == (2, 1)
    assert set(result.tokens_ns) == {0, 1}


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


# --- what is claimed, and in which weather ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "weather"),
    [
        ({}, Weather.FAIR),
        ({"delay_s": 0.1, "jitter": 1.0, "changes_mind": 0.5}, Weather.FAIR),
        ({"loss": 0.01}, Weather.LOSS),
        ({"corruption": 0.01, "duplication": 0.1}, Weather.LOSS | Weather.REPETITION),
        ({"reordering": 0.1}, Weather.LATENESS),
        ({"own_views": True}, Weather.VIEWS),
        ({"founders": 0}, Weather.FOUNDERS),
        ({"founders": 2}, Weather.FOUNDERS),
        ({"faults": (Kill(5), Churn(0.1))}, Weather.DEATHS | Weather.COMINGS),
        ({"faults": (Pause(5, 1), Partition(1, 2))}, Weather.PAUSES | Weather.CUTS),
        ({"faults": (Clog(5, 1), Replay(0.1, 9), Clocks(), TokenLoss(5))}, None),
    ],
    ids=str,
)
def test_the_weather_of_a_scenario_is_all_that_goes_wrong_in_it(changes: dict[str, Any], weather: Weather | None):
    all_four = Weather.LATENESS | Weather.REPETITION | Weather.CLOCKS | Weather.LOSS
    assert Scenario(**changes).weather() is (all_four if weather is None else weather)


def test_a_law_is_watched_while_nothing_worse_happens_than_it_is_claimed_for():
    laws = (
        claim(Weather.ANY, Law.EFFECTS)
        | claim(Weather.LOSS | Weather.DEATHS, Law.ORDER)
        | claim(Weather.FAIR, Law.OVERLAP)
    )
    assert watched(laws, Weather.FAIR) == (Law.EFFECTS, Law.ORDER, Law.OVERLAP)
    assert watched(laws, Weather.LOSS) == (Law.EFFECTS, Law.ORDER)
    assert watched(laws, Weather.LOSS | Weather.CUTS) == (Law.EFFECTS,)
    assert set(watched(IN_ANY_WEATHER, Weather.ANY)) == set(Law) - {Law.EXCLUSION}


def test_a_machine_that_claims_a_law_in_fair_weather_is_held_to_it_only_there():
    class Bold(RunsWithoutToken):
        laws = claim(Weather.FAIR, Law.OVERLAP)

    for loss, broken in ((0.0, {"overlap"}), (1e-9, set())):
        result = simulate(Scenario(algorithm=Bold, loss=loss, **RUN))
        assert {violation.law for violation in result.violations} == broken


def test_exclusion_is_broken_in_the_wake_of_a_disturbance_as_well():
    class Strict(RunsWithoutToken):
        laws = claim(Weather.ANY, Law.OVERLAP, Law.EXCLUSION)

    result = simulate(Scenario(algorithm=Strict, loss=1e-9, **RUN))
    assert {violation.law for violation in result.violations} == {"exclusion"}
