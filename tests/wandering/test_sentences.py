"""What the wandering token promises, sentence by sentence; the short stories are pinned in tests/traces/wandering."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.algorithms.wandering.settings import QUEUE
from softmutex.core.errors import ConfigError
from softmutex.core.events import FactKind, Released, Requested, from_seconds
from softmutex.core.machine import Setup
from tests.tracing import Trace
from tests.wandering.stage import Stage


@pytest.fixture
def trace(request: pytest.FixtureRequest, rewrite: bool) -> Iterator[Trace]:
    trace = Trace("wandering", request.function.__name__, origin=from_seconds(1000))
    yield trace
    trace.check(rewrite)


def kinds(stage: Stage) -> list[FactKind]:
    return [note.kind for _, note in stage.notes]


# --- use -------------------------------------------------------------------------------------------------------------


def test_a_token_that_is_parked_here_is_taken_again_without_a_message(trace: Trace):
    stage = Stage(trace)
    stage.run(1)
    sent = stage.sent.total()
    for request in range(1, 4):
        stage.request(1, request)
        assert stage.granted[-1] == (1, request)
        stage.release(1)
    assert stage.sent.total() == sent


def test_an_idle_token_comes_for_six_messages_and_five_delays(trace: Trace):
    stage = Stage(nodes=4)
    stage.request(4)
    stage.run(1)
    stage.release(4)
    stage.run(1)
    stage.sent.clear()
    stage.trace = trace
    stage.request(3)
    stage.run(0.005)
    assert stage.granted[-1] == (3, 1)
    stage.run(0.001)
    assert stage.sent == {"WANT": 1, "FEED": 1, "OFFER": 1, "ACCEPT": 1, "COMMIT": 1, "DONE": 1}


def test_a_release_costs_one_delay_when_the_next_one_waits(trace: Trace):
    stage = Stage()
    stage.request(1)
    stage.request(2)
    stage.run(0.5)
    stage.trace = trace
    stage.release(1)
    stage.run(0.001)
    assert stage.granted == [(1, 1), (2, 1)]


def test_others_come_before_the_same_node_asks_again():
    stage = Stage()
    stage.request(1)
    stage.request(2)
    stage.request(3)
    stage.run(0.5)
    stage.release(1)
    stage.request(1, 2)
    for node in (2, 3):
        stage.run(0.5)
        stage.release(node)
    stage.run(0.5)
    assert [node for node, _ in stage.granted] == [1, 2, 3, 1]


def test_requests_of_one_node_are_served_in_a_row_if_they_waited_when_its_turn_began():
    stage = Stage()
    stage.request(1)
    for request in (1, 2, 3):
        stage.request(2, request)
    stage.request(3)
    stage.run(0.5)
    stage.release(1)
    stage.run(0.002)
    stage.request(2, 4)  # too late for this turn
    for _ in range(3):
        stage.release(2)
    stage.run(0.01)
    assert stage.granted[1:] == [(2, 1), (2, 2), (2, 3), (3, 1)]


def test_a_withdrawn_request_is_never_granted():
    stage = Stage()
    stage.request(1)
    stage.request(2)
    stage.run(0.5)
    stage.withdraw(2)
    stage.release(1)
    stage.run(30)
    assert stage.granted == [(1, 1)]


def test_a_node_that_had_it_lately_yields_to_others():
    stage = Stage(nodes=4, min_interval=60.0)
    stage.request(4)
    stage.run(0.1)
    stage.release(4)
    stage.run(0.1)
    stage.request(3)
    stage.run(0.1)
    stage.request(4, 2)
    stage.run(0.1)
    stage.request(2)
    stage.run(0.1)
    for node in (3, 2):
        stage.release(node)
        stage.run(0.1)
    assert [node for node, _ in stage.granted][:2] == [4, 3]
    assert sorted(node for node, _ in stage.granted[2:]) == [2, 4]


def test_with_two_slots_two_run_at_once_and_never_three():
    stage = Stage(nodes=4, slots=2)
    for node in stage.members:
        stage.request(node)
    stage.run(5)
    assert len(stage.holding) == 2
    for _ in range(2):
        stage.release(next(iter(stage.holding)))
        stage.run(5)
        assert len(stage.holding) <= 2
    assert len({node for node, _ in stage.granted}) == 4


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_killed_holder_is_replaced_within_three_seconds(trace: Trace):
    stage = Stage()
    stage.request(3)
    stage.run(0.5)
    stage.request(2)
    stage.run(0.5)
    stage.trace = trace
    stage.kill(3)
    stage.run(3)
    assert stage.granted == [(3, 1), (2, 1)]
    assert kinds(stage).count(FactKind.GENERATED) == 2


def test_a_holder_that_sleeps_past_its_lease_is_told_so(trace: Trace):
    stage = Stage()
    stage.request(3)
    stage.run(0.5)
    stage.request(2)
    stage.run(0.5)
    stage.sleep(3)
    stage.run(5)
    assert stage.granted == [(3, 1), (2, 1)]
    stage.trace = trace
    stage.wake(3)
    stage.run(0.1)
    assert sorted(stage.lost) == [(2, "overlap"), (3, "overlap")]
    assert stage.machines[3].view().tokens == ()
    assert sorted(node for node, note in stage.notes if note.kind is FactKind.OVERLAP) == [2, 3]


def test_a_holder_that_nobody_hears_of_is_told_of_nothing_when_nothing_happened(trace: Trace):
    stage = Stage()
    stage.request(3)
    stage.run(0.5)
    stage.trace = trace
    stage.sleep(3)
    stage.run(2)
    stage.wake(3, 2)
    stage.run(0.1)
    assert stage.lost == []
    stage.release(3)
    stage.request(3, 2)
    assert stage.granted == [(3, 1), (3, 2)]


def test_who_slept_with_the_parked_token_asks_before_it_uses_it_again(trace: Trace):
    stage = Stage()
    stage.request(3)
    stage.run(0.5)
    stage.release(3)
    stage.run(0.5)
    stage.sleep(3)
    stage.request(2)
    stage.run(5)
    assert stage.granted == [(3, 1), (2, 1)]
    stage.trace = trace
    stage.wake(3, 5, Requested(2))
    stage.run(1)
    assert stage.granted == [(3, 1), (2, 1)]
    stage.release(2)
    stage.run(1)
    assert stage.granted[-1] == (3, 2)
    assert stage.lost == []


def test_who_slept_looks_into_what_was_sent_to_it_meanwhile():
    """Found with real processes: it took the COMMIT that lay in its socket, and the token had been replaced."""
    stage = Stage()
    stage.request(1)
    stage.request(3)
    stage.request(2)
    stage.run(0.5)
    stage.sleep(3)
    stage.release(1)
    stage.run(8)
    assert stage.granted == [(1, 1), (2, 1)]
    stage.wake(3, 8)
    stage.run(1)
    assert stage.granted == [(1, 1), (2, 1)]
    stage.release(2)
    stage.run(1)
    assert stage.granted[-1] == (3, 1)


def test_a_hold_that_nobody_waited_for_is_watched_as_soon_as_somebody_does():
    """Found with real processes: a holder that died before its first beat was missed by patience alone."""
    stage = Stage()
    stage.run(20)
    stage.request(1)
    stage.run(0.1)
    stage.request(2)
    stage.run(0.1)
    stage.kill(1)
    stage.run(7)
    assert stage.granted == [(1, 1), (2, 1)]


def test_two_that_overlapped_are_told_though_neither_is_the_holder_any_more():
    stage = Stage(nodes=5)
    stage.request(1)
    stage.run(0.1)
    stage.sleep(1)
    stage.request(2)
    stage.run(8)
    stage.request(3)
    stage.run(0.1)
    assert stage.granted == [(1, 1), (2, 1)]
    stage.asleep[1].append(Released(stage.holding.pop(1)))
    stage.release(2)
    stage.run(2)
    stage.release(3)
    stage.run(0.1)
    stage.wake(1, 8)
    stage.run(5)
    told = [node for node, note in stage.notes if note.kind is FactKind.OVERLAP]
    assert sorted(told) == [1, 2, 3]
    assert stage.lost == []


def test_a_request_that_nobody_answers_is_sent_again(trace: Trace):
    stage = Stage(trace)
    stage.cut = {3}
    stage.request(3)
    stage.run(0.5)
    stage.cut = set()
    stage.run(2)
    assert stage.granted == [(3, 1)]


def test_a_ticket_of_our_own_that_was_lost_with_the_token_is_asked_for_again():
    """Found by the simulator: the ticket went straight into the token's queue, and no timer was set for it."""
    stage = Stage()
    stage.request(1)
    stage.run(0.1)
    stage.request(2)
    stage.run(0.1)
    stage.request(1, 2)
    stage.release(1)
    stage.run(0.1)
    stage.kill(2)
    stage.run(30)
    assert stage.granted[-1] == (1, 2)


