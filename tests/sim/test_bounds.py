"""The laws with a bound see what they must, and excuse what they say and no more."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.events import SetTimer
from softmutex.core.laws import Law
from softmutex.sim import Churn, DeadLink, Kill, Partition, Pause, Scenario, simulate
from softmutex.sim.network import Network
from softmutex.sim.result import Result
from tests.sim.machines import TICK
from tests.sim.offenders import OFFENDERS, NeverDeparts, Ring, Selfish

RUN: dict[str, Any] = {"nodes": 5, "duration_s": 200.0, "op_s": 1.0, "settle_s": 100.0, "bound_s": 10.0}


def broken(result: Result) -> set[str]:
    return {violation.law for violation in result.violations}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("demand", ["saturated", "poisson:0.3", "bursts:10:20"])
def test_a_lawful_machine_keeps_every_bound(seed: int, demand: str):
    result = simulate(Scenario(algorithm=Ring, seed=seed, demand=demand, delay_s=0.01, **RUN))
    assert result.violations == []
    assert result.looked[Law.OVERLAP] == result.looked[Law.ALARMS] >= 20
    assert result.looked[Law.REQUESTS] and result.looked[Law.TOKENS] and result.looked[Law.ORDER]


@pytest.mark.parametrize("machine", OFFENDERS, ids=lambda machine: machine.__name__)
def test_a_machine_that_breaks_a_bound_is_caught(machine: Any):
    faults = (Churn(0.5),) if machine is NeverDeparts else ()
    result = simulate(Scenario(algorithm=machine, delay_s=0.01, faults=faults, **RUN))
    assert machine.breaks in broken(result), result.violations


def test_a_node_that_is_told_to_leave_and_stays_breaks_the_law_of_requests_without_bounds_too():
    run = {**RUN, "bound_s": None, "duration_s": 300.0}
    result = simulate(Scenario(algorithm=NeverDeparts, delay_s=0.01, faults=(Churn(0.1),), **run))
    assert any("did not depart" in violation.what for violation in result.violations)
    with_a_kill = simulate(
        Scenario(algorithm=NeverDeparts, delay_s=0.01, faults=(Churn(0.1), Kill(20, "random")), **run)
    )
    assert not any("did not depart" in violation.what for violation in with_a_kill.violations)


def test_every_cut_excuses_what_happens_within_it_and_nothing_after_the_bound():
    run = {**RUN, "laws": ("overlap",), "demand": "poisson:0.5", "duration_s": 100.0}
    always = simulate(Scenario(algorithm=Silent, nodes=2, **{key: run[key] for key in run if key != "nodes"}))
    cut = Partition(0.0, 60.0, 0.5)
    within = simulate(Scenario(algorithm=Silent, faults=(cut,), **{**run, "nodes": 2}))
    first = min(violation.at_s for violation in within.violations)
    assert min(violation.at_s for violation in always.violations) < 60 < 70 < first


class Silent(Selfish):
    name = "silent"
    tells = False


Reports = Sequence[tuple[float, int, int, int, float]]


def two_holders(machine: type[Selfish], reports: Reports = (), **changes: Any) -> Result:
    """Both ask once at the beginning, and hold for 4 s; how this could come about is excused."""
    machine.reports = tuple(reports)
    run = {"nodes": 2, "founders": 2, "duration_s": 40.0, "op_s": 4.0, "demand": "bursts:0.5:100", "delay_s": 0.01}
    try:
        return simulate(
            Scenario(algorithm=machine, **{**run, "bound_s": 10.0, "laws": ("effects", "evidence"), **changes})
        )
    finally:
        machine.reports = ()


def test_who_overlapped_and_reports_it_on_both_sides_keeps_the_law_of_evidence():
    result = two_holders(Selfish, [(3.0, 1, 1, 2, 2.0), (5.0, 1, 1, 2, 4.0), (6.0, 2, 1, 1, 3.98)])
    assert result.looked[Law.EVIDENCE] == 1 and result.violations == []


def test_a_word_of_evidence_that_is_replayed_takes_nothing_back():
    """As in a node's statistics, the longest counts of what it was told of one pair."""
    result = two_holders(Selfish, [(3.0, 1, 1, 2, 2.0), (5.0, 1, 1, 2, 4.0), (6.0, 2, 1, 1, 4.0), (7.0, 1, 1, 2, 2.0)])
    assert result.violations == []


