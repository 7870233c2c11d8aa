"""What a node does at once on what it hears, and not at the next beat or time-out: each sentence is a rule that a
mutant broke. What is done later is done all the same, so whole groups go on well without these rules, but slower.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.algorithms.wandering.messages import (
    Account,
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
from softmutex.core.algorithms.wandering.settings import GRACE, QUEUE
from softmutex.core.algorithms.wandering.tokens import KeptAhead
from softmutex.core.at_once import STANDING
from softmutex.core.events import (
    SECOND,
    Effect,
    Event,
    FactKind,
    Instant,
    LostReason,
    MembersChanged,
    NodeId,
    Note,
    Received,
    Released,
    Returned,
    Send,
    SetTimer,
    Silenced,
    Ticket,
    Token,
    from_seconds,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Commit, Message, Void
from softmutex.core.timing import Timing
from softmutex.sim.spy import SpiedOn
from tests.wandering import stage as stages
from tests.wandering.stage import Stage, place_of_token, said_by

HOME, WAITER = 1, 4
OLDER = Place(0, 7, 1, 77, 12, 3)
BETTER = Place(0, 8, 1, 88, 2, 2)
LEASE = 2 * SECOND


def sent(effects: Sequence[Effect], kind: type[Message]) -> list[tuple[NodeId, Message]]:
    return [(each.to, each.message) for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]


def told(stage: Stage, node: NodeId, event: Event) -> Sequence[Effect]:
    return list(stage.machines[node].handle(event, stage.now))


# --- a holder --------------------------------------------------------------------------------------------------------


def test_the_first_thing_that_a_holder_does_after_it_was_stopped_is_to_look_whether_it_was_replaced():
    """Whatever it hears first, and also where nobody tells it that it slept."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.now += 10 * SECOND
    looked = told(stage, 3, Received(2, Queued(99, 0)))
    assert {to for to, _ in sent(looked, Probe)} >= {1, 2}


def test_who_asks_a_home_that_has_just_committed_the_token_is_fed_to_where_it_goes_at_once():
    """And not when the other one has said that it is there: that word may get lost."""
    stage = Stage(nodes=4)
    for node in (HOME, 2):
        stage.request(node)
        stage.run(0.5)
    stage.release(HOME)
    fed = sent(said_by(stage, HOME, 3, Want(3, 1, False, 0)), Feed)
    assert [(to, message.tickets) for to, message in fed if isinstance(message, Feed)] == [(2, (Ticket(3, 1),))]


# --- a home ----------------------------------------------------------------------------------------------------------


def home_of(*seen: Seen) -> Stage:
    stage = Stage(nodes=5, founder=False)
    for each in seen:
        said_by(stage, HOME, each.place.holder, each)
    return stage


def test_who_was_in_the_queue_of_a_token_that_was_replaced_is_fed_to_the_new_one():
    stage = home_of(Seen(OLDER, LEASE, (Ticket(WAITER, 1),)))
    heard = sent(said_by(stage, HOME, BETTER.holder, Seen(BETTER, 0, ())), Heard)
    assert [(to, message.tickets) for to, message in heard if isinstance(message, Heard)] == [
        (BETTER.holder, (Ticket(WAITER, 1),))
    ]


def test_whose_token_was_replaced_is_told_by_the_home_as_soon_as_that_hears_of_the_new_one():
    stage = home_of(Seen(OLDER, LEASE, ()))
    sights = sent(said_by(stage, HOME, BETTER.holder, Seen(BETTER, LEASE, ())), Sight)
    assert sights == [(OLDER.holder, Sight(0, 0, BETTER, Presence.ABSENT, False))]


@pytest.mark.parametrize("place", [0, 1, 2, 5, 6, 1000])
@pytest.mark.parametrize("nodes", [1, 2, 5, 20])
def test_the_first_of_the_ring_is_the_home_of_a_group_that_is_well(nodes: int, place: int):
    setup = Setup(1, list(range(1, 1 + nodes)), random.Random(1), Timing(op=1.0), {}, place=place)
    context = Wandering(setup).context
    assert context.first == context.ring()[0] == context.homes(1)[0] == context.home
    assert context.first == (place if 0 < place <= nodes else 1)


@pytest.mark.parametrize("node", [HOME, 5])
def test_a_ticket_that_missed_the_token_goes_after_it_and_the_home_notes_that(node: NodeId):
    """Should the token be replaced, the home feeds it once more."""
    stage = Stage(nodes=5, founder=False)
    said_by(stage, node, OLDER.holder, Seen(OLDER, LEASE, ()))
    late = Feed(0, (Ticket(WAITER, 1),), False, 2)
    sent_on = [(each.to, type(each.message)) for each in said_by(stage, node, 2, late)]
    assert sent_on == [(OLDER.holder, Feed)]
    if node == HOME:
        heard = sent(said_by(stage, HOME, BETTER.holder, Seen(BETTER, 0, ())), Heard)
        assert [message.tickets for _, message in heard if isinstance(message, Heard)] == [(Ticket(WAITER, 1),)]


