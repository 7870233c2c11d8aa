"""One wandering machine as a whole: what it shows, which reasons to look for a token it has, what it does for slots."""

from __future__ import annotations

import random

import pytest

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.algorithms.wandering.messages import Feed, Place, Presence, Probe, Seen, Sight, Want
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Escort,
    Fired,
    Grant,
    MembersChanged,
    NodeId,
    Released,
    Requested,
    Silenced,
    Slept,
    Started,
    Suspect,
    Ticket,
    Withdrawn,
)
from softmutex.core.machine import Setup, View
from softmutex.core.messages import Commit
from softmutex.core.timing import Timing
from tests.wandering.node import HOME, ME, TOKEN, Node, sent
from tests.wandering.test_how_a_token_is_looked_for import answer, nothing, probes

WATCHED = TOKEN._replace(escort=Escort((1, 2), 0, False))
PLACE = Place(0, 7, 5, 50, 10, 3)
RETRY = ("retry", 0)


def states(node: Node) -> tuple[str, int, NodeId, int]:
    view = node.machine.view()
    return view.state, view.waiting, view.holder, view.epoch


def test_what_it_shows_is_what_it_does():
    node = Node()
    assert node.machine.view() == View((), (), 0, NOBODY, (), 0, "idle")
    node.tell(Requested(1))
    assert states(node) == ("waiting", 1, NOBODY, 0)
    node.hear(2, Sight(0, 0, PLACE._replace(epoch=6), Presence.ABSENT, False))
    assert states(node) == ("waiting", 1, 3, 6)
    node.takes(2, 1, WATCHED)
    view = node.machine.view()
    assert (view.holding, view.tokens[0].key) == ((1,), TOKEN.key) and states(node) == ("holding", 0, ME, 7)
    node.hear(HOME, Feed(0, (Ticket(5, 1), Ticket(3, 1)), False, 4))
    assert node.machine.view().queue == (5, 3)
    node.tell(Slept(SECOND))
    assert states(node)[0] == "holding"
    node.tell(Released(1))
    assert states(node)[0] == "doubtful" and node.machine.may_take_again()
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    node.tell(Released(1))
    assert states(node) == ("parked", 0, ME, 7) and node.machine.may_take_again()
    node.now += SECOND
    node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4))  # it is offered
    assert states(node)[0] == "passing" and not node.machine.may_take_again()
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    node.tell(Released(1))
    node.hear(5, Sight(0, 0, None, Presence.ABSENT, False))
    assert sent(node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4)), Commit)
    assert states(node)[0] == "idle" and node.machine.view().tokens == () and node.machine.view().queue == ()


def test_who_is_isolated_shows_it():
    node = Node()
    node.tell(Requested(1))
    for _ in range(12):
        node.fire(("probe", 0) if ("probe", 0) in node.timers else "want")
        if RETRY in node.timers:
            break
    assert states(node)[0] == "isolated"


def test_how_many_holds_a_node_may_have_is_an_option():
    assert [Wandering.holds_of_one_node(options) for options in ({}, {"each": 3})] == [1, 3]


@pytest.mark.parametrize(("timing", "stays"), [(Timing(op=2.0), 50), (Timing(op=0.001), 1), (Timing(skip=0.3), 300)])
def test_a_token_that_walks_stays_for_the_skip_and_a_millisecond_at_least(timing: Timing, stays: int):
    machine = Wandering(Setup(ME, [1, ME], random.Random(1), timing, {"hints": False}))
    assert machine.holder.skip == stays * SECOND // 1000


# --- why it looks again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["none", "asks", "others wait", "misses", "left", "hearsay"])
def test_an_inquiry_is_repeated_only_where_somebody_here_has_a_reason_yet(reason: str):
    node = Node(members=(ME, 5, 6, 7, 8))
    place = PLACE._replace(holder=6)
    node.now += 100 * SECOND
    if reason != "hearsay":
        node.hear(6, Seen(place, 2 * SECOND * (reason == "misses"), ()))
    else:
        node.hear(5, Sight(0, 0, place, Presence.ABSENT, False))
    if reason == "asks":
        node.tell(Requested(1))
    elif reason == "others wait":
        node.machine.home.ready[7] = 1
    elif reason == "misses":
        assert not probes(node.tell(Fired(RETRY)))
        node.now += 2 * SECOND
    elif reason == "left":
        node.machine.context.changed((), (6,))
    assert bool(probes(node.tell(Fired(RETRY)))) is (reason != "none")


