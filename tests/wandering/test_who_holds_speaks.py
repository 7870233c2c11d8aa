"""What a holder says to its watchers, when, and what it does when they do not answer: `watch.py`, one machine.

Whoever speaks too often costs two messages each time, and whoever speaks too late is doubted: neither is seen by who
looks at whole groups, where the next word mends it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Feed, Heard, Place, Probe, Seen
from softmutex.core.algorithms.wandering.settings import BEAT, LAZY, PARKED_BEAT, RTO_FIRST, SLACK, SUSPICION
from softmutex.core.events import (
    SECOND,
    CallRoll,
    Effect,
    Escort,
    Grant,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Released,
    Requested,
    Silenced,
    Slept,
    Suspect,
    Ticket,
    Token,
)
from tests.wandering.node import HOME, ME, TOKEN, Node, sent

MS = SECOND // 1000
BEATS = ("beat", 0)
UNWATCHED = Escort((), 0, False)


def holding(token: Token = TOKEN, **options: object) -> Node:
    """It uses the token since now, and nobody has heard of it here."""
    node = Node(**options)  # type: ignore[arg-type]
    node.tell(Requested(1))
    assert [each for each in node.takes(2, 1, token) if isinstance(each, Grant)]
    return node


def at_rest() -> Node:
    """The token has been here for a while, and was never used."""
    node = Node()
    node.takes(2, 1)
    return node


def seen(effects: Sequence[Effect]) -> list[tuple[NodeId, Seen]]:
    return sent(effects, Seen)


def answers(node: Node, sender: NodeId, said: Seen) -> list[Effect]:
    return node.hear(sender, Heard(0, said.place.epoch, said.place.hop, (), False, said.sent))


def suspected(effects: Sequence[Effect]) -> list[NodeId]:
    return [each.node for each in effects if isinstance(each, Suspect)]


# --- in use ----------------------------------------------------------------------------------------------------------


def test_who_holds_speaks_a_beat_after_its_watchers_heard_of_the_token_and_says_for_how_long_it_is_well():
    for unseen in (0, BEAT // 2):
        node = holding(TOKEN._replace(escort=Escort((2, 1), unseen, False)))
        assert node.timers[BEATS] == node.now + BEAT - unseen
        ((to, said),) = seen(node.fire(BEATS))
        assert (to, said) == (2, Seen(Place(0, 7, 5, 50, 4, ME), BEAT + SLACK, (), node.now))
        assert node.timers[BEATS] == node.now + RTO_FIRST
        node.now += 50 * MS
        answers(node, 2, said)
        assert node.timers[BEATS] == said.sent + BEAT


def test_a_token_whose_watchers_have_not_heard_of_it_for_three_quarters_of_a_beat_is_spoken_for_at_once():
    for unseen, speaks in ((3 * BEAT // 4 - 1, False), (3 * BEAT // 4, True)):
        node = Node()
        node.tell(Requested(1))
        assert bool(seen(node.takes(2, 1, TOKEN._replace(escort=Escort((2, 1), unseen, False))))) is speaks


def test_where_the_first_home_does_not_watch_the_token_it_is_told_too_and_sooner():
    for unseen, speaks in ((BEAT // 4 - 1, False), (BEAT // 4, True)):
        node = Node()
        node.tell(Requested(1))
        said = seen(node.takes(2, 1, TOKEN._replace(escort=Escort((2, 3), unseen, False))))
        assert [to for to, _ in said] == [2, HOME] * speaks
    again = seen(node.fire(BEATS))
    assert [to for to, _ in again] == [2]  # of what is not answered only the watcher is told again


def test_a_token_that_names_no_watchers_gets_the_first_two_homes():
    node = holding(TOKEN._replace(escort=UNWATCHED))
    assert [to for to, _ in seen(node.fire(BEATS))] == [1]
    assert node.machine.view().tokens[0].escort.watch == (1, 2)
    node = holding(TOKEN._replace(escort=UNWATCHED), watchers=1)
    node.fire(BEATS)
    assert node.machine.view().tokens[0].escort.watch == (1,)


def test_nobody_watches_itself_and_as_its_own_watcher_speaks_to_the_other_one():
    for watch, to in (((ME, 2), 2), ((ME,), HOME)):
        node = holding(TOKEN._replace(escort=Escort(watch, 0, False)))
        assert to in [receiver for receiver, _ in seen(node.fire(BEATS))]


@pytest.mark.parametrize(("age_s", "pace_s"), [(4, 1.6), (6.4, 1.6), (8, 2), (20, 5), (24, 6), (60, 6)])
def test_a_hold_is_spoken_for_each_quarter_of_its_age_of_a_beat_at_least_and_six_seconds_at_most(
    age_s: float, pace_s: float
):
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    began, pace = node.now, round(pace_s * SECOND)
    while node.timers[BEATS] < began + round(age_s * SECOND):
        for to, said in seen(node.fire(BEATS)):
            answers(node, to, said)
    node.now = node.timers[BEATS] = began + round(age_s * SECOND)
    ((to, said),) = seen(node.fire(BEATS))
    assert said.lease == pace + SLACK
    answers(node, to, said)
    assert node.timers[BEATS] == node.now + pace


def test_a_watcher_that_does_not_answer_is_asked_three_times_suspected_and_replaced():
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    told, doubts = [], []
    for _ in range(5):
        effects = node.fire(BEATS)
        told.append([to for to, _ in seen(effects)])
        doubts.append(suspected(effects))
        assert node.timers[BEATS] == node.now + RTO_FIRST
    assert told == [[2], [2], [2], [1], [1]]
    assert doubts == [[], [], [2], [2], []]
    assert node.machine.context.suspects == {2: node.now - RTO_FIRST + SUSPICION}
    assert node.machine.view().tokens[0].escort.watch == (1, 3)


def test_an_answer_counts_from_when_the_beat_was_sent_and_only_the_watchers_own():
    for sender, sent_off, counts in ((2, 0, True), (1, 0, False), (2, 1, False), (2, -1, False)):
        node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
        ((_, said),) = seen(node.fire(BEATS))
        node.now += 50 * MS
        before = node.timers[BEATS]
        answers(node, sender, said._replace(sent=node.now + 1 if sent_off > 0 else said.sent + sent_off))
        assert (node.timers[BEATS] == said.sent + BEAT) is counts
        assert (node.timers[BEATS] == before) is not counts


def test_an_answer_to_the_second_of_two_beats_measures_that_one():
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    node.fire(BEATS)
    ((_, said),) = seen(node.fire(BEATS))
    assert said.sent == node.now
    node.now += 40 * MS
    answers(node, 2, said)
    assert node.machine.context.round_trip == 40 * MS
    assert node.timers[BEATS] == said.sent + BEAT
    answers(node, 2, said)  # once more: it measures nothing
    assert node.machine.context.rto == 120 * MS


@pytest.mark.parametrize("way_ms", [0, 100])
def test_where_ways_are_long_an_answer_is_waited_for_as_long_as_a_way_there_and_back_and_half_of_that(way_ms: int):
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    node.machine.context.way = way_ms * MS
    ((_, said),) = seen(node.fire(BEATS))
    assert said.lease == BEAT + SLACK + 2 * way_ms * MS
    assert node.timers[BEATS] == node.now + max(RTO_FIRST, 3 * way_ms * MS)


def test_a_holder_that_was_not_heard_of_for_its_pace_and_the_slack_asks_whether_it_was_replaced():
    for late, doubts in ((0, False), (1, True)):
        node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
        node.now += BEAT + SLACK + late
        effects = node.hear(5, Heard(0, 1, 1, (), False, 0))
        assert bool(sent(effects, Probe)) is doubts
        assert node.machine.view().state == ("doubtful" if doubts and not node.machine.view().holding else "holding")


def test_a_holder_in_doubt_tells_a_when_it_has_not_found_out_within_the_slack():
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    node.tell(Slept(SECOND))
    assert node.machine.view().tokens
    began, told = node.now, []
    while not told:
        told = [each for each in node.fire(("probe", 0)) if isinstance(each, Lose)]
    assert told == [Lose(1, LostReason.LEASE)]
    assert SLACK < node.now - began < 2 * SLACK


def test_alone_there_is_nobody_to_speak_to():
    node = Node(members=(ME,))
    node.tell(Requested(1))
    node.fire("listened")
    for _ in range(3):
        if ("retry", 0) in node.timers:
            node.fire(("retry", 0))
    assert node.machine.view().holding == (1,)
    for _ in range(3):
        assert seen(node.fire(BEATS)) == []
        assert node.timers[BEATS] == node.now + BEAT
    node.now += 60 * SECOND
    assert not sent(node.tell(Requested(2)), Probe)


def test_without_a_watch_nobody_is_spoken_to_while_it_is_used():
    node = holding(watch=False)
    assert BEATS not in node.timers
    node.now += 60 * SECOND
    assert not sent(node.tell(Requested(2)), Probe)


# --- at rest ---------------------------------------------------------------------------------------------------------


def test_a_token_that_rests_says_so_and_then_each_seven_seconds():
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    node.now += SECOND
    ((to, said),) = seen(node.tell(Released(1)))
    assert (to, said.lease) == (2, 0)
    for _ in range(3):
        answers(node, to, said)
        assert node.timers[BEATS] == said.sent + PARKED_BEAT
        ((to, said),) = seen(node.fire(BEATS))
        assert (to, said.lease) == (2, 0)


def test_a_token_that_has_just_come_and_that_nobody_wants_is_spoken_for_a_moment_later():
    """It may go on at once. Of one that names no watchers nobody would know."""
    for watch, waits in (((2, 1), True), ((), False)):
        node = Node()
        node.tell(Requested(1))
        node.takes(2, 1, TOKEN._replace(escort=Escort(watch, 0, False)))
        said = seen(node.tell(Released(1)))
        assert bool(said) is not waits
        if waits:
            assert node.timers[BEATS] == node.now + LAZY
            assert [to for to, _ in seen(node.fire(BEATS))] == [2]


def rested() -> tuple[Node, Seen]:
    """It was said that the token rests here, and answered."""
    node = holding(TOKEN._replace(escort=Escort((2, 1), 0, False)))
    node.now += SECOND
    ((to, said),) = seen(node.tell(Released(1)))
    answers(node, to, said)
    return node, said


def test_a_short_use_of_a_token_that_rests_here_costs_no_word():
    """Its watchers believe that it rests, and nobody waits for it: for a beat, and then it is confirmed once."""
    node, _ = rested()
    node.now += SECOND
    began = node.now
    granted = node.tell(Requested(2))
    assert [each for each in granted if isinstance(each, Grant)] and not seen(granted)
    assert node.timers[BEATS] == began + BEAT
    node.now += SECOND // 10
    assert not seen(node.tell(Released(2)))
    assert node.timers[BEATS] == began + BEAT
    for request in (3, 4):
        node.now += SECOND // 10
        node.tell(Requested(request))
        assert not seen(node.tell(Released(request)))
        assert node.timers[BEATS] == began + BEAT
    ((to, confirmed),) = seen(node.fire(BEATS))
    assert (to, confirmed.lease) == (2, 0)
    answers(node, to, confirmed)
    assert node.timers[BEATS] == confirmed.sent + PARKED_BEAT


def test_who_comes_into_the_queue_of_a_token_that_was_taken_unseen_has_it_spoken_for_at_once():
    for uses, speaks in ((True, True), (False, False)):
        node, _ = rested()
        if uses:
            node.tell(Requested(2))
        effects = node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4))
        assert bool([said for _, said in seen(effects) if said.lease]) is speaks


def test_a_token_that_rests_is_doubted_before_it_is_used_where_it_was_not_heard_of_when_it_was_due():
    for late, doubts in ((0, False), (1, True)):
        node, said = rested()
        node.now = said.sent + PARKED_BEAT + node.machine.context.slack + late
        effects = node.tell(Requested(2))
        assert bool(sent(effects, Probe)) is doubts
        assert bool([each for each in effects if isinstance(each, Grant)]) is not doubts


def test_who_has_a_token_at_rest_and_is_heard_by_nobody_gives_up_speaking_for_a_while():
    """After five watchers in a row; whoever answers meanwhile ends that count."""

    def words(node: Node) -> list[list[NodeId]]:
        told: list[list[NodeId]] = []
        for _ in range(40):
            told.append([to for to, _ in seen(node.fire(BEATS))])
            if node.timers[BEATS] == node.now + PARKED_BEAT:
                break
        return told

    node, _ = rested()
    told = words(node)
    assert told[-1] == [] and len(told) == 5 * 3 + 1
    ((to, said),) = seen(node.fire(BEATS))
    for _ in range(3 * 3):
        ((to, said),) = seen(node.fire(BEATS))
    answers(node, to, said)
    assert node.timers[BEATS] == said.sent + PARKED_BEAT
    assert len(words(node)) == len(told)


# --- when others come and go -----------------------------------------------------------------------------------------


def test_watchers_are_the_first_homes_again_as_soon_as_those_are_others():
    node = holding(TOKEN._replace(escort=Escort((1, 2), 0, False)))
    for joined, watch in (((9,), (1, 2)), ((), (1, 2))):
        node.members[:] = sorted({*node.members, *joined})
        assert seen(node.tell(MembersChanged(joined, ()))) == []
        assert node.machine.view().tokens[0].escort.watch == watch
    node.members[:] = [2, 3, 4, 5, 9]
    ((to, _),) = seen(node.tell(MembersChanged((), (1,))))
    assert (to, node.machine.view().tokens[0].escort.watch) == (2, (2, 3))
    assert node.timers[BEATS] == node.now + RTO_FIRST


# --- who lends -------------------------------------------------------------------------------------------------------


def rolls(effects: Sequence[Effect]) -> list[bool]:
    return [each.wide for each in effects if isinstance(each, CallRoll)]


def lender() -> Node:
    return Node(members=(4, 5, 6, 7, 8))  # node 4 is the first home


IN_USE = Seen(Place(0, 7, 5, 50, 4, 6), 2 * SECOND, ())


def test_who_lends_a_lease_looks_whether_another_member_is_there_each_five_seconds():
    node, called = lender(), []
    for at_s in (0, 1, 4.9, 5, 9.9, 10):
        node.now = 1000 * SECOND + round(at_s * SECOND)
        if rolls(node.hear(6, IN_USE)):
            called.append(at_s)
    assert called == [0, 5, 10]


def test_nobody_lends_to_itself():
    node = lender()
    node.tell(Requested(1))
    node.takes(6, 1, TOKEN._replace(escort=Escort((ME, 5), 0, False)))
    assert rolls(node.fire(BEATS)) == [] and not node.machine.home.lends
    assert node.machine.heard_of(0) is None


def test_who_hears_of_a_token_at_rest_lends_nothing_and_does_not_look():
    node = lender()
    assert rolls(node.hear(6, IN_USE._replace(lease=0))) == []


def test_who_lends_asks_all_where_somebody_is_known_to_be_silent():
    node = lender()
    assert rolls(node.tell(Silenced(8))) == []  # it lends nothing yet
    assert rolls(node.hear(6, IN_USE)) == [True]
    assert rolls(node.tell(Silenced(7))) == [True]


def test_a_node_that_was_told_to_proceed_does_not_look():
    node = Node(members=(4, 5, 6, 7, 8))
    node.machine.when_isolated("proceed")  # type: ignore[arg-type]
    assert rolls(node.hear(6, IN_USE)) == []
    assert rolls(node.tell(Silenced(7))) == []
