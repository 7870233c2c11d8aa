"""`central`: one machine on a bench, every interleaving of a few, what an entry costs, and a coordinator that dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.central import Allow, AskFor, Central, Free, InLine, Kept
from softmutex.core.algorithms.elections import Coordinator, Follow, Known
from softmutex.core.events import (
    SECOND,
    Effect,
    Event,
    Grant,
    Instant,
    MembersChanged,
    Received,
    Send,
    Suspect,
    Withdrawn,
)
from softmutex.core.timing import Timing
from softmutex.sim import Kill, nemesis, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import scenario
from tests.algorithms.explorer import Found, explore
from tests.core.bench import Bench


def sent(b: Bench) -> list[tuple[int, Any]]:
    return [(effect.to, effect.message) for effect in b.effects if isinstance(effect, Send)]


def follower(me: int = 2) -> Bench:
    """Of node 1, in term 1."""
    b = Bench(Central, me=me, members=(1, 2, 3))
    b.start()
    b.receive(Coordinator(1), 1)
    return b


def coordinator() -> Bench:
    """Node 1, in term 1."""
    b = Bench(Central, me=1, members=(1, 2, 3))
    b.start(founder=True)
    b.receive(Follow(1, 0), 2)
    b.receive(Follow(1, 0), 3)
    return b


# --- one machine ------------------------------------------------------------------------------------------------------


def test_it_asks_the_coordinator_runs_when_allowed_and_says_when_it_is_free():
    b = follower()
    b.request(1)
    assert sent(b) == [(1, AskFor(1))]
    b.receive(Allow(1, 1, 1, 0, b"trace"), 1)
    assert b.one(Grant).baggage == b"trace"
    b.release(1, b"more")
    assert sent(b) == [(1, Free(1, b"more"))]


def test_the_coordinator_allows_one_after_the_other_as_they_came():
    b = coordinator()
    b.receive(AskFor(1), 3)
    assert sent(b) == [(3, Allow(1, 1, 1, 0))]
    b.receive(AskFor(1), 2)
    assert sent(b) == []
    b.request(1)
    b.receive(Free(1), 3)
    assert sent(b) == [(2, Allow(1, 1, 2, 1))]
    b.receive(Free(1), 2)
    assert b.granted == [1]


def test_nobody_is_allowed_before_all_follow():
    b = Bench(Central, me=1, members=(1, 2, 3))
    b.start(founder=True)
    b.receive(Follow(1, 0), 2)
    b.receive(AskFor(1), 2)
    b.request(1)
    assert sent(b) == [] and b.granted == []
    b.receive(Follow(1, 0), 3)
    assert sent(b) == [(2, Allow(1, 1, 1, 1))]


def test_a_new_coordinator_rebuilds_the_queue_from_the_holder_and_the_waiters():
    b = Bench(Central, me=4, members=(1, 2, 3, 4, 5))
    b.receive(Coordinator(1), 5)
    b.members.remove(5)
    b.handle(MembersChanged((), (5,)))
    assert sent(b) == [(node, Coordinator(2)) for node in (1, 2, 3)]
    b.receive(Follow(2, 2 * 7 + 1), 1)  # runs A
    b.receive(Follow(2, 2 * 3), 2)  # waits
    b.receive(Follow(2, 0), 3)
    assert sent(b) == []
    b.receive(Free(7), 1)
    assert sent(b) == [(2, Allow(2, 3, 1, 0))]


def test_who_follows_another_obeys_no_former_coordinator():
    b = follower()
    b.request(1)
    b.receive(Coordinator(2), 3)
    assert sent(b) == [(3, Follow(2, 2))]
    b.receive(Allow(1, 1, 1, 0), 1)
    assert b.granted == [] and sent(b) == [(1, Known(2, 3))]


def test_what_a_coordinator_allowed_in_an_earlier_term_of_its_own_counts_no_more():
    """C2: it has led again since, and does not know of it: another one may run A."""
    b = follower()
    b.request(1)
    b.receive(Coordinator(3), 1)
    b.receive(Allow(1, 1, 1, 0), 1)
    assert b.granted == [] and sent(b) == []


def test_the_coordinator_shows_who_runs_and_who_waits_and_the_others_their_own():
    b, other = coordinator(), follower()
    for node in (3, 2):
        b.receive(AskFor(1), node)
    shown = b.machine.view()
    assert (shown.holder, shown.queue, shown.state) == (3, (2,), "coordinating")
    other.request(1)
    other.receive(Allow(1, 1, 1, 0), 1)
    shown = other.machine.view()
    assert (shown.holder, shown.queue, shown.state) == (2, (), "holding")


def test_a_request_that_is_not_wanted_any_more_leaves_the_queue():
    b = follower()
    b.request(1)
    b.handle(Withdrawn(1))
    assert sent(b) == [(1, Free(1))]
    b.receive(Allow(1, 1, 1, 0), 1)
    assert b.granted == [] and sent(b) == [(1, Free(1))]


def test_who_asks_again_is_told_that_it_is_known():
    b = coordinator()
    b.receive(AskFor(1), 3)
    b.receive(AskFor(1), 2)
    b.receive(AskFor(1, again=True), 2)
    assert sent(b) == [(2, InLine(1, 1))]


def check(b: Bench, at_s: float) -> tuple[bool, bool]:
    """Whether the holder is asked then, and suspected."""
    assert b.timers["check"] == b.at(at_s).now
    b.fire("check")
    return bool(sent(b)), any(isinstance(effect, Suspect) for effect in b.effects)


def test_while_others_wait_the_holder_is_asked_after_five_seconds_and_suspected_at_every_second_silence():
    b = coordinator().at(0)
    b.receive(AskFor(1), 3)
    assert "check" not in b.timers  # nobody waits
    b.at(1).receive(AskFor(1), 2)
    assert check(b, 6) == (True, False)
    assert check(b, 6.125) == (True, True)
    assert check(b, 6.375) == (True, False)
    b.receive(Free(1), 2)  # it is not wanted any more
    b.fire("check")
    assert sent(b) == [] and "check" not in b.timers
    b.at(20).receive(AskFor(2), 2)
    assert check(b, 25) == (True, False)
    b.receive(Kept(1), 3)
    assert check(b, 30) == (True, False)  # as if for the first time
    b.at(31).receive(Free(1), 3)
    assert sent(b)[-1] == (2, Allow(1, 2, 2, 0)) and "check" not in b.timers


def test_who_says_that_it_runs_is_asked_again_when_it_has_run_for_half_as_long_once_more():
    b = Bench(Central, me=1, members=(1, 2, 3), timing=Timing(op=1.0))
    b.start(founder=True)
    for node in (2, 3):
        b.receive(Follow(1, 0), node)
    b.at(0).receive(AskFor(1), 3)
    b.receive(AskFor(1), 2)
    assert check(b, 2) == (True, False)
    b.at(6).receive(Kept(1), 3)
    assert check(b, 9) == (True, False)
    b.at(40).receive(Kept(1), 3)
    assert check(b, 45) == (True, False)  # but not more seldom


def test_a_holder_that_dies_is_followed_by_the_next():
    b = coordinator()
    b.receive(AskFor(1), 3)
    b.receive(AskFor(1), 2)
    b.members.remove(3)
    b.handle(MembersChanged((), (3,)))
    assert sent(b) == [(2, Allow(1, 1, 2, 0))]


def test_a_newcomer_that_waits_already_is_in_the_queue():
    b = coordinator()
    b.members.append(4)
    b.handle(MembersChanged((4,), ()))
    assert sent(b) == [(4, Coordinator(1))]
    b.receive(Follow(1, 2), 4)
    assert sent(b) == [(4, Allow(1, 1, 1, 0))]


# --- every interleaving -----------------------------------------------------------------------------------------------

RING = (("election", "ring"),)


@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2, "requests": 2, "repeats": 1},
        {"nodes": 2, "kills": 1, "timers": 1},
        {"nodes": 2, "kills": 1, "timers": 1, "options": RING},
        {"nodes": 2, "withdrawn": 1, "timers": 1},
        {"nodes": 2, "losses": 1, "timers": 1},
        {"nodes": 2, "founders": 0, "timers": 1},
        {"nodes": 2, "founders": 2},
        {"nodes": 2, "leaves": 1},
        {"nodes": 2, "joins": 1, "askers": (2, 3), "founders": 1},
        {"nodes": 3, "askers": (2, 3)},
        {"nodes": 3, "joins": 1, "askers": (2, 4)},
        {"nodes": 2, "leaves": 1, "joins": 1, "askers": (2, 3)},
        pytest.param({"nodes": 3}, marks=pytest.mark.slow),
        pytest.param({"nodes": 3, "kills": 1, "askers": (2, 3)}, marks=pytest.mark.slow),
        pytest.param({"nodes": 3, "leaves": 1, "askers": (2, 3)}, marks=pytest.mark.slow),
        pytest.param({"nodes": 3, "withdrawn": 1, "askers": (2, 3)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_no_two_run_at_once_and_everybody_is_granted_whatever_overtakes_what(bounds: dict[str, Any]):
    assert explore(Central, **bounds) > 10


class ActsAtOnce(Central):
    """E1 is missing: chosen is enough. It is told of itself that all follow, with nothing to say."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out = list(super().handle(event, now))
        for effect in list(out):
            if isinstance(effect, Send) and isinstance(effect.message, Coordinator):
                out += super().handle(Received(effect.to, Follow(effect.message.term, 0)), now)
        return out


