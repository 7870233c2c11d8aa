"""What is done with a token that is here: who uses it, who is asked, to whom it goes and what it takes along. One
machine (`tokens.py`, `machine.py`), what it does at once.

Where it does the wrong thing the token comes all the same, a message or a pause later; and nobody asks why.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import (
    Bequest,
    Feed,
    Heard,
    Place,
    Presence,
    Probe,
    Queued,
    Seen,
    Sight,
    Want,
)
from softmutex.core.algorithms.wandering.settings import FRESH, LAZY, PATIENCE, QUEUE, RTO_FIRST
from softmutex.core.at_once import STANDING
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Depart,
    Effect,
    Escort,
    FactKind,
    Grant,
    Leaving,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Note,
    Released,
    Requested,
    Send,
    Silenced,
    Slept,
    Started,
    Suspect,
    Ticket,
    Token,
)
from softmutex.core.handover import TIMER
from softmutex.core.messages import Accept, Ask, Commit, Done, Offer, Refuse, Void, Withdraw
from tests.wandering.node import HOME, ME, TOKEN, Node, sent

MS = SECOND // 1000
WATCHED = TOKEN._replace(escort=Escort((1, 2), 0, False))
BETTER = Place(0, 8, 9, 99, 6, 3)


def using(token: Token = WATCHED, **options: object) -> Node:
    """It came from 2 and is used. Nobody else has spoken."""
    node = Node(**options)  # type: ignore[arg-type]
    node.tell(Requested(1))
    node.takes(2, 1, token)
    assert node.machine.view().holding == (1,)
    return node


def at_rest(**options: object) -> Node:
    node = using(**options)
    node.now += SECOND
    node.tell(Released(1))
    node.now += SECOND
    return node


def feed(node: Node, *waiters: NodeId, more: bool = False, steps: int = 4, ahead: int = 0) -> list[Effect]:
    tickets = tuple(Ticket(waiter, 1) for waiter in waiters)
    return node.hear(HOME, Feed(0, tickets, more, steps, ahead))


def granted(effects: Sequence[Effect]) -> list[int]:
    return [each.request for each in effects if isinstance(each, Grant)]


def said(effects: Sequence[Effect]) -> list[tuple[NodeId, str]]:
    return [(each.to, type(each.message).__name__) for each in effects if isinstance(each, Send)]


def queue(node: Node) -> tuple[NodeId, ...]:
    return node.machine.view().queue


# --- to the next one -------------------------------------------------------------------------------------------------


def test_who_spoke_a_moment_ago_gets_it_in_one_message_and_another_is_asked_first():
    for silent_for, kind in ((FRESH - 1, Commit), (FRESH, Offer)):
        node = at_rest()
        node.hear(5, Queued(99, 0))
        node.now += silent_for
        ((to, message),) = sent(feed(node, 5), kind)
        assert (to, message.token.queue, message.token.hop) == (5, (), 4)
        if isinstance(message, Commit):
            assert message.reply == STANDING + 1
        else:
            assert not message.early


def test_who_does_not_stand_for_its_ticket_is_asked_and_who_refuses_loses_its_place():
    node = at_rest()
    node.hear(5, Queued(99, 0))
    ((_, commit),) = sent(feed(node, 5), Commit)
    effects = node.hear(5, Void(commit.nonce, commit.reply))
    ((to, offer),) = sent(effects, Offer)
    assert (to, offer.token.hop) == (5, commit.token.hop + 2)  # others may have heard that it is over there
    effects = node.hear(5, Refuse(offer.nonce))
    assert queue(node) == () and sent(effects, Offer) == sent(effects, Commit) == []
    assert node.machine.view().state == "parked"


def test_those_behind_the_first_go_with_the_token_in_their_order():
    node = at_rest()
    node.hear(5, Queued(99, 0))
    ((to, commit),) = sent(feed(node, 5, 3, 2), Commit)
    assert (to, commit.token.queue) == (5, (Ticket(3, 1), Ticket(2, 1)))
    assert commit.token.escort.watch == (1, 2) and not commit.token.escort.more


def test_while_it_is_used_the_next_one_is_asked_early_and_the_release_is_one_commit():
    node = using()
    ((to, offer),) = sent(feed(node, 5, 3), Offer)
    assert (to, offer.early) == (5, True)
    assert said(node.hear(5, Accept(offer.nonce, 77))) == []
    ((to, commit),) = sent(node.tell(Released(1, b"note")), Commit)
    assert (to, commit.reply, commit.token.queue, commit.token.baggage) == (5, 77, (Ticket(3, 1),), b"note")
    assert said(node.hear(5, Done(commit.nonce, 77))) == []
    assert node.machine.view().tokens == () and node.machine.view().holder == 5


def test_who_spoke_just_now_is_asked_an_eighth_of_a_second_later_and_not_at_all_where_that_is_switched_off():
    node = using()
    node.hear(5, Queued(99, 0))
    assert sent(feed(node, 5), Offer) == []
    assert node.timers["invite", 0] == node.now + FRESH // 2
    assert [to for to, _ in sent(node.fire(("invite", 0)), Offer)] == [5]
    node = Node(early=False)
    node.tell(Requested(1))
    ((_, accept),) = sent(node.hear(2, Offer(5, WATCHED, False)), Accept)
    assert granted(node.hear(2, Commit(5, accept.reply, WATCHED))) == [1]
    assert sent(feed(node, 5), Offer) == [] and ("invite", 0) not in node.timers


def test_a_turn_that_is_over_before_the_next_one_is_asked_costs_no_offer():
    node = using()
    node.hear(5, Queued(99, 0))
    feed(node, 5)
    node.now += 10 * MS
    assert said(node.tell(Released(1))) == [(5, "Commit")]
    assert said(node.fire(("invite", 0))) == []


def test_who_is_behind_a_member_that_is_silent_goes_first():
    node = using()
    feed(node, 5, 3)
    node.tell(Silenced(5))
    effects = node.tell(Released(1))
    assert (3, "Offer") in said(effects)


def test_strangers_in_its_queue_are_left_to_others_who_may_know_them():
    node = using()
    feed(node, 77, 5)
    assert queue(node) == (5, 77)
    (outgoing,) = node.machine.handover.outgoing.values()
    assert outgoing.to == 5
    node.tell(Released(1))
    assert outgoing.token.queue == (Ticket(77, 1),)


def test_who_left_stands_in_its_queue_no_more():
    node = using()
    feed(node, 5, 3)
    node.members.remove(5)
    node.tell(MembersChanged((), (5,)))
    assert queue(node) == (3,)


# --- a row -----------------------------------------------------------------------------------------------------------


def test_requests_of_one_node_are_served_in_a_row_and_no_more_than_that_while_others_wait():
    node = using(row=2)
    feed(node, 5)
    for request in (2, 3, 4):
        node.tell(Requested(request))
    assert queue(node) == (5, ME)
    assert granted(node.tell(Released(1))) == [2]
    assert granted(node.tell(Released(2))) == []
    (outgoing,) = node.machine.handover.outgoing.values()
    assert outgoing.to == 5 and [ticket.node for ticket in outgoing.token.queue] == [ME]


def test_a_row_that_has_lasted_twenty_milliseconds_is_not_gone_on_with():
    for after, goes_on in ((20 * MS - 1, True), (20 * MS + 1, False)):
        node = using()
        feed(node, 5)
        node.tell(Requested(2))
        node.now += after
        assert (granted(node.tell(Released(1))) == [2]) is goes_on
        if not goes_on:  # its own ticket comes behind the other one
            debts = list(node.machine.handover.outgoing.values())
            assert [each.token.queue for each in debts] == [(Ticket(ME, 2),)]


# --- what comes for it -----------------------------------------------------------------------------------------------


def test_who_asks_the_holder_itself_is_told_a_moment_later_that_it_is_in_the_queue():
    node = using()
    assert said(node.hear(5, Want(5, 1, False, 2, 0))) == []
    assert node.timers["queued", 0] == node.now + LAZY
    assert sent(node.fire(("queued", 0)), Queued) == [(5, Queued(1, PATIENCE))]
    assert node.tell(Started(False)) is not None
    node.hear(3, Want(3, 1, False, 2, 0))
    node.now += MS
    told = node.tell(Released(1))
    assert sent(told, Queued) == [(3, Queued(1, PATIENCE))]  # it goes to 5 now


def test_a_want_for_who_waits_no_more_or_has_left_is_dropped():
    node = using()
    assert said(node.hear(5, Want(ME, 1, False, 2, 0))) == []
    node.members.remove(5)
    node.tell(MembersChanged((), (5,)))
    assert said(node.hear(2, Want(5, 1, False, 2, 0))) == [] and queue(node) == ()


def test_a_want_that_meets_no_token_goes_home_as_often_as_its_steps_allow_and_stays_where_they_end():
    node = Node()
    assert sent(node.hear(5, Want(5, 1, False, 3, 0)), Want) == [(HOME, Want(5, 1, False, 2, 0))]
    assert sent(node.hear(5, Want(5, 1, False, 9, 8)), Want) == [(HOME, Want(5, 1, False, 3, 0))]
    node = Node()
    effects = node.hear(5, Want(5, 1, False, 0, 0))
    assert sent(effects, Want) == [] and node.machine.home.ready == {5: 1}


def test_a_feed_goes_after_the_token_step_by_step_and_then_home():
    node = Node()
    node.hear(2, Sight(0, 0, BETTER, Presence.ABSENT, False))
    assert sent(feed(node, 5, steps=3), Feed) == [(3, Feed(0, (Ticket(5, 1),), False, 2))]
    assert sent(feed(node, 5, steps=99, more=True), Feed) == [(3, Feed(0, (Ticket(5, 1),), True, 3))]
    assert sent(feed(node, 5, steps=0), Bequest) == [(HOME, Bequest(None, (Ticket(5, 1),)))]
    node.members.remove(3)
    node.tell(MembersChanged((), (3,)))
    assert sent(feed(node, 5, steps=3), Bequest) == [(HOME, Bequest(BETTER, (Ticket(5, 1),)))]


def test_a_holder_that_is_told_that_others_wait_asks_for_them_when_its_queue_is_empty_and_but_once():
    node = Node()
    node.tell(Requested(1))
    came = node.takes(2, 1, TOKEN._replace(escort=Escort((1, 2), 0, True)))
    assert [(to, each.lease > 0) for to, each in sent(came, Seen)] == [(1, True)]
    node.now += 30 * MS
    assert sent(node.tell(Released(1)), Seen) == sent(feed(node, more=True), Seen) == []
    back = node.hear(1, Heard(0, 7, 4, (Ticket(5, 1),), False, node.now))
    assert [to for to, name in said(back) if name in ("Offer", "Commit")] == [5]
    for waiting, more in (((5,), True), ((), False)):
        node = Node()
        node.tell(Requested(1))
        tickets = tuple(Ticket(each, 1) for each in waiting)
        came = node.takes(2, 1, TOKEN._replace(queue=tickets, escort=Escort((1, 2), 0, more)))
        assert sent(came, Seen) == []


def test_tickets_that_do_not_fit_go_home_those_of_strangers_first():
    node = Node(members=tuple(range(1, 60)))
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    feed(node, 99, *range(10, 10 + QUEUE - 1))
    assert len(queue(node)) == QUEUE
    back = sent(feed(node, 50, 51), Bequest)
    assert [(to, bequest.tickets) for to, bequest in back] == [(HOME, (Ticket(51, 1), Ticket(99, 1)))]
    assert queue(node)[-1] == 50


def test_a_later_request_takes_the_place_of_the_earlier_one_and_an_earlier_one_changes_nothing():
    node = using()
    feed(node, 5, 3)
    for request in (4, 2):
        node.hear(HOME, Feed(0, (Ticket(5, request),), False, 4))
        assert node.machine.view().tokens[0].queue == (Ticket(5, 4), Ticket(3, 1))


# --- a token comes ---------------------------------------------------------------------------------------------------


def test_a_token_that_comes_just_after_a_pause_is_looked_into_before_it_is_used():
    for after, looks in ((SECOND - 1, True), (SECOND, False)):
        node = Node()
        node.tell(Requested(1))
        node.tell(Slept(SECOND))
        node.now += after
        effects = node.takes(2, 1, WATCHED)
        assert bool(sent(effects, Probe)) is looks and (granted(effects) == [1]) is not looks


def test_other_settings_are_told_of_once_each_and_of_so_many():
    node, noted = at_rest(), 0
    for settings in (0, node.machine.context.fingerprint, *range(1, 30), 5):
        node.tell(Requested(settings + 100))
        node.machine.holder.discard(node.machine.here.by_slot[0], BETTER, Presence.PARKED)
        node.machine.context.begin(node.now)
        node.machine.holder.take(WATCHED._replace(settings=settings, hop=50), 2)
        noted += [each.kind for each in node.machine.context.out if isinstance(each, Note)].count(FactKind.MISMATCH)
    assert noted == 16


def test_a_token_for_whose_request_nobody_waits_any_more_is_given_back():
    node = Node()
    node.tell(Requested(1))
    effects = node.hear(2, Offer(5, TOKEN, False))
    assert (2, "Accept") in said(effects)
    node.tell(Requested(2))
    assert (2, "Void") not in said(node.tell(Requested(3)))


@pytest.mark.parametrize(
    ("early", "waiters", "waits", "hints", "takes"),
    [
        (False, (), False, True, True),  # it wanders
        (True, (), False, True, False),
        (False, (5,), False, True, False),
        (True, (5,), True, True, True),
        (True, (5,), False, False, True),
    ],
)
def test_an_offer_is_taken_where_somebody_waits_or_nobody_else_does(
    early: bool, waiters: tuple[NodeId, ...], waits: bool, hints: bool, takes: bool
):
    node = Node(hints=hints)
    if waits:
        node.tell(Requested(1))
    token = TOKEN._replace(queue=tuple(Ticket(waiter, 1) for waiter in waiters))
    assert (2, "Accept" if takes else "Refuse") in said(node.hear(2, Offer(5, token, early)))


def test_an_offer_of_a_token_that_was_replaced_is_refused_and_its_holder_told():
    node = Node()
    node.tell(Requested(1))
    node.hear(3, Sight(0, 0, BETTER, Presence.ABSENT, False))
    effects = node.hear(2, Offer(5, TOKEN, False))
    assert sent(effects, Sight) == [(2, Sight(0, 0, BETTER, Presence.ABSENT, False))]
    assert (2, "Refuse") in said(effects)
    assert (2, "Refuse") in said(node.hear(2, Offer(6, TOKEN._replace(slot=1), False)))  # there is no such slot


def test_an_offer_of_a_better_token_is_reason_to_doubt_ones_own():
    node = using()
    better = Token(8, 9, 99, 6)
    node.tell(Requested(2))
    assert sent(node.hear(3, Offer(5, better, False)), Probe)


# --- another one won -------------------------------------------------------------------------------------------------


def test_who_waits_in_a_token_that_is_discarded_is_fed_to_the_better_one():
    node = using()
    feed(node, 5, 2, more=True)
    asked = dict(sent(node.tell(Slept(SECOND)), Probe))
    effects = node.hear(3, Sight(asked[3].number, 0, BETTER, Presence.IN_USE, True))
    assert sent(effects, Feed) == [(3, Feed(0, (Ticket(5, 1), Ticket(2, 1)), True, 4))]
    assert Lose(1, LostReason.OVERLAP) in effects
    assert node.machine.view().holding == (1,) and node.machine.view().state == "holding"
    assert granted(node.tell(Requested(2))) == []  # that hold counts: one at a time
    node.tell(Released(1))
    assert node.machine.view().holding == ()


def test_who_waits_for_a_token_that_gave_way_asks_where_the_better_one_is():
    node = using()
    node.tell(Requested(2))
    asked = dict(sent(node.tell(Slept(SECOND)), Probe))
    effects = node.hear(3, Sight(asked[3].number, 0, BETTER, Presence.IN_USE, True))
    assert [(to, want.request) for to, want in sent(effects, Want)] == [(3, 2)]


# --- who leaves ------------------------------------------------------------------------------------------------------


def test_a_leaver_gives_its_token_to_the_home_and_goes_when_that_has_it():
    node = at_rest()
    node.fire(("owed", 1))
    effects = node.tell(Leaving())
    ((to, offer),) = sent(effects, Offer)
    assert (to, offer.token.queue) == (HOME, ()) and not [each for each in effects if isinstance(each, Depart)]
    ((_, commit),) = sent(node.hear(HOME, Accept(offer.nonce, 7)), Commit)
    effects = node.hear(HOME, Done(commit.nonce, 7))
    assert [each for each in effects if isinstance(each, Depart)]
    gone = [(to, bequest.place) for to, bequest in sent(effects, Bequest)]
    assert gone == [(HOME, Place(0, 7, 5, 50, 5, HOME))]  # now it is known where it went
    assert not [each for each in node.tell(Requested(9)) if isinstance(each, Depart | Grant)]


def test_a_leaver_to_whom_a_token_may_be_on_its_way_waits_for_two_time_outs():
    node = Node()
    assert [each for each in node.tell(Leaving()) if isinstance(each, Depart)]
    node = Node()
    node.tell(Requested(1))
    assert not [each for each in node.tell(Leaving()) if isinstance(each, Depart)]
    assert node.timers["linger"] == node.now + 2 * RTO_FIRST
    node.now += 2 * RTO_FIRST - 1
    effects = node.takes(2, 1)
    assert said(effects) == [(2, "Void")] and not [each for each in effects if isinstance(each, Depart)]
    assert [each for each in node.fire("linger") if isinstance(each, Depart)]
    assert not [each for each in node.tell(Released(9)) if isinstance(each, Depart)]  # it is said once


def test_a_leaver_that_knows_nobody_in_the_queue_leaves_those_to_the_home():
    node = using()
    feed(node, 77)
    node.tell(Leaving())
    effects = node.tell(Released(1))
    assert sent(effects, Bequest)[0] == (HOME, Bequest(None, (Ticket(77, 1),)))
    assert [(to, offer.token.queue) for to, offer in sent(effects, Offer)] == [(HOME, ())]


def test_a_leaver_takes_nothing_any_more():
    node = Node()
    node.tell(Requested(1))
    node.tell(Leaving())
    assert (2, "Refuse") in said(node.hear(2, Offer(5, TOKEN, False)))


# --- who begins, and who walks ---------------------------------------------------------------------------------------


def test_a_founder_makes_a_token_for_each_slot_and_others_none():
    for slots in (1, 3):
        node = Node(slots=slots)
        assert node.machine.view().tokens == ()
        effects = node.tell(Started(True))
        made = [each.token for each in effects if isinstance(each, Note) and each.kind is FactKind.GENERATED]
        assert [(token.slot, token.epoch, token.hop) for token in made if token] == [
            (slot, 1, 0) for slot in range(slots)
        ]
        assert [each.peer for each in effects if isinstance(each, Note)] == [NOBODY] * slots


def test_without_hints_a_token_stays_for_a_fortieth_of_a_turn_and_walks_on():
    node = Node(hints=False)
    node.takes(2, 1)
    (token_offer,) = [offer for _, offer in sent(node.hear(2, Offer(5, TOKEN, False)), Accept)]
    node.hear(2, Commit(5, token_offer.reply, TOKEN))
    assert node.timers["walk", 0] == node.now + SECOND // 40
    ((to, offer),) = sent(node.fire(("walk", 0)), Offer)
    assert to != ME and offer.token.hop == 4


def test_who_was_alone_asks_again_when_somebody_comes():
    node = Node(members=(ME,))
    node.tell(Requested(1))
    node.members[:] = [1, ME]
    assert [to for to, _ in sent(node.tell(MembersChanged((1,), ())), Want)] == [1]
    node.members[:] = [1, ME, 6]
    assert sent(node.tell(MembersChanged((6,), ())), Want) == []


def test_a_committed_token_that_a_node_refuses_is_reason_to_ask_soon():
    node = Node()
    node.tell(Requested(1))
    node.hear(HOME, Queued(1, 60 * SECOND))
    node.hear(2, Ask(9, STANDING + 1))
    assert node.asks_in is not None and node.asks_in < SECOND


def test_who_is_asked_about_a_hand_over_may_have_died_with_the_token():
    node = at_rest()
    node.hear(5, Queued(99, 0))
    ((_, commit),) = sent(feed(node, 5), Commit)
    suspects = list[NodeId]()
    for _ in range(8):
        effects = node.fire((TIMER, commit.nonce))
        suspects = [each.node for each in effects if isinstance(each, Suspect)]
        if sent(effects, Ask):
            break
        assert suspects == []
    assert suspects == [5]


def test_whose_offer_is_taken_back_is_told_so():
    node = using()
    ((_, offer),) = sent(feed(node, 5), Offer)
    assert sent(node.tell(Slept(SECOND)), Withdraw) == [(5, Withdraw(offer.nonce))]
    assert node.machine.may_take_again()
