"""What a node answers who looks for a token, whom it tells of one without being asked, and whom it takes for deaf:
`search.py`, one machine.
"""

from __future__ import annotations

import pytest

from softmutex.core.algorithms.wandering.messages import Account, Heard, Place, Presence, Probe, Seen, Sight
from softmutex.core.algorithms.wandering.settings import PROMISE, RTO_FIRST
from softmutex.core.events import SECOND, Fired, Grant, Leaving, Level, MembersChanged, NodeId, Reach, Requested, Slept
from tests.wandering.node import ME, Node, sent
from tests.wandering.test_how_a_token_is_looked_for import (
    AT_REST,
    IN_USE,
    NOTHING,
    PLACE,
    PROBE,
    answer,
    home,
    made,
    misses,
    nothing,
    probes,
    suspected,
)

# --- what others ask -------------------------------------------------------------------------------------------------


def says(node: Node, sender: NodeId, ballot: int = 0, rival: Place | None = None, slot: int = 0) -> list[Sight]:
    return [
        sight for to, sight in sent(node.hear(sender, Probe(77, slot, ballot, rival, False)), Sight) if to == sender
    ]


def test_who_is_asked_says_what_it_has_of_the_token():
    node = Node()
    assert says(node, 2) == [Sight(77, 0, None, Presence.ABSENT, True)]
    assert says(node, 2, slot=1) == []  # there is none
    node.tell(Requested(1))
    node.takes(2, 1)
    assert says(node, 2) == [Sight(77, 0, Place(0, 7, 5, 50, 4, ME), Presence.IN_USE, True)]
    node.tell(Slept(SECOND))
    assert says(node, 2) == [Sight(77, 0, Place(0, 7, 5, 50, 4, ME), Presence.DOUBTED, True)]


def test_who_hears_the_holder_says_so_to_all_but_the_holder():
    node = home(IN_USE)
    assert says(node, 5) == [Sight(77, 0, PLACE, Presence.WATCHED, True)]
    assert says(node, 6) == [Sight(77, 0, PLACE, Presence.ABSENT, True)]


def test_what_was_seen_two_seconds_ago_is_no_reason_to_wait():
    node = Node()
    node.hear(2, Sight(0, 0, PLACE._replace(holder=3), Presence.ABSENT, False))
    for after, presence in ((2 * SECOND - 1, Presence.WATCHED), (1, Presence.ABSENT)):
        node.now += after
        assert [sight.presence for sight in says(node, 5)] == [presence]


