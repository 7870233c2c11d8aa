"""Each fault does what it says, to whom it says, when it says, and ends with the rough phase."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from softmutex.core.errors import ConfigError
from softmutex.core.events import (
    SECOND,
    Depart,
    Effect,
    Event,
    Instant,
    Leaving,
    MembersChanged,
    NodeId,
    Received,
    Send,
)
from softmutex.core.messages import Accept, Offer, Refuse
from softmutex.sim import Churn, Clog, Kill, Partition, Replay, Scenario, TokenLoss, simulate
from softmutex.sim.result import Result
from softmutex.sim.tally import EPOCH
from tests.sim.machines import Walk
from tests.sim.test_world import Scripted

Story = list[tuple[float, NodeId, Event, Sequence[Effect]]]
SANDWICH = Scenario(
    algorithm="sandwich", nodes=20, nodes_max=20, duration_s=4000.0, op_s=4.0, skip_s=0.5, min_interval_s=20.0
)


def story(scenario: Scenario) -> tuple[Result, Story]:
    seen: Story = []

    def spy(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        seen.append(((now - EPOCH) / SECOND, node, event, effects))

    return simulate(scenario, spy=spy), seen


@pytest.mark.parametrize(("passing", "delay_s"), [("direct", 0.0), ("direct", 0.05), ("3-way", 0.05), ("4-way", 0.05)])
def test_a_forced_loss_loses_the_token_however_it_is_passed(passing: str, delay_s: float):
    result = simulate(SANDWICH.but(delay_s=delay_s, options={"passing": passing}, faults=(TokenLoss(900.0),)))
    assert result.violations == []
    assert result.lost == 4
    assert len(result.recoveries_ns) >= 1, "and it was the only one now and then"
    assert result.tokens_ns[0] > 0
    assert sum(result.tokens_ns.values()) == 4000 * SECOND


def test_without_a_forced_loss_nothing_is_lost_in_four_ways():
    result = simulate(SANDWICH.but(delay_s=0.05, loss=0.1, duration_s=2000.0, options={"passing": "4-way"}))
    assert result.lost <= 1 < result.sent["COMMIT"]


def test_the_holder_is_killed_while_it_runs_a_and_a_newcomer_comes():
    result, seen = story(Scenario(algorithm="wandering", nodes=5, duration_s=199.0, delay_s=0.05, faults=(Kill(40.0),)))
    assert result.lost == 4 and len(result.recoveries_ns) == 4
    assert set(result.acquired) & {6, 7, 8, 9} and len(result.acquired) == 5
    last = {node: when for when, node, _, _ in seen}
    assert [round(last[node]) for node in range(1, 6) if node not in result.acquired] != []


def test_a_death_is_told_of_when_the_membership_finds_out():
    faults = (Kill(40.0, times=1, restart_s=None),)
    _, seen = story(Scenario(algorithm=Walk, nodes=4, duration_s=60.0, faults=faults, detection_s=7.0))
    news = [(when, event.left) for when, _, event, _ in seen if isinstance(event, MembersChanged)]
    assert len(news) == 3, "all but the dead"
    assert len({left for _, left in news}) == 1
    assert all(47.0 <= when < 52.0 for when, _ in news)


def test_own_views_differ_for_a_while():
    faults = (Kill(40.0, times=1, restart_s=None),)
    scenario = Scenario(algorithm=Walk, nodes=8, duration_s=80.0, faults=faults, detection_s=7.0, own_views=True)
    _, seen = story(scenario)
    news = [when for when, _, event, _ in seen if isinstance(event, MembersChanged)]
    assert len(news) == 7 and max(news) - min(news) > 2.0


@pytest.mark.parametrize(("at", "kind"), [("OFFER", Offer), ("ACCEPT", Accept)])
def test_a_node_is_killed_right_after_it_sent_a_message(at: str, kind: type):
    faults = (Kill(50.0, at_message=at, times=1, restart_s=None),)
    result, seen = story(SANDWICH.but(delay_s=0.05, duration_s=100.0, faults=faults))
    (dead,) = set(range(1, 21)) - set(result.acquired)
    when, effects = [(when, effects) for when, node, _, effects in seen if node == dead][-1]
    assert when >= 50.0
    assert any(isinstance(effect, Send) and isinstance(effect.message, kind) for effect in effects)


class Chatter(Scripted):
    """Everybody sends to everybody, each second."""

    def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
        from softmutex.core.events import SetTimer

        if isinstance(event, Received | MembersChanged):
            return ()
        if isinstance(event, Leaving):
            return [Depart()]
        return [SetTimer("tick", now + SECOND), *(Send(to, Refuse(self.me)) for to in range(1, 5) if to != self.me)]


def heard(*faults: object) -> list[tuple[float, int, int]]:
    """(when, from, to) of every message that arrived."""
    Chatter.told = []
    simulate(Scenario(algorithm=Chatter, nodes=4, duration_s=60.0, demand="none", delay_s=0.1, laws=(), faults=faults))  # type: ignore[arg-type]
    return [(when, event.sender, node) for node, when, event in Chatter.told if isinstance(event, Received)]


def test_a_partition_cuts_both_ways_and_heals():
    arrived = heard(Partition(20.0, 40.0, 0.5))
    pairs = {(sender, to) for when, sender, to in arrived if 20.2 < when < 40.0}
    sides = {frozenset({node, *(to for sender, to in pairs if sender == node)}) for node in range(1, 5)}
    assert sorted(map(len, sides)) == [2, 2]
    assert len({(sender, to) for when, sender, to in arrived if when < 20.0}) == 12
    assert len({(sender, to) for when, sender, to in arrived if when > 40.2}) == 12


def test_a_one_way_cut_leaves_one_direction():
    during = {(sender, to) for when, sender, to in heard(Partition(20.0, 40.0, 0.25, one_way=True)) if 20.2 < when < 40}
    (deaf,) = {node for node in range(1, 5) if not any(to == node for _, to in during)}
    assert {to for sender, to in during if sender == deaf} == set(range(1, 5)) - {deaf}


def test_links_are_clogged_one_node_after_another():
    slow = [(when, sender, to) for when, sender, to in heard(Clog(10.0, 3.5)) if 0.4 < when % 1 < 0.7]
    for turn, node in enumerate([1, 2, 3, 4], 1):
        hit = [{sender, to} for when, sender, to in slow if turn * 10 + 3.5 < when < turn * 10 + 13]
        assert hit and all(node in pair for pair in hit)


def test_replayed_messages_come_again_much_later():
    extra = len(heard(Replay(0.5, 20.0))) - len(heard())
    assert extra == pytest.approx(0.5 * len(heard()), rel=0.25)


def test_churn_replaces_the_share_it_says_in_good_order():
    scenario = Scenario(algorithm="wandering", nodes=20, duration_s=600.0, delay_s=0.05, faults=(Churn(0.3),))
    result, seen = story(scenario)
    left = sum(isinstance(event, Leaving) for _, _, event, _ in seen)
    assert left == pytest.approx(60, rel=0.4)
    assert sum(any(isinstance(effect, Depart) for effect in effects) for *_, effects in seen) >= left - 3
    assert result.lost == 0 and len(result.acquired) in range(18, 23)


def test_nothing_goes_wrong_in_the_calm_phase():
    faults = (Kill(15.0), Partition(90.0, 500.0, 0.5), TokenLoss(20.0), Churn(1.0), Replay(0.2, 5.0))
    rough = Scenario(algorithm="wandering", nodes=6, duration_s=100.0, delay_s=0.05, loss=0.1, faults=faults)
    result, seen = story(rough.but(settle_s=200.0))
    assert result.unserved == 0
    assert not any(isinstance(event, Leaving) for when, _, event, _ in seen if when > 100.0)
    assert simulate(rough).settled_s is None, "there is none unless asked for"


def test_a_chain_of_kills_never_empties_the_group():
    faults = (Kill(1.0, "random", restart_s=None),)
    result = simulate(Scenario(algorithm=Walk, nodes=4, duration_s=100.0, faults=faults))
    assert len(result.acquired) == 2


def test_faults_come_at_their_intervals():
    _, seen = story(Scenario(algorithm=Walk, nodes=9, duration_s=99.0, detection_s=1.0, faults=(Kill(10.0, "random"),)))
    told = sorted({when for when, _, event, _ in seen if isinstance(event, MembersChanged) and event.left})
    assert len(told) == 9
    assert all(later - earlier == pytest.approx(10.0) for earlier, later in pairwise(told))


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (Kill(10.0, "everybody"), "no target 'everybody'"),
        (Partition(10.0, 20.0, every_s=5.0, times=3), "must heal before"),
        (Partition(10.0, 20.0, seen_after_s=3.0), "needs own_views"),
        (Replay(0.0, 5.0), "a replay repeats a share"),
        (Clog(0.0, 1.0), "a clog's every"),
    ],
)
def test_an_impossible_fault_is_refused(fault: Kill, complaint: str):
    with pytest.raises(ConfigError, match=complaint):
        Scenario(faults=(fault,))


def test_a_fault_at_a_message_that_the_algorithm_does_not_have_is_refused_with_those_that_it_has():
    run = Scenario(algorithm="sandwich", duration_s=10.0, faults=(Kill(10.0, at_message="WANT"),))
    with pytest.raises(ConfigError, match=r"'sandwich' has no message 'WANT' \(there are OFFER, ACCEPT, .*WITHDRAW\)"):
        simulate(run)
