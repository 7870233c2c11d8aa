"""How a token is looked for, question by question: `search.py`, one machine, what it does at once.

Who asks too few makes a second token; who asks too many, or too often, is only dear, and who waits too long only slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Place, Presence, Probe, Seen, Sight, Want
from softmutex.core.algorithms.wandering.settings import BATCH, RTO_FIRST, SAMPLE
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
    Requested,
    Silenced,
    Slept,
    Suspect,
    Token,
)
from softmutex.core.messages import Offer
from tests.wandering.node import ME, TOKEN, Node, sent

MS = SECOND // 1000
PLACE = Place(0, 7, 5, 50, 10, 6)
IN_USE, AT_REST = Seen(PLACE, 2 * SECOND, ()), Seen(PLACE, 0, ())
PROBE, RETRY = ("probe", 0), ("retry", 0)
NOTHING = Sight(0, 0, None, Presence.ABSENT, True)


def home(*seen: Seen, members: Iterable[NodeId] = range(4, 9), listens: bool = False, **options: object) -> Node:
    """Node 4 is the first home, and no newcomer."""
    node = Node(members=tuple(members), **options)  # type: ignore[arg-type]
    node.now += 0 if listens else 100 * SECOND
    for each in seen:
        node.hear(each.place.holder, each)
    return node


def misses(node: Node) -> list[Effect]:
    """Its watched token is silent."""
    return node.fire(("watch", 0))


def probes(effects: Sequence[Effect]) -> dict[NodeId, Probe]:
    return dict(sent(effects, Probe))


def made(effects: Sequence[Effect]) -> list[Token | None]:
    return [each.token for each in effects if isinstance(each, Note) and each.kind is FactKind.GENERATED]


def facts(effects: Sequence[Effect]) -> list[FactKind]:
    return [each.kind for each in effects if isinstance(each, Note)]


def suspected(effects: Sequence[Effect]) -> list[NodeId]:
    return [each.node for each in effects if isinstance(each, Suspect)]


def answer(node: Node, asked: dict[NodeId, Probe], what: Callable[[NodeId], Sight | None]) -> list[Effect]:
    """All that it does on these answers."""
    effects: list[Effect] = []
    for sender, probe in asked.items():
        sight = what(sender)
        if sight is not None:
            effects += node.hear(sender, sight._replace(number=probe.number))
    return effects


def nothing(_: NodeId) -> Sight:
    return NOTHING


def until_due_again(node: Node) -> list[Effect]:
    """Nobody answers; what it does at last."""
    for _ in range(20):
        effects = node.fire(PROBE)
        if RETRY in node.timers:
            return effects
    raise AssertionError("it goes on for ever")


# --- whom it asks ----------------------------------------------------------------------------------------------------


def test_at_first_who_had_it_last_and_the_homes_are_asked_and_then_all_with_a_ballot():
    node = home(IN_USE)
    near = probes(misses(node))
    assert near.keys() == {6, 5}
    number = near[6].number
    assert set(near.values()) == {Probe(number, 0, 0, None, False)}
    assert answer(node, {6: near[6]}, nothing) == []
    effects = answer(node, {5: near[5]}, nothing)
    wide = probes(effects)
    assert wide.keys() == {5, 6, 7, 8}
    assert set(wide.values()) == {Probe(number + 1, 0, node.now // SECOND, None, False)}
    effects = answer(node, wide, nothing)
    assert [token.epoch for token in made(effects) if token] == [node.now // SECOND]
    assert CancelTimer(PROBE) not in effects and node.tell(Fired(PROBE)) == []


def test_who_does_not_answer_is_asked_four_times_ever_more_slowly():
    node = home(IN_USE)
    rounds = [(set(probes(misses(node))), node.timers[PROBE] - node.now, list[NodeId]())]
    for _ in range(4):
        effects = node.fire(PROBE)
        rounds.append((set(probes(effects)), node.timers[PROBE] - node.now, suspected(effects)))
    near = {5, 6}
    assert rounds[:4] == [
        (near, RTO_FIRST, []),
        (near, 2 * RTO_FIRST, [6, 5]),
        (near, 3 * RTO_FIRST, [6, 5]),
        (near, 4 * RTO_FIRST, [6, 5]),
    ]
    assert rounds[4] == ({7, 8}, RTO_FIRST, [])  # who did not answer is given up
    later = [(set(probes(effects := node.fire(PROBE))), suspected(effects)) for _ in range(3)]
    assert later == [({7, 8}, []), ({7, 8}, [7, 8]), ({7, 8}, [7, 8])]  # in a small group once more before it is told


def test_an_answer_of_the_first_stage_that_comes_in_the_second_one_is_no_ballot():
    node = home(IN_USE)
    near = probes(misses(node))
    answer(node, {6: near[6]}, nothing)
    for _ in range(4):
        effects = node.fire(PROBE)
    assert probes(effects).keys() == {6, 7, 8}
    assert answer(node, {5: near[5], 6: near[6]}, nothing) == []
    assert set(probes(node.fire(PROBE))) == {6, 7, 8}


def test_what_was_not_asked_for_is_no_answer():
    node = home(IN_USE)
    near = probes(misses(node))
    for sender, sight in ((7, NOTHING._replace(number=near[5].number)), (5, NOTHING._replace(number=1))):
        assert node.hear(sender, sight) == []
    wrong = Sight(near[5].number, 0, PLACE._replace(slot=1, hop=99), Presence.PARKED, True)
    assert node.hear(5, wrong) == []
    assert set(probes(node.fire(PROBE))) == {5, 6}


def test_a_token_is_looked_for_once_at_a_time():
    node = home(IN_USE)
    misses(node)
    assert probes(node.hear(5, Probe(9, 0, 1001, None, False))) == {}
    assert probes(node.tell(Fired(("watch", 0)))) == {}


@pytest.mark.parametrize(("count", "first"), [(32, 31), (33, SAMPLE)])
def test_a_small_group_is_asked_whole_and_of_a_large_one_a_few_before_all_others(count: int, first: int):
    node = home(members=range(4, 4 + count))
    asked = probes(node.hear(9, Want(9, 1, False, 3, 0)))
    assert first <= len(asked) <= first + 1 - (count == 32)  # the second home beside those drawn by lot
    effects = answer(node, asked, nothing)
    rest = probes(effects)
    assert bool(made(effects)) is not bool(rest)
    assert len(asked.keys() | rest.keys()) == count - 1 and not asked.keys() & rest.keys()
    if rest:
        assert made(answer(node, rest, nothing))


def test_of_a_very_large_group_the_others_are_asked_in_batches():
    node = home(members=range(4, 1304))
    asked, sizes = probes(node.hear(9, Want(9, 1, False, 3, 0))), list[int]()
    effects: list[Effect] = []
    while asked:
        sizes.append(len(asked))
        assert node.timers[PROBE] == node.now + (SECOND // 20 if len(sizes) > 1 else RTO_FIRST)
        effects = answer(node, asked, nothing)
        asked = probes(effects)
    assert sizes[1:3] == [BATCH, BATCH] and sum(sizes) == 1299
    assert made(effects)


def test_one_of_many_that_does_not_answer_is_asked_twice_and_a_home_four_times():
    node = home(members=range(4, 104))
    first = set(probes(node.hear(9, Want(9, 1, False, 3, 0))))
    rounds = [set(probes(node.fire(PROBE))) for _ in range(3)]
    assert rounds[0] == first and rounds[1] == rounds[2] == {5}


def test_whom_the_group_calls_silent_is_asked_but_once():
    node = home(IN_USE)
    node.tell(Silenced(6))
    rounds = [set(probes(misses(node))), *(set(probes(node.fire(PROBE))) for _ in range(2))]
    assert rounds == [{6, 5}, {5}, {5}]


def test_who_is_named_by_another_is_asked_at_once_and_its_answer_ends_the_stage():
    """Along the chain, without a pause at each node."""
    node = home(IN_USE)
    near = probes(misses(node))
    went_on = PLACE._replace(hop=11, holder=8)
    effects = answer(node, {6: near[6]}, lambda _: Sight(0, 0, went_on, Presence.ABSENT, True))
    named = probes(effects)
    assert named == {8: near[6]}
    assert answer(node, {5: near[5]}, nothing) == []
    assert probes(answer(node, named, nothing)).keys() == {5, 6, 7, 8}


def test_a_trail_that_is_cold_is_not_followed():
    node = home(IN_USE)
    near = probes(misses(node))
    cold = PLACE._replace(hop=9, holder=8)
    assert answer(node, {6: near[6]}, lambda _: Sight(0, 0, cold, Presence.ABSENT, True)) == []


def test_whom_somebody_hears_as_it_should_is_asked_at_once():
    for presence in (Presence.WATCHED, Presence.DOUBTED):
        node = home(IN_USE)
        near = probes(misses(node))
        cold = PLACE._replace(hop=9, holder=8)
        effects = node.hear(5, Sight(near[5].number, 0, cold, presence, True))
        assert probes(effects) == {8: near[6]}


# --- what it finds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("presence", [Presence.PARKED, Presence.IN_USE])
def test_who_has_it_is_believed_and_the_search_is_over(presence: Presence):
    node = home(IN_USE)
    near = probes(misses(node))
    found = PLACE._replace(hop=12, holder=5)
    effects = answer(node, {5: near[5]}, lambda _: Sight(0, 0, found, presence, True))
    assert CancelTimer(PROBE) in effects and node.machine.home.posts[0].place == found
    assert (("watch", 0) in node.timers) is (presence is Presence.IN_USE)
    node.machine.context.begin(node.now + 10 * SECOND)
    assert node.machine.home.misses(0) is (presence is Presence.IN_USE)
    assert answer(node, {6: near[6]}, nothing) == []


def test_who_waits_asks_there():
    node = home(AT_REST)
    node.tell(Requested(1))
    near = probes(node.fire("want"))
    assert near
    found = PLACE._replace(hop=12, holder=8)
    wanted = sent(answer(node, {6: near[6]}, lambda _: Sight(0, 0, found, Presence.IN_USE, True)), Want)
    assert wanted == [(8, Want(ME, 1, False, 3, 0))]


def test_a_word_of_its_holder_ends_the_search():
    node = home(IN_USE)
    misses(node)
    effects = node.hear(6, IN_USE._replace(place=PLACE._replace(hop=12)))
    assert CancelTimer(PROBE) in effects and node.tell(Fired(PROBE)) == []


def test_the_token_itself_ends_the_search_and_what_was_to_follow_it():
    node = home()
    asked = probes(node.tell(Requested(1)))
    answer(node, asked, lambda to: NOTHING._replace(free=to != 5))
    assert RETRY in node.timers
    assert probes(node.hear(5, Want(5, 1, False, 3, 0)))  # another reason
    node.takes(5, 1)
    assert node.machine.view().holding == (1,)
    assert PROBE not in node.timers and RETRY not in node.timers


# --- when it is made -------------------------------------------------------------------------------------------------


def all_asked(node: Node) -> dict[NodeId, Probe]:
    """The second stage of a search for a token that it watched."""
    return probes(answer(node, probes(misses(node)), nothing))


def test_where_somebody_refuses_the_ballot_nothing_is_made_the_others_are_told_and_it_is_tried_again_soon():
    node = home(IN_USE)
    wide = all_asked(node)
    effects = answer(node, wide, lambda to: NOTHING._replace(free=to != 7))
    assert not made(effects)
    free = probes(effects)
    assert free.keys() == {5, 6, 7, 8} and {probe.ballot for probe in free.values()} == {0}
    assert 3 * SECOND // 8 <= node.timers[RETRY] - node.now <= 5 * SECOND // 8
    assert probes(node.fire(RETRY)).keys() == {5, 6, 7, 8}


def test_a_home_tries_again_sooner_than_others():
    node = Node(members=(1, 2, 3, 4, 5))
    node.now += 100 * SECOND
    node.tell(Requested(1))
    for _ in range(5):
        if asked := probes(node.fire("want")):
            break
    answer(node, asked, lambda to: NOTHING._replace(free=to != 2))
    assert 3 * SECOND // 4 <= node.timers[RETRY] - node.now <= 5 * SECOND // 2


def test_while_news_of_it_come_nothing_is_made():
    node = home(IN_USE)
    wide = all_asked(node)
    later = PLACE._replace(hop=11, holder=6)
    effects = answer(node, wide, lambda to: Sight(0, 0, later if to == 7 else None, Presence.ABSENT, True))
    assert not made(effects)
    assert 3 * SECOND // 16 <= node.timers[RETRY] - node.now <= 5 * SECOND // 16


def test_a_token_that_somebody_who_answered_was_given_is_not_made_anew():
    node = home(IN_USE)
    near = probes(misses(node))
    gives = PLACE._replace(hop=11, holder=7)
    asked = answer(node, {6: near[6]}, lambda _: Sight(0, 0, gives, Presence.PASSING, True))
    wide = probes(answer(node, {**probes(asked), 5: near[5]}, nothing))
    assert 7 in wide
    effects = answer(node, wide, lambda to: Sight(0, 0, gives, Presence.PASSING, True) if to == 6 else NOTHING)
    assert not made(effects) and RETRY in node.timers


def test_what_is_made_is_above_all_that_was_heard_of_and_names_who_had_the_last_one():
    node = home(IN_USE._replace(place=PLACE._replace(epoch=5000)))
    effects = answer(node, all_asked(node), nothing)
    ((token, peer),) = [(each.token, each.peer) for each in effects if isinstance(each, Note) and each.token]
    assert token is not None and (token.epoch, token.hop, token.stamp, peer) == (5001, 0, node.now, 6)


def test_a_token_is_made_where_more_than_half_answer_and_on_the_other_side_nobody_says_so():
    for silent, is_made in ((0, True), (1, True), (2, True), (3, False)):
        node = home(IN_USE)
        those = range(8, 8 - silent, -1)
        near = probes(misses(node))
        effects = answer(node, near, lambda to, those=those: None if to in those else NOTHING)  # type: ignore[misc]
        for _ in range(40):
            if facts(effects):
                break
            wide = {to: probe for to, probe in probes(effects).items() if to not in those}
            effects = answer(node, wide, nothing) or node.fire(PROBE)
        assert bool(made(effects)) is is_made
        assert (FactKind.ISOLATED in facts(effects)) is not is_made


@pytest.mark.parametrize(("members", "answering", "is_made"), [((4, 5, 6, 7), 5, True), ((1, 4, 5, 6), 5, False)])
@pytest.mark.parametrize("choice", ["wait", "proceed"])
def test_of_two_halves_the_one_with_the_rings_first_member_goes_on(
    members: tuple[NodeId, ...], answering: NodeId, is_made: bool, choice: str
):
    """Who was told to proceed does so, and says that it is isolated only with fewer."""
    node = home(members=members)
    node.machine.when_isolated(choice)  # type: ignore[arg-type]
    effects, seen = node.tell(Requested(1)), list[FactKind]()
    for _ in range(40):
        some = {to: probe for to, probe in probes(effects).items() if to == answering}
        effects = answer(node, some, nothing) or node.fire(PROBE if PROBE in node.timers else "want")
        seen += facts(effects)
        if seen:
            break
    assert (FactKind.GENERATED in seen) is (is_made or choice == "proceed")
    assert (FactKind.ISOLATED in seen) is not (is_made or choice == "proceed")


def test_who_is_isolated_tells_those_whom_it_does_not_hear_looks_again_and_says_when_that_is_over():
    node = home(IN_USE)
    misses(node)
    effects = until_due_again(node)
    assert facts(effects) == [FactKind.ISOLATED]
    assert probes(effects) == {each: Probe(0, 0, 0, None, False) for each in (5, 6, 7, 8)}
    assert 3 * SECOND // 2 <= node.timers[RETRY] - node.now <= 5 * SECOND // 2
    node.fire(RETRY)
    assert facts(until_due_again(node)) == []  # it was said
    again = probes(node.fire(RETRY))
    assert again.keys() == {5, 6, 7, 8}
    assert facts(answer(node, again, nothing)) == [FactKind.REJOINED, FactKind.GENERATED]


# --- who came or went meanwhile --------------------------------------------------------------------------------------


def test_whose_death_is_known_is_not_waited_for():
    node = home(IN_USE)
    near = probes(misses(node))
    answer(node, {5: near[5]}, nothing)
    node.members.remove(6)
    assert probes(node.tell(MembersChanged((), (6,)))).keys() == {5, 7, 8}


@pytest.mark.parametrize("is_dead", [True, False])
def test_news_of_who_was_not_asked_do_not_end_the_wait_for_those_who_were(is_dead: bool):
    node = home(IN_USE)
    near = probes(misses(node))
    node.now += 3 * SECOND // 2
    if is_dead:
        node.members.remove(8)
    assert probes(node.tell(MembersChanged((), (8,)) if is_dead else Silenced(8))) == {}
    assert answer(node, {5: near[5]}, nothing) == []
    assert probes(answer(node, {6: near[6]}, nothing)).keys() >= {5, 6, 7}


def test_a_death_of_who_had_answered_changes_nothing():
    node = home(IN_USE)
    near = probes(misses(node))
    answer(node, {5: near[5]}, nothing)
    node.members.remove(5)
    assert probes(node.tell(MembersChanged((), (5,)))) == {}


# --- what is doubted -------------------------------------------------------------------------------------------------


def doubting(**options: object) -> tuple[Node, dict[NodeId, Probe]]:
    node = Node(**options)  # type: ignore[arg-type]
    node.tell(Requested(1))
    node.takes(2, 1, TOKEN._replace(escort=TOKEN.escort._replace(watch=(1, 2))))
    return node, probes(node.tell(Slept(SECOND)))


def test_who_doubts_its_token_asks_all_says_which_one_and_that_it_uses_it():
    node, asked = doubting()
    mine = Place(0, 7, 5, 50, 4, ME)
    assert asked.keys() == {1, 2, 3, 5}
    assert {(probe.rival, probe.overlap, probe.ballot > 0) for probe in asked.values()} == {(mine, True, True)}
    effects = answer(node, asked, nothing)
    assert [to for to, said in sent(effects, Seen) if said.lease] == [1]  # it was not replaced, and that is said
    assert node.machine.view().tokens[0].epoch == 7


def test_a_holder_that_finds_a_better_token_goes_on_and_is_told():
    node, asked = doubting()
    better = Place(0, 8, 9, 99, 1, 3)
    effects = answer(node, asked, lambda to: Sight(0, 0, better, Presence.IN_USE, True) if to == 3 else None)
    assert Lose(1, LostReason.OVERLAP) in effects and FactKind.DISCARDED in facts(effects)
    assert node.machine.view().holding == (1,) and node.machine.view().tokens == ()


def test_a_weaker_token_elsewhere_does_not_end_the_doubt():
    node, asked = doubting()
    weaker = Place(0, 6, 9, 99, 1, 3)
    effects = answer(node, {3: asked[3]}, lambda _: Sight(0, 0, weaker, Presence.IN_USE, True))
    assert not [each for each in effects if isinstance(each, Lose)] and FactKind.DISCARDED not in facts(effects)
    assert node.machine.view().tokens[0].epoch == 7


def test_a_better_one_that_was_heard_of_and_is_nowhere_is_outranked_by_the_token_in_use():
    node, asked = doubting()
    gone = Place(0, 8, 9, 99, 1, 3)
    effects = answer(node, asked, lambda to: Sight(0, 0, gone if to == 5 else None, Presence.ABSENT, True))
    assert made(effects) == []  # just now it was heard of
    effects = answer(node, probes(node.fire(RETRY)), nothing)
    assert [(token.epoch, token.hop) for token in made(effects) if token] == [(node.now // SECOND, 0)]
    assert node.machine.view().holding == (1,)


def test_a_token_that_is_doubted_is_neither_granted_nor_passed_until_that_is_over():
    node, asked = doubting()
    assert sent(node.hear(2, Want(2, 1, False, 1, 0)), Offer) == []
    answer(node, asked, nothing)
    assert node.machine.view().state == "holding"