def test_a_token_that_comes_back_is_later_than_what_others_heard_of_it():
    """Found by the simulator: the watchers knew it at the next hop already, and ignored its holder from then on."""
    stage = Stage()
    stage.request(3)
    stage.run(0.1)
    before = stage.machines[3].view().tokens[0]
    stage.request(2)
    stage.run(0.1)
    stage.release(3)
    stage.leave(2)  # while the token is on its way
    stage.run(0.1)
    assert FactKind.HANDOVER_FAILED in kinds(stage)
    [after] = stage.machines[3].view().tokens
    assert after.hop >= before.hop + 2


def test_who_asked_after_a_token_and_is_not_answered_asks_the_home():
    """Found by real processes on a starved machine: it asked one that was cut off, 189 times, and waited for ever."""
    stage = Stage(nodes=5)
    stage.request(1)
    stage.run(0.1)
    for node in (2, 3, 4):
        stage.request(node)
    stage.run(0.1)
    stage.release(1)
    for _ in range(100):  # short turns: 2 passes it on to 3, and knows that 4 comes after
        stage.run(0.0005)
        for node in list(stage.holding):
            stage.release(node)
    stage.request(5)
    stage.run(0.1)
    stage.release(5)
    stage.cut = {4}
    stage.request(2, 2)
    stage.run(1)
    assert stage.granted == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2)]