@pytest.mark.parametrize(
    ("reports", "what"),
    [
        ([], "reported nothing in time"),
        ([(5.0, 1, 1, 2, 4.0)], "reported nothing in time"),
        ([(5.0, 1, 1, 2, 4.0), (16.0, 2, 1, 1, 4.0)], "reported nothing in time"),
        ([(5.0, 1, 1, 2, 4.0), (5.0, 2, 1, 1, 3.5)], "reported but 3.500 s in time"),
        ([(5.0, 1, 1, 2, 4.0), (5.0, 2, 1, 1, 4.1)], "for 4.100 s, and it was 4.000 s"),
        ([(5.0, 1, 1, 2, 4.0), (5.0, 2, 1, 1, 4.0), (6.0, 2, 7, 1, 4.0)], "which it did not"),
    ],
)
def test_evidence_that_is_missing_late_too_short_too_long_or_made_up_is_seen(reports: Reports, what: str):
    result = two_holders(Selfish, reports)
    assert result.violations and all(what in violation.what for violation in result.violations)


def test_the_time_to_report_begins_when_both_can_talk():
    late = [(33.0, 1, 1, 2, 4.0), (33.0, 2, 1, 1, 4.0)]
    assert two_holders(Selfish, late).violations
    assert not two_holders(Selfish, late, faults=(Partition(1.0, 30.0, 0.5),)).violations


def test_what_so_many_turns_followed_before_they_could_talk_need_not_be_remembered():
    run = {"demand": "saturated", "op_s": 1.0, "duration_s": 45.0, "faults": (Partition(1.0, 30.0, 0.5),)}
    result = two_holders(Selfish, **run)
    begun = [float(violation.what.partition(" from ")[2].split()[0]) for violation in result.violations]
    assert result.untold and 10 < min(begun) < 16  # of each of both the last sixteen


def test_who_is_not_told_of_a_rival_within_the_bound_breaks_the_law_of_overlap():
    run = {"op_s": 30.0, "duration_s": 60.0, "laws": ("overlap",)}
    assert not two_holders(Selfish, **run).violations
    assert "was not told within the bound" in two_holders(Silent, **run).violations[0].what


def test_who_is_parted_after_both_holds_were_over_did_not_overlap_until_then():
    """The campaign told of nodes that "ran A beside" others for 12 s: the holds were over, and then one was cut off."""
    run = {"op_s": 8.0, "laws": ("overlap",)}
    assert not two_holders(Silent, faults=(Partition(12.0, 30.0, 0.5),), **run).violations


def test_a_hold_that_is_cancelled_when_it_is_told_ends_at_once():
    result = two_holders(Selfish, on_lost="cancel", keep_holds=True)
    assert result.holds and all(hold.end - hold.start == 1_000_000 for hold in result.holds)


class Keeps(Ring):
    """From the tenth hop on it stays where it is."""

    name = "keeps"

    def pass_on(self, now: int) -> list[Any]:
        if self.token is not None and self.token.hop > 9:
            return [SetTimer("tick", now + TICK)]
        return super().pass_on(now)


@pytest.mark.parametrize("share", [0.4, 0.5])
def test_the_smaller_side_of_a_cut_may_not_go_on(share: float):
    run = {**RUN, "laws": ("isolation",), "delay_s": 0.01, "nodes": 10}
    cut = Partition(20.0, 90.0, share, target="holder")
    result = simulate(Scenario(algorithm=Keeps, faults=(cut,), **run))
    if share < 0.5:
        assert min(violation.at_s for violation in result.violations) == pytest.approx(31, abs=1.5)
        assert max(violation.at_s for violation in result.violations) < 91
        assert not simulate(Scenario(algorithm=Keeps, faults=(cut,), when_isolated="proceed", **run)).violations
    else:
        assert not result.violations, "one half may hold, if the other does not"


def test_a_dead_link_excuses_nothing_and_a_pause_does_while_it_lasts():
    run = {**RUN, "laws": ("overlap",), "nodes": 4, "duration_s": 60.0, "demand": "poisson:4"}
    dead = simulate(Scenario(algorithm=Silent, faults=(DeadLink(5.0, 59.0),), **run))
    assert min(violation.at_s for violation in dead.violations) < 5
    paused = simulate(Scenario(algorithm=Silent, faults=(Pause(0.01, 40.0, "random", times=1),), **run))
    assert 50 < min(violation.at_s for violation in paused.violations) < 60


def test_a_dead_link_excuses_only_where_nobody_is_left_who_is_a_way_around_it():
    """Two of five were left, and the link between them dead: each of them had a token, as on two sides of a cut."""
    link = DeadLink(20.0, 60.0)
    run = {"op_s": 0.5, "delay_s": 0.01, "duration_s": 100.0, "settle_s": 40.0, "bound_s": 10.0, "seed": 1}
    two = simulate(Scenario(nodes=2, faults=(link,), **run))
    assert two.generated == 2
    assert two.violations == []


def test_who_has_a_way_by_others_is_not_divided():
    network = Network(Scenario(), random.random)
    network.kill_link(1, 2)
    assert network.divides([1, 2])
    assert not network.divides([1, 2, 3])
    network.kill_link(3, 1)
    assert network.divides([1, 2, 3])
    assert not network.divides([1, 2, 3, 4])
    assert not network.divides([2, 3])
