"""The elections `bully` and `ring`: what one costs, who wins, and that no two lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.elections import Ballot, Coordinator, Elected, Election, Follow, GoesOn, Known, TakeOver
from softmutex.core.algorithms.leading import Bully, Leading, Ring
from softmutex.core.events import (
    CallRoll,
    Effect,
    Event,
    FactKind,
    Instant,
    Level,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Reach,
    Received,
    Send,
    Silenced,
    Suspect,
)
from softmutex.core.laws import Law
from softmutex.sim import Scenario, simulate
from softmutex.sim.faults import Partition
from softmutex.sim.scenarios import scenario
from tests.algorithms.explorer import Found, explore
from tests.core.bench import Bench


def sent(b: Bench) -> list[tuple[int, Any]]:
    return [(effect.to, effect.message) for effect in b.effects if isinstance(effect, Send)]


def bereft(kind: type[Leading], me: int, members: tuple[int, ...], leader: int) -> Bench:
    """A candidate, just before its leader dies."""
    b = Bench(kind, me=me, members=members)
    b.receive(Coordinator(1), leader)
    b.request(1)
    return b


def dies(b: Bench, node: int) -> None:
    b.members.remove(node)
    b.handle(MembersChanged((), (node,)))


def test_the_highest_that_is_left_tells_all_the_others_at_once():
    b = bereft(Bully, 4, (1, 2, 3, 4, 5), 5)
    dies(b, 5)
    assert sent(b) == [(node, Coordinator(2)) for node in (1, 2, 3)]  # n - 2
    for node in (1, 2):
        b.receive(Follow(2, 0), node)
        assert b.granted == []
    b.receive(Follow(2, 0), 3)
    assert b.granted == [1] and b.machine.view().state == "leading"


def test_a_lower_one_asks_those_above_and_gives_way_to_who_is_willing():
    b = bereft(Bully, 2, (1, 2, 3, 4, 5), 5)
    dies(b, 5)
    assert sent(b) == []
    b.fire("election")
    assert sent(b) == [(3, Election(1)), (4, Election(1))]
    b.receive(TakeOver(False), 3)
    b.receive(TakeOver(True), 4)
    assert sent(b) == []


def test_where_nobody_above_is_willing_it_leads_itself():
    b = bereft(Bully, 2, (1, 2, 3, 4, 5), 5)
    dies(b, 5)
    b.fire("election")
    b.receive(TakeOver(False), 3)
    b.receive(TakeOver(False), 4)
    assert sent(b) == [(node, Coordinator(2)) for node in (1, 3, 4)]


def test_a_ballot_collects_the_highest_that_is_willing():
    b = Bench(Ring, me=3, members=(1, 2, 3, 4))
    b.receive(Ballot(1, 2, 1, 2), 2)
    assert sent(b) == [(2, GoesOn(2, False)), (4, Ballot(1, 2, 1, 2))]  # it is no candidate
    b = Bench(Ring, me=3, members=(1, 2, 3, 4))
    b.request(1)
    b.receive(Ballot(1, 2, 2, 2), 2)
    assert sent(b) == [(2, GoesOn(2, False)), (4, Ballot(1, 2, 2, 3))]


def test_who_began_tells_the_ring_who_was_elected():
    b = bereft(Ring, 1, (1, 2, 3), 3)
    dies(b, 3)
    assert sent(b) == [(2, Ballot(1, 1, 1, 1))]
    b.receive(Ballot(1, 1, 1, 2), 2)
    assert sent(b) == [(2, GoesOn(1, False)), (2, Follow(2, 0)), (2, Elected(2, 1, 2))]


def test_a_ballot_that_nobody_says_to_have_is_sent_again_to_whoever_is_the_next_now():
    b = bereft(Ring, 1, (1, 2, 3, 4), 4)
    dies(b, 4)
    b.fire("pass")
    assert sent(b) == [(2, Ballot(1, 1, 1, 1))]
    dies(b, 2)
    b.fire("pass")
    assert sent(b) == [(3, Ballot(1, 1, 1, 1))]
    b.receive(GoesOn(1, False), 3)
    b.fire("pass")
    assert sent(b) == [] and "pass" not in b.timers


def test_who_does_not_say_that_it_has_a_ballot_is_looked_after_at_every_second_try():
    b = bereft(Ring, 1, (1, 2, 3, 4), 4)
    dies(b, 4)
    looked_after = []
    for _ in range(7):
        b.fire("pass")
        looked_after.append(Suspect(2) in b.effects)
    assert looked_after == [False, False, True, False, True, False, True]


def test_who_leads_stays_whoever_comes_and_says_so():
    b = Bench(Bully, me=1, members=(1,))
    b.request(1)
    assert b.granted == [1]
    b.members.append(9)
    b.handle(MembersChanged((9,), ()))
    assert sent(b)[0] == (9, Coordinator(1))
    b.receive(Coordinator(5), 9)
    assert sent(b) == [(9, Coordinator(6))] and b.lost == []


def test_who_resigns_tells_all_and_a_change_is_a_fact():
    b = Bench(Bully, me=2, members=(1, 2))
    b.receive(Coordinator(1), 1)
    assert [note.peer for note in b.noted(FactKind.LEADER)] == [1] and b.machine.view().holder == 1
    b.receive(Known(1, 0), 1)
    assert [note.peer for note in b.noted(FactKind.LEADER)] == [0] and b.machine.view().holder == 0


def leader_of_five() -> Bench:
    b = bereft(Bully, 4, (1, 2, 3, 4, 5), 5)
    dies(b, 5)
    for node in (1, 2, 3):
        b.receive(Follow(2, 0), node)
    assert b.granted == [1]
    return b


def test_a_leader_looks_whether_it_reaches_most_and_is_told_when_it_does_not():
    b = leader_of_five()
    assert b.due_in("reach") == 2.0
    assert [call.wide for call in b.fire("reach") if isinstance(call, CallRoll)] == [False]
    b.handle(Reach(Level.HALF))
    assert b.lost == [] and b.one(CallRoll).wide, "once is no proof"
    b.handle(Reach(Level.LESS))
    assert b.lost == [1] and b.one(Lose).reason is LostReason.ISOLATED
    assert "reach" not in b.timers


def test_a_leader_that_reaches_most_again_goes_on():
    b = leader_of_five()
    b.fire("reach")
    b.handle(Reach(Level.LESS))
    b.handle(Reach(Level.MORE))
    b.fire("reach")
    b.handle(Reach(Level.LESS))
    assert b.lost == [] and "reach" in b.timers
    b.release(1)
    assert "reach" not in b.timers


def test_who_is_to_proceed_asks_nobody():
    b = leader_of_five()
    b.machine.when_isolated("proceed")
    assert not [effect for effect in b.fire("reach") if isinstance(effect, CallRoll)]


class NeverLooks(Bully):
    """It leads, and asks nobody whether they are there."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return [effect for effect in super().handle(event, now) if not isinstance(effect, CallRoll)]


