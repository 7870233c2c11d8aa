"""What a node remembers of its holds, and how two tokens that met are looked into: `evidence.py`, one machine.

An overlap that is not told of breaks no law that counts who is in; it is missed by whoever has to mend what two did.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.evidence import AGAIN, CASES, TRIES, VISITS
from softmutex.core.algorithms.wandering.messages import (
    Account,
    Place,
    Presence,
    Probe,
    Recall,
    Sight,
    Span,
    Together,
    Want,
)
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Effect,
    FactKind,
    Fired,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Note,
    Overlapped,
    Released,
    Requested,
    Slept,
)
from softmutex.core.messages import Done
from tests.wandering.node import ME, TOKEN, Node, sent

MS = SECOND // 1000
MINE = Place(0, 7, 5, 50, 4, ME)  # as it came
BETTER = Place(0, 8, 9, 99, 6, 3)
RIVAL = BETTER


def held(for_s: float = 1.0, ago_s: float = 2.0) -> Node:
    """It came from 2, was used at once, and has rested here since."""
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1)
    node.now += round(for_s * SECOND)
    node.tell(Released(1))
    node.now += round(ago_s * SECOND)
    return node


def account(node: Node, place: Place, rival: Place = RIVAL, told: Together | None = None) -> Account:
    ((to, said),) = sent(node.hear(9, Recall(5, place, rival, told)), Account)
    assert (to, said.number) == (9, 5)
    return said


def recalls(effects: Sequence[Effect]) -> list[tuple[NodeId, Place, Together | None]]:
    return [(to, recall.place, recall.told) for to, recall in sent(effects, Recall)]


def asked(effects: Sequence[Effect]) -> dict[NodeId, Recall]:
    return dict(sent(effects, Recall))


# --- what it says ----------------------------------------------------------------------------------------------------


def test_a_visit_is_told_of_by_how_long_ago_it_was_and_where_the_token_came_from():
    node = held()
    before = Place(0, 7, 5, 50, 3, 2)
    said = Account(5, MINE, 3 * SECOND, (Span(1, 3 * SECOND, 2 * SECOND),), False, before, None, (RIVAL,))
    assert account(node, MINE) == said
    assert account(node, MINE._replace(hop=99)).place == MINE  # the last one that began by then
    assert account(node, MINE._replace(hop=3)) == Account(5, None, 0, (), False, None, None, ())


def test_a_hold_that_runs_is_told_of_as_such():
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1)
    node.now += SECOND
    said = account(node, MINE)
    assert (said.running, said.spans) == (True, (Span(1, SECOND, 0),))
    node.tell(Released(1))
    said = account(node, MINE)
    assert (said.running, said.spans[0].ended) == (False, 0)


def test_where_the_token_went_is_told_from_when_it_is_committed():
    node = held()
    node.hear(5, Want(5, 1, False, 1, 0))  # it goes there at once
    there = Place(0, 7, 5, 50, 5, 5)
    assert account(node, MINE).after == there
    (debt,) = node.machine.handover.outgoing.values()
    node.hear(5, Done(debt.nonce, debt.reply))
    assert account(node, MINE).after == there
    assert node.machine.evidence.last_seen() == [there]


def test_which_tokens_were_discarded_for_this_one_is_told_too_the_last_four_and_each_once():
    node = held()
    rivals = [RIVAL._replace(id=number) for number in (1, 2, 3, 3, 4, 5)]
    for rival in rivals:
        said = account(node, MINE, rival)
    assert [rival.id for rival in said.rivals] == [2, 3, 4, 5]
    assert account(node, MINE, MINE._replace(hop=9)).rivals == said.rivals  # the same token is none


def test_so_many_visits_are_remembered_and_of_each_so_many_holds():
    node = held()
    visit = node.machine.evidence.find(MINE)
    assert visit is not None
    for request in range(2, 22):
        visit.begin(request, node.now)
        visit.end(node.now)
    assert [span.request for span in account(node, MINE).spans] == list(range(6, 22))
    evidence = node.machine.evidence
    for number in range(100, 100 + VISITS):
        evidence.begin(TOKEN._replace(id=number), MINE._replace(id=number), 2)
    assert account(node, MINE).place is None
    assert account(node, MINE._replace(id=100)).place is not None


def test_a_token_that_was_made_here_came_from_nobody_and_one_of_hop_0_from_hop_0():
    evidence = Node().machine.evidence
    assert evidence.begin(TOKEN, MINE, 0).before is None
    assert evidence.begin(TOKEN, MINE._replace(hop=0), 2).before == MINE._replace(hop=0, holder=2)


# --- an overlap is told ----------------------------------------------------------------------------------------------


def test_a_hold_that_overlapped_is_told_so_once_while_it_runs_and_noted_once():
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1)
    told = []
    for length in (SECOND, 2 * SECOND):
        effects = node.hear(3, Recall(5, MINE, RIVAL, Together(1, 8, length)))
        told.append([type(each) for each in effects if isinstance(each, Overlapped | Note | Lose)])
        assert Overlapped(1, 3, 8, length) in effects
    assert told == [[Overlapped, Note, Lose], [Overlapped]]
    assert [
        each for each in node.hear(3, Recall(5, MINE, RIVAL, Together(2, 8, 1))) if isinstance(each, Overlapped)
    ] == []


def test_a_hold_that_is_over_is_noted_and_nobody_is_told_that_it_is_lost():
    node = held()
    effects = node.hear(3, Recall(5, MINE, RIVAL, Together(1, 8, SECOND)))
    assert [each.kind for each in effects if isinstance(each, Note)] == [FactKind.OVERLAP]
    assert not [each for each in effects if isinstance(each, Lose)]


# --- two tokens have met ---------------------------------------------------------------------------------------------


def met(used_s: float = 1.0, runs: bool = False) -> tuple[Node, list[Effect]]:
    """Its token was discarded for a better one, which 3 has; what it sends."""
    node = Node()
    node.tell(Requested(1))
    node.takes(2, 1)
    node.now += round(used_s * SECOND)
    if not runs:
        node.tell(Released(1))
    effects = node.tell(Slept(SECOND))
    (number,) = {probe.number for _, probe in sent(effects, Probe)}
    effects = node.hear(3, Sight(number, 0, BETTER, Presence.IN_USE, True))
    return node, effects


CASE = ("case", 1)


def spans(ago_s: float, for_s: float, request: int = 8) -> tuple[Span, ...]:
    return (Span(request, round(ago_s * SECOND), round((ago_s - for_s) * SECOND)),)


def said_by_3(number: int, came_s: float, *its: Span, running: bool = False, **links: Place | None) -> Account:
    before, after = links.get("before"), links.get("after")
    return Account(number, BETTER, round(came_s * SECOND), its, running, before, after, ())


def test_who_discards_its_token_asks_the_better_ones_holder_and_tells_both_of_an_overlap():
    node, effects = met()
    ((to, recall),) = sent(effects, Recall)
    assert (to, recall.place, recall.told, recall.rival) == (3, BETTER, None, MINE)
    node.now += 20 * MS
    effects = node.hear(3, said_by_3(recall.number, 0.9, *spans(0.7, 0.3)))
    # Our hold ran from 1.02 to 0.02 s ago, the other one from 0.7 to 0.4, said 10 ms ago.
    assert Overlapped(1, 3, 8, 300 * MS) in effects
    assert recalls(effects) == [(3, BETTER, Together(8, 1, 300 * MS))]
    assert Lose(1, LostReason.OVERLAP) not in effects


@pytest.mark.parametrize(("ago_s", "is_told"), [(1.215, False), (1.235, False), (1.19, True), (0.31, True)])
def test_an_overlap_shorter_than_a_round_trip_is_none(ago_s: float, is_told: bool):
    """Our hold ran from 1.02 to 0.02 s ago, the other one for 0.2 s from so long ago; that is known to 10 ms."""
    node, effects = met()
    ((_, recall),) = sent(effects, Recall)
    node.now += 20 * MS
    effects = node.hear(3, said_by_3(recall.number, 2.0, *spans(ago_s - 0.01, 0.2)))
    assert bool([each for each in effects if isinstance(each, Overlapped)]) is is_told


def test_the_trail_is_followed_back_as_long_as_the_other_token_was_there_and_forward_where_it_went_on():
    node, effects = met()
    ((_, recall),) = sent(effects, Recall)
    before, after = BETTER._replace(hop=5, holder=5), BETTER._replace(hop=7, holder=1)
    effects = node.hear(3, said_by_3(recall.number, 0.5, before=before, after=after))
    assert (5, before, None) in recalls(effects)  # it came after our hold had begun: who had it before?
    node, effects = met()
    ((_, recall),) = sent(effects, Recall)
    effects = node.hear(3, said_by_3(recall.number, 5.0, before=before, after=after))
    assert (5, before, None) not in recalls(effects)
    assert (2, MINE._replace(hop=3, holder=2), None) in recalls(effects)  # there it is ours that came later


def test_a_question_that_is_not_answered_is_repeated_twice_as_late_each_time_and_not_for_ever():
    node, _ = met()
    pauses, count = [], 0
    for _ in range(40):
        pauses.append((node.timers[CASE] - node.now) / SECOND)
        count += len([to for to, *_ in recalls(node.fire(CASE)) if to == 3])
        if CASE not in node.timers:
            break
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4] and max(pauses) == 4.0  # answers take no time on this network
    assert count == TRIES - 1
    assert node.machine.evidence.cases == {}


def test_after_four_times_others_are_asked_too_for_it_may_sleep_for_long():
    node, _ = met()
    whom = [{to for to, *_ in recalls(node.fire(CASE))} for _ in range(5)]
    assert whom[:3] == [{3}, {3}, {3}]
    assert whom[3] >= {1, 2, 5}


def test_of_who_is_no_member_any_more_others_are_asked_what_they_know():
    node, _ = met()
    node.members.remove(3)
    node.tell(MembersChanged((), (3,)))
    effects = node.fire(CASE)
    assert 3 not in asked(effects)


def test_where_the_better_token_was_sent_and_not_taken_others_are_asked():
    node, effects = met()
    ((_, recall),) = sent(effects, Recall)
    effects = node.hear(3, Account(recall.number, None, 0, (), False, None, None, ()))
    assert asked(effects).keys() >= {1, 2, 5}
    assert {recall.place for recall in asked(effects).values()} == {
        BETTER._replace(holder=each) for each in asked(effects)
    }


@pytest.mark.parametrize(("took_ms", "is_good"), [(200, True), (201, False)])
def test_of_the_first_answer_a_fifth_of_a_second_is_long(took_ms: int, is_good: bool):
    node, effects = met()
    ((_, recall),) = sent(effects, Recall)
    node.now += took_ms * MS
    effects = node.hear(3, said_by_3(recall.number, 0.9, *spans(0.7, 0.3)))
    assert bool([each for each in effects if isinstance(each, Overlapped)]) is is_good


def test_an_answer_that_was_long_on_its_way_is_asked_for_again():
    """The spans would be as vague. The usual one is what the others took."""
    node, effects = met()
    ((_, recall),) = sent(effects, Recall)
    before = BETTER._replace(hop=5, holder=5)
    node.now += 20 * MS
    effects = node.hear(3, said_by_3(recall.number, 0.5, *spans(0.4, 0.1), before=before))
    asked_5 = next(each for to, each in sent(effects, Recall) if to == 5)
    node.now += 200 * MS
    late = Account(asked_5.number, before, SECOND, spans(0.6, 0.1, 9), False, None, None, ())
    assert not [each for each in node.hear(5, late) if isinstance(each, Overlapped)]
    again = next(each for to, each in sent(node.fire(CASE), Recall) if to == 5)
    node.now += 20 * MS
    told = [each for each in node.hear(5, late._replace(number=again.number)) if isinstance(each, Overlapped)]
    assert [each[1:3] for each in told] == [(5, 9)]


def test_while_the_hold_goes_on_without_its_token_it_is_looked_for_each_five_seconds_whom_it_meets():
    node, effects = met(runs=True)
    assert Lose(1, LostReason.OVERLAP) in effects
    ((_, recall),) = sent(effects, Recall)
    effects = node.hear(3, said_by_3(recall.number, 0.5))
    for to, question in list(sent(effects, Recall)):
        effects = node.hear(to, Account(question.number, None, 0, (), False, None, None, ()))
    for _ in range(10):
        if node.timers[CASE] - node.now == AGAIN:
            break
        for to, question in sent(node.fire(CASE), Recall):
            node.hear(to, Account(question.number, None, 0, (), False, None, None, ()))
    assert node.timers[CASE] - node.now == AGAIN
    assert (3, BETTER, None) in recalls(node.fire(CASE))
    assert 3 in asked(node.tell(Released(1)))  # and once more when it is over


def test_so_many_cases_are_looked_into_at_once_and_the_oldest_ends():
    node, _ = met()
    evidence = node.machine.evidence
    for number in range(CASES):
        evidence.context.begin(node.now)
        visit = evidence.begin(TOKEN._replace(id=1000 + number), MINE._replace(id=1000 + number), 2)
        evidence.met(visit, BETTER)
    assert len(evidence.cases) == CASES and 1 not in evidence.cases
    assert CancelTimer(CASE) in evidence.context.out
    node.tell(Fired("nothing"))
    assert node.tell(Fired(CASE)) == []


def test_what_nobody_asked_is_no_answer():
    node, effects = met()
    assert node.hear(3, said_by_3(99, 0.5, *spans(0.4, 0.1))) == []
    ((_, recall),) = sent(effects, Recall)
    effects = node.hear(3, said_by_3(recall.number, 0.5, *spans(0.4, 0.1)))
    assert [each for each in effects if isinstance(each, Overlapped)]
    assert node.hear(3, said_by_3(recall.number, 0.5, *spans(0.4, 0.1))) == []  # it was answered