# --- who looks for it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("presence", "place"),
    [
        (Presence.PARKED, OLDER),
        (Presence.DOUBTED, OLDER),
        (Presence.WATCHED, OLDER),
        (Presence.PASSING, OLDER._replace(holder=HOME)),
    ],
)
def test_no_token_is_made_while_somebody_has_one_whatever_is_the_matter_with_it(presence: Presence, place: Place):
    """A better one was made after it, and is nowhere to be found; it is doubted; it comes here, or goes back. Where it
    is only not the best, its holder is told, and finds out."""
    stage = home_of(Seen(BETTER, LEASE, ()))
    stage.members.remove(BETTER.holder)
    effects = told(stage, HOME, MembersChanged((), (BETTER.holder,)))
    stage.now += SECOND
    warned = []
    for _ in range(40):
        asked = sent(effects, Probe)
        effects = []
        for to, probe in asked:
            assert isinstance(probe, Probe)
            has_it = to == OLDER.holder
            answer = Sight(probe.number, 0, place if has_it else None, Presence(presence * has_it), True)
            effects += told(stage, HOME, Received(to, answer))
        warned += sent(effects, Sight)
        made = [each for each in effects if isinstance(each, Note) and each.kind is FactKind.GENERATED]
        assert not made
        if not sent(effects, Probe):
            break
    is_warned = (OLDER.holder, Sight(0, 0, BETTER, Presence.ABSENT, False)) in warned
    assert is_warned is (presence is Presence.PARKED)


@pytest.mark.parametrize(("late_s", "is_enough"), [(0.8, False), (1.4, True)])
def test_whom_the_group_calls_silent_is_not_waited_for_after_a_second(
    late_s: float, is_enough: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stages, "DELAY", from_seconds(0.1))
    stage = Stage(nodes=5)
    for node in (2, 3):  # it learns how long an answer takes
        stage.request(node)
        stage.run(3)
        stage.release(node)
    stage.request(3, 2)
    stage.run(3)
    stage.request(WAITER)
    stage.run(1)
    stage.cut = {5}
    stage.kill(3)
    stage.news(left=(3,))
    stage.run(0.001)
    while not [each for each in stage.timers if each == (HOME, ("probe", 0))]:
        stage.run(0.001)
    probes = stage.sent["PROBE"]
    stage.run(late_s)
    assert stage.sent["PROBE"] > probes
    made = [note.kind for _, note in stage.notes].count(FactKind.GENERATED)
    stage.tell(HOME, Silenced(5))
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == made + is_enough


@pytest.mark.parametrize("nodes", [5, 40])
def test_before_a_token_is_made_everybody_is_asked(nodes: int):
    stage = Stage(nodes=nodes)
    stage.request(3)
    stage.run(0.5)
    asked = set[NodeId]()

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        asked.update(to for to, probe in sent(effects, Probe) if isinstance(probe, Probe) and probe.ballot)

    stage.machines[HOME] = SpiedOn(stage.machines[HOME], HOME, look)  # type: ignore[assignment]
    stage.kill(3)
    stage.news(left=(3,))
    stage.request(WAITER)
    stage.run(2)
    assert stage.granted[-1] == (WAITER, 1)
    assert asked == set(range(2, nodes + 1)) - {3}


def test_who_may_not_make_a_token_leaves_the_ballots_to_others_at_once():
    """Its own too: two that keep theirs keep each other from it."""
    stage, asker = Stage(nodes=4, founder=False), 3
    stage.run(5)
    machine = stage.machines[asker]
    machine.context.begin(stage.now)
    machine.search.census()
    effects: Sequence[Effect] = machine.context.out
    for _ in range(10):
        asked, effects = sent(effects, Probe), []
        for to, probe in asked:
            assert isinstance(probe, Probe)
            if probe.ballot:
                refused = Sight(probe.number, 0, None, Presence.ABSENT, False)
                effects = [*effects, *told(stage, asker, Received(to, refused))]
    (answer,) = [
        sight for to, sight in sent(said_by(stage, asker, HOME, Probe(7, 0, 1001, None, False)), Sight) if to == HOME
    ]
    assert isinstance(answer, Sight) and answer.free