class AllowsBesides(Central):
    """C1 is missing: who asks may run."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out = list(super().handle(event, now))
        match event:
            case Received(sender, AskFor(request)) if self.view().holding:
                out.append(Send(sender, Allow(1, request, 1, 0)))
        return out


class AsksOnce(Central):
    """What is lost stays lost."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return [
            effect
            for effect in super().handle(event, now)
            if not (isinstance(effect, Send) and isinstance(effect.message, AskFor) and effect.message.again)
        ]


@pytest.mark.parametrize(
    ("broken", "bounds", "said"),
    [
        (ActsAtOnce, {"nodes": 3, "kills": 1, "askers": (2, 3)}, "run A at once"),
        (AllowsBesides, {"nodes": 2}, "run A at once"),
        (AsksOnce, {"nodes": 2, "losses": 1, "timers": 1}, "these wait for ever"),
    ],
)
def test_a_machine_without_one_rule_is_found(broken: type[Central], bounds: dict[str, Any], said: str):
    with pytest.raises(Found, match=said):
        explore(broken, **bounds)


def test_the_laws_see_it_under_load():
    found = simulate(scenario("nothing", AllowsBesides, 3)).violations
    assert "exclusion" in {violation.law for violation in found}


# --- what it costs, and what it survives ------------------------------------------------------------------------------


