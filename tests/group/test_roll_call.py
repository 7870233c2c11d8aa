"""Whether more than half of the members are reached, and what it costs to know."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from softmutex.core.events import SECOND, CancelTimer, Instant, Level, NodeId, Reach, Send, SetTimer
from softmutex.core.group.effects import Answer
from softmutex.core.group.roll_call import SAMPLE, RollCall
from softmutex.core.group.suspicion import PING
from softmutex.core.messages import Ping
from softmutex.core.patience import Patience
from tests.group.village import House, Village

SEEDS = range(30)


def call(house: House, *, wide: bool = False, asker: str = "x") -> None:
    house.do(house.group.call_roll, asker, wide, house.village.now)


def answer(house: House, within_s: float = 8.0) -> Level:
    before = len(house.reach)
    house.village.until(lambda: len(house.reach) > before, within_s)
    return house.reach[-1].reach.level


def test_who_knows_nobody_else_reaches_everybody_at_once():
    village = Village()
    (a,) = village.neighbours(1)
    call(a)
    call(a, wide=True)
    assert [each.reach.level for each in a.reach] == [Level.MORE, Level.MORE]
    assert not village.sent


def test_a_narrow_call_asks_one_member_and_a_wide_one_all():
    village = Village()
    a, *_ = village.neighbours(10)
    village.run(2)
    call(a)
    assert answer(a) is Level.MORE
    assert village.sent[Ping] == 1
    village.run(2)
    call(a, wide=True)
    assert answer(a) is Level.MORE
    assert village.sent[Ping] == 1 + 9


def test_of_a_large_group_a_sample_is_asked():
    village = Village()
    a, *_ = village.neighbours(200)
    village.run(2)
    call(a, wide=True)
    assert answer(a) is Level.MORE
    assert village.sent[Ping] == 32


def test_who_was_heard_within_the_last_second_is_not_asked():
    village = Village()
    a, b = village.neighbours(2)
    b.send(a.id, "x", Ping(1))
    village.run(0.9)
    before = village.sent[Ping]
    call(a)
    assert a.reach[-1].reach.level is Level.MORE
    assert village.sent[Ping] == before


def test_several_who_ask_at_once_are_answered_by_one_call():
    village = Village()
    a, *_ = village.neighbours(5)
    village.run(2)
    for asker in ("x", "y", "x"):
        call(a, asker=asker)
    answer(a)
    assert sorted(each.asker for each in a.reach) == ["x", "y"]
    assert village.sent[Ping] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_cut_off_with_a_part_of_its_group_finds_out_how_large_that_is(seed: int):
    village = Village(seed, delay_s=(0.0001, 0.02, 0.2)[seed % 3])
    size = 2 + seed
    houses = village.neighbours(size)
    village.run(2)
    here = village.rng.randrange(1, size)
    village.cut(houses[:here], houses[here:])
    a = houses[0]
    call(a, wide=True)
    expected = Level.MORE if 2 * here > size else Level.HALF if 2 * here == size else Level.LESS
    assert answer(a) is expected


@pytest.mark.parametrize("seed", SEEDS)
def test_a_narrow_call_that_meets_a_silent_one_becomes_wide_by_itself(seed: int):
    village = Village(seed)
    houses = village.neighbours(3 + seed)
    village.run(2)
    village.cut(houses[:1], houses[1:])
    call(houses[0])
    assert answer(houses[0]) is Level.LESS


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dead_do_not_count(seed: int):
    """Processes that were killed on hosts that live: any number of them."""
    village = Village(seed)
    a, *others = village.neighbours(2 + seed)
    village.run(2)
    for other in others[: village.rng.randint(1, len(others))]:
        village.kill(other)
    call(a)
    assert answer(a) is Level.MORE


@pytest.mark.parametrize("seed", SEEDS)
def test_the_silent_count_until_they_are_known_to_be_gone(seed: int):
    village = Village(seed)
    a, *others = village.neighbours(4 + seed)
    village.run(2)
    more_than_half = others[: len(others) // 2 + 1]
    for other in more_than_half:
        village.kill(other, host_lives=False)
    call(a, wide=True)
    assert answer(a) is not Level.MORE
    village.run(700)
    call(a, wide=True)
    assert answer(a) is Level.MORE


@pytest.mark.parametrize(("size", "here"), [(34, 17), (60, 28), (60, 33), (90, 43)])
def test_where_a_sample_is_no_judge_all_are_asked(size: int, here: int):
    """With 45 % of ninety on its side, one call in three said that it was more than half."""
    expected = Level.MORE if 2 * here > size else Level.HALF if 2 * here == size else Level.LESS
    for seed in range(5):
        village = Village(seed)
        houses = village.neighbours(size)
        village.run(2)
        village.cut(houses[:here], houses[here:])
        call(houses[0], wide=True)
        assert answer(houses[0]) is expected


@pytest.mark.parametrize("seed", SEEDS)
def test_who_speaks_anyway_is_no_witness(seed: int):
    """Of ten, three are cut off, who talk to each other: the very first one that is asked is one of the others."""
    village = Village(seed)
    a, b, c, *others = village.neighbours(10)
    village.run(2)
    village.cut([a, b, c], others)
    for other in (b, c):
        other.send(a.id, "x", Ping(1))
    village.run(0.5)
    call(a)
    assert answer(a) is Level.LESS


def test_in_a_small_group_nobody_is_asked_again_before_all_the_others_were():
    village = Village(1)
    a, *others = village.neighbours(8)
    asked: list[NodeId] = []
    for _ in others:
        village.run(2)
        before = {node: a.group.company.heard_at(node) for node in a.others()}
        call(a)
        answer(a)
        asked += [node for node in a.others() if a.group.company.heard_at(node) != before[node]]
    assert sorted(asked) == sorted(other.id for other in others)


def test_who_is_known_to_be_silent_is_asked_no_more_often_than_by_chance():
    """It was heard of longer ago than anybody else; to ask it again makes each call a wide one."""
    village = Village(1)
    a, *others = village.neighbours(10)
    village.run(2)
    village.kill(others[0], host_lives=False)
    a.suspect(others[0])
    village.run(10)
    assert a.group.is_silent(others[0].id)
    before = village.sent[Ping]
    for _ in range(20):
        village.run(2)
        call(a)
        assert answer(a) is Level.MORE
    looks = 40  # the search for who is silent: one ping a second
    assert village.sent[Ping] - before < looks + 20 + 6 * 9


def test_one_dead_link_is_no_cut():
    for seed in SEEDS:
        village = Village(seed)
        a, b, *_ = village.neighbours(3)
        village.run(2)
        village.cut([a], [b])
        call(a)
        assert answer(a) is Level.MORE


# --- alone ------------------------------------------------------------------------------------------------------------


class Owner:
    """As a driver that knows nothing of groups would use it: one list of members for all, and no memory."""

    def __init__(self) -> None:
        self.out: list[Send | SetTimer | CancelTimer | Answer] = []
        self.missing: list[NodeId] = []

    def put(self, effect: Send | SetTimer | CancelTimer | Answer) -> None:
        self.out.append(effect)

    def is_silent(self, node: NodeId) -> bool:
        return False

    def not_there(self, nodes: Sequence[NodeId], now: Instant) -> None:
        self.missing += nodes


def test_it_works_alone_with_one_list_of_members_for_a_hundred_thousand_nodes():
    members = range(1, 100_001)
    owner = Owner()
    roll = RollCall(7, members, owner, random.Random(1), Patience(PING), lambda _: 0)
    now = 1000 * SECOND
    roll.call("x", False, now)
    (asked,) = [effect.to for effect in owner.out if isinstance(effect, Send)]
    roll.heard(asked, now + 1)
    assert owner.out[-1] == Answer("x", Reach(Level.MORE))
    owner.out.clear()
    roll.call("x", True, now)
    sample = [effect.to for effect in owner.out if isinstance(effect, Send)]
    assert len(set(sample)) == 32
    assert 7 not in sample
    for node in sample[:7]:
        roll.heard(node, now + 1)
    for _ in range(2):
        timers = [effect for effect in owner.out if isinstance(effect, SetTimer)]
        roll.fired(timers[-1].at)
    assert owner.out[-1] == Answer("x", Reach(Level.LESS))
    assert owner.missing == sample[7:]


@pytest.mark.parametrize(("others", "asked"), [(SAMPLE - 1, SAMPLE - 1), (SAMPLE, SAMPLE), (SAMPLE + 1, SAMPLE)])
def test_all_are_asked_as_long_as_they_are_no_more_than_a_sample(others: int, asked: int):
    owner = Owner()
    roll = RollCall(1, range(1, 2 + others), owner, random.Random(1), Patience(PING), lambda _: 0)
    roll.call("x", True, 1000 * SECOND)
    assert len({effect.to for effect in owner.out if isinstance(effect, Send)}) == len(owner.out) - 1 == asked
