"""What every random walk does, whichever way it tells spurious tokens and misses lost ones."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest

from softmutex.core.algorithms.adaptive import Adaptive
from softmutex.core.algorithms.sandwich import Sandwich
from softmutex.core.algorithms.walker import INBOX, Walker
from softmutex.core.errors import ConfigError, InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    FactKind,
    Fired,
    Grant,
    Leaving,
    Lose,
    LostReason,
    MembersChanged,
    Note,
    Received,
    Send,
    SetTimer,
    Withdrawn,
)
from softmutex.core.handover import MAX_HOP
from softmutex.core.machine import Setup
from softmutex.core.messages import Accept, Ask, Commit, Done, Offer, Refuse, Void, Withdraw
from softmutex.core.timing import Timing
from tests.core.bench import START, Bench, crossed, token, weight

pytestmark = pytest.mark.parametrize("algorithm", [Adaptive, Sandwich])
Kind = type[Walker]
SKIP_S = {Adaptive: 1.0, Sandwich: 0.1}
RETRY_S = {Adaptive: 0.25, Sandwich: 0.1}
ELDER, YOUNGER = token(START - 100, 5), token(START - 50, 4)


def bench(algorithm: Kind, founder: bool = False, **options: Any) -> Bench:
    made = Bench(algorithm, **options)
    made.start(founder)
    return made


# --- a token comes, and goes -----------------------------------------------------------------------------------------


def test_a_founder_makes_the_first_token_and_passes_it_on_after_skip(algorithm: Kind):
    b = bench(algorithm, founder=True)
    (made,) = b.noted(FactKind.GENERATED)
    assert made.token is not None
    assert made.token[:4] == (1, START * SECOND, made.token.id, 0)
    assert b.due_in("skip") == SKIP_S[algorithm]
    b.fire("skip")
    ((to, passed),) = b.passed
    assert to in (2, 3)
    assert passed == made.token


def test_others_listen_before_they_make_one(algorithm: Kind):
    b = bench(algorithm)
    assert [type(effect) for effect in b.effects] == [SetTimer]
    assert b.due_in("silence") is not None


def test_without_a_request_the_token_is_skipped_on(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    assert b.granted == []
    assert b.due_in("skip") == SKIP_S[algorithm]
    b.fire("skip")
    assert [passed.hop for _, passed in b.passed] == [1]
    assert b.machine.view().tokens == ()


def test_a_request_that_waits_is_granted_when_the_token_comes(algorithm: Kind):
    b = bench(algorithm)
    b.request(7)
    assert b.effects == []
    b.visit(ELDER)
    assert b.one(Grant) == Grant.by(ELDER._replace(hop=1), 7)
    assert b.due_in("skip") is None
    assert b.machine.view().holding == (7,)


def test_the_token_stays_until_the_release_and_then_goes_to_another(algorithm: Kind):
    b = bench(algorithm)
    b.request()
    b.visit(ELDER)
    assert b.passed == []
    b.at(4).release()
    ((to, passed),) = b.passed
    assert to in (2, 3)
    assert passed.key == ELDER.key


def test_the_next_node_is_any_other_one_with_equal_chances(algorithm: Kind):
    b = bench(algorithm, members=range(1, 6), me=3)
    counts = dict.fromkeys(range(1, 6), 0)
    for hop in range(4000):
        b.visit(ELDER._replace(hop=hop))
        b.fire("skip")
        counts[b.passed[0][0]] += 1
    assert counts.pop(3) == 0
    assert all(900 < count < 1100 for count in counts.values())


def test_a_request_is_granted_at_once_while_the_token_skips(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    b.request(7)
    assert b.effects == [CancelTimer("skip"), Grant.by(ELDER._replace(hop=1), 7)]


def test_what_travels_with_the_token_is_what_the_last_holder_gave(algorithm: Kind):
    b = bench(algorithm)
    b.request()
    b.visit(ELDER)
    b.release(1, b"trace")
    assert b.passed[0][1].baggage == b"trace"


def test_a_token_keeps_all_that_it_carries_and_counts_the_hop(algorithm: Kind):
    carried = ELDER._replace(hop=6, settings=9, baggage=b"trace", slot=0)
    b = bench(algorithm)
    b.visit(carried)
    b.fire("skip")
    assert b.passed[0][1] == carried._replace(hop=7)


def test_a_token_that_was_passed_on_impossibly_often_is_not_taken(algorithm: Kind):
    b = bench(algorithm)
    assert b.visit(ELDER._replace(hop=MAX_HOP)) == []
    b.visit(ELDER._replace(hop=MAX_HOP - 1))
    assert b.machine.view().tokens[0].hop == MAX_HOP


# --- how often a node may run A ---------------------------------------------------------------------------------------


def test_who_ran_less_than_min_ago_skips_the_token_on(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    b.at(4).release(1)
    b.request(2)
    b.at(599.999).visit(ELDER)
    assert b.granted == []
    assert b.due_in("skip") == SKIP_S[algorithm]


def test_min_counts_from_the_start_of_the_hold(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    b.at(4).release(1)
    b.request(2)
    b.at(600).visit(ELDER)
    assert b.granted == [2]


def test_a_skip_is_no_access(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    b.at(4).release(1)
    b.request(2)
    b.at(500).visit(ELDER)
    b.fire("skip")
    b.at(600).visit(ELDER)
    assert b.granted == [2]


def test_a_request_that_comes_too_soon_does_not_stop_the_token(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    b.at(4).release(1)
    b.at(100).visit(ELDER)
    b.request(2)
    assert b.effects == []
    b.fire("skip")
    assert len(b.passed) == 1


def test_min_interval_overrides_how_often_a_node_may_run(algorithm: Kind):
    b = bench(algorithm, min_interval=5.0)
    b.request(1)
    b.visit(ELDER)
    b.at(4).release(1)
    b.request(2)
    b.at(4.9).visit(ELDER)
    assert b.granted == []
    b.fire("skip")
    b.at(6).visit(ELDER)
    assert b.granted == [2]


def test_min_interval_zero_allows_every_visit_but_lets_others_come_first(algorithm: Kind):
    b = bench(algorithm, min_interval=0)
    b.request(1)
    b.request(2)
    b.visit(ELDER)
    assert b.granted == [1]
    b.release(1)
    assert b.granted == []
    assert len(b.passed) == 1
    b.visit(ELDER)
    assert b.granted == [2]


def test_requests_of_one_node_are_served_in_their_order(algorithm: Kind):
    b = bench(algorithm, min_interval=0)
    for request in (1, 2, 3):
        b.request(request)
    b.handle(Withdrawn(2))
    b.visit(ELDER)
    b.release(1)
    b.visit(ELDER)
    assert b.granted == [3]
    assert b.machine.view().waiting == 0


def test_a_withdrawn_request_is_never_granted(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.handle(Withdrawn(1))
    b.visit(ELDER)
    assert b.granted == []
    assert b.due_in("skip") is not None


# --- alone ------------------------------------------------------------------------------------------------------------


def test_alone_the_token_is_parked_without_any_timer(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1])
    b.fire("skip")
    assert b.effects == []
    assert b.machine.view().state == "parked"


def test_alone_a_node_runs_as_often_as_it_may(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1])
    b.fire("skip")
    b.request(1)
    assert b.granted == [1]
    b.at(5).release(1)
    b.request(2)
    while b.timers.keys() & {"skip"}:
        b.fire("skip")
        if b.granted:
            break
    assert b.granted == [2]
    assert b.now_s == pytest.approx(START + SKIP_S[algorithm] + 600, abs=1.1)


def test_alone_waiting_for_min_needs_no_busy_loop(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1])
    b.request(1)
    b.release(1)
    b.request(2)
    b.fire("skip")
    assert b.due_in("skip") == 600 - SKIP_S[algorithm]


def test_a_parked_token_moves_on_when_somebody_joins(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1])
    b.fire("skip")
    b.members.append(2)
    b.handle(MembersChanged((2,), ()))
    assert b.due_in("skip") == SKIP_S[algorithm]
    b.fire("skip")
    assert b.passed[0][0] == 2


def test_news_of_members_disturb_no_token_that_is_in_use_or_on_its_way(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    assert b.handle(MembersChanged((), (3,))) == []
    b.request(1)
    assert b.handle(MembersChanged((), (3,))) == []
    b.release(1)
    assert b.handle(MembersChanged((), (3,))) == []


def test_the_last_member_parks_the_token_when_all_others_are_gone(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    b.members[:] = [1]
    b.handle(MembersChanged((), (2, 3)))
    b.fire("skip")
    assert b.machine.view().state == "parked"


def test_each_grant_has_a_later_hop_also_where_the_token_stays(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1], min_interval=0)
    hops = []
    for request in range(1, 5):
        b.request(request)
        hops.append(b.one(Grant).hop)
        b.release(request)
    assert hops == sorted(set(hops))


# --- a second token ---------------------------------------------------------------------------------------------------


def test_a_second_token_waits_its_turn(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    b.at(0.05).visit(YOUNGER)
    assert b.effects == []
    assert [each.key for each in b.machine.view().tokens] == [ELDER.key, YOUNGER.key]
    b.fire("skip")
    assert [passed.key for _, passed in b.passed] == [ELDER.key]
    assert [each.key for each in b.machine.view().tokens] == [YOUNGER.key]
    assert b.due_in("skip") == SKIP_S[algorithm]


def test_who_holds_is_told_of_a_better_token_once(algorithm: Kind):
    b = bench(algorithm)
    b.request(7)
    b.visit(YOUNGER)
    b.visit(ELDER)
    assert b.all_of(Lose) == [Lose(7, LostReason.OVERLAP)]
    assert [note.token for note in b.noted(FactKind.OVERLAP)] == [ELDER]
    b.visit(ELDER._replace(id=3))
    assert b.effects == []


def test_who_holds_again_can_be_told_again(algorithm: Kind):
    b = bench(algorithm, min_interval=0)
    b.request(1)
    b.visit(YOUNGER)
    b.visit(ELDER)
    b.release(1)  # the elder, which waited, is next
    b.fire("skip")
    b.request(2)
    b.at(1000).visit(YOUNGER._replace(id=1))
    assert b.granted == [2]
    b.visit(ELDER)
    assert b.lost == [2]


@pytest.mark.parametrize("other", [YOUNGER, ELDER._replace(hop=9), ELDER._replace(id=6)])
def test_who_holds_with_the_better_token_is_not_disturbed(algorithm: Kind, other: Any):
    b = bench(algorithm)
    b.request(7)
    b.visit(ELDER)
    assert b.visit(other) == []


def test_who_does_not_hold_is_told_nothing(algorithm: Kind):
    b = bench(algorithm)
    b.visit(YOUNGER)
    assert b.visit(ELDER) == []


def test_of_a_flood_of_tokens_the_youngest_go(algorithm: Kind):
    b = bench(algorithm)
    b.request()
    b.visit(token(START - 1000, 1))
    flood = [token(START - 100 - number, number) for number in range(INBOX)]
    for each in flood:
        assert b.visit(each) == []
    b.visit(token(START, 99))
    assert [note.token and note.token.id for note in b.noted(FactKind.DISCARDED)] == [99]
    b.visit(token(START - 500, 98))
    assert [note.token and note.token.id for note in b.noted(FactKind.DISCARDED)] == [0]
    assert len(b.machine.view().tokens) == 1 + INBOX


# --- silence ----------------------------------------------------------------------------------------------------------


def test_after_the_silence_a_token_is_made_and_used(algorithm: Kind):
    b = bench(algorithm)
    b.request(7)
    b.fire("silence")
    (made,) = b.noted(FactKind.GENERATED)
    assert b.granted == [7]
    assert made.token is not None
    assert made.token.stamp == b.now
    assert made.token.hop == 0
    assert b.due_in("silence") is not None


def test_after_the_silence_a_token_that_nobody_wants_is_made_and_passed_on(algorithm: Kind):
    b = bench(algorithm)
    b.fire("silence")
    assert b.granted == []
    b.fire("skip")
    assert len(b.passed) == 1


def test_a_new_token_has_a_higher_epoch_than_any_seen(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER._replace(epoch=8))
    b.fire("skip")
    b.visit(ELDER._replace(epoch=3, stamp=1))
    b.fire("skip")
    b.at(10**9)
    while not b.noted(FactKind.GENERATED):
        b.fire("silence")
    assert b.machine.view().epoch == 9
    assert b.machine.view().tokens[0].epoch == 9


def test_each_token_received_puts_the_silence_off_without_touching_the_timer(algorithm: Kind):
    b = bench(algorithm)
    due = b.timers["silence"]
    for hop in range(3):
        b.at(100 * (hop + 1)).visit(ELDER)
        assert [effect.timer for effect in b.all_of(SetTimer)] == ["skip"]
        b.fire("skip")
    b.fire("silence")
    assert b.all_of(Note) == []
    assert b.timers["silence"] > due


def test_no_token_is_made_while_one_is_here(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    b.fire("silence")
    assert b.effects == []
    b.now_s += 5
    b.release(1)
    assert len(b.passed) == 1
    assert (b.due_in("silence") or 0) >= 600  # the silence begins now


def test_who_has_left_makes_no_token(algorithm: Kind):
    b = bench(algorithm)
    b.handle(Leaving())
    b.fire("silence")
    assert b.effects == []


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_who_has_no_token_leaves_at_once(algorithm: Kind):
    b = bench(algorithm)
    b.handle(Leaving())
    assert b.departs


def test_who_has_the_token_hands_it_over_and_leaves(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    b.handle(Leaving())
    assert len(b.passed) == 1
    assert b.departs
    assert b.due_in("skip") is None


def test_who_holds_leaves_after_the_release(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    b.handle(Leaving())
    assert b.effects == []
    b.release(1)
    assert len(b.passed) == 1
    assert b.departs


def test_who_leaves_hands_every_token_over(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    b.visit(YOUNGER)
    b.handle(Leaving())
    assert [passed.key for _, passed in b.passed] == [ELDER.key]
    assert not b.departs
    b.fire("skip")
    assert [passed.key for _, passed in b.passed] == [YOUNGER.key]
    assert b.departs


def test_who_leaves_is_granted_nothing_more(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.handle(Leaving())
    b.visit(ELDER)
    assert b.granted == []
    b.fire("skip")
    assert len(b.passed) == 1
    assert not b.departs  # that was said once


def test_the_token_ends_with_the_last_member(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1])
    b.handle(Leaving())
    assert len(b.noted(FactKind.DISCARDED)) == 1
    assert b.departs
    assert b.machine.view().tokens == ()


def test_a_parked_token_ends_with_the_last_member_however_long_it_was_parked(algorithm: Kind):
    b = bench(algorithm, founder=True, members=[1])
    b.fire("skip")
    b.fire("silence")
    b.handle(Leaving())
    assert len(b.noted(FactKind.DISCARDED)) == 1
    assert b.departs


def test_who_leaves_alone_gives_up_every_token(algorithm: Kind):
    b = bench(algorithm)
    b.visit(ELDER)
    b.visit(YOUNGER)
    b.members[:] = [1]
    b.handle(MembersChanged((), (2, 3)))
    b.handle(Leaving())
    b.fire("skip")
    assert b.departs
    assert len([note for note in b.everything if isinstance(note, Note) and note.kind is FactKind.DISCARDED]) == 2


# --- hand-overs with acknowledgements ---------------------------------------------------------------------------------


def offered(b: Bench) -> tuple[int, Offer]:
    """(to whom, the offer) of the last event."""
    ((to, offer),) = [(send.to, send.message) for send in b.all_of(Send) if isinstance(send.message, Offer)]
    return to, offer


def offered_since(b: Bench, first: Offer) -> tuple[int, Offer]:
    """(to whom, the offer) of the latest token that was offered after that one."""
    sends = [effect for effect in b.everything if isinstance(effect, Send)]
    return [(s.to, s.message) for s in sends if isinstance(s.message, Offer) and s.message.nonce > first.nonce][-1]


def take(b: Bench, visitor: Any, nonce: int = 50) -> None:
    """The token comes in four steps."""
    before = b.machine.view().tokens
    b.receive(Offer(nonce, visitor))
    accept = b.one(Send).message
    assert isinstance(accept, Accept)
    assert b.machine.view().tokens == before
    b.receive(Commit(nonce, accept.reply, visitor))


@pytest.mark.parametrize("passing", ["3-way", "4-way"])
def test_an_offer_is_no_token_and_a_commit_is_one(algorithm: Kind, passing: str):
    b = bench(algorithm, passing=passing)
    b.request(7)
    take(b, ELDER)
    assert b.granted == [7]
    answers = [send.message for send in b.all_of(Send)]
    assert [type(answer) for answer in answers] == ([] if passing == "3-way" else [Done])


def test_four_way_is_what_you_get_without_asking(algorithm: Kind):
    machine = algorithm(Setup(1, [1, 2], random.Random(1), Timing(), {}))
    (answer,) = machine.handle(Received(2, Offer(50, ELDER)), START * SECOND)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Accept)
    (answer,) = machine.handle(Received(2, Ask(50, answer.message.reply)), START * SECOND)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Void)


def test_where_a_token_is_another_one_is_refused(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.receive(Offer(51, YOUNGER), sender=3)
    assert b.one(Send) == Send(3, Refuse(51))


def test_who_leaves_refuses_every_token_and_takes_its_promises_back(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    b.receive(Offer(50, ELDER))
    accept = b.one(Send).message
    assert isinstance(accept, Accept)
    b.handle(Leaving())
    assert [send.message for send in b.all_of(Send)] == [Void(50, accept.reply)]
    assert b.departs
    b.receive(Offer(51, ELDER))
    assert b.one(Send).message == Refuse(51)


def test_who_leaves_waits_until_the_token_has_arrived(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.handle(Leaving())
    to, offer = offered(b)
    assert not b.departs
    b.receive(Accept(offer.nonce, 9), sender=to)
    assert not b.departs
    b.receive(Done(offer.nonce, 9), sender=to)
    assert len(b.noted(FactKind.HANDED_OVER)) == 1
    assert b.departs


def test_a_hand_over_that_fails_is_tried_again_soon_with_anybody(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    asked = set()
    for _ in range(30):
        b.fire("skip")
        to, offer = offered(b)
        asked.add(to)
        b.receive(Refuse(offer.nonce), sender=to)
        assert len(b.noted(FactKind.HANDOVER_FAILED)) == 1
        assert b.due_in("skip") == RETRY_S[algorithm]
    assert asked == {2, 3}


def test_after_a_hand_over_that_failed_a_request_that_waits_comes_first(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.fire("skip")
    to, offer = offered(b)
    b.request(7)
    assert b.effects == []
    b.receive(Refuse(offer.nonce), sender=to)
    assert b.granted == [7]
    assert b.one(Grant).hop > offer.token.hop


def test_a_token_that_is_being_passed_on_is_still_this_nodes_until_the_commit(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.fire("skip")
    to, offer = offered(b)
    assert b.machine.view().state == "passing"
    assert [each.key for each in b.machine.view().tokens] == [ELDER.key]
    b.receive(Accept(offer.nonce, 9), sender=to)
    assert b.machine.view().tokens == ()
    assert b.machine.view().holder == NOBODY


def test_another_token_can_come_while_one_is_being_passed_on(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.fire("skip")
    to, offer = offered(b)
    b.receive(Offer(51, YOUNGER), sender=3)
    accept = b.one(Send).message
    assert isinstance(accept, Accept)
    b.receive(Commit(51, accept.reply, YOUNGER), sender=3)
    b.receive(Refuse(offer.nonce), sender=to)
    assert {each.key for each in b.machine.view().tokens} == {ELDER.key, YOUNGER.key}


def take_another_while_one_is_under_way(b: Bench) -> tuple[int, Offer]:
    """(to whom, the offer) of the first token; the second one is here."""
    take(b, ELDER)
    b.fire("skip")
    under_way = offered(b)
    take(b, YOUNGER, nonce=51)
    return under_way


def test_a_token_that_came_back_follows_the_one_that_came_meanwhile(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    to, offer = take_another_while_one_is_under_way(b)
    b.receive(Refuse(offer.nonce), sender=to)
    b.fire("skip")
    assert offered(b)[1].token.key == YOUNGER.key
    assert b.due_in("skip") == SKIP_S[algorithm]
    b.fire("skip")
    assert offered(b)[1].token.key == ELDER.key


def test_who_leaves_stays_until_the_second_token_is_handed_over_too(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    to, offer = take_another_while_one_is_under_way(b)
    b.handle(Leaving())
    b.receive(Accept(offer.nonce, 9), sender=to)
    b.receive(Done(offer.nonce, 9), sender=to)
    assert not b.departs
    to, offer = offered_since(b, offer)
    b.receive(Accept(offer.nonce, 9), sender=to)
    b.receive(Done(offer.nonce, 9), sender=to)
    assert b.departs


def test_who_has_left_can_still_be_visited_and_pass_it_on(algorithm: Kind):
    b = bench(algorithm)
    b.handle(Leaving())
    b.visit(ELDER)
    b.fire("skip")
    b.fire("silence")
    assert b.effects == []
    b.visit(ELDER)
    b.fire("skip")
    assert len(b.passed) == 1


def test_no_token_is_made_while_one_is_being_passed_on(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.fire("skip")
    to, offer = offered(b)
    b.receive(Accept(offer.nonce, 9), sender=to)
    b.fire("silence")
    assert b.effects == []
    b.receive(Done(offer.nonce, 9), sender=to)
    assert (b.due_in("silence") or 0) >= 600


def test_a_token_that_is_gone_for_good_is_said_to_be_lost(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.fire("skip")
    to, offer = offered(b)
    b.receive(Accept(offer.nonce, 9), sender=to)
    while b.machine.view().state == "passing":
        b.fire(("handover", offer.nonce))
    assert len(b.noted(FactKind.TOKEN_LOST)) == 1
    assert b.machine.view().tokens == ()
    assert b.due_in("silence") is not None


def test_a_commit_that_never_arrived_brings_the_token_back(algorithm: Kind):
    b = bench(algorithm, passing="4-way")
    take(b, ELDER)
    b.fire("skip")
    to, offer = offered(b)
    b.receive(Accept(offer.nonce, 9), sender=to)
    b.receive(Void(offer.nonce, 9), sender=to)
    assert [each.key for each in b.machine.view().tokens] == [ELDER.key]
    assert b.due_in("skip") == RETRY_S[algorithm]


@pytest.mark.parametrize(("passing", "offers"), [("3-way", 2), ("4-way", 4)])
def test_who_does_not_answer_is_asked_a_few_times_and_then_somebody_else_is(algorithm: Kind, passing: str, offers: int):
    b = bench(algorithm, passing=passing)
    take(b, ELDER)
    b.fire("skip")
    begun, (_, offer) = b.now_s, offered(b)
    count = 1
    while not b.noted(FactKind.HANDOVER_FAILED):
        b.fire(("handover", offer.nonce))
        count += len(b.all_of(Send))
    assert count >= offers
    assert b.now_s - begun <= 2
    assert b.due_in("skip") == RETRY_S[algorithm]


def test_in_three_steps_an_answer_may_take_a_second(algorithm: Kind):
    b = bench(algorithm, passing="3-way")
    b.receive(Offer(50, ELDER))
    accept = b.one(Send).message
    assert isinstance(accept, Accept)
    b.at(1).receive(Commit(50, accept.reply, ELDER))
    assert len(b.machine.view().tokens) == 1


@pytest.mark.parametrize(
    "message",
    [
        Accept(1, 2),
        Refuse(1),
        Commit(1, 2, ELDER),
        Done(1, 2),
        Ask(1, 2),
        Void(1, 2),
        Withdraw(1),
    ],
)
@pytest.mark.parametrize("passing", ["direct", "3-way", "4-way"])
def test_a_message_that_nobody_waits_for_changes_nothing(algorithm: Kind, passing: str, message: Any):
    b = bench(algorithm, passing=passing)
    before = b.machine.view()
    b.receive(message)
    assert not b.all_of(Grant)
    assert b.machine.view() == before


# --- how much there is of it ------------------------------------------------------------------------------------------


def test_a_machine_is_small(algorithm: Kind):
    """100,000 of them fit into a simulation: no dictionary of attributes, and nothing that grows with the visits."""
    b = bench(algorithm)
    assert not hasattr(b.machine, "__dict__")
    sizes = []
    for hop in range(300):
        b.visit(ELDER._replace(hop=hop))
        b.fire("skip")
        sizes.append(weight(b.machine, b.rng, b.members))
    assert max(sizes) < 6000
    assert sizes[-1] <= max(sizes[:20])


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"passing": "2-way"}, "passing is '2-way', give one of direct, 3-way, 4-way"),
        ({"passig": "direct"}, "no option 'passig'"),
        ({"passig": "direct"}, "Did you mean 'passing'?"),
        ({"xyzzy": 1}, "Leave it out"),
        ({"min_interval": -1}, "min_interval is -1, give a number of at least 0"),
        ({"min_interval": float("nan")}, "min_interval is nan"),
        ({"min_interval": float("inf")}, "min_interval is inf"),
        ({"min_interval": "soon"}, "min_interval is 'soon'"),
        ({"min_interval": True}, "min_interval is True"),
    ],
)
def test_options_that_cannot_be_are_refused_with_a_remedy(algorithm: Kind, options: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as error:
        algorithm(Setup(1, [1, 2], Bench(Adaptive).rng, Timing(), options))
    assert said in str(error.value)


def test_a_second_slot_is_refused(algorithm: Kind):
    with pytest.raises(ConfigError, match=f"{algorithm.name!r} has one slot, and slots is 2"):
        algorithm(Setup(1, [1, 2], Bench(Adaptive).rng, slots=2))


def test_a_release_of_what_does_not_run_is_a_breach(algorithm: Kind):
    b = bench(algorithm)
    b.request(1)
    b.visit(ELDER)
    with pytest.raises(InvariantBreach, match="request 2 is released, and 1 runs"):
        b.release(2)


def test_a_token_that_is_to_move_on_and_is_not_here_is_a_breach(algorithm: Kind):
    b = bench(algorithm)
    with pytest.raises(InvariantBreach, match="W2"):
        b.handle(Fired("skip"))


def test_a_broken_invariant_is_noticed_at_the_next_event(algorithm: Kind):
    """Whatever part of the state is not what it was: of two machines in different states, one part is exchanged."""
    states = []
    for steps in (
        (),
        ("visit",),
        ("request", "visit"),
        ("request", "visit", "more"),
        ("visit", "more"),
        ("silence", "skip"),
    ):
        b = bench(algorithm)
        for step in steps:
            match step:
                case "request":
                    b.request()
                case "visit":
                    b.visit(ELDER)
                case "more":
                    b.visit(YOUNGER)
                case timer:
                    b.fire(timer)
        states.append(b)
    said = []
    for one, other in itertools.permutations(states, 2):
        for broken in crossed(one.machine, other.machine):
            try:
                broken.handle(Withdrawn(9), one.now)
            except InvariantBreach as error:
                said.append(str(error))
    assert all(f"{algorithm.name}, node 1" in each for each in said)
    assert {invariant for each in said for invariant in re.findall(r"W\d", each)} >= {"W1", "W2", "W3", "W4"}
