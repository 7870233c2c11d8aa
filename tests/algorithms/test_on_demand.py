"""`suzuki-kasami` and `raymond`: one machine on a bench, every interleaving of a few, and what an entry costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.on_demand import Noted, OnDemand, Wish
from softmutex.core.algorithms.raymond import Raymond, step_towards
from softmutex.core.algorithms.suzuki_kasami import Privilege, SuzukiKasami
from softmutex.core.algorithms.token_ring import Looked, Pass, Seek, Sought, Took
from softmutex.core.events import Effect, Event, Instant, MembersChanged, NodeId, Received, Send, Started, Ticket
from softmutex.sim import nemesis, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import scenario
from tests.algorithms.explorer import Found, explore
from tests.core.bench import Bench, token
from tests.depth import DEEP

BOTH = [SuzukiKasami, Raymond]
MEMBERS = tuple(range(1, 8))  # as a heap: 1 over 2 and 3, 2 over 4 and 5, 3 over 6 and 7


def bench(machine: type[OnDemand], me: int = 2, members: tuple[int, ...] = MEMBERS) -> Bench:
    b = Bench(machine, me=me, members=members)
    b.start()
    return b


def founder(machine: type[OnDemand], me: int = 2, members: tuple[int, ...] = MEMBERS) -> Bench:
    b = Bench(machine, me=me, members=members)
    b.handle(Started(founder=True))
    for other in members:
        if other != me:
            b.receive(Looked(1, False, 0), other)
    return b


def sent(b: Bench, kind: type[Any]) -> list[tuple[NodeId, Any]]:
    return [(each.to, each.message) for each in b.effects if isinstance(each, Send) and isinstance(each.message, kind)]


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", BOTH)
def test_the_token_stays_where_it_was_used_and_is_used_again_without_a_message(machine: type[OnDemand]):
    b = founder(machine)
    for number in (1, 2):
        b.request(number)
        assert b.granted == [number] and not b.all_of(Send)
        b.release(number)
        assert not b.all_of(Send)


@pytest.mark.parametrize("machine", BOTH)
def test_who_comes_is_told_that_there_is_a_token(machine: type[OnDemand]):
    """The old members went, and the next token had the same epoch: as nemesis seed 114 showed."""
    b = founder(machine)
    b.members.append(8)
    b.handle(MembersChanged((8,), ()))
    assert sent(b, Sought) == [(8, Sought(0, 1))]
    newcomer = bench(machine, 8, (*MEMBERS, 8))
    newcomer.receive(Sought(0, 1), 2)
    assert newcomer.machine.view().epoch == 1


@pytest.mark.parametrize("machine", BOTH)
def test_a_wish_that_was_noted_is_repeated_seldom_and_one_that_was_not_ends_in_a_search(machine: type[OnDemand]):
    b = bench(machine)
    b.receive(Sought(1, 1), 1)
    b.request(1)
    number = sent(b, Wish)[0][1].number
    b.receive(Noted(number), 1)
    assert b.due_in("again") == 15.0
    b.fire("again")
    assert sent(b, Wish)[0][1] == Wish(number, again=True)
    b.fire("again")
    assert not sent(b, Seek)
    b.fire("again")
    assert len(sent(b, Seek)) == len(MEMBERS) - 1


# --- suzuki-kasami ----------------------------------------------------------------------------------------------------


def test_all_are_told_of_a_wish_and_whoever_has_the_token_notes_it_and_passes_it_on_later():
    b = bench(SuzukiKasami)
    b.receive(Sought(1, 1), 1)
    b.request(1)
    assert sent(b, Wish) == [(node, Wish(1)) for node in MEMBERS if node != 2]
    b = founder(SuzukiKasami)
    b.request(1)
    b.receive(Wish(1), 5)
    assert sent(b, Noted) == [(5, Noted(1, 1))]
    b.receive(Wish(1), 4)
    b.release(1)
    ((to, privilege),) = sent(b, Privilege)
    assert to == 4 and privilege.token.queue == (Ticket(4, 1), Ticket(5, 1))


def test_nobody_is_served_twice_for_one_wish():
    b = bench(SuzukiKasami)
    b.receive(Wish(1), 5)  # heard by all, and served by another
    b.receive(Privilege(token(1, hop=9), (Ticket(5, 1),)), 4)
    assert sent(b, Took) and not sent(b, Privilege)
    b.receive(Wish(2), 5)
    assert [to for to, _ in sent(b, Privilege)] == [5]


def test_who_never_heard_a_wish_reads_of_it_in_the_token():
    b = bench(SuzukiKasami)
    b.receive(Privilege(token(1, hop=9)._replace(queue=(Ticket(6, 3),)), ()), 4)
    assert [to for to, _ in sent(b, Privilege)] == [6]


# --- raymond ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("me", "goal", "step"), [(4, 2, 2), (4, 1, 2), (4, 7, 2), (2, 4, 4), (1, 7, 3), (2, 7, 1), (7, 6, 3), (3, 2, 1)]
)
def test_each_step_is_one_along_the_heap(me: int, goal: int, step: int):
    assert step_towards(MEMBERS, me, goal) == step


def test_a_wish_goes_to_the_neighbour_once_for_all_who_asked_and_they_are_served_as_they_came():
    b = bench(Raymond)
    b.receive(Sought(1, 1), 7)
    b.receive(Wish(1), 5)
    assert sent(b, Wish) == [(1, Wish(1))]
    b.receive(Wish(1), 4)
    b.request(1)
    assert not sent(b, Wish)
    b.receive(Pass(token(1, hop=3), 0), 1)
    assert [to for to, _ in sent(b, Pass)] == [5] and sent(b, Wish) == [(5, Wish(2))]


def test_who_loses_the_one_that_it_points_to_looks_for_the_token_and_asks_whoever_has_it():
    b = bench(Raymond)
    b.receive(Sought(1, 1), 7)
    b.request(1)
    b.members.remove(1)
    b.handle(MembersChanged((), (1,)))
    seek = sent(b, Seek)
    assert len(seek) == 5
    b.receive(Looked(seek[0][1].number, True, 1), 6)
    assert [to for to, _ in sent(b, Wish)] == [6]


def test_who_runs_when_the_one_that_it_pointed_to_goes_still_asks_for_those_that_wait_behind():
    """It asked for nothing just then, as who has the token does, and took that for the wish that it was to say when it
    passed the token on: those who had asked it waited for ever, and were told that their wishes were noted."""
    b = bench(Raymond)
    b.receive(Sought(1, 1), 7)
    b.request(1)
    b.receive(Pass(token(1, hop=3), 0), 1)
    assert b.granted == [1]
    b.receive(Wish(1), 4)
    b.receive(Wish(1), 5)
    b.members.remove(1)
    b.handle(MembersChanged((), (1,)))
    b.release(1)
    assert [to for to, _ in sent(b, Pass)] == [4] and [to for to, _ in sent(b, Wish)] == [4]


def test_an_old_copy_of_a_wish_brings_nobody_the_token():
    b = founder(Raymond)
    b.receive(Wish(1), 4)
    b.receive(Took(1, 2), 4)
    b.receive(Wish(1, again=True), 4)
    assert not b.all_of(Send)


# --- every interleaving -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2, "requests": 2},
        {"nodes": 2, "repeats": 1},
        {"nodes": 2, "withdrawn": 1},
        {"nodes": 2, "founders": 2},
        {"nodes": 2, "founders": 0, "timers": 1},
        {"nodes": 2, "joins": 1, "askers": (2, 3)},
        {"nodes": 2, "leaves": 1},
        {"nodes": 3, "kills": 1, "askers": (2,)},
        {"nodes": 3, "leaves": 1, "askers": (2,)},
        {"nodes": 3, "askers": (2, 3)},
        {"nodes": 3, "withdrawn": 1, "askers": (2, 3)},
        {"nodes": 3, "joins": 1, "askers": (2,)},
        {"nodes": 2, "kills": 1, "timers": 1, "askers": (2,)},
        {"nodes": 2, "losses": 1, "timers": 1, "askers": (2,)},
        *DEEP * (pytest.param({"nodes": 3}, marks=pytest.mark.slow),),
        pytest.param({"nodes": 2, "kills": 1, "timers": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "losses": 1, "timers": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_no_two_run_at_once_and_everybody_is_granted_whatever_overtakes_what(
    machine: type[OnDemand], bounds: dict[str, Any]
):
    assert explore(machine, **bounds) > 50


def _keeps(machine: type[OnDemand]) -> type[OnDemand]:
    """R1 is missing: whoever passed the token on and wants it again takes it from itself."""

    class Keeps(machine):  # type: ignore[misc, valid-type]
        def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
            out = list(super().handle(event, now))
            for effect in list(out):
                if isinstance(effect, Send) and isinstance(effect.message, Pass | Privilege) and self.view().waiting:
                    mine = effect.message.token
                    out += super().handle(Received(effect.to, Took(mine.epoch, mine.hop)), now)
                    back = effect.message._replace(token=mine._replace(hop=mine.hop + 1))
                    out += super().handle(Received(effect.to, back), now)
            return out

    return Keeps


def _believes(machine: type[OnDemand]) -> type[OnDemand]:
    """R2 is missing: it asks, and takes every answer for "not here"."""

    class Believes(machine):  # type: ignore[misc, valid-type]
        def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
            match event:
                case Received(sender, Looked(number, _, epoch)):
                    event = Received(sender, Looked(number, False, epoch))
            return super().handle(event, now)

    return Believes


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize(
    ("broken", "bounds"),
    [(_keeps, {"nodes": 2, "requests": 2, "timers": 1}), (_believes, {"nodes": 2, "timers": 1})],
)
def test_a_machine_without_one_rule_is_found(machine: type[OnDemand], broken: Any, bounds: dict[str, Any]):
    with pytest.raises(Found, match="run A at once"):
        explore(broken(machine), finish=False, **bounds)


# --- in the simulator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize("fault", ["kill-holder", "kill-anybody", "loss-20", "churn-30", "storm", "cold-start"])
def test_it_survives(machine: type[OnDemand], fault: str):
    result = simulate(scenario(fault, machine.name, 3, nodes_max=9))
    assert not result.violation_count and result.unserved == 0 and result.acquisitions > 30


@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [("raymond", 50), ("raymond", 71), ("raymond", 107), ("raymond", 114), ("raymond", 142), ("suzuki-kasami", 119)],
)
def test_what_the_nemesis_found_once_holds(algorithm: str, seed: int):
    assert not simulate(nemesis.draw(seed, (2, 16), algorithm)).violations


@pytest.mark.parametrize("nodes", [2, 3, 10, 30])
def test_an_entry_of_suzuki_and_kasami_costs_a_wish_for_each_other_one_and_the_token(nodes: int):
    result = simulate(Scenario("suzuki-kasami", nodes, 500.0, op_s=1.0, delay_s=0.05))
    asked = result.acquisitions + 2 * nodes  # the first of each find no token yet, the last are under way at the end
    assert (nodes - 2) * result.acquisitions <= result.sent["WISH"] <= (nodes - 1) * asked
    assert result.sent["PRIVILEGE"] <= asked and result.sent["NOTED"] <= asked
    assert result.fairness > 0.95


@pytest.mark.parametrize("nodes", [3, 15, 63, 255])
def test_an_entry_of_raymond_costs_at_most_twice_the_depth_of_the_tree(nodes: int):
    quiet = Scenario("raymond", nodes, 4000.0, demand="poisson:0.01", delay_s=0.05)
    result = simulate(quiet)
    depth = math.floor(math.log2(nodes))
    assert result.acquisitions > 10
    assert result.sent["WISH"] <= 2 * depth * result.acquisitions
    assert result.sent["TOOK"] <= result.sent["PASS"] <= result.sent["WISH"]  # who is asked about it passes it again
