"""Who learns what, and when: each sentence is a rule that a mutant once broke while every other test passed.

No golden trace stands behind these: what matters here holds also after `--rewrite`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from softmutex.core.algorithms.wandering.messages import (
    Account,
    Feed,
    Place,
    Presence,
    Probe,
    Queued,
    Recall,
    Seen,
    Sight,
    Want,
)
from softmutex.core.events import (
    Effect,
    Event,
    FactKind,
    Instant,
    Level,
    NodeId,
    Overlapped,
    Reach,
    Received,
    Send,
    to_seconds,
)
from softmutex.sim import Scenario, simulate
from softmutex.sim.spy import SpiedOn
from tests.wandering.stage import DELAY, Stage, place_of_token, said_by


def account(stage: Stage, node: NodeId, place: Place, rival: Place) -> Account:
    (sent,) = said_by(stage, node, 9, Recall(1, place, rival, None))
    assert isinstance(sent.message, Account)
    return sent.message


# --- who holds it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [3, 5, 9])
@pytest.mark.parametrize("age_s", [0.1, 0.5, 3.0, 10.0, 30.0, 120.0])
def test_a_holder_that_is_cut_off_is_told_within_the_pace_of_its_beats_and_two_seconds(nodes: int, age_s: float):
    """The pace is a quarter of the hold's age, of 1.6 s at least and 6 s at most."""
    stage = Stage(nodes=nodes)
    stage.request(3)
    stage.run(0.5)
    stage.run(age_s)
    stage.cut = {3}
    bound_s = min(max(1.6, age_s / 4), 6.0) + 2.0
    stage.run(bound_s)
    assert [node for node, _ in stage.lost] == [3]


@pytest.mark.parametrize("age_s", [0.1, 3.0, 120.0])
def test_a_holder_that_is_heard_is_told_of_nothing(age_s: float):
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(age_s + 10)
    assert stage.lost == []


def test_who_has_the_token_in_hand_makes_no_further_one():
    """Its own census asks for the token that it is using: nobody else has one."""
    stage = Stage(nodes=3)
    stage.request(1)
    stage.run(0.5)
    mine = place_of_token(stage, 1)
    for node in (2, 3):
        stage.kill(node)
    stage.news(left=(2, 3))
    stage.request(1, 2)
    stage.run(60)
    assert place_of_token(stage, 1)[:4] == mine[:4]
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == 1


@pytest.mark.parametrize("each", [1, 2, 3])
def test_a_node_uses_as_many_slots_at_once_as_it_may_and_no_more(each: int):
    stage = Stage(nodes=3, slots=4, each=each)
    for request in range(1, 6):
        stage.request(1, request)
    stage.run(10)
    assert len(stage.granted) == each
    assert len(stage.machines[1].view().tokens) >= each


# --- who was silent --------------------------------------------------------------------------------------------------


def test_who_was_silent_when_a_token_was_made_is_told_of_it_with_its_first_word():
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.release(3)
    stage.run(0.1)
    stage.cut = {3}
    stage.request(2)
    stage.run(20)
    assert stage.granted == [(3, 1), (2, 1)]
    maker = next(node for node, note in reversed(stage.notes) if note.kind is FactKind.GENERATED)
    any_word = Account(99, None, 0, (), False, None, None, ())
    said = [sent.message for sent in said_by(stage, maker, 3, any_word) if sent.to == 3]
    assert any(isinstance(message, Sight) and message.place is not None for message in said)
    assert said_by(stage, maker, 3, any_word) == []  # once


@pytest.mark.parametrize("lease", [0, 1_000_000_000])
def test_who_says_that_it_has_a_token_that_was_replaced_is_told_of_the_better_one(lease: int):
    stage = Stage(nodes=3)
    stage.request(2)
    stage.run(1)
    known = place_of_token(stage, 2)
    replaced = Place(0, known.epoch - 1, 5, 5, 0, 3)
    said = said_by(stage, 2, 3, Seen(replaced, lease, ()))
    (told,) = [sent for sent in said if isinstance(sent.message, Sight)]
    assert told.to == 3 and told.message.place is not None and told.message.place[:4] == known[:4]


