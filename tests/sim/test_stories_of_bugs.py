"""Bugs that runs found, each as the smallest run that shows it: what was seen, what caused it, what holds now.

A run that is not small enough for a trace of the machine's events belongs here. Each of these broke at the commit
before its repair.
"""

from __future__ import annotations

import pytest

from softmutex.core.events import SECOND
from softmutex.sim import Scenario, TokenLoss, simulate


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("demand", "op_s", "duration_s"),
    [("periodic:4", 0.02, 20.0), ("saturated", 0.005, 5.0), ("periodic:2", 0.01, 10.0)],
)
def test_nobody_of_a_crowd_is_forgotten(demand: str, op_s: float, duration_s: float, seed: int):
    """Two hundred wanted it at once: dozens still waited, a minute later, at an idle resource. Requests that reached a
    holder while it gave the token away were kept to follow it, 32 of them, and the rest was dropped in silence."""
    crowd = Scenario(nodes=200, nodes_max=200, demand=demand, op_s=op_s, delay_s=0.01, seed=seed)
    result = simulate(crowd.but(duration_s=duration_s, settle_s=60.0))
    assert result.violations == []
    assert result.unserved == 0


@pytest.mark.parametrize(("nodes", "delay_s"), [(300, 0.05), (100, 0.05), (100, 0.01)])
def test_who_is_given_back_keeps_the_place_in_the_queue(nodes: int, delay_s: float):
    """With A of 4 s, one request of twenty missed its round, and some three in a row: a ticket that did not fit into
    the token's queue went to the end of the register, behind everybody who had come later."""
    op_s = 4.0
    result = simulate(Scenario(nodes=nodes, op_s=op_s, delay_s=delay_s, duration_s=5 * nodes * op_s))
    assert result.acquisitions > 4 * nodes
    assert max(result.waits) / SECOND < 1.3 * nodes * op_s
    assert result.fairness > 0.99


def test_a_loss_that_nobody_makes_good_is_counted_for_as_long_as_it_is_seen():
    """The table of goals told of quick recoveries without a watch: it counted those that had come to an end."""
    lost = Scenario(algorithm="sandwich", nodes=20, op_s=0.5, duration_s=60.0, faults=(TokenLoss(20.0),))
    result = simulate(lost)  # whose nodes miss a token after 75 s
    assert result.recoveries_ns == ()
    assert 39 < result.bereft_ns / SECOND <= 40


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_a_token_that_moves_as_fast_as_the_questions_after_it_is_not_lost(seed: int):
    """Thirty hops a second, nothing wrong, and two held: who looked for the token asked one after the other where it
    had gone, until it could ask no more, and took the open end of the trail for the end of the token."""
    crowd = Scenario(nodes=200, nodes_max=200, demand="periodic:2", op_s=0.01, delay_s=0.01, seed=seed)
    result = simulate(crowd.but(duration_s=10.0, settle_s=60.0))
    assert result.violations == []
    assert result.generated == 1
