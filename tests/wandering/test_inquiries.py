"""When a token is looked for, and who may make one: each sentence is a rule that a mutant broke.

They tell *when*: what is looked for too late is found all the same, by somebody whose patience is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Feed, Place, Presence, Probe, Seen, Sight, Want
from softmutex.core.events import (
    SECOND,
    Effect,
    Event,
    FactKind,
    Fired,
    Instant,
    MembersChanged,
    NodeId,
    Note,
    Received,
    Released,
    Returned,
    Send,
    Silenced,
    Slept,
    Ticket,
)
from softmutex.sim.spy import SpiedOn
from tests.wandering.stage import Stage, said_by

HOME, HOLDER, WAITER = 1, 3, 4
PARKED = Seen(Place(0, 7, 1, 77, 12, HOLDER), 0, ())


def probed_by(stage: Stage, node: NodeId, timer: str) -> list[NodeId]:
    """Whom it asks when this is over."""
    effects = stage.machines[node].handle(Fired((timer, 0)), stage.now)
    return [each.to for each in effects if isinstance(each, Send) and isinstance(each.message, Probe)]


# --- a reason --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [HOLDER, HOME])
def test_a_death_that_the_group_tells_of_is_looked_into_at_once_and_not_when_a_beat_is_missed(dead: NodeId):
    """Of the holder, or of the home, which may have fed it."""
    stage = Stage(nodes=5)
    stage.request(dead)
    stage.run(0.5)
    stage.request(WAITER)
    stage.run(0.5)
    stage.kill(dead)
    stage.news(left=(dead,))
    stage.run(0.1)
    assert stage.granted[-1] == (WAITER, 1)


def test_a_token_that_was_committed_to_who_died_is_looked_for_as_soon_as_that_is_known():
    stage = Stage(nodes=5)
    stage.request(HOLDER)
    stage.run(0.5)
    for node in (2, WAITER):
        stage.request(node)
        stage.run(0.5)
    stage.kill(2)
    stage.release(HOLDER)
    stage.run(0.01)
    stage.news(left=(2,))
    stage.run(1)
    assert stage.granted[-1] == (WAITER, 1)


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("second", [1, 2, 3, 4])
def test_nobody_looks_for_a_token_that_goes_from_one_to_another(first: NodeId, second: NodeId):
    """Nor where one of its watchers passed it on, which nobody tells of its arrival before the next beat."""
    stage = Stage(nodes=4)
    stage.request(first)
    stage.run(5)
    stage.release(first)
    stage.request(second, 2)
    stage.run(10)
    assert stage.granted[-1] == (second, 2)
    assert stage.sent["PROBE"] == 0


def test_an_inquiry_that_was_to_be_repeated_is_not_where_the_token_is_known_to_be_parked_since():
    stage = Stage(nodes=4, founder=False)
    stage.tell(HOME, Fired(("retry", 0)))
    said_by(stage, HOME, HOLDER, PARKED)
    assert probed_by(stage, HOME, "retry") == []
    said_by(stage, HOME, HOLDER, PARKED._replace(lease=2 * SECOND))
    stage.now += 3 * SECOND
    assert HOLDER in probed_by(stage, HOME, "retry")


# --- what is found ---------------------------------------------------------------------------------------------------


def test_whoever_was_fed_to_a_token_that_is_found_parked_is_fed_to_it_again_and_once():
    """The first FEED got lost: it would be served by now. A second one is enough: it may wait no longer."""
    stage = Stage(nodes=4, founder=False)
    said_by(stage, HOME, HOLDER, PARKED)
    fed = said_by(stage, HOME, WAITER, Want(WAITER, 1, False, 0))
    assert [each.to for each in fed if isinstance(each.message, Feed)] == [HOLDER]
    stage.now += 3 * SECOND
    again = []
    for _ in range(2):
        asked = stage.machines[HOME].handle(Fired(("watch", 0)), stage.now)
        numbers = [each.message.number for each in asked if isinstance(each, Send) and isinstance(each.message, Probe)]
        for number in numbers[:1]:
            found = said_by(stage, HOME, HOLDER, Sight(number, 0, PARKED.place, Presence.PARKED, True))
            again += [each.message.tickets for each in found if isinstance(each.message, Feed)]
        stage.now += 3 * SECOND
    assert again == [(Ticket(WAITER, 1),)]


def test_who_was_in_its_queue_when_it_was_last_seen_had_its_turn_where_it_is_found_parked():
    """They were fed again, and again by the next watcher: it went to dozens who refused it, one after the other."""
    stage = Stage(nodes=4, founder=False)
    said_by(stage, HOME, HOLDER, PARKED._replace(lease=2 * SECOND, queue=(Ticket(WAITER, 1),)))
    stage.now += 3 * SECOND
    (number,) = {
        each.message.number
        for each in stage.machines[HOME].handle(Fired(("watch", 0)), stage.now)
        if isinstance(each, Send) and isinstance(each.message, Probe)
    }
    found = said_by(stage, HOME, HOLDER, Sight(number, 0, PARKED.place, Presence.PARKED, True))
    assert [each for each in found if isinstance(each.message, Feed)] == []


def test_a_token_that_is_offered_to_the_next_one_is_not_parked():
    stage = Stage(nodes=4, early=False)
    stage.request(2)
    stage.run(1)
    stage.request(HOLDER)
    stage.run(0.1)
    stage.machines[2].handle(Released(1, b""), stage.now)
    (sight,) = [each.message for each in said_by(stage, 2, 4, Probe(7, 0, 0, None, False)) if each.to == 4]
    assert isinstance(sight, Sight)
    assert sight.presence is Presence.IN_USE


# --- who may make one ------------------------------------------------------------------------------------------------


def test_a_ballot_is_promised_to_one_node_at_a_time_and_is_free_when_that_one_says_so():
    """Two that each have the promise of all whom they ask make two tokens."""
    stage = Stage(nodes=5, founder=False)
    voter, first, second = 5, 2, HOME

    def is_free_for(node: NodeId, ballot: int = 1001) -> bool:
        (answer,) = [each for each in said_by(stage, voter, node, Probe(7, 0, ballot, None, False)) if each.to == node]
        assert isinstance(answer.message, Sight)
        return answer.message.free

    stage.tell(voter, Silenced(HOME))  # so the next one is the first
    assert is_free_for(first)
    stage.tell(voter, Returned(HOME))
    assert not is_free_for(second)
    assert is_free_for(first, ballot=0)
    assert is_free_for(second)
    stage.now += 10 * SECOND  # it died with the promise
    stage.tell(voter, Silenced(HOME))
    assert is_free_for(first)


def inquiry(stage: Stage, node: NodeId, event: Event) -> tuple[dict[NodeId, int], list[Note]]:
    """Whom it asks, by which number, and what it tells of tokens that it made."""
    effects = stage.machines[node].handle(event, stage.now)
    asked = {
        each.to: each.message.number for each in effects if isinstance(each, Send) and isinstance(each.message, Probe)
    }
    return asked, [each for each in effects if isinstance(each, Note) and each.kind is FactKind.GENERATED]


def test_who_came_while_the_others_were_asked_is_asked_too():
    stage = Stage(nodes=4, founder=False)
    stage.now += 10 * SECOND  # it is no newcomer
    asked, _ = inquiry(stage, HOME, Received(WAITER, Want(WAITER, 1, False, 0)))
    assert sorted(asked) == [2, 3, 4]
    stage.members.append(9)
    stage.tell(HOME, MembersChanged((9,), ()))
    nothing = Sight(0, 0, None, Presence.ABSENT, True)
    for node in (2, 3):
        assert inquiry(stage, HOME, Received(node, nothing._replace(number=asked[node]))) == ({}, [])
    then, made = inquiry(stage, HOME, Received(4, nothing._replace(number=asked[4])))
    assert (list(then), made) == ([9], [])
    _, made = inquiry(stage, HOME, Received(9, nothing._replace(number=then[9])))
    assert len(made) == 1


@pytest.mark.parametrize("has_left", [False, True])
def test_who_has_it_is_asked_though_it_was_never_heard_of_here_but_not_who_left(has_left: bool):
    """A newcomer had the token, and was known to the home by what others said. It was not asked, and two had one."""
    stage, stranger = Stage(nodes=4, founder=False), 77
    stage.now += 10 * SECOND
    if has_left:
        stage.tell(HOME, MembersChanged((), (stranger,)))
    there = PARKED.place._replace(holder=stranger)
    stage.tell(HOME, Received(2, Sight(0, 0, there, Presence.ABSENT, True)))
    asked, _ = inquiry(stage, HOME, Received(WAITER, Want(WAITER, 1, False, 0)))
    if not has_left:
        assert not asked  # it is fed first
        asked, _ = inquiry(stage, HOME, Fired(("watch", 0)))
    assert (stranger in asked) is not has_left and asked


def test_who_is_no_member_and_does_not_answer_makes_no_larger_half():
    """It died before this node, the first of two, had heard of it: nobody would ever say that it is gone."""
    stage = Stage(nodes=2, founder=False)
    first = stage.machines[1].context.first
    stage.now += 10 * SECOND
    there = PARKED.place._replace(holder=77)
    stage.tell(first, Received(3 - first, Sight(0, 0, there, Presence.ABSENT, True)))
    stage.tell(first, Received(3 - first, Want(3 - first, 1, False, 0)))
    asked, made = inquiry(stage, first, Fired(("watch", 0)))
    assert 77 in asked
    for _ in range(10):
        stage.now += SECOND
        made += inquiry(stage, first, Fired(("probe", 0)))[1]
    assert len(made) == 1


def test_who_found_it_keeps_nobody_else_from_making_one():
    """Its ballot was promised by all whom it had asked, and for a dozen seconds, where the network is slow."""
    stage = Stage(nodes=4, founder=False)
    stage.now += 10 * SECOND
    asked, _ = inquiry(stage, HOME, Received(WAITER, Want(WAITER, 1, False, 0)))
    stage.tell(HOME, Received(2, Sight(asked[2], 0, None, Presence.ABSENT, True)))
    found = Sight(asked[HOLDER], 0, PARKED.place, Presence.PARKED, True)
    said = [each for each in stage.machines[HOME].handle(Received(HOLDER, found), stage.now) if isinstance(each, Send)]
    given_back = [each.to for each in said if isinstance(each.message, Probe) and not each.message.ballot]
    assert given_back == [2, HOLDER]


def test_who_slept_does_not_take_its_sleep_for_the_slowness_of_the_network():
    """It waited for three seconds for each answer, and for a dead node for eighteen, with the token that it doubted."""
    stage = Stage(nodes=4, founder=False)
    asked, _ = inquiry(stage, HOME, Received(WAITER, Want(WAITER, 1, False, 0)))
    stage.now += 20 * SECOND
    stage.tell(HOME, Slept(20 * SECOND))
    stage.tell(HOME, Received(2, Sight(asked[2], 0, None, Presence.ABSENT, True)))
    stage.tell(HOME, Fired(("probe", 0)))
    assert stage.timers[HOME, ("probe", 0)] < stage.now + SECOND


@pytest.mark.parametrize(("holder", "makes_one"), [(77, False), (HOLDER, True)])
def test_a_newcomer_that_hears_of_a_holder_whom_it_does_not_know_makes_nothing(holder: NodeId, makes_one: bool):
    """It was asked whether it is a member, and who is none counted as lost. It may be told of it in a moment."""
    stage = Stage(nodes=4, founder=False)
    place, made = PARKED.place._replace(holder=holder), list[Note]()
    event: Event = Received(WAITER, Want(WAITER, 1, False, 0))
    for _ in range(3):
        asked, _ = inquiry(stage, HOME, event)
        for node, number in asked.items():
            _, each = inquiry(stage, HOME, Received(node, Sight(number, 0, place, Presence.ABSENT, True)))
            made += each
        stage.now += SECOND
        event = Fired(("retry", 0))
    assert bool(made) is makes_one


def test_who_waits_asks_soon_when_the_first_home_is_back():
    """Who stood in for it may have the ticket, and what that fed may not have arrived."""
    stage = Stage(nodes=5)
    stage.request(1)
    stage.run(1)
    stage.request(4)
    stage.run(1)
    first = stage.machines[4].context.first
    others = [node for node in (2, 3, 5) if node != first]
    later = stage.timers[4, "want"]
    assert later > stage.now + SECOND
    for node in (*others, first):
        stage.tell(4, Silenced(node))
        stage.timers[4, "want"] = later
        stage.tell(4, Returned(node))
        assert (stage.timers[4, "want"] < stage.now + SECOND) is (node == first)


def test_an_answer_of_who_was_given_up_does_not_end_the_wait_for_those_who_are_still_asked():
    """A sample is given up sooner than the homes. Its late answer counts, and nobody else's question is over by it."""
    stage = Stage(nodes=40, founder=False)
    stage.run(1)
    stage.cut = set(stage.members)
    rounds: list[dict[NodeId, int]] = []

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        sent = [(each.to, each.message) for each in effects if isinstance(each, Send)]
        asked = {to: message.number for to, message in sent if isinstance(message, Probe)}
        if asked:
            rounds.append(asked)

    stage.machines[20] = SpiedOn(stage.machines[20], 20, look)  # type: ignore[assignment]
    stage.request(20)
    while len(rounds) < 2 or not 1 < len(rounds[-1]) < len(rounds[-2]):
        stage.run(0.01)
    number = next(iter(rounds[-1].values()))
    given_up = rounds[-2].keys() - rounds[-1].keys()
    assert len(given_up) >= len(rounds[-1])
    for node in sorted(given_up):
        assert said_by(stage, 20, node, Sight(number, 0, None, Presence.ABSENT, True)) == []