def test_a_ballot_is_good_for_a_second_and_a_half_or_eight_time_outs():
    for rto, good_for in ((RTO_FIRST, 8 * RTO_FIRST), (SECOND // 10, PROMISE)):
        machine = Node().machine
        ballots, context = machine.search.ballots, machine.context
        context.rto = rto
        assert ballots.promise(0, 2)
        context.begin(context.now + good_for - 1)
        assert not ballots.promise(0, 3) and ballots.promise(1, 3)
        context.begin(context.now + 1)
        assert ballots.promise(0, 3)


def test_whoever_is_not_the_first_home_gets_no_ballot_until_that_was_silent_for_four_seconds():
    node = Node(members=(1, 2, 3, 4, 5))
    node.hear(1, NOTHING)
    node.now += 1
    got = []
    for after_s in (0, 3, 1, 0.001):
        node.now += round(after_s * SECOND)
        effects = node.hear(3, Probe(77, 0, 1001, None, False))
        assert suspected(effects) == [1]
        got += [sight.free for to, sight in sent(effects, Sight) if to == 3]
    assert got == [False, False, False, True]
    node.hear(1, NOTHING)
    node.now += 5 * SECOND
    assert not says(node, 3, 1001)[0].free
    assert says(node, 1, 0)[0].free


def makes_one_while_8_is_silent(node: Node) -> None:
    effects = misses(node)
    for _ in range(20):
        some = {to: probe for to, probe in probes(effects).items() if to != 8}
        effects = answer(node, some, nothing) or node.fire(PROBE)
        if made(effects):
            return
    raise AssertionError("it makes none")


# --- the ghosts ------------------------------------------------------------------------------------------------------


def test_who_did_not_answer_when_a_token_was_made_is_told_each_four_seconds_for_five_minutes():
    node = home(IN_USE)
    makes_one_while_8_is_silent(node)
    assert node.timers["ghosts"] == node.now + 4 * SECOND
    told = 0
    while "ghosts" in node.timers and told < 100:
        ((to, sight),) = sent(node.fire("ghosts"), Sight)
        assert (to, sight.number, sight.presence) == (8, 0, Presence.ABSENT) and sight.place is not None
        told += 1
    assert told == 75
    assert node.tell(Fired("ghosts")) == []


def test_a_ghost_that_left_is_told_of_nothing():
    node = home(IN_USE)
    makes_one_while_8_is_silent(node)
    node.members.remove(8)
    node.tell(MembersChanged((), (8,)))
    assert sent(node.fire("ghosts"), Sight) == [] and "ghosts" not in node.timers


def test_so_many_ghosts_are_told_and_no_more():
    ghosts = Node().machine.ghosts
    ghosts.context.begin(SECOND)
    ghosts.haunt(0, [])
    assert ghosts.context.out == []
    ghosts.haunt(0, range(10, 30))
    assert list(ghosts.nodes) == list(range(14, 30))


# --- who hears nobody ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "hears"),
    [
        (Account(1, None, 0, (), False, None, None, ()), True),
        (Heard(0, 7, 1, (), False, 0), True),
        (NOTHING._replace(number=5), True),
        (NOTHING, False),
        (AT_REST, False),
    ],
)
def test_who_said_that_it_hears_nobody_is_believed_for_five_seconds_or_until_it_answers(message: object, hears: bool):
    node = Node()
    node.hear(1, Probe(0, 0, 0, None, False))
    assert node.machine.context.home == 2
    assert node.timers["deaf"] == node.now + 5 * SECOND
    node.hear(1, message)  # type: ignore[arg-type]
    assert (node.machine.context.home == 1) is hears
    node.now += SECOND
    node.hear(3, Probe(0, 0, 0, None, False))
    node.now += 4 * SECOND
    node.timers["deaf"] = node.now
    node.fire("deaf")
    assert node.machine.context.home == 1
    assert node.timers["deaf"] == node.now + SECOND  # of the other one


def test_a_newcomer_that_is_the_home_looks_for_the_token_when_it_has_listened():
    for seen, looks in (((), True), ((AT_REST,), False)):
        node = home(*seen, listens=True)
        assert node.timers["listened"] == 1000 * SECOND + SECOND // 5
        assert bool(probes(node.fire("listened"))) is looks
    assert not probes(Node().fire("listened"))
    assert [each for each in Node(members=(ME,)).fire("listened") if not isinstance(each, Grant)] == []


# --- who is told what came of it -------------------------------------------------------------------------------------


def test_who_did_not_answer_is_not_told_that_its_ballot_is_free_and_is_passed_over():
    node = home(IN_USE)
    effects = misses(node)
    for _ in range(20):
        some = {to: probe for to, probe in probes(effects).items() if to != 8}
        effects = answer(node, some, lambda to: NOTHING._replace(free=to != 7)) or node.fire(PROBE)
        if ("retry", 0) in node.timers:
            break
    free = probes(effects)
    assert free.keys() == {5, 6, 7} and {probe.ballot for probe in free.values()} == {0}
    node = home(IN_USE)
    makes_one_while_8_is_silent(node)
    assert node.machine.context.suspects.keys() == {8}


def test_who_was_asked_already_is_not_asked_again_for_what_others_say_of_it():
    for presence in (Presence.WATCHED, Presence.DOUBTED, Presence.ABSENT):
        node = home(IN_USE)
        near = probes(misses(node))
        place = PLACE._replace(hop=11)
        assert probes(node.hear(5, Sight(near[5].number, 0, place, presence, True))) == {}


def test_of_whom_the_token_is_found_at_is_known_that_it_is_there():
    node = home(IN_USE)
    near = probes(misses(node))
    node.machine.context.suspect(7)
    node.hear(5, Sight(near[5].number, 0, PLACE._replace(hop=11, holder=7), Presence.IN_USE, True))
    assert 7 not in node.machine.context.suspects and node.machine.context.heard[7] == node.now


def test_whose_lease_is_taken_back_is_who_had_it_from_here():
    node = home(IN_USE, slots=2)
    node.hear(5, Seen(Place(1, 7, 5, 51, 20, 7), 4 * SECOND, ()))  # heard of by another watcher
    node.tell(Reach(Level.LESS))
    taken_back = sent(node.tell(Reach(Level.LESS)), Sight)
    assert [(to, sight.presence) for to, sight in taken_back] == [(6, Presence.DOUBTED)]


def test_an_inquiry_for_a_leaver_goes_on_where_it_uses_another_token_and_is_the_home():
    for uses, looks in ((True, True), (False, False)):
        node = home(slots=2)
        node.hear(7, Seen(Place(1, 7, 5, 51, 20, 7), 2 * SECOND, ()))
        node.tell(Requested(1))
        if uses:
            node.takes(7, 1)
            assert node.machine.view().holding == (1,)
        node.tell(Leaving())
        assert bool(probes(node.fire(("watch", 1)))) is looks
