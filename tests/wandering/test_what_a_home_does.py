"""What a home does for those who wait, and how it follows the tokens: `home.py`, one machine, what it does at once.

What it forgets is asked for again, and what it says too often is only dear: whole groups go on well either way.
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
    Urge,
    Want,
)
from softmutex.core.algorithms.wandering.settings import GRACE, LAZY, PARKED_BEAT, PATIENCE, QUEUE, RTO_FIRST, SLACK
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Effect,
    Fired,
    Leaving,
    MembersChanged,
    NodeId,
    Released,
    Requested,
    Returned,
    Silenced,
    Ticket,
)
from softmutex.core.messages import Commit
from tests.wandering.node import ME, Node, sent

MS = SECOND // 1000
LEASE = 2 * SECOND
HOLDER = 6
PLACE = Place(0, 7, 5, 50, 10, HOLDER)
IN_USE, AT_REST = Seen(PLACE, LEASE, ()), Seen(PLACE, 0, ())
MISSED = ("watch", 0)


def home(*seen: Seen, members: int = 40, **options: object) -> Node:
    """Node 4 is the first home."""
    node = Node(members=tuple(range(ME, ME + members)), **options)  # type: ignore[arg-type]
    for each in seen:
        node.hear(each.place.holder, each)
    return node


def asks(node: Node, waiter: NodeId, request: int = 1, late: bool = False) -> list[Effect]:
    return node.hear(waiter, Want(waiter, request, late, 3, 0))


def fed(effects: Sequence[Effect]) -> list[tuple[NodeId, tuple[NodeId, ...], bool]]:
    return [(to, tuple(ticket.node for ticket in feed.tickets), feed.more) for to, feed in sent(effects, Feed)]


def heard(effects: Sequence[Effect]) -> list[tuple[NodeId, tuple[NodeId, ...], bool]]:
    return [(to, tuple(ticket.node for ticket in back.tickets), back.more) for to, back in sent(effects, Heard)]


def probed(effects: Sequence[Effect]) -> bool:
    return bool(sent(effects, Probe))


# --- who waits -------------------------------------------------------------------------------------------------------


def test_who_asks_is_fed_to_a_holder_one_by_one_up_to_five_and_then_the_holder_asks():
    """Of the fifth it hears that there may be more. They come with the answer to its word that its queue is empty."""
    node = home(IN_USE)
    for waiter in range(10, 15):
        assert fed(asks(node, waiter)) == [(HOLDER, (waiter,), waiter == 14)]
    for waiter in range(15, 18):
        assert fed(asks(node, waiter)) == []
    back = node.hear(HOLDER, IN_USE._replace(queue=tuple(Ticket(waiter, 1) for waiter in range(10, 15))))
    assert heard(back) == [(HOLDER, (), True)]
    back = node.hear(HOLDER, IN_USE._replace(place=PLACE._replace(hop=20)))
    assert heard(back) == [(HOLDER, (15, 16, 17), True)]
    assert heard(node.hear(HOLDER, IN_USE._replace(place=PLACE._replace(hop=26)))) == [(HOLDER, (), False)]


def test_a_holder_that_does_not_ask_for_more_in_time_is_fed_all_the_same():
    """It may not have been told: the token was faster."""
    node = home(IN_USE)
    for waiter in range(10, 16):
        asks(node, waiter)
    assert node.timers["more", 0] == node.now + 2 * RTO_FIRST  # turns of unknown length
    assert fed(node.fire(("more", 0))) == [(HOLDER, (15,), True)]
    assert CancelTimer(("more", 0)) not in node.hear(HOLDER, IN_USE)
    asks(node, 16)
    for waiter in range(17, 23):
        asks(node, waiter)
    assert CancelTimer(("more", 0)) in node.hear(HOLDER, IN_USE)


def test_a_token_at_rest_is_fed_all_who_wait_and_no_more_than_fit():
    node = home()
    for waiter in range(5, 44):
        if waiter != HOLDER:
            asks(node, waiter)
    back = heard(node.hear(HOLDER, AT_REST))
    assert [(to, len(those), more) for to, those, more in back] == [(HOLDER, QUEUE, True)]
    node = home(AT_REST)
    assert fed(asks(node, 10)) == [(HOLDER, (10,), False)]
    assert node.timers[MISSED] == node.now + GRACE  # it is expected to be used


@pytest.mark.parametrize(("later", "again"), [(True, (10,)), (False, ())])
def test_who_was_fed_and_is_not_in_the_queue_a_round_trip_later_is_fed_again(later: bool, again: tuple[NodeId, ...]):
    node = home(IN_USE)
    asks(node, 10)
    node.now += node.machine.context.there_and_back + later
    assert heard(node.hear(HOLDER, IN_USE)) == [(HOLDER, again, False)]


def test_who_is_fed_to_a_token_at_rest_is_told_nothing_and_who_waits_behind_a_turn_when_to_ask_again():
    """The offer comes at once, and is answer enough."""
    assert sent(asks(home(AT_REST), 10), Queued) == []
    node = home(IN_USE)
    for waiter, patience in ((10, 6), (11, 6), (12, 6)):
        assert sent(asks(node, waiter), Queued) == [(waiter, Queued(1, patience * SECOND))]
    for waiter in range(13, 19):
        asks(node, waiter)
    assert sent(asks(node, 19), Queued) == [(19, Queued(1, 10 * 3 * SECOND // 4))]
    node.machine.home.turn = 4 * SECOND
    assert sent(asks(node, 20), Queued) == [(20, Queued(1, 11 * 5 * SECOND))]


def test_where_turns_are_short_who_asks_is_told_nothing_but_when_it_asks_again():
    for turn_ms, waiting, told in ((19, 1, False), (21, 1, True), (11, 1, False)):
        node = home(IN_USE)
        node.machine.home.turn = turn_ms * MS
        for waiter in range(10, 9 + waiting):
            asks(node, waiter)
        assert bool(sent(asks(node, 30), Queued)) is told
    assert sent(asks(node, 30), Queued) == [(30, Queued(1, PATIENCE))]


def test_who_asks_again_and_was_not_seen_in_the_queue_is_fed_again_and_else_told_to_wait():
    node = home(IN_USE)
    asks(node, 10)
    assert fed(asks(node, 10)) == [(HOLDER, (10,), False)]
    node.hear(HOLDER, IN_USE._replace(queue=(Ticket(10, 1),)))
    again = asks(node, 10)
    assert (fed(again), len(sent(again, Queued)), probed(again)) == ([], 1, False)


def test_a_token_is_looked_for_when_waiters_ask_again_that_were_fed_to_a_holder_that_is_not_heard():
    node = home(AT_REST)
    assert not probed(asks(node, 10))
    assert probed(asks(node, 10))  # it should have come at once
    node = home()
    node.hear(5, Sight(0, 0, PLACE, Presence.IN_USE, False))  # hearsay
    assert not probed(asks(node, 10))
    assert not probed(asks(node, 10))
    assert probed(asks(node, 10))


def test_whose_turn_is_over_as_its_next_request_shows_waits_anew():
    node = home(IN_USE)
    asks(node, 10, 1)
    assert [message.tickets for _, message in sent(asks(node, 10, 3), Feed)] == [(Ticket(10, 3),)]


def test_the_late_ones_come_when_nobody_else_waits_and_are_late_no_more_when_they_say_so():
    node = home()
    for waiter, late in ((10, True), (11, False), (12, True), (12, False), (13, False), (13, True)):
        asks(node, waiter, late=late)
    assert heard(node.hear(HOLDER, AT_REST)) == [(HOLDER, (11, 12, 13, 10), False)]


def test_who_left_is_waited_for_no_more():
    node = home()
    for waiter in (10, 11, 12):
        asks(node, waiter, late=waiter == 11)
    for waiter in (10, 11):
        node.members.remove(waiter)
    node.tell(MembersChanged((), (10, 11)))
    assert not node.machine.home.late and list(node.machine.home.ready) == [12]
    assert heard(node.hear(HOLDER, AT_REST)) == [(HOLDER, (12,), False)]
    node.members.remove(12)
    node.tell(MembersChanged((), (12,)))
    assert node.machine.home.posts[0].lent == {}


def test_the_more_urgent_one_comes_first_where_there_are_priorities():
    node = home(ageing=2.0)
    for waiter, credit in ((10, 0), (11, 5 * SECOND), (12, 3 * SECOND)):
        node.hear(waiter, Urge(Want(waiter, 1, False, 3, 0), credit))
    assert heard(node.hear(HOLDER, AT_REST)) == [(HOLDER, (11,), True)]  # ticket by ticket: others may be more urgent


# --- how long a turn takes -------------------------------------------------------------------------------------------


def test_how_long_turns_take_is_smoothed_over_what_is_seen_of_one_token_in_use():
    node = home(IN_USE)
    turns = []
    words = ((2, 4, LEASE), (1, 6, LEASE), (0, 9, LEASE), (0, 1, LEASE), (1, 5, 0), (1, 5, LEASE), (1, 3, LEASE))
    place = PLACE
    for hops, after_s, lease in words:
        node.now += after_s * SECOND
        place = place._replace(hop=place.hop + hops)
        node.hear(HOLDER, Seen(place, lease, ()))
        turns.append(node.machine.home.turn / SECOND)
    # Two hops in 4 s, one in 6 s, one that lasts and lasts, until it is over; to be parked is no turn.
    assert turns == [2, 3, 9, 10, 11.25, 11.25, 9.1875]
    node.now += SECOND
    node.hear(5, Seen(Place(0, 8, 1, 99, 50, 5), LEASE, ()))  # another token
    assert node.machine.home.turn == 9.1875 * SECOND


# --- the tokens ------------------------------------------------------------------------------------------------------


def test_a_holder_is_missed_when_its_lease_is_over_and_one_that_rests_is_not():
    node = home(IN_USE)
    assert node.timers[MISSED] == node.now + LEASE
    node.hear(HOLDER, AT_REST)
    assert MISSED not in node.timers
    assert node.tell(Fired(MISSED)) == []
    node.hear(HOLDER, IN_USE)
    assert probed(node.fire(MISSED))


def test_a_word_that_was_overtaken_tells_nothing():
    node = home(IN_USE)
    before = node.timers[MISSED]
    node.now += SECOND
    for sender in (HOLDER, 5):
        assert node.hear(sender, Seen(PLACE._replace(hop=9, holder=HOLDER), LEASE, (Ticket(10, 1),))) == []
    assert node.timers[MISSED] == before and node.machine.home.posts[0].place == PLACE


def test_the_second_watcher_is_told_each_other_time_and_of_parking():
    node = home()
    words = [IN_USE, IN_USE, IN_USE, IN_USE, AT_REST, AT_REST, AT_REST, IN_USE]
    told = [[(to, each.lease) for to, each in sent(node.hear(HOLDER, word), Seen)] for word in words]
    # In use each other time, and for twice as long; that it is parked when it is news, and then each other time.
    assert told == [[(5, 2 * LEASE)], [], [(5, 2 * LEASE)], [], [(5, 0)], [], [(5, 0)], []]
    assert sent(home(watchers=1).hear(HOLDER, IN_USE), Seen) == []
    assert [to for to, _ in sent(home().hear(5, IN_USE._replace(place=PLACE._replace(holder=5))), Seen)] == []
    parked = home().hear(5, AT_REST._replace(place=PLACE._replace(holder=5)))
    assert [to for to, _ in sent(parked, Seen)] == [6]


def test_a_second_watcher_misses_it_as_late_as_it_was_told_and_looks_at_once_when_it_is_the_first():
    node = Node(members=(1, 4, 5, 6, 10))
    node.hear(1, Seen(PLACE, 2 * LEASE, ()))
    assert node.timers[MISSED] == node.now + 2 * LEASE
    assert node.machine.home.heard_of(0) is None  # it does not hear the holder
    node.members.remove(1)
    assert probed(node.tell(MembersChanged((), (1,))))


def test_who_hears_of_a_token_by_another_watcher_feeds_it_whom_it_has_waiting():
    node = home(IN_USE)
    for waiter in range(10, 17):
        asks(node, waiter)
    relayed = Seen(PLACE._replace(hop=12, holder=7), LEASE, ())
    assert fed(node.hear(5, relayed)) == [(7, (15, 16), False)]


def test_a_second_watcher_is_told_that_the_token_rests():
    node = Node(members=(1, 4, 5, 6, 10))
    node.hear(1, Seen(PLACE, 2 * LEASE, ()))
    node.hear(1, Seen(PLACE, 0, ()))
    assert MISSED not in node.timers and not probed(node.tell(Fired(("retry", 0))))
    node.members.remove(1)
    assert not probed(node.tell(MembersChanged((), (1,))))


def test_what_is_heard_of_a_holder_counts_until_it_is_due_again():
    node = home(IN_USE)
    for seen, good_for in ((IN_USE, LEASE), (AT_REST, PARKED_BEAT + SLACK)):
        node.hear(HOLDER, seen)
        began = node.now
        node.now = began + good_for - 1
        node.machine.context.begin(node.now)
        assert node.machine.heard_of(0) == PLACE
        node.machine.context.begin(began + good_for)
        assert node.machine.heard_of(0) is None
    assert home().machine.heard_of(0) is None


def test_of_a_holder_that_left_nothing_counts_unless_it_has_spoken_since():
    node = home(IN_USE)
    node.members.remove(HOLDER)
    node.tell(MembersChanged((), (HOLDER,)))
    assert node.machine.heard_of(0) is None
    node.hear(HOLDER, IN_USE)
    assert node.machine.heard_of(0) == PLACE


@pytest.mark.parametrize(("slots", "is_missed"), [(1, False), (2, True)])
def test_of_several_tokens_one_that_rests_with_a_silent_node_is_missed_when_its_word_is_due(
    slots: int, is_missed: bool
):
    """Of one it is when somebody waits."""
    node = home(AT_REST, slots=slots)
    node.now += SECOND
    node.tell(Silenced(5))
    assert MISSED not in node.timers
    node.tell(Silenced(HOLDER))
    assert (MISSED in node.timers) is is_missed
    if is_missed:
        assert node.timers[MISSED] == node.now - SECOND + PARKED_BEAT + SLACK


def test_a_home_whose_first_word_of_a_token_is_hearsay_misses_it_soon():
    node = home()
    node.hear(5, Sight(0, 0, PLACE, Presence.IN_USE, False))
    assert MISSED not in node.timers
    asks(node, 10)
    assert node.timers[MISSED] == node.now + GRACE


def test_who_waits_where_no_token_was_ever_seen_has_one_looked_for_and_where_its_holder_left_too():
    assert probed(asks(home(), 10))
    node = home(AT_REST)
    node.members.remove(HOLDER)
    node.machine.context.changed((), (HOLDER,))
    assert probed(asks(node, 10))


def test_a_holder_that_hears_nobody_is_looked_into_where_somebody_waits_or_it_is_in_use():
    for seen, waits, looks in ((AT_REST, False, False), (IN_USE, False, True), (AT_REST, True, True)):
        node = home(seen)
        if waits:
            asks(node, 10)
        said = node.hear(HOLDER, Probe(0, 0, 0, PLACE, False))
        assert probed(said) is looks
        assert node.machine.heard_of(0) is None
    assert not probed(home(IN_USE).hear(9, Probe(0, 0, 0, PLACE._replace(holder=9), False)))


# --- succession ------------------------------------------------------------------------------------------------------


def test_a_node_that_is_the_home_no_longer_leaves_who_waits_to_the_one_that_is():
    node = home(AT_REST._replace(lease=LEASE))
    for waiter in range(10, 16):
        asks(node, waiter)
    node.members.insert(0, 2)
    handed = sent(node.tell(MembersChanged((2,), ())), Bequest)
    assert [(to, bequest.place, [ticket.node for ticket in bequest.tickets]) for to, bequest in handed] == [
        (2, PLACE, [15])  # the others are with the token
    ]
    assert not node.machine.home.somebody_waits


def test_a_leaver_leaves_who_waits_and_where_the_tokens_are_to_the_next_home():
    node = home(IN_USE)
    for waiter in range(10, 16):
        asks(node, waiter)
    node.machine.handover.stand(0)
    handed = sent(node.tell(Leaving()), Bequest)
    assert [(to, bequest.place, [ticket.node for ticket in bequest.tickets]) for to, bequest in handed] == [
        (5, PLACE, [15])
    ]
    assert sent(home().tell(Leaving()), Bequest) == []


def test_a_long_register_is_handed_over_in_portions_that_fit():
    node = home(members=120)
    for waiter in range(10, 10 + 2 * QUEUE + 1):
        asks(node, waiter)
    handed = [bequest for _, bequest in sent(node.tell(Leaving()), Bequest)]
    assert [len(bequest.tickets) for bequest in handed] == [QUEUE, QUEUE, 1]
    assert {bequest.place for bequest in handed} == {None}


def test_where_there_are_priorities_each_request_is_handed_over_with_how_urgent_it_is():
    node = home(ageing=2.0)
    for waiter, credit in ((10, 0), (11, 5 * SECOND)):
        node.hear(waiter, Urge(Want(waiter, 1, False, 3, 0), credit))
    node.now += SECOND
    told = node.tell(Leaving())
    assert [(to, urge.want.node, urge.want.steps, urge.credit) for to, urge in sent(told, Urge)] == [
        (5, 10, 0, SECOND),
        (5, 11, 0, 6 * SECOND),
    ]
    assert all(bequest.tickets == () for _, bequest in sent(told, Bequest))


def test_what_a_home_inherits_is_watched_and_who_waited_there_waits_here():
    node = home()
    took = node.hear(5, Bequest(PLACE, (Ticket(10, 1),)))
    assert fed(took) == [(HOLDER, (10,), False)]
    assert node.timers[MISSED] == node.now + GRACE
    later = node.now
    node.now += SECOND
    node.hear(5, Bequest(PLACE._replace(hop=9), ()))  # it knows better
    assert node.machine.home.posts[0].place == PLACE and node.timers[MISSED] == later + GRACE


def test_tickets_that_a_holder_gives_back_come_first_again_and_not_at_full_speed():
    """They had come to the head of the register; and nobody knows better yet where the token is."""
    node = home(IN_USE)
    for waiter in range(10, 15):
        asks(node, waiter)
    asks(node, 15)
    back = node.hear(HOLDER, Bequest(None, (Ticket(12, 1), Ticket(11, 1))))
    assert fed(back) == [(HOLDER, (12, 11), True)]
    back = node.hear(HOLDER, Bequest(None, (Ticket(11, 1),)))
    assert fed(back) == [] and node.timers["serve"] == node.now + LAZY
    assert fed(node.fire("serve")) == [(HOLDER, (11,), True)]


# --- the home has it -------------------------------------------------------------------------------------------------


def test_a_home_that_rests_with_the_token_gives_it_to_who_asks():
    node = Node(members=(4, 5, 6, 7))
    node.tell(Requested(1))
    node.takes(5, 1)
    node.tell(Released(1))
    given = asks(node, 6)
    assert [to for to, _ in sent(given, Commit)] == [6]
    assert sent(given, Queued) == []


def test_who_asks_a_home_that_uses_the_token_is_in_its_queue():
    node = Node(members=(4, 5, 6, 7))
    node.tell(Requested(1))
    node.takes(5, 1)
    for waiter in (6, 7):
        assert fed(asks(node, waiter)) == []
    assert node.machine.view().queue == (6, 7)


# --- several slots ---------------------------------------------------------------------------------------------------

SECOND_PLACE = Place(1, 7, 5, 51, 20, 7)


def test_of_several_tokens_one_that_rests_is_given_before_any_other_and_tickets_one_by_one():
    node = home(IN_USE, Seen(SECOND_PLACE, 0, ()), slots=2)
    assert fed(asks(node, 10)) == [(7, (10,), False)]
    assert fed(asks(node, 11)) == [(HOLDER, (11,), False)]
    assert [fed(asks(node, waiter)) for waiter in (12, 13)] == [[(HOLDER, (12,), True)], [(7, (13,), True)]]
    assert [fed(asks(node, waiter)) for waiter in (14, 15)] == [[], []]  # both are to ask for more
    back = node.hear(7, Seen(SECOND_PLACE._replace(hop=22), LEASE, ()))
    assert heard(back) == [(7, (14,), True)]


def test_where_all_who_wait_are_served_no_other_token_is_looked_for():
    effects = asks(home(AT_REST, slots=2), 10)
    assert (fed(effects), probed(effects)) == ([(HOLDER, (10,), False)], False)


def test_who_waits_behind_a_turn_of_one_token_is_moved_to_another_that_comes_to_rest_and_but_once():
    node = home(IN_USE, Seen(SECOND_PLACE, LEASE, ()), slots=2)
    node.hear(HOLDER, IN_USE._replace(queue=(Ticket(10, 1),)))
    place = SECOND_PLACE
    moved = []
    for _ in range(2):
        place = place._replace(hop=place.hop + 2)
        moved.append(heard(node.hear(7, Seen(place, 0, ()))))
        node.hear(HOLDER, IN_USE._replace(queue=(Ticket(10, 1),)))
    assert moved == [[(7, (10,), False)], [(7, (), False)]]
    assert heard(node.hear(7, Seen(place._replace(hop=place.hop + 2), 0, ()))) == [(7, (), False)]


def test_who_was_sent_to_a_token_that_its_holder_took_again_just_then_comes_to_another_that_rests():
    third = Place(2, 7, 5, 52, 30, 8)
    node = home(IN_USE, Seen(SECOND_PLACE, 0, ()), Seen(third, 0, ()), slots=3)
    assert fed(asks(node, 10)) == [(7, (10,), False)]
    again = node.hear(7, Seen(SECOND_PLACE._replace(hop=21), LEASE, (Ticket(10, 1),)))
    assert (heard(again), fed(again)) == ([(7, (), False)], [(8, (10,), False)])
    again = node.hear(8, Seen(third._replace(hop=31), LEASE, (Ticket(10, 1),)))
    assert (heard(again), fed(again)) == ([(8, (), False)], [])  # there is no further one
    assert heard(node.hear(7, Seen(SECOND_PLACE._replace(hop=23), 0, ()))) == [(7, (10,), False)]


# --- the returned ----------------------------------------------------------------------------------------------------


def test_who_is_back_is_told_where_the_tokens_are():
    node = home(IN_USE)
    assert sent(node.tell(Returned(9)), Sight) == [(9, Sight(0, 0, PLACE, Presence.ABSENT, False))]
    node.members.remove(9)
    node.tell(MembersChanged((), (9,)))
    node.members.append(9)
    node.members.sort()
    assert sent(node.tell(MembersChanged((9,), ())), Sight) == [(9, Sight(0, 0, PLACE, Presence.ABSENT, False))]
    node.members.append(99)
    assert sent(node.tell(MembersChanged((99,), ())), Sight) == []
