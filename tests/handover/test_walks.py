"""A token that is passed on over fast and slow, good and bad networks: how long a hop takes, and what it costs.

In every walk, `Walk` itself holds that one node has the token at a time and that each hop is taken once.
"""

from __future__ import annotations

import pytest

from softmutex.core.events import from_seconds
from softmutex.core.handover import Passing
from softmutex.core.patience import Patience
from tests.handover.network import Walk

LOOPBACK, LAN, WAN, SATELLITE = 25e-6, 1e-3, 0.05, 0.3
DELAYS = pytest.mark.parametrize("delay_s", [LOOPBACK, LAN, WAN, SATELLITE])


# --- walks -----------------------------------------------------------------------------------------------------------


@DELAYS
def test_on_a_good_network_a_hop_takes_three_delays_and_four_messages(delay_s: float):
    walk = Walk(delay_s=delay_s).run()
    assert walk.took_s(0.5) == pytest.approx(3 * delay_s, rel=0.05)
    assert walk.took_s(1) < 5 * delay_s
    assert walk.messages_per_hop() < 4.05
    assert set(walk.ends) == {"Taken", "Passed"}


@DELAYS
def test_at_one_percent_loss_and_repetition_no_hop_waits_for_seconds(delay_s: float):
    walk = Walk(delay_s=delay_s, loss=0.01, repeat=0.1, hops=3000).run()
    assert walk.took_s(0.5) == pytest.approx(3 * delay_s, rel=0.1)
    assert walk.took_s(0.99) < 0.02 + 9 * delay_s
    assert walk.took_s(1) < 0.3 + 12 * delay_s
    assert walk.messages_per_hop() < 4.4
    assert "Gone" not in walk.ends


@DELAYS
def test_at_twenty_percent_loss_the_token_is_still_there_after_a_thousand_hops(delay_s: float):
    walk = Walk(delay_s=delay_s, loss=0.2, repeat=0.2).run()
    assert len(walk.took) == 1000
    assert "Gone" not in walk.ends
    assert walk.messages_per_hop() < 6.5


def test_in_three_steps_a_lost_commit_loses_the_token_and_nothing_else_does():
    walks = [Walk(delay_s=LAN, loss=0.05, passing=Passing.THREE_WAY, hops=1000, seed=seed).run() for seed in range(100)]
    assert all(len(walk.took) < 1000 for walk in walks)
    assert all(walk.ends["Passed"] == walk.ends["Taken"] + 1 for walk in walks)
    hops = sum(walk.ends["Passed"] for walk in walks) / len(walks)
    assert hops == pytest.approx(1 / 0.05, rel=0.3)


def test_a_far_node_among_near_ones_gets_its_share():
    walk = Walk(delay_s=LOOPBACK, far=3, far_s=SATELLITE).run()
    assert walk.visits[3] == pytest.approx(200, rel=0.25)
    assert "Gone" not in walk.ends


# --- patience --------------------------------------------------------------------------------------------------------

FIRST = from_seconds(0.25)


def learnt(*round_trips_s: float) -> float:
    patience = Patience(FIRST)
    for round_trip_s in round_trips_s:
        patience.learn(from_seconds(round_trip_s), 0)
    return patience.wait(0) / 1e9


def test_while_nothing_is_known_the_first_wait_is_as_told_and_the_next_is_twice_that():
    assert [Patience(FIRST).wait(tries) for tries in range(4)] == [FIRST, 2 * FIRST, 2 * FIRST, 2 * FIRST]


def test_a_first_round_trip_counts_with_a_deviation_of_half():
    assert learnt(0.1) == pytest.approx(0.3)


def test_a_second_round_trip_counts_an_eighth_and_its_deviation_a_quarter():
    assert learnt(0.1, 0.2) == pytest.approx(0.1125 + 4 * 0.0625)


def test_with_steady_round_trips_the_wait_sinks_to_two_of_them():
    assert learnt(*[0.1] * 20) == pytest.approx(0.2)


def test_with_jittery_round_trips_the_wait_covers_them():
    assert 0.2 < learnt(*[0.02, 0.2] * 20) < 0.5


def test_the_estimate_follows_a_network_that_becomes_slower_or_faster():
    assert learnt(*[0.01] * 20, *[0.2] * 40) == pytest.approx(0.4, rel=0.05)
    assert learnt(*[0.2] * 20, *[0.02] * 40) == pytest.approx(0.04, rel=0.2)


def test_the_wait_stays_between_a_sixteenth_and_four_times_the_first():
    assert learnt(*[0.0] * 20) == pytest.approx(0.25 / 16)
    assert learnt(*[9.0] * 20) == pytest.approx(1.0)


def test_later_waits_double_up_to_half_the_first_one_or_to_twice_the_learnt_one():
    fast, slow = Patience(FIRST), Patience(FIRST)
    for _ in range(20):
        fast.learn(from_seconds(0.02), 0)
        slow.learn(from_seconds(0.2), 0)
    assert [round(fast.wait(tries) / 1e6) for tries in range(5)] == [40, 80, 125, 125, 125]
    assert [round(slow.wait(tries) / 1e6) for tries in range(3)] == [400, 800, 800]


def test_an_answer_after_a_resend_teaches_only_more_patience():
    patience = Patience(FIRST)
    patience.learn(from_seconds(0.001), 1)
    assert patience.wait(0) == 2 * FIRST
    patience.learn(from_seconds(0.001), 2)
    assert patience.wait(0) == 4 * FIRST
    patience.learn(from_seconds(0.001), 1)
    assert patience.wait(0) == 4 * FIRST
    patience.learn(from_seconds(0.01), 0)
    assert patience.wait(0) == from_seconds(0.03)
    patience.learn(from_seconds(0.01), 1)
    assert patience.wait(0) == from_seconds(0.06)
