"""What is sent ahead of a token that moves faster than anything can follow it, and who keeps it until it comes by:
`KeptAhead`, and what a home and a holder do with it. One machine, what it does at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Bequest, Feed, Heard, Place, Presence, Probe, Seen, Sight, Want
from softmutex.core.algorithms.wandering.settings import FRESH, GRACE, QUEUE, SECOND_EXTRA
from softmutex.core.algorithms.wandering.tokens import KeptAhead
from softmutex.core.events import (
    SECOND,
    CallRoll,
    Effect,
    Escort,
    Level,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Reach,
    Released,
    Requested,
    Slept,
    Ticket,
)
from softmutex.core.messages import Commit, Done
from tests.wandering.node import HOME, ME, TOKEN, Node, sent
from tests.wandering.test_how_a_token_is_looked_for import answer, made, nothing, probes

MS = SECOND // 1000
WATCHED = TOKEN._replace(escort=Escort((1, 2), 0, False))


def tickets(*nodes: NodeId, request: int = 1) -> tuple[Ticket, ...]:
    return tuple(Ticket(node, request) for node in nodes)


def left(stay: int, *queue: NodeId, way: int = 0, **options: object) -> KeptAhead:
    """A token has just gone from hop 3 to node 2, with these behind that one."""
    machine = Node(**options).machine  # type: ignore[arg-type]
    machine.context.begin(1000 * SECOND)
    machine.context.way = way
    machine.ahead.leaves(TOKEN._replace(queue=tickets(*queue)), machine.context.now - stay, 2)
    return machine.ahead


def after(ahead: KeptAhead, span: int) -> KeptAhead:
    ahead.context.begin(ahead.context.now + span)
    return ahead


# --- to whom it is sent ----------------------------------------------------------------------------------------------


def test_a_token_that_stayed_for_less_than_a_round_trip_is_met_by_the_last_one_of_its_queue():
    for stay, way, hop, last in (
        (20 * MS, 10 * MS, 4, 3),
        (20 * MS + 1, 10 * MS, 4, 0),  # what follows it is as fast
        (20 * MS, 10 * MS, 5, 0),  # it was elsewhere since
        (20 * MS, 10 * MS, 3, 0),
        (7 * MS, 0, 4, 3),  # nothing is measured yet
    ):
        assert left(stay, 5, 3, way=way).last_of(hop) == last


def test_the_last_one_of_its_queue_is_a_member_and_another_node():
    for queue, last in (((5, 3), 3), ((5, 77), 5), ((5, ME), 5), ((77,), 0), ((), 0)):
        assert left(0, *queue).last_of(4) == last


def test_who_is_still_waited_for_is_known_until_the_token_has_been_gone_for_as_long_as_it_was_here():
    ahead = left(SECOND, 5, 3)
    assert after(ahead, SECOND - 1).waits_there() == 0
    assert after(ahead, 1).waits_there() == 3
    assert after(left(SECOND, 5, 3, slots=2), SECOND).waits_there() == 0  # there the home says who is next


def test_beside_a_home_that_is_new_who_asks_follows_the_token_for_a_moment():
    ahead = left(SECOND)
    assert ahead.beside_a_new_home() == 0  # it is the same one
    context = ahead.context
    context.suspect(HOME)
    ahead.leaves(TOKEN, context.now, 3)
    assert ahead.beside_a_new_home() == 3
    assert after(ahead, FRESH - 1).beside_a_new_home() == 3
    assert after(ahead, 1).beside_a_new_home() == 0
    ahead.leaves(TOKEN, context.now, 3)
    assert ahead.beside_a_new_home() == 0  # the token left before, when that was the home already
    context.suspects.clear()
    ahead.leaves(TOKEN, context.now, 77)
    assert ahead.beside_a_new_home() == 0  # who is no member
    ahead.leaves(TOKEN, context.now, 3)
    context.suspect(HOME)
    assert ahead.beside_a_new_home() == 0  # and now it is a third one


# --- who keeps it ----------------------------------------------------------------------------------------------------


def test_what_is_sent_ahead_is_kept_for_a_hop_that_was_not_here_yet():
    ahead = left(0)
    assert [ahead.keep(tickets(5), hop, early=True) for hop in (2, 3, 4)] == [False, False, True]
    ahead.refused(TOKEN._replace(hop=9))
    ahead.refused(TOKEN._replace(hop=5))
    assert [ahead.keep(tickets(5), hop, early=True) for hop in (9, 10)] == [False, True]


def test_it_is_taken_along_those_that_followed_it_first_and_those_that_overtook_it_last_each_for_its_latest_request():
    ahead = left(0)
    for node, request, early in ((5, 2, True), (5, 1, True), (3, 1, False), (2, 4, True), (2, 5, True), (ME, 1, True)):
        assert ahead.keep(tickets(node, request=request), 9, early)
    ahead.others_wait(True)
    ahead.others_wait(False)
    queue = tickets(1)
    assert ahead.arrives(queue) == ((*tickets(3), *queue, Ticket(5, 2), Ticket(2, 5)), True)
    assert ahead.arrives(queue) == (queue, False)


def test_who_waits_no_longer_gives_it_back_in_portions_that_fit():
    ahead = left(0, members=tuple(range(1, 200)))
    ahead.keep(tickets(*range(10, 10 + QUEUE)), 9, early=False)
    ahead.keep(tickets(*range(50, 53)), 9, early=True)
    ahead.rest()
    assert [len(bequest.tickets) for _, bequest in sent(ahead.context.out, Bequest)] == [QUEUE, 3]
    ahead.context.begin(ahead.context.now)
    ahead.rest()
    assert ahead.context.out == []


def test_who_waits_keeps_a_want_and_a_feed_that_come_before_the_token():
    node = Node()
    node.tell(Requested(1))
    early = Want(5, 1, False, 3, 9)
    for message in (early, Feed(0, tickets(3), True, 4, 9), Feed(0, tickets(2), False, 3, 9)):
        assert [each for each in node.hear(HOME, message) if hasattr(each, "to")] == []
    node.takes(1, 1, WATCHED)
    assert node.machine.view().queue == (2, 5, 3)  # what had followed it comes first
    assert node.machine.view().tokens[0].escort.more
    assert sent(Node().hear(5, early), Want) == [(HOME, Want(5, 1, False, 2, 0))]  # who waits for nothing passes it on


def test_what_is_fed_while_the_hand_over_is_not_confirmed_is_kept_for_the_token_by_who_waits_again():
    """It went after the token as the confirmation came, too late, and a node used the token alone meanwhile."""
    node = Node()
    node.tell(Requested(1))
    node.hear(5, Sight(0, 0, None, Presence.ABSENT, False))
    node.takes(2, 1, WATCHED._replace(queue=tickets(5)))
    ((_, commit),) = sent(node.tell(Released(1)), Commit)
    node.tell(Requested(2))
    later = node.hear(HOME, Feed(0, tickets(3), False, 4, commit.token.hop + 1))
    later = [*later, *node.hear(5, Done(commit.nonce, commit.reply))]
    assert sent(later, Feed) == []
    node.takes(5, 2, commit.token._replace(hop=commit.token.hop + 1, queue=()))
    assert node.machine.view().queue == (3,)


# --- who asks a home -------------------------------------------------------------------------------------------------


def test_where_turns_are_long_who_is_fed_to_itself_is_fed_to_another_one_in_the_queue():
    """It went on to the next one: a token that is used by who asks is not there any more."""
    for turn, to in ((SECOND - 1, 6), (SECOND, 7)):
        node = Node(members=(4, 5, 6, 7, 8))
        node.hear(6, Seen(Place(0, 7, 5, 50, 10, 6), 2 * SECOND, tickets(7)))
        node.machine.home.turn = turn
        assert [each for each, _ in sent(node.hear(6, Want(6, 9, False, 3, 0)), Feed)] == [to]


def test_who_waits_itself_keeps_others_where_the_token_comes_by_soon():
    for turn, fed in ((SECOND // 2, []), (2 * SECOND, [6])):
        node = Node(members=(4, 5, 6, 7, 8))
        node.hear(6, Seen(Place(0, 7, 5, 50, 10, 6), 2 * SECOND, ()))
        node.tell(Requested(1))
        node.machine.home.turn = turn
        node.now += 2 * SECOND - 1
        assert [to for to, _ in sent(node.hear(7, Want(7, 1, False, 3, 0)), Feed)] == fed


def test_where_the_time_of_a_turn_is_not_known_others_are_kept_for_a_second():
    node = Node(members=(4, 5, 6, 7, 8))
    node.hear(6, Seen(Place(0, 7, 5, 50, 10, 6), 2 * SECOND, ()))
    called = node.now
    node.tell(Requested(1))
    node.now += SECOND // 2
    assert sent(node.hear(7, Want(7, 1, False, 3, 0)), Feed) == []
    assert node.timers["serve"] == called + SECOND
    assert [to for to, _ in sent(node.fire("serve"), Feed)] == [6]


@pytest.mark.parametrize(("sent_ms_ago", "trip_ms"), [(400, 400), (2600, 0), (-1, 0)])
def test_how_long_a_watchers_answer_takes_is_known_from_one_that_comes_after_the_token_has_gone(
    sent_ms_ago: int, trip_ms: int
):
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED._replace(queue=tickets(3)))
    node.now += 2 * SECOND
    node.tell(Released(1))
    node.now += SECOND // 2
    node.hear(1, Heard(0, 7, 4, (), False, node.now - sent_ms_ago * MS))
    assert node.machine.home.trip == trip_ms * MS


# --- the home passes it on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("watch", "span"), [((4, 5), GRACE), ((5, 4), GRACE + SECOND_EXTRA), ((5, 6), GRACE + SECOND_EXTRA)]
)
def test_a_home_that_passes_its_token_on_misses_it_where_nobody_speaks_for_it(watch: tuple[NodeId, ...], span: int):
    node = Node(members=(4, 5, 6, 7, 8))
    node.hear(6, Seen(Place(0, 7, 5, 50, 2, 6), 2 * SECOND, ()))
    node.tell(Requested(1))
    node.takes(6, 1, WATCHED._replace(queue=tickets(7), escort=Escort(watch, 0, False)))
    ((_, accepted),) = [(each.to, each) for each in node.machine.handover.outgoing.values()]
    node.tell(Released(1))
    assert accepted.to == 7
    node.machine.home.moved(Place(0, 7, 5, 50, 5, 7), accepted.token, 0)
    assert node.machine.home.posts[0].until == node.now + span
    assert node.machine.heard_of(0) is None  # nor does it hear it yet


def test_what_is_found_at_rest_is_fed_those_who_wait_and_what_is_in_use_is_missed_soon():
    place = Place(0, 7, 5, 50, 10, 6)
    for presence, fed in ((Presence.PARKED, [(6, (7,))]), (Presence.IN_USE, [(6, (7,))])):
        node = Node(members=(4, 5, 6, 7, 8))
        asked = dict(sent(node.hear(7, Want(7, 1, False, 3, 0)), Probe))
        effects = node.hear(6, Sight(asked[6].number, 0, place, presence, True))
        assert [(to, tuple(each.node for each in feed.tickets)) for to, feed in sent(effects, Feed)] == fed
        assert node.timers["watch", 0] == node.now + GRACE
        assert node.machine.heard_of(0) is None  # others said so


def test_a_token_that_is_made_has_those_in_its_queue_who_waited_in_the_lost_one_and_then_the_others():
    node = Node(members=(4, 5, 6, 7, 8))
    node.now += 100 * SECOND
    node.hear(6, Seen(Place(0, 7, 5, 50, 10, 6), 2 * SECOND, tickets(7)))
    node.now += SECOND
    node.members.remove(6)
    effects = node.tell(MembersChanged((), (6,)))
    for _ in range(2):
        effects = answer(node, probes(effects), nothing)
    assert [token.queue for token in made(effects) if token] == [tickets(7)]


# --- who is cut off --------------------------------------------------------------------------------------------------


def rolls(effects: Sequence[Effect]) -> list[bool]:
    return [each.wide for each in effects if isinstance(each, CallRoll)]


def test_who_reaches_too_few_calls_all_and_then_takes_back_its_leases_and_doubts_its_token():
    node = Node(members=(4, 5, 6, 7, 8))
    place = Place(0, 7, 5, 50, 10, 6)
    node.hear(6, Seen(place, 2 * SECOND, ()))
    assert rolls(node.tell(Reach(Level.LESS))) == [True]
    effects = node.tell(Reach(Level.LESS))
    assert sent(effects, Sight) == [(6, Sight(0, 0, place, Presence.DOUBTED, False))]
    assert rolls(effects) == []
    # Whoever speaks for a token is told so each time, and after two seconds all are called again.
    node.now += 2 * SECOND - 1
    said = node.hear(6, Seen(place._replace(hop=11), 2 * SECOND, ()))
    assert (sent(said, Heard), [sight.presence for _, sight in sent(said, Sight)]) == ([], [Presence.DOUBTED])
    node.now += 1
    node.machine.roll.called_at = node.now - 2 * SECOND
    assert rolls(node.hear(6, Seen(place._replace(hop=12), 2 * SECOND, ()))) == [True]
    assert node.tell(Reach(Level.MORE)) == []
    assert sent(node.hear(6, Seen(place._replace(hop=13), 2 * SECOND, ())), Heard)


@pytest.mark.parametrize(
    ("members", "heard", "is_cut_off"), [((4, 5), 0, False), ((1, 4), 0, True), ((1, 4), 1, False)]
)
def test_of_two_halves_the_one_that_hears_the_first_member_is_not_cut_off(
    members: tuple[NodeId, ...], heard: NodeId, is_cut_off: bool
):
    node = Node(members=members)
    if heard:
        node.hear(heard, Sight(0, 0, None, Presence.ABSENT, False))
        node.now += 5 * SECOND - 1
    for _ in range(2):
        node.tell(Reach(Level.HALF))
    assert node.machine.roll.cut_off is is_cut_off


def test_who_is_cut_off_with_a_token_doubts_it_and_tells_the_hold_where_that_was_doubted_before():
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    node.tell(Reach(Level.LESS))
    effects = node.tell(Reach(Level.LESS))
    assert sent(effects, Probe) and not [each for each in effects if isinstance(each, Lose)]
    node.tell(Reach(Level.MORE))
    node.tell(Reach(Level.LESS))
    assert Lose(1, LostReason.ISOLATED) in node.tell(Reach(Level.LESS))


# --- it comes ---


def test_who_has_left_is_not_in_the_queue_of_a_token_that_comes():
    node = Node()
    node.members.remove(3)
    node.tell(MembersChanged((), (3,)))
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED._replace(queue=tickets(5, 3)))
    assert node.machine.view().queue == (5,)


@pytest.mark.parametrize(("gives", "hop", "says"), [(False, 9, True), (False, 3, False), (True, 9, False)])
def test_another_holder_of_ones_own_token_is_answered_unless_that_was_before_or_it_is_on_its_way(
    gives: bool, hop: int, says: bool
):
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    if gives:
        node.tell(Released(1))
        node.hear(5, Sight(0, 0, None, Presence.ABSENT, False))
        assert sent(node.hear(HOME, Feed(0, tickets(5), False, 4)), Commit)
    effects = node.hear(3, Sight(0, 0, Place(0, 7, 5, 50, hop, 3), Presence.ABSENT, False))
    assert bool(sent(effects, Probe) or sent(effects, Sight)) is says


# --- it comes back ---------------------------------------------------------------------------------------------------


def test_a_home_that_passed_it_on_knows_where_it_is_and_whoever_comes_late_follows():
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    node.tell(Released(1))
    node.now += SECOND
    node.hear(5, Sight(0, 0, None, Presence.ABSENT, False))
    ((to, commit),) = sent(node.hear(HOME, Feed(0, tickets(5), False, 4)), Commit)
    assert sent(node.hear(HOME, Feed(0, tickets(3), True, 4)), Feed) == []  # it may come back
    effects = node.hear(5, Done(commit.nonce, commit.reply))
    assert [(to, feed.tickets, feed.more, feed.steps) for to, feed in sent(effects, Feed)] == [(5, tickets(3), True, 3)]
    assert node.machine.view().holder == 5 and to == 5


def test_a_doubt_that_was_for_nothing_is_over_with_all_that_it_held_back():
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1, WATCHED)
    node.hear(HOME, Feed(0, tickets(5), False, 4))
    asked = dict(sent(node.tell(Slept(SECOND)), Probe))
    node.tell(Released(1))
    assert node.machine.view().state == "doubtful"
    effects: list[Effect] = []
    for to, probe in asked.items():
        effects += node.hear(to, Sight(probe.number, 0, None, Presence.ABSENT, True))
    assert [to for to, _ in sent(effects, Commit)] == [5]