@pytest.mark.parametrize("election", ["bully", "ring"])
@pytest.mark.parametrize("nodes", [2, 3, 10, 50])
def test_an_entry_costs_three_messages_but_for_the_coordinators_own(nodes: int, election: str):
    options = {"election": election}
    quiet = Scenario("central", nodes, 4000.0, demand="poisson:0.02", delay_s=0.05, keep_holds=True, options=options)
    result = simulate(quiet)
    theirs = sum(hold.node != 1 for hold in result.holds)
    assert theirs > 5
    assert {kind: result.sent[kind] for kind in ("ASK_FOR", "ALLOW", "FREE")} == dict.fromkeys(
        ("ASK_FOR", "ALLOW", "FREE"), theirs
    )
    assert set(result.sent) <= {"ASK_FOR", "ALLOW", "FREE", "COORDINATOR", "ELECTED", "FOLLOW", "GOES_ON"}


@pytest.mark.parametrize("election", ["bully", "ring"])
@pytest.mark.parametrize("fault", ["kill-holder", "kill-anybody", "loss-20", "churn-30", "storm", "cold-start"])
def test_it_survives_with_either_election(fault: str, election: str):
    result = simulate(scenario(fault, "central", 3, nodes_max=9, options={"election": election}))
    assert not result.violation_count and result.unserved == 0 and result.acquisitions > 30


def test_when_the_coordinator_dies_another_one_goes_on():
    kills = (Kill(60.0, "random", restart_s=None, times=6),)
    result = simulate(Scenario("central", 9, 420.0, op_s=1.0, delay_s=0.05, faults=kills, settle_s=60.0))
    assert not result.violation_count and result.unserved == 0
    assert result.concurrency_ns.get(0, 0) < 40e9


def test_who_asks_before_anybody_was_chosen_is_told_of_nobody():
    b = Bench(Central, me=2, members=(1, 2, 3))
    b.receive(AskFor(1), 3)
    assert b.granted == [] and not [message for _, message in sent(b) if isinstance(message, Allow)]


def test_who_waits_when_the_coordinator_leaves_gives_the_election_time_before_it_asks_again():
    b = follower()
    b.request(1)
    assert b.timers["again"] - b.now == 5 * SECOND
    b.members.remove(1)
    b.handle(MembersChanged((), (1,)))
    assert b.timers["again"] - b.now == 2 * SECOND  # twice what an election takes, and no longer


def test_a_lost_message_is_missed_soon_however_long_a_takes():
    """An ALLOW was lost in a cut: the coordinator asked after twice the length of A, and that was 77 s."""
    assert simulate(nemesis.draw(9009, (2, 16), "central")).violations == []
