"""The elections `bully` and `ring`: what one costs, who wins, and that no two lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.elections import Ballot, Coordinator, Elected, Election, Follow, GoesOn, Known, TakeOver
from softmutex.core.algorithms.leading import Bully, Leading, Ring
from softmutex.core.events import Effect, Event, FactKind, Instant, MembersChanged, Received, Send
from softmutex.sim import simulate
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