def test_a_node_that_does_not_answer_is_asked_ever_more_slowly():
    stage = Stage(nodes=3)
    stage.request(1)
    stage.run(0.5)
    asked_s: list[float] = []

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        probes = [each for each in effects if isinstance(each, Send) and isinstance(each.message, Probe)]
        asked_s.extend(to_seconds(now) for each in probes if each.to == 1)

    stage.machines[2] = SpiedOn(stage.machines[2], 2, look)  # type: ignore[assignment]
    stage.cut = {1}
    stage.request(2)
    stage.run(8)
    pauses = [later - earlier for earlier, later in pairwise(asked_s)]
    assert len(pauses) >= 3
    assert min(pauses) > 10 * to_seconds(DELAY)  # never a storm
    assert any(third > second > first for first, second, third in zip(pauses, pauses[1:], pauses[2:], strict=False))


def test_who_does_not_answer_how_it_used_its_token_is_asked_again_soon():
    """Two tokens have met, and the first word of it got lost: overlaps are told in time all the same."""
    stage = Stage(nodes=5)
    stage.request(1)
    stage.run(0.1)
    stage.sleep(1)
    stage.request(2)
    stage.run(8)
    recalls_s: list[float] = []

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        recalls_s.extend(
            to_seconds(now) for each in effects if isinstance(each, Send) and isinstance(each.message, Recall)
        )

    for node in (1, 2):
        stage.machines[node] = SpiedOn(stage.machines[node], node, look)  # type: ignore[assignment]
    stage.wake(1, 8)
    for _ in range(100):
        if recalls_s:
            break
        stage.run(0.001)
    stage.cut = {1, 2}
    stage.run(3)
    pauses = [later - earlier for earlier, later in pairwise(recalls_s) if later > earlier]
    assert len(pauses) >= 3 and min(pauses) < 0.5 and max(pauses) > 1.5 * min(pauses)


# --- who watches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_s", [0.05, 0.2, 0.8])
def test_a_token_that_is_always_on_the_move_is_heard_of_once_a_beat_and_not_at_each_hop(op_s: float):
    result = simulate(Scenario(nodes=6, op_s=op_s, delay_s=0.001, duration_s=60.0, seed=1))
    a_second = result.sent["SEEN"] / 60
    assert 0.6 < a_second < 5.0  # one in 1.6 s, each other time to a second watcher as well; and those of parking
    assert result.generated == 1 and result.violations == []


def test_the_second_watcher_replaces_a_token_that_died_with_its_holder_and_the_first():
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    (token,) = stage.machines[3].view().tokens
    first, second = token.escort.watch
    waiter = next(node for node in (1, 2, 4, 5) if node not in (first, second))
    if first == 3:
        pytest.fail("the holder must not be its own first watcher in this story: choose another one")
    stage.request(waiter)
    stage.run(5)
    stage.kill(3)
    stage.kill(first)
    stage.run(15)
    assert stage.granted[-1] == (waiter, 1)


# --- who looks back --------------------------------------------------------------------------------------------------


def test_the_chain_of_a_token_leads_through_each_of_its_visits_to_the_next_one():
    stage = Stage(nodes=3)
    for request, node in enumerate((1, 2, 1, 2, 1), 1):
        stage.request(node, request)
        stage.run(0.2)
        stage.release(node)
        stage.run(0.2)
    now = place_of_token(stage, 1)
    rival = now._replace(id=1, epoch=now.epoch + 7)
    last = account(stage, 1, now, rival)
    assert last.place is not None and last.place.hop == now.hop and last.after is None and last.before is not None
    assert last.before.holder == 2 and last.before.hop == now.hop - 1
    passed_on = account(stage, 2, last.before, rival)
    assert passed_on.place is not None and passed_on.place.hop <= last.before.hop
    assert passed_on.after is not None and passed_on.after.holder == 1 and passed_on.after.hop == now.hop
    earlier = account(stage, 1, now._replace(hop=now.hop - 1), rival)  # not the last visit: that began at a later hop
    assert earlier.place is not None and earlier.place.hop < now.hop and earlier.after is not None
    assert [span.request for span in last.spans] == [5] and [span.request for span in earlier.spans] == [3]


def test_of_another_token_nothing_is_said():
    stage = Stage(nodes=3)
    stage.request(1)
    stage.run(0.2)
    mine = place_of_token(stage, 1)
    for other in (mine._replace(id=mine.id + 1), mine._replace(epoch=mine.epoch + 1)):
        assert account(stage, 1, other, mine).place is None