@pytest.mark.parametrize(("kind", "broken"), [(Bully, set()), (Ring, set()), (NeverLooks, {Law.ISOLATION})])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.5])
def test_a_leader_that_is_cut_off_with_no_more_than_half_is_told(kind: type[Leading], broken: set[Law], share: float):
    cut = Partition(20.0, 90.0, share, target="holder")
    long = Scenario(kind, 5, 120.0, op_s=100.0, delay_s=0.02, bound_s=10.0, settle_s=600.0, faults=(cut,))
    assert {violation.law for violation in simulate(long).violations} == broken


@pytest.mark.parametrize("kind", [Bully, Ring])
def test_who_is_told_by_another_one_that_the_leader_is_missed_looks_after_it(kind: type[Leading]):
    """Each found out for itself, one after the other: `isolated_timeout` for each member that had been cut off."""
    b = Bench(kind, me=2, members=(1, 2, 3, 4))
    b.receive(Coordinator(1), 4)
    b.receive(Election(1) if kind is Bully else Ballot(1, 1, 1, 1), 1)
    assert sent(b)[-1] == (1, Known(1, 4)) and b.one(Suspect).node == 4


def test_a_candidate_whose_leader_is_silent_looks_after_everybody():
    """But seldom: of twenty candidates, each asked all the others every two seconds."""
    b = bereft(Bully, 2, (1, 2, 3, 4), 4)

    def looked_after() -> list[NodeId]:
        return [suspect.node for suspect in b.fire("look") if isinstance(suspect, Suspect)]

    assert looked_after() == [4]
    b.handle(Silenced(4))
    assert looked_after() == [1, 3, 4]
    for _ in range(7):
        assert looked_after() == [4]
    assert looked_after() == [1, 3, 4]


@pytest.mark.parametrize("kind", [Bully, Ring])
@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2, "kills": 1, "timers": 1},
        {"nodes": 2, "losses": 1, "timers": 1},
        {"nodes": 2, "leaves": 1, "timers": 1},
        {"nodes": 2, "timers": 1, "finish": False},
    ],
    ids=str,
)
def test_no_two_lead_whatever_overtakes_what(kind: type[Leading], bounds: dict[str, Any]):
    assert explore(kind, **bounds) > 40


@pytest.mark.parametrize(
    "bounds",
    [{"nodes": 2, "timers": 2, "repeats": 1}, {"nodes": 2, "withdrawn": 1, "timers": 2}, {"nodes": 3, "timers": 1}],
    ids=str,
)
def test_nor_do_bullies_with_more_that_goes_wrong(bounds: dict[str, Any]):
    assert explore(Bully, **bounds) > 50


class LeadsAtOnce(Bully):
    """E1 is missing."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out = list(super().handle(event, now))
        for effect in list(out):
            if isinstance(effect, Send) and isinstance(effect.message, Coordinator):
                out += super().handle(Received(effect.to, Follow(effect.message.term, 0)), now)
        return out


def test_a_machine_without_one_rule_is_found():
    with pytest.raises(Found, match="run A at once"):
        explore(LeadsAtOnce, nodes=2, timers=2)


@pytest.mark.parametrize("kind", ["bully", "ring"])
@pytest.mark.parametrize("fault", ["kill-holder", "loss-5", "churn-30", "replayed", "cold-start", "restart-at-once"])
def test_somebody_leads_most_of_the_time_and_never_two(fault: str, kind: str):
    result = simulate(scenario(fault, kind, 3, nodes_max=9))
    assert not result.violation_count and result.unserved == 0
    assert result.acquisitions > 20 and result.concurrency_ns.get(2, 0) == 0


def test_whom_a_round_elected_leads_when_all_that_it_needs_follow():
    b = Bench(Ring, me=3, members=(1, 2, 3, 4))
    b.request(1)
    b.receive(Elected(2, 1, 3), 2)
    assert (4, Elected(2, 1, 3)) in sent(b)
    b.fire("election")
    assert sent(b) == [(node, Coordinator(2)) for node in (1, 2, 4)]  # who may not have heard
    for node in (1, 2, 4):
        assert b.granted == []
        b.receive(Follow(2, 0), node)
    assert b.granted == [1]
