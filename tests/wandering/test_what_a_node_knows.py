"""What a node knows of others, of tokens and of the network: who is passed over and for how long, how long an answer
may take, how many are noted. Small rules, each stated with its figures: what goes wrong here goes wrong slowly.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.algorithms.wandering.context import (
    Context,
    gives_way,
    is_copy,
    place_of,
    rank,
    same_token,
)
from softmutex.core.algorithms.wandering.messages import Place, Want
from softmutex.core.algorithms.wandering.settings import (
    FRESH,
    FRESH_MOST,
    RTO_FIRST,
    RTO_LEAST,
    RTO_MOST,
    SLACK,
    SLACK_MOST,
    SUSPICION,
)
from softmutex.core.events import NOBODY, SECOND, Duration, NodeId, Send, Suspect, Ticket, Token
from softmutex.core.machine import Setup
from softmutex.core.timing import Timing

MS = SECOND // 1000
ME = 3


def node(*members: NodeId, me: NodeId = ME, place: int = 0, slots: int = 1, **options: Any) -> Context:
    there = members or (1, 2, 3, 4, 5)
    setup = Setup(me, list(there), random.Random(1), Timing(op=1.0), options, slots=slots, place=place)
    context = Wandering(setup).context
    context.begin(1000 * SECOND)
    return context


def later(context: Context, span: Duration) -> None:
    context.begin(context.now + span)


# --- which of two tokens ---------------------------------------------------------------------------------------------

OWN = Place(0, 7, 100, 50, 9, ME)


@pytest.mark.parametrize(
    ("other", "is_better"),
    [
        (OWN._replace(epoch=8, stamp=200, id=99, hop=0), True),  # of a later epoch
        (OWN._replace(epoch=6, stamp=1, id=1, hop=99), False),
        (OWN._replace(stamp=99, id=99, hop=0), True),  # the older one
        (OWN._replace(stamp=101, id=1, hop=99), False),
        (OWN._replace(id=49, hop=0), True),
        (OWN._replace(id=51, hop=99), False),
    ],
)
def test_of_two_tokens_the_later_epoch_wins_then_the_older_one_then_the_lower_id(other: Place, is_better: bool):
    context = node()
    assert (rank(other) > rank(OWN)) is is_better
    assert gives_way(OWN, other, OWN) is is_better
    assert not same_token(OWN, other) and not is_copy(other, OWN, OWN)
    assert context.learn(OWN)
    assert context.learn(other) is is_better
    assert context.best[0] == (other if is_better else OWN)
    rival = context.outranked(Token(*OWN[1:5]))
    assert rival == (other if is_better else None)


def test_of_one_token_a_later_hop_is_news_and_an_earlier_or_the_same_one_is_none():
    context = node()
    assert context.learn(OWN, 4)
    assert (context.learned_at[0], context.learned_from[0]) == (context.now, 4)
    later(context, SECOND)
    for hop in (9, 8):
        assert not context.learn(OWN._replace(hop=hop, holder=5), 5)
    assert (context.best[0], context.learned_at[0], context.learned_from[0]) == (OWN, 1000 * SECOND, 4)
    assert context.learn(OWN._replace(hop=10), 5)
    assert (context.learned_at[0], context.learned_from[0]) == (1001 * SECOND, 5)
    assert context.outranked(Token(*OWN[1:5])) is None  # it is the same one


def test_of_slots_that_the_group_does_not_have_nothing_is_learnt():
    context = node(slots=2)
    assert [context.learn(OWN._replace(slot=slot)) for slot in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize(
    ("hop", "holder", "copy", "yields"),
    [(9, 4, True, True), (9, 2, True, False), (12, 2, True, True), (8, 4, False, False), (9, ME, False, False)],
)
def test_a_copy_is_said_by_another_holder_of_a_hop_that_was_here(hop: int, holder: int, copy: bool, yields: bool):
    place = OWN._replace(hop=hop, holder=holder)
    assert is_copy(place, OWN, OWN) is copy
    assert gives_way(OWN, place, OWN) is yields


def test_where_a_token_is_said_as_it_is():
    assert place_of(Token(7, 100, 50, 9, 1), 4) == Place(1, 7, 100, 50, 9, 4)


def test_a_token_that_was_given_up_comes_late_if_it_has_moved_on_by_one_hop_at_most():
    context = node()
    context.gives_up(0)  # of which it knows nothing
    assert not context.comes_late(Token(*OWN[1:5]))
    context.learn(OWN)
    context.gives_up(0)
    assert [context.comes_late(Token(7, 100, 50, hop)) for hop in (8, 9, 10, 11)] == [True, True, True, False]
    assert not context.comes_late(Token(8, 100, 50, 9))


def test_the_next_epoch_counts_seconds_and_is_above_all_that_were_heard_of():
    context = node()
    assert context.next_epoch(0) == 1000
    context.learn(OWN._replace(epoch=999))
    assert context.next_epoch(0) == 1000
    context.learn(OWN._replace(epoch=1000))
    assert context.next_epoch(0) == 1001
    context.begin(0)
    assert node().next_epoch(0) > 0
    fresh = node()
    fresh.begin(0)
    assert fresh.next_epoch(0) == 1


# --- who is there ----------------------------------------------------------------------------------------------------


def test_homes_are_the_next_on_the_ring_that_are_under_no_suspicion_and_all_when_all_are():
    context = node(place=4)
    assert (list(context.ring()), context.first, context.home, context.heir) == ([4, 5, 1, 2, 3], 4, 4, 4)
    assert context.homes(2) == (4, 5)
    context.suspect(4)
    assert (context.homes(2), context.home, context.first) == ((5, 1), 5, 4)
    context.silenced(5)
    assert (context.homes(2), context.home) == ((1, 2), 1)
    context.hears_nobody(1, 5 * SECOND)
    assert (context.homes(2), context.home) == ((2, 3), 2)
    context.suspect(2)
    assert (context.homes(2), context.home, context.heir) == ((ME,), ME, 4)  # without itself all are suspected
    later(context, SUSPICION - 1)
    assert context.home == ME
    later(context, 1)  # of the first one its suspicion is over
    assert context.home == 4
    context.returned(5)
    context.hears(1)
    assert context.homes(5) == (4, 5, 1, 2, 3)


def test_of_a_large_group_eight_are_looked_at_for_a_home():
    context = node(*range(1, 21), place=16)
    assert list(context.ring()) == [16, 17, 18, 19, 20, 1, 2, 3]
    for each in context.ring():
        context.suspect(each)  # not itself
    assert context.homes(9) == (3,)
    assert list(node(*range(1, 21), place=9).ring()) == list(range(9, 17))
    beyond = node(*range(1, 21), place=999)
    assert (list(beyond.ring()), beyond.first, beyond.home) == (list(range(1, 9)), 1, 1)


def test_of_as_many_others_as_are_asked_for_none_is_missed():
    context = node()
    assert context.random_others(4) == context.random_others(9) == [1, 2, 4, 5]
    assert len(set(context.random_others(3)) - {ME}) == 3


def test_who_knows_nobody_is_its_own_home_and_alone():
    context = node()
    context.members = []
    assert (context.alone, context.first, context.home, context.heir) == (True, NOBODY, ME, ME)
    context.suspect(4)
    assert context.home == ME
    assert node(ME).alone and not node(4).alone and not node(ME, 4).alone


def test_nobody_suspects_itself():
    context = node()
    context.suspect(ME)
    assert not context.suspects and context.lost_at < context.now
    for suspicious in (NOBODY, ME, 99):
        context.suspicious(suspicious)
    assert context.out == []
    context.suspicious(4)
    assert context.out == [Suspect(4)]


@pytest.mark.parametrize("doubted", ["suspect", "silenced"])
def test_whoever_speaks_is_under_no_suspicion(doubted: str):
    context = node()
    getattr(context, doubted)(1)
    assert (context.home, context.lost_at) == (2, context.now)
    context.trust(1)
    assert context.home == 1
    assert context.is_there(1, SECOND)


def test_of_who_left_nothing_is_kept_but_that_it_left():
    context = node()
    for doubt in (context.suspect, context.silenced, context.trust):
        doubt(4)
    context.suspect(4)
    context.silenced(4)
    context.hears_nobody(4, SECOND)
    context.changed((), (4,))
    known = (context.suspects, context.silent, context.deaf, context.heard)
    assert [4 in each for each in known] == [False] * 4 and 4 in context.gone
    context.changed((4,), ())
    assert 4 not in context.gone


def test_who_hears_nobody_or_is_no_member_cannot_be_reached():
    context = node()
    assert [context.reaches(each) for each in (4, 6, 0, 2)] == [True, False, False, True]
    context.hears_nobody(4, SECOND)
    assert not context.reaches(4) and context.is_member(4)


def test_what_is_noted_of_others_is_bounded_and_the_newest_is_kept():
    """A4. Who is said anew counts as new."""
    context = node()
    for each in (*range(10, 26), 10, 26):
        context.suspect(each)
        context.hears_nobody(each, SECOND)
    assert list(context.suspects) == list(context.deaf) == [*range(12, 26), 10, 26]
    for each in range(10, 80):
        later(context, 1)
        context.trust(each)
    assert sorted(context.heard) == list(range(16, 80))
    context.changed((), tuple(range(1000, 1300)))
    assert list(context.gone) == list(range(1044, 1300))


def test_who_waits_and_is_not_known_is_believed_for_ten_seconds_and_after_a_minute_once_more():
    context = node()
    tickets = (Ticket(4, 1), Ticket(99, 1))

    def living_after(span_s: float) -> list[NodeId]:
        context.begin(round((1000 + span_s) * SECOND))
        return [ticket.node for ticket in context.living(tickets)]

    assert [living_after(span) for span in (0, 10)] == [[4, 99]] * 2
    assert [living_after(span) for span in (10.1, 60)] == [[4]] * 2
    assert [living_after(span) for span in (60.1, 70.1)] == [[4, 99]] * 2
    assert living_after(70.2) == [4]
    context.changed((99,), ())
    assert living_after(71) == [4, 99]  # it came: it is a member in a moment
    context.changed((), (99,))
    assert living_after(72) == [4]


def test_of_strangers_that_wait_so_many_are_noted():
    context = node()
    crowd = tuple(Ticket(each, 1) for each in range(1000, 1300))
    assert len(context.living(crowd)) == 256
    later(context, 60 * SECOND)
    assert context.living((Ticket(2000, 1),)) == ()
    later(context, 1)
    assert len(context.living((*crowd[:3], Ticket(2000, 1)))) == 4


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_a_want_says_how_urgent_it_is_only_where_that_counts():
    want = Want(ME, 1, False, 3)
    plain, ageing = node(), node(ageing=2.0)
    for context in (plain, ageing):
        context.ask(1, want, 5)
    (sent,), (urged,) = plain.out, ageing.out
    assert sent == Send(1, want)
    assert isinstance(urged, Send) and tuple(urged.message) == (want, 5)


def test_tickets_are_given_back_to_the_home_and_none_are_not():
    context = node()
    context.give_back(())
    assert context.out == [] and context.inbox == []
    context.give_back((Ticket(4, 1),))
    (sent,) = context.out
    assert isinstance(sent, Send) and sent.to == 1 and tuple(sent.message) == (None, (Ticket(4, 1),))


def test_members_whose_settings_differ_can_tell_and_what_each_may_choose_alone_makes_no_difference():
    settings: list[dict[str, Any]] = [
        {},
        {"slots": 2},
        {"slots": 2, "each": 2},
        {"min_interval": 1.0},
        {"watch": False},
    ]
    settings += [{"hints": False}, {"ageing": 2.0}, {"ageing": 3.0}, {"slots": 2, "ageing": 2.0}]
    assert len({node(**each).fingerprint for each in settings}) == len(settings)
    alike: list[dict[str, Any]] = [{}, {"row": 3}, {"early": False}, {"census": False}, {"watchers": 1}, {"place": 77}]
    assert len({node(**each).fingerprint for each in alike}) == 1


# --- how long an answer may take -------------------------------------------------------------------------------------


def test_patience_is_the_round_trip_and_four_deviations_or_half_a_round_trip_more():
    """Jacobson's estimate, of an eighth and a quarter."""
    context = node()
    assert (context.rto, context.round_trip) == (RTO_FIRST, RTO_LEAST // 4)
    later(context, SECOND)
    for round_trip, rto, smoothed in ((80, 240, 80), (80, 200, 80), (160, 260, 90), (90, 217.5, 90)):
        context.measured(round_trip * MS)
        assert (context.rto, context.round_trip) == (rto * MS, smoothed * MS)
    for _ in range(60):
        context.measured(90 * MS)
    assert context.rto == pytest.approx(135 * MS, rel=1e-6)  # without jitter


def test_patience_has_a_least_and_a_most():
    context = node()
    later(context, 10 * SECOND)
    context.measured(MS)
    assert context.rto == RTO_LEAST
    context = node()
    later(context, 10 * SECOND)
    context.measured(5 * SECOND)
    assert context.rto == RTO_MOST


def test_what_began_before_this_node_slept_measures_nothing():
    context = node()
    later(context, 10 * SECOND)
    context.woke()
    assert (context.woke_at, context.lost_at) == (context.now, context.now)
    later(context, SECOND)
    context.measured(SECOND + 1)
    context.late_answer(context.now - SECOND - 1)
    assert context.rto == RTO_FIRST
    context.measured(SECOND)
    assert context.rto == 3 * SECOND


def test_a_late_answer_makes_patience_twice_as_long_at_most_and_never_shorter():
    context = node()
    for took, rto in ((300, 300), (100, 300), (5000, 600), (5000, 1200), (5000, 2400), (5000, 3000), (5000, 3000)):
        context.late_answer(context.now - took * MS)
        assert context.rto == rto * MS


@pytest.mark.parametrize(("rto_ms", "slack"), [(50, SLACK), (200, SLACK), (300, 1200 * MS), (3000, SLACK_MOST)])
def test_a_beat_may_be_four_time_outs_late(rto_ms: int, slack: Duration):
    context = node()
    context.rto = rto_ms * MS
    assert context.slack == slack


def test_how_long_a_message_is_under_way_is_half_of_what_answers_took_smoothed():
    context = node()
    assert context.there_and_back == context.round_trip
    context.answered(7 * context.rto, True)
    assert context.way == 0  # a question that was repeated: it may be less
    context.answered(100 * MS, True)
    assert context.way == 50 * MS
    context.answered(300 * MS, True)
    assert context.way == 50 * MS
    context.answered(200 * MS, False)
    assert context.way == 75 * MS
    assert context.there_and_back == 150 * MS
    later(context, SECOND)
    context.measured(200 * MS)
    assert context.there_and_back == 200 * MS
    first = node()
    first.answered(100 * MS, False)
    assert first.way == 50 * MS


# --- who is there just now -------------------------------------------------------------------------------------------


def test_who_spoke_a_moment_ago_is_there_unless_the_group_is_told_to_ask_no_earlier():
    context = node()
    context.trust(4)
    later(context, FRESH - 1)
    assert context.is_there(4, FRESH) and not context.is_there(4, FRESH - 1) and not context.is_there(5, FRESH)
    cautious = node(early=False)
    cautious.trust(4)
    assert not cautious.is_there(4, FRESH)


@pytest.mark.parametrize(
    ("turn_ms", "trip_ms", "fresh"),
    [(1, 10, 1280 * MS), (1, 1.5, FRESH), (1, 100, FRESH_MOST), (10, 10, FRESH), (1, 1000, FRESH)],
)
def test_where_turns_are_shorter_than_a_round_trip_who_spoke_within_many_of_those_is_there(
    turn_ms: float, trip_ms: float, fresh: Duration
):
    context, turn, trip = node(), round(turn_ms * MS), round(trip_ms * MS)
    assert context.fresh(turn, trip) == fresh
    assert node(slots=2).fresh(turn, trip) == FRESH  # the home says who is next
    context.lost()
    later(context, SUSPICION - 1)
    assert context.fresh(turn, trip) == FRESH  # somebody did not answer lately
    later(context, 1)
    assert context.fresh(turn, trip) == fresh


def test_who_is_there_is_asked_when_the_turn_is_nearly_over_and_others_at_once():
    context = node()
    turn, trip = MS, 20 * MS
    assert context.asks_later(4, turn, trip) == 0
    context.trust(4)
    assert context.asks_later(4, turn, trip) == FRESH // 2
    assert context.asks_later(4, 2 * trip, trip) == FRESH // 2
    later(context, FRESH // 2)
    assert context.asks_later(4, turn, trip) == trip
    assert context.asks_later(4, 2 * trip, trip) == 0
    later(context, context.fresh(turn, trip) - trip - FRESH // 2)
    assert context.asks_later(4, turn, trip) == 0