def test_the_chain_leads_on_through_a_token_that_was_made_anew_in_its_holders_hand():
    """It heard of a better one that nobody could find. Both ends of its own hold are still found."""
    stage = Stage(nodes=3)
    stage.request(1)
    stage.run(0.2)
    old = place_of_token(stage, 1)
    better = Place(0, old.epoch + 5, 1, 77, 3, 99)  # of somebody who is no member
    stage.tell(1, Received(2, Sight(0, 0, better, Presence.ABSENT, False)))
    stage.run(20)
    new = place_of_token(stage, 1)
    assert new.epoch > better.epoch and new.id != old.id and new.id < 1 << 64
    after = account(stage, 1, new, better)
    assert after.before is not None and after.before[:4] == old[:4]
    assert after.running and [span.request for span in after.spans] == [1]  # the hold is the new name's
    before = account(stage, 1, old, better)
    assert before.after is not None and before.after[:4] == new[:4] and before.spans == ()


def test_a_node_that_was_cut_off_says_so_and_when_that_is_over_and_that_its_token_was_replaced():
    """What is not said here is missed by whoever counts: each of these is an event for the application."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.cut = {3}
    stage.request(2)
    stage.run(20)
    stage.cut = set()
    stage.run(10)
    told = [(note.kind, note.peer) for node, note in stage.notes if node == 3]
    assert told == [(FactKind.ISOLATED, 0), (FactKind.REJOINED, 0), (FactKind.DISCARDED, 2), (FactKind.OVERLAP, 2)]


def test_who_overlapped_with_two_of_one_number_for_one_span_tells_of_each():
    """Both had their first request, each for a second: the second one was taken for what had been told."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.sleep(3)
    stage.run(10)
    for node in (4, 5):
        stage.request(node)
        while node not in stage.holding:
            stage.run(0.001)
        stage.run(1)
        stage.release(node)
    stage.wake(3, 13)
    stage.run(1)
    told = {order[1:3] for node, order in stage.orders if isinstance(order, Overlapped) and node == 3}
    assert told == {(4, 1), (5, 1)}


def test_a_node_that_used_two_tokens_that_were_replaced_tells_of_both_overlaps():
    """Each token is a case of its own: looking into one does not end the other."""
    stage = Stage(nodes=5, slots=2, each=2)
    stage.request(3, 1)
    stage.request(3, 2)
    stage.run(1)
    assert stage.granted == [(3, 1), (3, 2)]
    stage.sleep(3)
    stage.request(1)
    stage.request(2)
    stage.run(12)
    assert {node for node, _ in stage.granted[2:]} == {1, 2}
    stage.wake(3, 12)
    stage.run(5)
    told = Counter(node for node, note in stage.notes if note.kind is FactKind.OVERLAP)
    assert told == {3: 2, 1: 1, 2: 1}


# --- who reaches too few ---------------------------------------------------------------------------------------------


def test_who_reaches_fewer_than_half_uses_the_token_in_its_hand_only_when_it_was_asked_for_elsewhere():
    """Two calls say so: it may have been impatient. The token that lies here may have been replaced by the others."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.release(3)
    stage.run(1)
    for _ in range(2):
        stage.tell(3, Reach(Level.LESS))
    stage.request(3, 2)
    assert stage.granted == [(3, 1)]
    stage.run(1)
    assert stage.granted == [(3, 1), (3, 2)]  # everybody answers


def test_who_reached_fewer_than_half_once_goes_on():
    """It calls again before it believes that: on a slow network it was only impatient."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.release(3)
    stage.run(1)
    stage.tell(3, Reach(Level.LESS))
    stage.request(3, 2)
    assert stage.granted == [(3, 1), (3, 2)]


def test_a_home_that_could_not_decide_looks_again_though_nobody_waits():
    """It was cut off when its watched token died, and hears enough of the group again: the group is not without one."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(2)
    (token,) = stage.machines[3].view().tokens
    watchers = set(token.escort.watch)
    assert 3 not in watchers
    stage.kill(3)
    stage.cut = {1, 2, 4, 5}
    stage.run(20)
    stage.cut = set()
    stage.run(10)
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == 2


def test_no_token_is_made_while_news_say_that_it_is_on_its_way_between_others():
    """It moves as fast as the questions do: whoever was asked did not have it yet, and the next one is not asked."""
    stage = Stage(nodes=4)
    stage.request(3)
    stage.run(0.5)
    place = place_of_token(stage, 3)
    stage.kill(3)
    stage.news(left=(3,))
    stage.request(2)
    made = [note.kind for _, note in stage.notes].count(FactKind.GENERATED)
    for hop in range(1, 31):
        seen = place._replace(hop=place.hop + hop, holder=99)  # whom none of these knows
        for node, sender in ((1, 2), (2, 1), (4, 1)):
            stage.tell(node, Received(sender, Sight(0, 0, seen, Presence.ABSENT, False)))
        stage.run(0.1)
        assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == made
    stage.run(5)
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == made + 1
    assert stage.granted[-1] == (2, 1)


@pytest.mark.parametrize("founder", [True, False])
def test_a_home_looks_for_a_token_of_which_it_never_heard_and_for_no_other(founder: bool):
    stage = Stage(nodes=3, founder=founder)
    stage.run(20)
    assert (stage.sent["PROBE"] > 0) is not founder
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == founder  # nobody waits


def test_a_holder_that_slept_tells_its_watchers_as_soon_as_it_knows_that_it_was_not_replaced():
    """They doubt it, and would go on asking each other until its next beat."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(2)
    stage.sleep(3)
    stage.run(1)
    told = stage.sent["SEEN"]
    stage.wake(3, 1)
    stage.run(0.01)
    assert stage.sent["SEEN"] > told
    assert stage.lost == []