def test_who_says_that_it_hears_nobody_keeps_no_ballot():
    stage, voter = Stage(nodes=5, founder=False), 5

    def is_free_for(node: NodeId) -> bool:
        (answer,) = [each for each in said_by(stage, voter, node, Probe(7, 0, 1001, None, False)) if each.to == node]
        assert isinstance(answer.message, Sight)
        return answer.message.free

    stage.tell(voter, Silenced(HOME))
    assert is_free_for(2)
    stage.tell(voter, Returned(HOME))
    assert not is_free_for(HOME)
    said_by(stage, voter, 2, Probe(0, 0, 0, None, False))
    assert is_free_for(HOME)


def test_a_home_that_inherits_a_token_misses_it_when_it_is_not_heard_of_for_a_beat():
    stage = Stage(nodes=5, founder=False)
    effects = told(stage, HOME, Received(2, Bequest(OLDER, ())))
    assert SetTimer(("watch", 0), stage.now + GRACE) in effects


# --- who waits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speaks", [True, False])
def test_a_home_that_is_heard_is_not_passed_over_though_no_answer_comes(speaks: bool):
    """Whether anybody looks for the token because of it: a wide inquiry asks everybody."""
    stage, waiter = Stage(nodes=5), 3
    looked: list[NodeId] = []

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        looked.extend(to for to, _ in sent(effects, Probe))

    stage.machines[waiter] = SpiedOn(stage.machines[waiter], waiter, look)  # type: ignore[assignment]
    stage.run(1)
    stage.cut = {1, 2, 4, 5}
    stage.request(waiter)
    for _ in range(60):
        stage.run(0.25)
        if speaks:
            stage.tell(waiter, Received(HOME, Account(99, None, 0, (), False, None, None, ())))
    assert bool(looked) is not speaks


def test_who_had_its_turn_is_not_reminded_and_who_was_told_to_wait_is():
    stage, home, waiter = Stage(nodes=30, founder=False), 1, 29
    said_by(stage, home, 6, Seen(Place(0, 7, 1, 70, 500, 6), LEASE, ()))
    for other in range(8, 30):
        said_by(stage, home, other, Want(other, 1, False, 0))
    stage.run(1)
    reminded = set[NodeId]()
    for hop, lease, holder in ((510, LEASE, waiter), *((510 + at, at % 2 * LEASE, 6) for at in range(1, 6))):
        stage.run(1)
        said = said_by(stage, home, holder, Seen(Place(0, 7, 1, 70, hop, holder), lease, ()))
        reminded |= {each.to for each in said if isinstance(each.message, Queued) and not each.message.patience}
    assert waiter not in reminded and 28 in reminded


def test_who_never_answers_that_its_turn_comes_loses_its_place():
    """It is there, says the group, and gets the token from nobody: others are not to be kept by it."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.request(2)
    stage.run(0.0015)  # the home knows of it
    stage.cut = {2}
    stage.run(30)
    assert stage.machines[3].view().queue == ()


# --- two tokens ------------------------------------------------------------------------------------------------------


def test_a_holder_whose_watcher_takes_back_its_lease_looks_into_it_at_once():
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    mine = place_of_token(stage, 3)
    worse = mine._replace(epoch=mine.epoch - 1, id=9, holder=4)
    assert not sent(said_by(stage, 3, HOME, Sight(0, 0, worse, Presence.ABSENT, False)), Probe)
    assert not sent(said_by(stage, 3, HOME, Sight(0, 0, mine, Presence.ABSENT, False)), Probe)
    assert sent(said_by(stage, 3, HOME, Sight(0, 0, mine, Presence.DOUBTED, False)), Probe)


@pytest.mark.parametrize(("other", "says_so", "follows"), [(4, 4, Probe), (2, 2, Sight), (4, 5, None), (2, 5, None)])
def test_a_copy_of_a_token_is_believed_of_its_own_holder_only(
    other: NodeId, says_so: NodeId, follows: type[Message] | None
):
    """As a liar makes one. Of the two the one further on stays; what a third one says may be of long ago."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    copy = place_of_token(stage, 3)._replace(holder=other)
    said = said_by(stage, 3, says_so, Sight(0, 0, copy, Presence.ABSENT, False))
    assert {type(each.message) for each in said} == ({follows} if follows else set())


def committed() -> tuple[Stage, Commit]:
    """3 has committed its token to 2, and no answer comes."""
    stage = Stage(nodes=4)
    stage.request(3)
    stage.run(0.1)
    stage.request(2)
    stage.run(0.1)
    stage.cut = {2}
    ((_, commit),) = sent(told(stage, 3, Released(stage.holding.pop(3))), Commit)
    assert isinstance(commit, Commit)
    return stage, commit