def test_what_is_doubted_here_is_looked_into_again_and_what_is_not_is_not():
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    assert not probes(node.tell(Fired(RETRY)))
    asked = probes(node.tell(Slept(SECOND)))
    better = Place(0, 8, 9, 99, 1, 77)
    answer(node, asked, lambda to: Sight(0, 0, better if to == 5 else None, Presence.ABSENT, True))
    assert RETRY in node.timers
    again = probes(node.fire(RETRY))
    assert again.keys() == {1, 2, 3, 5, 77}


def test_a_death_is_looked_into_by_the_home_alone_and_where_there_is_a_watch():
    for members, watch, looks in (((ME, 5, 6), True, True), ((1, ME, 5, 6), True, False), ((ME, 5, 6), False, False)):
        node = Node(members=members, watch=watch)
        node.hear(6, Seen(PLACE._replace(holder=6), 2 * SECOND, ()))
        node.members.remove(6)
        assert bool(probes(node.tell(MembersChanged((), (6,))))) is looks
        node.members.remove(5)
        assert not probes(node.tell(MembersChanged((), (5,))))


def test_a_home_that_holds_nothing_and_knows_of_nothing_looks_around_when_somebody_has_died_but_not_at_once():
    """Who has a token tells the new home of it."""
    node = Node(members=(ME, 5, 6))
    node.members.remove(6)
    assert not probes(node.tell(MembersChanged((), (6,))))
    assert probes(node.fire("listened")).keys() == {5}


# --- slots -----------------------------------------------------------------------------------------------------------


def two_slots(**options: object) -> Node:
    """Both tokens rest here."""
    node = Node(slots=2, each=2, **options)
    for slot in (0, 1):
        node.tell(Requested(slot + 1))
        node.takes(2, slot + 1, WATCHED._replace(slot=slot, id=50 + slot), nonce=slot + 1)
    assert sorted(node.machine.view().holding) == [1, 2]
    for slot in (0, 1):
        node.tell(Released(slot + 1))
    return node


def test_with_two_tokens_here_two_requests_are_granted_at_once_and_a_third_one_waits():
    node = two_slots()
    grants = [
        [each.request for each in node.tell(Requested(request)) if isinstance(each, Grant)] for request in (3, 4, 5)
    ]
    assert grants == [[3], [4], []]
    assert [each.request for each in node.tell(Released(3)) if isinstance(each, Grant)] == [5]


def test_a_ticket_that_is_asked_for_anew_is_withdrawn_with_its_request():
    node = Node()
    node.tell(Requested(1))
    node.tell(Withdrawn(1))
    effects = node.takes(2, 1, WATCHED)
    assert not [each for each in effects if isinstance(each, Grant)]
    assert node.machine.view().tokens == ()  # it was said that nobody takes it


def test_each_token_that_is_used_is_looked_after():
    """Whatever comes: was this node asleep?"""
    node = two_slots()
    for request in (3, 4):
        node.tell(Requested(request))
    node.now += 20 * SECOND
    assert {probe.slot for _, probe in sent(node.hear(5, Want(ME, 99, False, 0, 0)), Probe)} == {0, 1}


def test_who_falls_silent_may_have_kept_our_ticket_and_is_no_reason_where_nobody_lends():
    node = Node()
    node.tell(Requested(1))
    assert [each for each in node.tell(Silenced(5)) if isinstance(each, Suspect)] == []
    assert node.machine.context.silent == {5: None}


def test_who_begins_listens_for_a_fifth_of_a_second_or_as_it_was_told():
    for options, listens in (({}, SECOND // 5), ({"listen": 3.0}, 3 * SECOND)):
        node = Node(**options)
        assert node.timers["listened"] == node.now + listens
        node.now += SECOND
        node.tell(Started(False))
        assert node.timers["listened"] == node.now + listens


def test_alone_a_waiter_makes_a_token_when_it_has_listened():
    node = Node(members=(ME,), listen=3.0)
    node.tell(Requested(1))
    began = node.now
    for _ in range(10):
        timer = min((each for each in node.timers if each != "want"), key=lambda each: node.timers[each])
        effects = node.fire(timer)
        if [each for each in effects if isinstance(each, Grant)]:
            break
    assert 3 * SECOND <= node.now - began <= 5 * SECOND
    assert answer(node, {}, nothing) == []