def test_without_watchers_and_census_who_misses_the_token_makes_one_when_the_last_time_limit_is_over():
    """Of seed 000: one and a half times as long as 300 members take, here with turns of one second."""
    stage = Stage(nodes=3, hints=False, census=False, watch=False)
    stage.request(3)
    stage.run(5)
    stage.kill(3)
    stage.news(left=(3,))
    stage.request(2)
    stage.run(449)
    assert stage.granted == [(3, 1)]
    stage.run(2)
    assert stage.granted == [(3, 1), (2, 1)]


# --- who serves ------------------------------------------------------------------------------------------------------


def test_a_home_feeds_whom_it_had_waiting_as_soon_as_it_has_found_the_token():
    """It never heard of one before: what it finds is all that it knows."""
    stage = Stage(nodes=3, founder=False)
    home, waiter, holder = stage.members  # any node is one for a request that goes no further
    (probe, *_) = [
        each
        for each in said_by(stage, home, waiter, Want(waiter, 1, False, 0))
        if isinstance(each.message, Probe) and each.to == holder
    ]
    assert isinstance(probe.message, Probe)
    place = Place(0, 7, 1, 77, 3, holder)
    found = said_by(stage, home, holder, Sight(probe.message.number, 0, place, Presence.PARKED, True))
    fed = [each for each in found if isinstance(each.message, Feed)]
    assert [(each.to, [ticket.node for ticket in each.message.tickets]) for each in fed] == [(holder, [waiter])]


def test_a_home_feeds_a_waiter_that_asks_again_once_more_before_it_looks_for_the_token():
    """A FEED that got lost is no lost token: a search asks everybody, and each waiter may ask again."""
    stage = Stage(nodes=3)
    stage.request(3)
    stage.run(0.5)
    stage.request(2)
    stage.run(0.5)
    once_more, twice = (said_by(stage, 1, 2, Want(2, 1, False, 0)) for _ in range(2))
    assert {type(each.message) for each in once_more} == {Feed, Queued}
    assert {Feed, Queued, Probe} == {type(each.message) for each in twice}


def test_who_asked_the_holder_itself_is_told_that_it_is_in_the_queue():
    """Or it would ask again, and at last everybody."""
    stage = Stage(nodes=5)
    stage.request(1)
    stage.run(0.1)
    assert stage.granted[-1] == (1, 1)
    stage.request(2)
    stage.run(0.005)
    stage.release(1)  # before it was told
    stage.request(1, 9)
    stage.request(3)
    stage.run(3)
    assert stage.granted[-1] == (2, 1)
    assert (stage.sent["WANT"], stage.sent["QUEUED"]) == (2, 1)


# --- who leaves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", [2, 3, 4])
def test_a_leaver_whose_heir_leaves_too_finds_another_one(also: int):
    """Nobody waits for the token, so nothing else would move it on: whoever leaves would stay for ever."""
    stage = Stage(nodes=4)
    stage.run(1)
    stage.leave(also)
    stage.leave(1)
    stage.run(20)
    assert sorted(node for node, note in stage.notes if note.detail == "depart") == sorted([1, also])
    stage.kill(1)
    stage.kill(also)
    stage.news(left=(1, also))
    stage.request(next(node for node in (2, 3, 4) if node != also))
    stage.run(1)
    assert len(stage.granted) == 1
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == 1


def test_a_token_that_walks_goes_on_when_its_node_is_no_longer_alone():
    stage = Stage(nodes=1, hints=False)
    stage.run(20)
    assert stage.sent["COMMIT"] == 0
    stage.add(3)
    stage.news(joined=(3,))
    stage.run(5)
    assert stage.sent["COMMIT"] > 10
