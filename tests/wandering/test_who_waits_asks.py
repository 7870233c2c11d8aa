"""How a node asks for the token: whom, when again, and what its ticket says. One machine, and what it does at once.

What is asked for too often costs messages, and what is asked for too late is a wait that no law counts in a small
group: both stay unseen where whole groups are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.wandering.messages import Place, Presence, Probe, Queued, Sight, Urge, Want
from softmutex.core.algorithms.wandering.settings import PATIENCE, PATIENCE_EACH, RTO_FIRST
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Effect,
    Event,
    Fired,
    Grant,
    MembersChanged,
    NodeId,
    Released,
    Requested,
    Returned,
    Silenced,
    Slept,
    Suspect,
    Ticket,
    Withdrawn,
)
from softmutex.core.messages import Offer
from tests.wandering.node import HOME, ME, TOKEN, Node, sent

DAY = 86_400 * SECOND


def wants(effects: Sequence[Effect]) -> list[tuple[NodeId, Want]]:
    return sent(effects, Want)


def probed(effects: Sequence[Effect]) -> set[NodeId]:
    return {to for to, _ in sent(effects, Probe)}


# --- nobody answers --------------------------------------------------------------------------------------------------


def test_who_is_not_answered_asks_each_home_twice_ever_more_slowly_and_then_everybody():
    node = Node()
    assert wants(node.tell(Requested(1))) == [(1, Want(ME, 1, False, 3, 0))]
    waits = [node.asks_in]
    asked, lost = [], []
    for _ in range(5):
        effects = node.fire("want")
        suspected = [each.node for each in effects if isinstance(each, Suspect)]
        asked.append((*(to for to, _ in wants(effects)), *suspected))
        assert all(
            want == Want(ME, 1, False, 0, 0) for _, want in wants(effects)
        )  # who stands in for the home keeps it
        waits.append(node.asks_in)
        lost.append(node.machine.context.lost_at == node.now)
        assert probed(effects) == ({1, 2, 3, 5} if len(asked) == 4 else set())
    assert asked[:4] == [(1, 1), (2, 1), (2, 2), (3, 2)]
    assert waits[:4] == [3 * RTO_FIRST, 6 * RTO_FIRST, 12 * RTO_FIRST, 24 * RTO_FIRST]
    assert waits[4] == PATIENCE
    assert lost == [False, True, True, True, True]


def test_a_word_of_the_home_ends_the_count_of_what_it_did_not_answer_and_of_nobody_else():
    for speaker, steps in ((2, 0), (HOME, 3)):
        node = Node()
        node.tell(Requested(1))
        node.hear(speaker, Queued(99, 0))
        ((_, want),) = wants(node.fire("want"))
        assert want.steps == steps


def test_who_waits_for_nothing_any_more_asks_no_further():
    node = Node()
    node.tell(Requested(1))
    assert CancelTimer("want") in node.tell(Withdrawn(1))
    assert not node.machine.requests.asks
    assert node.tell(Fired("want")) == []
    assert wants(node.tell(Requested(2))) == [(HOME, Want(ME, 2, False, 0, 0))]  # the home has not answered yet
    node.tell(Requested(3))
    assert CancelTimer("want") not in node.tell(Withdrawn(2))  # another one waits
    node.tell(Withdrawn(99))  # of which it knows nothing


def test_one_ticket_stands_for_all_requests_of_a_node():
    node = Node()
    node.tell(Requested(1))
    assert wants(node.tell(Requested(2))) == []
    assert [each for each in node.takes(2, 1) if isinstance(each, Grant)] == [Grant.by(TOKEN._replace(hop=4), 1)]


# --- somebody answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patience_s", [6, 60, 10 * 86_400])
def test_who_is_told_to_wait_asks_again_when_its_patience_is_over_and_a_day_at_most(patience_s: int):
    node = Node()
    node.tell(Requested(1))
    node.hear(HOME, Queued(1, patience_s * SECOND))
    patience = min(patience_s * SECOND, DAY)
    assert node.asks_in is not None and 3 * patience // 4 <= node.asks_in <= 5 * patience // 4
    ((_, want),) = wants(node.fire("want"))
    assert want.steps == 3  # its home answered
    assert node.asks_in == 3 * RTO_FIRST


def test_what_is_said_of_another_request_changes_nothing_but_that_an_idle_token_waits():
    node = Node()
    node.tell(Requested(5))
    before = node.asks_in
    for request, patience in ((4, 9 * SECOND), (6, 9 * SECOND), (6, 0)):
        node.hear(HOME, Queued(request, patience))
        assert node.asks_in == before
    node.hear(HOME, Queued(4, 0))
    assert node.asks_in is not None and node.asks_in <= 1


def test_how_long_the_answer_to_a_want_took_tells_how_long_a_message_is_under_way():
    for keeper, repeated, way in ((HOME, False, SECOND // 20), (2, False, 0), (HOME, True, 7 * SECOND // 20)):
        node = Node()
        node.tell(Requested(1))
        if repeated:
            node.fire("want")  # after 0.6 s
        node.now += SECOND // 10
        node.hear(keeper, Queued(1, PATIENCE))
        assert node.machine.context.way == way


@pytest.mark.parametrize("repeated", [False, True])
def test_where_the_way_is_known_an_answer_to_a_want_that_was_repeated_says_nothing_of_it(repeated: bool):
    node = Node()
    node.machine.context.way = SECOND // 20
    for request in (1, 2):
        node.tell(Requested(request))
        if repeated:
            node.fire("want")
        node.now += SECOND // 5
        before = node.machine.context.way
        node.hear(HOME, Queued(request, PATIENCE))
        assert (node.machine.context.way == before) is repeated
        node.tell(Withdrawn(request))


@pytest.mark.parametrize("slept", [False, True])
def test_a_want_for_another_request_or_after_a_pause_is_measured_from_its_own_beginning(slept: bool):
    node = Node()
    node.tell(Requested(1))
    node.now += SECOND
    if slept:
        node.tell(Slept(SECOND))
    else:
        node.tell(Withdrawn(1))
        node.tell(Requested(2))
    node.now += SECOND // 10
    node.hear(HOME, Queued(1 if slept else 2, PATIENCE))
    assert node.machine.context.way == SECOND // 20


def test_a_second_answer_to_one_want_is_not_measured():
    node = Node()
    node.tell(Requested(1))
    for _ in range(2):
        node.now += SECOND // 10
        node.hear(HOME, Queued(1, PATIENCE))
    assert node.machine.context.way == SECOND // 20


# --- whoever keeps its ticket is gone --------------------------------------------------------------------------------


@pytest.mark.parametrize("patience_s", [6, 60])
@pytest.mark.parametrize("news", ["left", "silent", "another home", "back"])
def test_who_fears_for_its_ticket_asks_soon_and_many_do_not_at_once(news: str, patience_s: int):
    node = Node()
    node.tell(Requested(1))
    keeper = 3 if news in ("left", "silent") else HOME
    node.hear(keeper, Queued(1, patience_s * SECOND))
    if news == "left":
        node.members.remove(3)
        node.tell(MembersChanged((), (3,)))
    elif news == "silent":
        node.tell(Silenced(3))
    elif news == "another home":
        node.members.insert(0, 0)
        node.tell(MembersChanged((0,), ()))
    else:
        node.tell(Returned(HOME))
    spread = min(patience_s * SECOND, len(node.members) * PATIENCE_EACH) // 32
    assert node.asks_in is not None and RTO_FIRST <= node.asks_in <= RTO_FIRST + spread
    if news in ("left", "silent"):  # that it is gone is news but once
        node.timers["want"] = DAY
        node.tell(Silenced(3))
        assert node.timers["want"] == DAY


@pytest.mark.parametrize("event", [MembersChanged((9,), ()), MembersChanged((), (5,)), Silenced(5), Returned(2)])
def test_what_concerns_others_is_no_reason_to_ask_again(event: Event):
    node = Node()
    node.tell(Requested(1))
    node.hear(HOME, Queued(1, 60 * SECOND))
    before = node.timers["want"]
    if isinstance(event, MembersChanged):
        node.members[:] = sorted({*node.members, *event.joined} - {*event.left})
    node.tell(event)
    assert node.timers["want"] == before


def test_who_asks_while_its_token_is_doubted_has_a_ticket_out_as_soon_as_a_better_one_is_found():
    """Its hold goes on without a token, for how long nobody knows."""
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, TOKEN._replace(escort=TOKEN.escort._replace(watch=(1, 2))))
    asked = dict(sent(node.tell(Slept(SECOND)), Probe))
    assert wants(node.tell(Requested(2))) == [] and node.machine.view().queue == ()
    better = Place(0, 8, 9, 99, 6, 3)
    found = node.hear(3, Sight(asked[3].number, 0, better, Presence.IN_USE, True))
    assert [want.request for _, want in wants(found)] == [2]


# --- an offer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("early", "unanswered", "slots", "waits_anew"),
    [(False, False, 1, True), (True, False, 1, False), (True, True, 1, True), (True, False, 2, True)],
)
def test_an_offer_tells_a_waiter_that_it_is_in_a_queue_unless_it_was_told_so(
    early: bool, unanswered: bool, slots: int, waits_anew: bool
):
    """An early one comes while A runs elsewhere, for how long nobody knows."""
    node = Node(slots=slots)
    node.tell(Requested(1))
    if not unanswered:
        node.hear(HOME, Queued(1, 60 * SECOND))
    before = node.asks_in
    assert before is not None
    node.hear(2, Offer(5, TOKEN, early))
    after = node.asks_in
    assert after is not None
    if waits_anew:
        assert 3 * PATIENCE // 4 <= after <= 5 * PATIENCE // 4
        ((_, want),) = wants(node.fire("want"))
        assert want.steps == 3
    else:
        assert after == before


# --- what a ticket says ----------------------------------------------------------------------------------------------


def test_who_had_its_turn_less_than_the_least_interval_ago_says_so():
    node = Node(min_interval=5.0)
    node.tell(Requested(1))
    node.takes(2, 1)
    node.tell(Released(1))
    node.hear(2, Want(2, 1, False, 1, 0))  # the token goes there
    for at_s, request, late in ((4.9, 2, True), (5.0, 3, False)):
        node.now = (1000 * SECOND) + round(at_s * SECOND)
        ((_, want),) = wants(node.tell(Requested(request)))
        assert want.late is late
        node.tell(Withdrawn(request))


def test_where_there_are_priorities_a_more_urgent_request_is_told_of_at_once_and_another_one_is_not():
    node = Node(ageing=2.0)
    said: list[tuple[int, int]] = []
    for request, priority in ((1, 1), (2, 0), (3, 4), (4, 4)):
        node.now += SECOND
        said += [(urge.want.request, urge.credit) for _, urge in sent(node.tell(Requested(request, priority)), Urge)]
    assert said == [(1, 2 * SECOND), (1, 8 * SECOND)]


def test_where_there_are_priorities_a_new_ticket_has_a_number_that_no_ticket_had():
    node = Node(ageing=2.0)
    for request in (5, 6):
        node.tell(Requested(request))
    node.tell(Withdrawn(5))
    node.tell(Withdrawn(6))
    assert node.machine.requests.named == 5
    node.tell(Requested(3))
    assert node.machine.requests.named == node.machine.requests.asked == 6


# --- the last resort -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"census": False, "watch": False}, {"hints": False}])
def test_without_hints_or_census_a_token_is_missed_after_the_regeneration_time(options: dict[str, Any]):
    """One and a half times as long as all have their turn, and half as long again each time."""
    node = Node(**options)
    assert bool(wants(node.tell(Requested(1)))) is ("hints" not in options)
    first = node.timers["gen"] - node.now
    assert first == round(1.5 * 300) * SECOND
    fired = node.fire("gen")
    if "hints" in options:  # it asks everybody
        assert probed(fired) == {1, 2, 3, 5}
        assert node.timers["gen"] - node.now == first * 3 // 2
        node.tell(Withdrawn(1))
    else:
        assert [each.request for each in fired if isinstance(each, Grant)] == [1]
    assert "gen" not in node.timers
    assert node.tell(Fired("gen")) == []


def test_with_hints_and_census_there_is_no_last_resort():
    node = Node()
    node.tell(Requested(1))
    assert set(node.timers) == {"want", "listened"}


# --- several slots ---------------------------------------------------------------------------------------------------


def test_a_token_that_came_while_a_node_had_as_many_as_it_may_is_asked_for_when_a_hold_is_over():
    node = Node(slots=2, each=1, row=1)
    for request in (1, 2):
        node.tell(Requested(request))
    node.takes(2, 1, TOKEN._replace(queue=(Ticket(5, 1),)))
    assert node.machine.requests.asks
    node.hear(2, Offer(5, TOKEN._replace(slot=1, id=51), False))
    assert node.machine.requests.missed
    released = node.tell(Released(1))
    assert [to for to, _ in wants(released)] == [HOME]
    assert not node.machine.requests.missed


def test_a_node_stands_for_its_ticket_unless_it_is_told_that_all_are_to_be_asked():
    for options, stands in (({}, 1), ({"early": False}, 0), ({"hints": False}, 0)):
        node = Node(**options)
        node.tell(Requested(1))
        assert node.machine.handover.standing == stands
        node.tell(Withdrawn(1))
        assert node.machine.handover.standing == 0
