"""`voting`: one machine on a bench, every interleaving of a few, what an entry costs, and coordinators that forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.voting import Confirm, Deny, Poll, Retract, Vote, Voting, VotingOptions, scatter
from softmutex.core.errors import ConfigError
from softmutex.core.events import Effect, Event, Instant, Send
from softmutex.sim import Churn, Kill, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import scenario
from tests.algorithms.explorer import Found, explore
from tests.core.bench import Bench


def sent(b: Bench) -> list[tuple[int, Any]]:
    return [(effect.to, effect.message) for effect in b.effects if isinstance(effect, Send)]


def bench(**options: Any) -> Bench:
    """Node 5, which is no coordinator of (1, 2, 3)."""
    return Bench(Voting, me=5, members=(1, 2, 3, 5), coordinators=3, **options)


def polled(b: Bench) -> list[int]:
    return [to for to, message in sent(b) if isinstance(message, Poll)]


def test_it_asks_a_majority_runs_with_all_votes_of_it_and_gives_them_back():
    b = bench()
    b.request(1)
    first, second = polled(b)
    b.receive(Vote(1), first)
    assert b.granted == []
    b.receive(Vote(1), second)
    assert b.granted == [1]
    b.release(1)
    assert sent(b) == [(first, Retract(1)), (second, Retract(1))]


def test_who_is_denied_gives_back_what_it_got_and_comes_again():
    b = bench()
    b.request(1)
    first, second = polled(b)
    b.receive(Vote(1), first)
    b.receive(Deny(1), second)
    assert sent(b) == [(first, Retract(1))]
    b.fire("round")
    assert [message for _, message in sent(b)] == [Poll(2), Poll(2)]
    b.receive(Vote(1), second)  # of the first round, late
    assert sent(b) == [(second, Retract(1))] and b.granted == []


def test_a_silent_coordinator_is_replaced_by_another_one():
    b = bench()
    b.request(1)
    first, second = polled(b)
    b.receive(Vote(1), first)
    b.fire("round")
    third = next(node for node in polled(b) if node != second)
    b.receive(Vote(1), third)
    assert b.granted == [1]


def test_a_coordinator_has_one_vote():
    b = Bench(Voting, me=1, members=(1, 2, 3))
    b.receive(Poll(4), 2)
    assert sent(b) == [(2, Vote(4))]
    b.receive(Poll(1), 3)
    assert sent(b) == [(3, Deny(1))]
    b.receive(Retract(4), 2)
    b.receive(Poll(4), 2)  # a late copy
    assert sent(b) == [(2, Deny(4))]
    b.receive(Poll(2), 3)
    assert sent(b) == [(3, Vote(2))]


def test_a_vote_that_is_in_the_way_for_long_is_asked_about():
    b = Bench(Voting, me=1, members=(1, 2, 3))
    b.receive(Poll(4), 2)
    b.at(100)
    b.receive(Poll(1), 3)
    assert sent(b) == [(2, Confirm(4)), (3, Deny(1))]
    other = Bench(Voting, me=2, members=(1, 2, 3))
    other.receive(Confirm(4), 1)
    assert sent(other) == [(1, Retract(4))]


def test_less_than_a_majority_is_refused():
    with pytest.raises(ConfigError, match="more than half"):
        bench(votes=1)
    assert VotingOptions(5, 4).needed(5) == 4 and VotingOptions(5, 4).needed(3) == 3 and VotingOptions().needed(5) == 3


@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2, "finish": False},
        {"nodes": 2, "repeats": 1, "finish": False},
        {"nodes": 2, "losses": 1, "timers": 1},
        {"nodes": 2, "withdrawn": 1, "finish": False},
        {"nodes": 3, "askers": (2, 3), "finish": False},
        {"nodes": 3, "withdrawn": 1, "askers": (2, 3), "finish": False},
        {"nodes": 2, "leaves": 1, "finish": False},
        {"nodes": 3, "leaves": 1, "askers": (2, 3), "finish": False},
        {"nodes": 3, "joins": 1, "askers": (2, 3), "finish": False},
        pytest.param({"nodes": 2, "joins": 1, "finish": False}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_no_two_run_at_once_whatever_overtakes_what(bounds: dict[str, Any]):
    assert explore(Voting, **bounds) > 50


class VotesForAll(Voting):
    """V1 is missing."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return [
            Send(effect.to, Vote(effect.message.round))
            if isinstance(effect, Send) and isinstance(effect.message, Deny)
            else effect
            for effect in super().handle(event, now)
        ]


def test_a_machine_without_one_rule_is_found():
    with pytest.raises(Found, match="run A at once"):
        explore(VotesForAll, nodes=3, askers=(2, 3), finish=False)


def test_the_laws_see_it_under_load():
    found = simulate(scenario("nothing", VotesForAll, 3)).violations
    assert "exclusion" in {violation.law for violation in found}


@pytest.mark.parametrize("votes", [3, 4, 5])
def test_an_entry_costs_two_messages_and_one_for_each_vote(votes: int):
    options = {"coordinators": 5, "votes": votes}
    quiet = Scenario("voting", 40, 40_000.0, demand="poisson:0.001", op_s=0.5, delay_s=0.05, options=options)
    result = simulate(quiet)
    assert result.acquisitions > 20
    assert 3 * (votes - 1) <= result.messages_per_acquisition <= 3 * votes  # a coordinator asks itself for nothing


def test_turns_that_are_shorter_than_stated_follow_one_another_soon():
    """Five waited for the stated 4 s between two turns of a millisecond: 1.3 turns a second, and now 64."""
    short = Scenario("voting", 5, 20.0, op_s=4.0, hold="fixed:0.001", delay_s=0.0005)
    result = simulate(short)
    assert result.acquisitions > 20 * 30 and result.fairness > 0.98 and result.messages_per_acquisition < 15


@pytest.mark.parametrize("fault", ["kill-holder", "loss-20", "churn-30", "storm", "kill-anybody", "partition"])
def test_it_goes_on_whatever_happens(fault: str):
    result = simulate(scenario(fault, "voting", 3, nodes_max=9))
    assert not result.violation_count and result.unserved == 0 and result.acquisitions > 30


def test_more_votes_than_a_majority_make_overlaps_rarer_where_coordinators_forget():
    faults = (Churn(0.5), Kill(7, "random", restart_s=0.1))
    overlaps = [
        sum(
            simulate(
                Scenario("voting", 9, 600.0, seed=seed, op_s=2.0, delay_s=0.05, faults=faults, options={"votes": votes})
            ).overlap
            for seed in range(1, 4)
        )
        for votes in (3, 5)
    ]
    assert overlaps[1] <= overlaps[0]


def test_who_coordinates_which_mutex_is_the_same_wherever_it_is_reckoned():
    """The last step of MurmurHash3, as it is published."""
    assert [scatter(number) for number in (0, 1, 2**64 - 1)] == [0, 0xB456BCFC34C2CB2C, 0x64B5720B4B825F21]