@pytest.mark.parametrize("is_still_here", [True, False])
def test_a_token_that_comes_back_where_a_better_one_has_been_since_is_discarded_and_told_of(is_still_here: bool):
    stage, commit = committed()
    old = commit.token
    better = Token(old.epoch + 1, old.stamp, old.id + 1, 4, 0, (), old.settings)
    stage.request(3, 2)
    stage.tell(3, Received(4, Commit(1, STANDING + 2, better)))
    assert stage.granted[-1] == (3, 2)
    if not is_still_here:
        stage.request(4)
        stage.run(0.1)
        stage.release(3)
        stage.run(0.1)
        assert stage.granted[-1] == (4, 1)
    stage.tell(3, Received(2, Void(commit.nonce, commit.reply)))
    discarded = [note.token.id for node, note in stage.notes if note.kind is FactKind.DISCARDED and note.token]
    assert discarded == [old.id]
    assert [token.id for token in stage.machines[3].view().tokens] == [better.id] * is_still_here


def test_a_hold_that_meets_one_rival_after_the_other_is_looked_into_once():
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    machine = stage.machines[3]
    mine = place_of_token(stage, 3)
    (held,) = machine.here.by_slot.values()
    for more in range(1, 4):
        machine.context.begin(stage.now)
        machine.evidence.met(held.visit, mine._replace(epoch=mine.epoch + more, holder=4))
    (case,) = machine.evidence.cases.values()
    assert case.better.epoch == mine.epoch + 3


def test_who_doubts_one_of_its_tokens_says_so_whatever_the_others_are():
    stage = Stage(nodes=3, slots=2, each=2)
    stage.request(3, 1)
    stage.request(3, 2)
    stage.run(1)
    for request in (1, 2):
        stage.tell(3, Released(request))
    machine = stage.machines[3]
    assert len(machine.here.by_slot) == 2 and machine.view().state != "doubtful"
    machine.context.begin(stage.now)
    machine.search.doubt(machine.here.by_slot[0])
    assert machine.view().state == "doubtful"


def test_each_hold_is_told_once_that_it_may_not_be_alone():
    """Also where it begins with a token that stayed here since the one that was told so."""
    stage = Stage(nodes=3)
    machine = stage.machines[3]

    def tell() -> int:
        (held,) = machine.here.by_slot.values()
        machine.context.begin(stage.now)
        machine.here.tell(held, LostReason.LEASE)
        return len(machine.context.out)

    stage.request(3, 1)
    stage.run(1)
    assert [tell(), tell()] == [1, 0]
    stage.release(3)
    assert tell() == 0  # nobody uses it
    stage.request(3, 2)
    assert [tell(), tell()] == [1, 0]


# --- what is believed ------------------------------------------------------------------------------------------------


def test_who_left_and_is_back_waits_as_everybody_does():
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    for is_there in (True, False, True):
        if not is_there:
            stage.news(left=(WAITER,))
        elif WAITER not in stage.members:
            stage.news(joined=(WAITER,))
        assert bool(said_by(stage, HOME, WAITER, Want(WAITER, 1, False, 0))) is is_there


@pytest.mark.parametrize(("asker", "presence"), [(2, Presence.ABSENT), (WAITER, Presence.WATCHED)])
def test_where_a_token_was_seen_just_now_is_news_to_all_but_the_one_that_said_so(asker: NodeId, presence: Presence):
    stage = Stage(nodes=5, founder=False)
    said_by(stage, 5, 2, Sight(0, 0, OLDER, Presence.ABSENT, False))
    (answer,) = sent(said_by(stage, 5, asker, Probe(7, 0, 0, None, False)), Sight)
    assert answer == (asker, Sight(7, 0, OLDER, presence, True))


def test_who_reaches_fewer_than_half_of_the_group_makes_no_token():
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    stage.cut = {3, 4, 5}
    stage.request(2)
    stage.run(30)
    assert stage.granted == [(3, 1)]
    assert [note.kind for _, note in stage.notes].count(FactKind.GENERATED) == 1


def test_kept_ahead_are_four_times_as_many_as_a_token_has_room_for():
    """A4: half of them for those that follow it, and half for those that overtook it."""
    ahead = KeptAhead(Stage(nodes=3).machines[1].context)
    tickets = tuple(Ticket(node, 1) for node in range(10, 10 + 2 * QUEUE))
    for early in (True, False):
        assert ahead.keep(tickets, 5, early)
        assert not ahead.keep((Ticket(9, 1),), 5, early)
    queue, _ = ahead.arrives(())
    assert len(queue) == 4 * QUEUE