def test_tickets_that_do_not_fit_into_the_token_go_back_to_the_register():
    """Found by the simulator: they were dropped, and their nodes waited for a second round."""
    nodes = QUEUE + 10
    stage = Stage(nodes=nodes)
    stage.request(1)
    for node in stage.members[1:]:
        stage.request(node)
    for _ in range(nodes - 1):
        stage.run(0.2)
        stage.release(next(iter(stage.holding)))
    stage.run(0.2)
    assert sorted(node for node, _ in stage.granted) == stage.members
    assert stage.now < 1020 * 10**9


def test_two_groups_of_different_settings_are_told_once():
    stage = Stage(nodes=2)
    stage.members.append(3)
    stage.add(3, min_interval=5.0)
    stage.news(joined=(3,))
    for request in range(1, 4):
        stage.request(3, request)
        stage.run(0.1)
        stage.release(3)
        stage.request(2, request)
        stage.run(0.1)
        stage.release(2)
    told = [node for node, note in stage.notes if note.kind is FactKind.MISMATCH]
    assert sorted(told) == [2, 3]


@pytest.mark.parametrize(("choice", "grants"), [("wait", 0), ("raise", 0), ("proceed", 1)])
def test_a_node_that_reaches_fewer_than_half_is_isolated_and_does_what_it_was_told(choice: str, grants: int):
    stage = Stage(nodes=5, when_isolated=choice)
    stage.run(1)
    stage.cut = {5}
    stage.request(5)
    stage.run(20)
    assert len(stage.granted) == grants
    assert FactKind.ISOLATED in kinds(stage)
    stage.cut = set()
    stage.run(30)
    assert stage.granted[0] == (5, 1)


def test_without_hints_the_token_walks_for_ever_and_whoever_waits_meets_it():
    """Found by the table of goals: one draw in ten thousand found nobody to go to, and the walk ended."""
    stage = Stage(nodes=2, hints=False)
    stage.run(60)
    walked = stage.sent["COMMIT"]
    assert walked > 1000
    stage.request(2)
    stage.run(1)
    assert stage.granted == [(2, 1)]
    stage.release(2)
    stage.run(60)
    assert stage.sent["COMMIT"] > 1.9 * walked


# --- comings and goings ----------------------------------------------------------------------------------------------


def test_a_leaver_hands_the_token_over_and_nothing_is_made_anew(trace: Trace):
    stage = Stage()
    stage.run(1)
    stage.trace = trace
    stage.leave(1)
    stage.run(0.1)
    assert stage.notes[-1][1].detail == "depart"
    stage.kill(1)
    stage.trace = None
    stage.news(left=(1,))
    stage.request(3)
    stage.run(1)
    assert stage.granted == [(3, 1)]
    assert kinds(stage).count(FactKind.GENERATED) == 1


def test_who_is_alone_waits_a_little_for_others_and_then_makes_a_token(trace: Trace):
    stage = Stage(trace, nodes=1, founder=False)
    stage.request(1)
    stage.run(0.5)
    assert stage.granted == [(1, 1)]


def test_of_many_that_start_at_once_one_makes_a_token():
    stage = Stage(nodes=30, founder=False)
    for node in stage.members:
        stage.request(node)
    stage.run(8)  # those that are new make none for a while
    assert kinds(stage).count(FactKind.GENERATED) == 1
    assert len(stage.holding) == 1


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"wach": False}, "Did you mean 'watch'"),
        ({"hints": 1}, "hints is 1, give true or false"),
        ({"min_interval": -1.0}, "min_interval is -1.0, give a number of at least 0"),
        ({"watchers": 3}, "watchers is 3, give a whole number from 1 to 2"),
        ({"each": 1.5}, "each is 1.5, give a whole number from 1 to 256"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_to_do(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        Wandering(Setup(1, [1], random.Random(1), options=options))


@pytest.mark.parametrize("slots", [0, 257])
def test_more_slots_than_can_be_are_refused(slots: int):
    with pytest.raises(ConfigError, match=f"'wandering' has at most 256 slots, and slots is {slots}"):
        Wandering(Setup(1, [1], random.Random(1), slots=slots))
