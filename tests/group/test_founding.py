"""Who makes the first token: one of those that want it, whatever they know of each other at first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace

import pytest

from softmutex.core.events import SECOND, NodeId, Received
from softmutex.core.group import Listed
from softmutex.core.group.door import BANNED
from softmutex.core.group.effects import GiveUp, Mismatch, RefuseMutex, Stalled, Start, TakePart, Tell
from softmutex.core.group.founding import NOTES_MAX, UNDESCRIBED_MAX
from softmutex.core.messages import Describe, Description, Message, Offer, Ping, Roster
from tests.core.bench import token
from tests.group.village import TERMS, House, Village

DELAYS_S = (0.0001, 0.005, 0.05, 0.3, 0.6)
OFFER = Offer(1, token(0, 5))


def founders(houses: Sequence[House], mutex: str = "x") -> list[House]:
    return [house for house in houses if house.founded(mutex)]


def all_started(village: Village, houses: Sequence[House], within_s: float, mutex: str = "x") -> float:
    return village.until(lambda: all(mutex in house.started for house in houses), within_s)


def test_who_is_alone_founds_at_once_without_a_message():
    village = Village()
    (a,) = village.neighbours(1)
    a.open()
    assert a.started == {"x": Start("x", True)}
    assert not village.sent
    assert not a.said


def test_where_the_list_may_show_somebody_late_it_founds_when_that_time_is_over_and_no_moment_later():
    village = Village()
    a = village.house(1)
    a.listed()
    village.run(0.033)
    a.open()
    assert all_started(village, [a], within_s=5) == 2 - 0.033


@pytest.mark.parametrize("size", [2, 3, 10, 34])
@pytest.mark.parametrize("delay_s", [0.001, 0.05])
def test_where_all_answer_it_founds_after_a_few_trips_and_waits_for_no_timer(size: int, delay_s: float):
    village = Village(size, delay_s=delay_s)
    first, *_ = village.neighbours(size)
    village.run(2)
    first.open()
    assert all_started(village, [first], within_s=8 * delay_s) > 0
    assert first.founded()


def test_a_newcomer_is_pointed_to_who_uses_it():
    village = Village()
    a, b, c = village.neighbours(3)
    a.open()
    village.run(1)
    b.open()
    village.run(1)
    assert b.started == {"x": Start("x", False, a.id)}
    c.open()
    village.run(1)
    assert not c.started["x"].founder


@pytest.mark.parametrize("seed", range(40))
def test_of_any_number_who_ask_at_once_exactly_one_founds(seed: int):
    village = Village(seed, delay_s=DELAYS_S[seed % 5], loss=(0, 0.05, 0.3)[seed % 3])
    houses = village.neighbours(village.rng.choice([2, 3, 5, 10, 34, 60]))
    for house in houses:
        village.at(village.now + int(village.rng.random() * 4 * village.delay), house.open)
    all_started(village, houses, within_s=120)
    assert len(founders(houses)) == 1


@pytest.mark.parametrize("size", [34, 50, 200])
def test_no_size_of_the_group_is_exempt(size: int):
    """Issue 12 a: above 32 members nobody was asked, and all of a batch of newcomers were granted."""
    village = Village(size)
    holder, *newcomers = village.neighbours(size)
    holder.open()
    village.run(1)
    for newcomer in newcomers:
        newcomer.open()
    all_started(village, newcomers, within_s=10)
    assert founders([holder, *newcomers]) == [holder]


@pytest.mark.parametrize("seed", range(20))
def test_a_newcomer_with_a_partial_view_makes_no_second_token(seed: int):
    """Issue 12 e: it knows one member, which never heard of the token."""
    village = Village(seed, delay_s=DELAYS_S[seed % 5])
    houses = [village.house(id) for id in village.rng.sample(range(1, 10_000), 4 + seed)]
    *chain, newcomer = houses
    for one, other in pairwise(chain):  # each was told of the next one only
        one.listed(other)
    chain[-1].listed(chain[-2])
    village.run(20)
    chain[0].open()
    village.until(lambda: "x" in chain[0].started, within_s=200)  # at 0.6 s one way, 22 of them in a row
    village.run(10)
    newcomer.listed(chain[-1])
    newcomer.open()
    all_started(village, [newcomer], within_s=120)
    assert not newcomer.founded()
    assert newcomer.started["x"].hint == chain[0].id


@pytest.mark.parametrize("seed", range(20))
def test_two_who_have_only_a_third_in_common_do_not_both_found(seed: int):
    village = Village(seed, delay_s=DELAYS_S[seed % 5])
    a, b, third = (village.house(id) for id in village.rng.sample(range(1, 10_000), 3))
    third.listed()
    a.listed(third)
    b.listed(third)
    village.at(village.now + int(village.rng.random() * SECOND), a.open)
    village.at(village.now + int(village.rng.random() * SECOND), b.open)
    all_started(village, [a, b], within_s=60)
    assert len(founders([a, b])) == 1


# --- lists that are slow or wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_nobody_founds_while_names_are_still_being_resolved(seed: int):
    """Issue 12 f: static:// with names, DNS from 0 to 3 s: the newcomer was granted before its first datagram left."""
    village = Village(seed)
    houses = [village.house(id, f"{id}.lab") for id in (1, 2, 3)]

    resolved = dict.fromkeys(houses, 0)

    def resolve(house: House, known: int) -> None:
        known = resolved[house] = max(known, resolved[house])
        others = [each for each in houses if each is not house]
        house.listed(*others[:known], pending=tuple(each.address for each in others[known:]))

    for house in houses:
        resolve(house, 0)
        for known in (1, 2):
            village.at(village.now + int(village.rng.random() * 1.5 * known * SECOND), resolve, house, known)
        if village.rng.random() < 0.8:
            village.at(village.now + int(village.rng.random() * 3 * SECOND), house.open)
        else:
            house.open()
    village.run(30)
    assert len(founders(houses)) == 1
    assert all(house.started for house in houses)


def test_where_all_listed_ports_refuse_it_starts_alone_soon_and_says_so():
    village = Village()
    a = village.house(1)
    a.listed(Listed("10.0.0.2:1", label="b.lab"), Listed("10.0.0.3:1", label="c.lab"), complete=True)
    a.open()
    assert all_started(village, [a], within_s=1) < 0.3
    assert a.founded()
    assert a.said == ["starting alone: 0 of 2 reachable: b.lab refused, c.lab refused"]


def test_who_is_two_is_not_said_to_be_alone():
    village = Village()
    a, b = village.house(1), village.house(2)
    for one, other in ((a, b), (b, a)):
        one.listed(other, Listed("10.0.0.3:1", label="c.lab"), complete=True)
    village.run(1)
    a.open()
    all_started(village, [a], within_s=10)
    assert [text for text in a.said if "reachable" in text] == [
        "the first token of 'x' is made here: 1 of 2 reachable: c.lab refused"
    ]


@pytest.mark.parametrize("count", [8, 9, 30])
def test_of_many_that_are_missing_eight_are_named(count: int):
    village = Village()
    a = village.house(1)
    a.listed(*(Listed(f"10.0.0.{n}:1", label=f"h{n:02}.lab") for n in range(2, 2 + count)), complete=True)
    a.open()
    all_started(village, [a], within_s=10)
    (text,) = [text for text in a.said if "reachable" in text]
    assert text.startswith(f"starting alone: 0 of {count} reachable: ")
    assert text.count("refused") == 8 and text.endswith(", ...") == (count > 8)


def test_where_one_is_silent_it_waits_for_alone_after_and_says_who():
    village = Village()
    village.silent_hosts = {"10.0.0.3:1"}
    a = village.house(1, alone_after=5 * SECOND)
    a.listed(Listed("10.0.0.2:1", label="b.lab"), Listed("10.0.0.3:1", label="c.lab"), unresolved=("d.lab",))
    a.open()
    assert 4.9 < all_started(village, [a], within_s=10) < 5.1
    assert a.said == ["starting alone: 0 of 3 reachable: b.lab refused, c.lab silent, d.lab not resolved"]


def test_who_is_listed_and_banned_is_not_waited_for_once_it_has_answered():
    village = Village()
    door = SimpleNamespace(objection=lambda node: BANNED if node == 3 else "")
    a, b, c = village.house(1, door=door), village.house(2), village.house(3)
    for house in (a, b, c):
        house.listed(*(other for other in (a, b, c) if other is not house), may_be_late=False)
    a.open()
    all_started(village, [a], within_s=1)
    assert a.founded()
    assert a.group.members == [1, 2]


def test_a_list_that_may_err_is_given_time_for_late_news():
    village = Village()
    a, b = village.house(1), village.house(2)
    a.listed()
    b.listed()
    a.open()
    b.open()
    village.run(1.5)
    a.listed(b)  # as mDNS would
    all_started(village, [a, b], within_s=10)
    assert len(founders([a, b])) == 1


# --- silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when_isolated", ["wait", "proceed"])
@pytest.mark.parametrize("seed", range(12))
def test_the_smaller_side_of_a_cut_founds_nothing_unless_told_to(seed: int, when_isolated: str):
    village = Village(seed)
    size = 3 + seed
    houses = village.neighbours(size)
    village.run(1)
    here = village.rng.randint(1, size // 2)
    a = houses[0]
    village.cut(houses[:here], houses[here:])
    a.open(when_isolated=when_isolated)
    village.run(60)
    if when_isolated == "proceed":
        assert a.founded()
        return
    assert not a.started
    stalled = [effect for effect in a.did if isinstance(effect, Stalled)]
    assert len(stalled) == 1
    assert stalled[0].why.startswith(f"{here} of {size} members answer")
    village.heal()
    all_started(village, [a], within_s=5)
    assert a.founded()


@pytest.mark.parametrize("seed", range(12))
def test_the_larger_side_of_a_cut_founds_after_alone_after_and_says_who_is_silent(seed: int):
    village = Village(seed)
    size = 3 + seed
    houses = village.neighbours(size)
    village.run(1)
    there = village.rng.randint(1, (size - 1) // 2)
    a = houses[-1]
    village.cut(houses[:there], houses[there:])
    a.open()
    took_s = all_started(village, [a], within_s=8)
    assert a.founded()
    assert took_s >= 5
    assert "the first token of 'x' is made here" in a.said[-1]
    assert a.said[-1].count("silent") == min(there, 8)


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_dead_processes_on_living_hosts_holds_nobody_up(seed: int):
    village = Village(seed)
    a, *others = village.neighbours(2 + seed)
    village.run(1)
    for other in others[: village.rng.randint(1, len(others))]:
        village.kill(other)
    a.open()
    assert all_started(village, [a], within_s=5) < 2
    assert a.founded()


def test_nobody_founds_before_min_members_are_known():
    village = Village()
    a, b, c = (village.house(id) for id in (1, 2, 3))
    a.listed(b, complete=True)
    a.open(min_members=3)
    village.run(30)
    assert not a.started
    c.listed(a)
    all_started(village, [a], within_s=5)
    assert a.founded()


# --- terms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_different_slots_are_refused_in_words_before_anything_is_granted(seed: int):
    """Issue 12 g."""
    village = Village(seed, delay_s=DELAYS_S[seed % 5], loss=0.2 * (seed % 2))
    houses = village.neighbours(2 + seed)
    one, two = village.rng.sample(houses, 2)
    one.open()
    village.at(village.now + int(village.rng.random() * SECOND), two.open, "x", TERMS._replace(slots=2))
    village.run(60)
    started = [house for house in (one, two) if house.started]
    assert len(started) == 1
    other = two if started == [one] else one
    (refused,) = [effect for effect in other.did if isinstance(effect, RefuseMutex)]
    assert refused.difference in ("slots is 1 there and 2 here", "slots is 2 there and 1 here")


def test_two_sides_of_different_terms_that_meet_are_told():
    village = Village()
    a, b = village.house(1), village.house(2)
    for house, terms in ((a, TERMS), (b, TERMS._replace(op=5 * SECOND))):
        house.listed(complete=True)
        house.open("x", terms)
        assert house.founded()
    a.listed(b, complete=True)
    village.run(1)
    a.do(a.group.founding.ask_terms, b.id, "x")
    village.run(1)
    assert a.did[-1] == Mismatch("x", b.id, "op is 5.0 there and 4.0 here")


# --- others' mutexes --------------------------------------------------------------------------------------------------


def test_who_hears_of_a_mutex_that_nobody_here_opened_learns_how_it_is_run():
    village = Village()
    a, b = village.neighbours(2)
    a.open()
    village.run(1)
    a.send(b.id, "x", OFFER)
    village.run(1)
    (part,) = [effect for effect in b.did if isinstance(effect, TakePart)]
    assert part.peer == a.id
    assert (part.description.algorithm, part.kept) == ("wandering", (Received(a.id, OFFER),))


def test_what_is_kept_for_undescribed_mutexes_is_bounded_and_forgotten():
    village = Village()
    a, b = village.neighbours(2)
    for number in range(100):
        for _ in range(20):
            a.send(b.id, f"m{number}", OFFER)
    village.run(0.01)
    village.run(3)
    assert b.dropped["undescribed"] == 2000
    assert not [effect for effect in b.did if isinstance(effect, TakePart)]
    assert village.sent[Describe] <= 8 * UNDESCRIBED_MAX


def test_a_node_that_is_spoken_to_about_a_mutex_while_it_asks_founds_nothing():
    village = Village()
    a, b, c = village.neighbours(3)
    c.is_open = False
    village.silent_hosts.add(c.address)
    b.group.founding.joined("x", TERMS)
    village.cut([a], [b], both=False)  # b does not hear that it is asked
    a.open()
    b.send(a.id, "x", OFFER)
    all_started(village, [a], within_s=10)
    assert a.started["x"] == Start("x", False, b.id, (Received(b.id, OFFER),))


def test_names_that_others_ask_for_are_noted_for_a_while_and_take_constant_memory():
    """Issue 14.16."""
    village = Village()
    a, b = village.neighbours(2)
    for number in range(3 * NOTES_MAX):
        b.open(f"2026-{number}")
        village.run(0.01)
        b.group.founding.closed(f"2026-{number}")
    assert len(founders([b], f"2026-{NOTES_MAX}")) == 1
    assert a.group.founding.notes <= NOTES_MAX
    assert not a.did


@pytest.mark.parametrize("seed", range(10))
def test_an_answer_counts_for_its_stage_only_however_late_or_often_it_comes(seed: int):
    """Issue 12 d: duplication, and stages that shared one number."""
    village = Village(seed, delay_s=0.05)
    low, high, *others = sorted(village.neighbours(5), key=lambda house: house.id)
    late: list[tuple[str, str, tuple[NodeId, NodeId, str, Message]]] = []
    village.tap = lambda source, to, frame: late.append((source, to, frame))
    high.open()
    village.run(0.02)
    low.open()
    for _ in range(50):
        village.run(0.1)
        for each in village.rng.sample(late, min(len(late), 30)):
            if type(each[2][3]) in (Description, Describe):
                village.deliver(*each)
    assert len(founders([low, high, *others])) == 1


def test_rosters_are_asked_for_only_where_views_differ():
    village = Village()
    a, b, c = village.neighbours(3)
    a.open()
    village.run(1)
    assert village.sent[Roster] == 0
    b.send(c.id, "y", Ping(1))


# --- terms that nobody uses -------------------------------------------------------------------------------------------

OTHER = TERMS._replace(slots=2)


def rests(*houses: House, mutex: str = "x", terms: Description = TERMS) -> None:
    """They take part, and no application there uses it."""
    for house in houses:
        house.group.founding.uses = lambda mutex, house=house: mutex in house.started
        house.group.founding.joined(mutex, terms)


@pytest.mark.parametrize("seed", range(40))
def test_terms_that_nobody_uses_keep_nobody_out(seed: int):
    village = Village(seed, delay_s=DELAYS_S[seed % 5], loss=0.2 * (seed % 2))
    one, *others = village.neighbours(2 + seed)
    rests(*others, one) if seed % 3 else rests(*others[: 1 + seed // 2])
    one.group.founding.closed("x")
    one.open("x", OTHER)
    all_started(village, [one], within_s=30)
    assert one.founded()
    village.run(10)
    assert not [house for house in others if "x" in house.group.founding.running]
    assert not [effect for house in (one, *others) for effect in house.did if isinstance(effect, Mismatch)]


@pytest.mark.parametrize("seed", range(100))
def test_where_one_goes_on_while_another_opens_it_with_other_terms_one_of_them_is_refused(seed: int):
    """Issue 12 g, where the name has rested."""
    village = Village(seed, delay_s=DELAYS_S[seed % 4], loss=0.1 * (seed % 2))
    old, new, *others = village.neighbours(3 + seed % 7)
    rests(old, new, *others)
    new.group.founding.closed("x")
    new.open("x", OTHER)

    def go_on() -> None:
        if "x" in old.group.founding.running:
            old.started["x"] = Start("x", False)
        else:
            old.open("x", TERMS)

    village.at(village.now + int(village.rng.random() * 6 * village.delay), go_on)
    village.run(60)
    assert sum("x" in house.started for house in (old, new)) == 1
    assert [effect for house in (old, new) for effect in house.did if isinstance(effect, RefuseMutex)]
    assert not [effect for house in (old, new) for effect in house.did if isinstance(effect, Mismatch)]


@pytest.mark.parametrize("seed", range(10))
def test_terms_are_changed_only_where_all_answer(seed: int):
    """Or who was silent has its token still when it is heard again, and runs beside the one that changed them."""
    village = Village(seed, delay_s=DELAYS_S[seed % 4])
    one, other, *others = village.neighbours(3 + seed)
    rests(other, *others)
    village.cut([other], [one, *others])
    one.open("x", OTHER)
    village.run(60)
    assert "x" not in one.started
    [stalled] = [effect for effect in one.did if isinstance(effect, Stalled)]
    assert "changed only where all answer" in stalled.why
    assert not [effect for house in others for effect in house.did if isinstance(effect, GiveUp)]
    village.heal()
    all_started(village, [one], within_s=30)
    village.run(10)
    assert not [house for house in (other, *others) if "x" in house.group.founding.running]


def test_what_a_machine_of_other_terms_said_is_not_for_the_new_one():
    village = Village()
    one, other, third = village.neighbours(3)
    rests(other, third)
    one.open("x", OTHER)
    other.send(one.id, "x", OFFER)
    all_started(village, [one], within_s=30)
    assert one.received == [(other.id, "x", OFFER)]
    assert one.started["x"] == Start("x", True)


def test_who_hears_of_it_from_one_that_only_takes_part_asks_who_uses_it():
    """Or a ring of members that pass a message on stands still: each hears of it from a member that does not use it."""
    village = Village()
    user, other, third = village.neighbours(3)
    user.group.founding.uses = lambda mutex: mutex in user.started
    rests(other)
    user.open("x")
    all_started(village, [user], within_s=10)
    other.send(third.id, "x", OFFER)
    village.run(1)
    [taken] = [effect for effect in third.did if isinstance(effect, TakePart)]
    assert (taken.peer, taken.description.by, taken.kept) == (user.id, user.id, (Received(other.id, OFFER),))


def test_many_who_only_take_part_and_speak_at_once_do_not_keep_it_from_being_asked():
    village = Village(3, delay_s=0.2)
    user, third, *others = village.neighbours(20)
    user.group.founding.uses = lambda mutex: mutex in user.started
    rests(*others)
    user.open("x")
    all_started(village, [user], within_s=10)
    village.run(1)
    assert third.group.founding.notes == 1
    for other in others:
        other.send(third.id, "x", OFFER)
    village.run(1.9)  # one way there, there and back to them, there and back to the user
    assert [effect.peer for effect in third.did if isinstance(effect, TakePart)] == [user.id]


def test_who_uses_it_makes_those_give_up_other_terms_who_only_take_part():
    village = Village()
    a, b = village.neighbours(2)
    rests(a)
    village.cut([a], [b])
    b.open("x", OTHER, when_isolated="proceed")
    village.run(10)
    assert b.founded()
    village.heal()
    b.do(b.group.founding.ask_terms, a.id, "x")
    village.run(1)
    assert a.did == [GiveUp("x")]
    assert a.group.founding.notes == 1  # of who uses it
    assert "x" in b.started
    assert not [effect for effect in b.did if isinstance(effect, Mismatch)]


def test_what_one_said_who_is_a_member_no_longer_is_forgotten():
    village = Village()
    a, _, c = village.neighbours(3)
    c.do(c.group.put, Tell(a.id, "x", TERMS._replace(by=c.id)))
    village.run(1)
    assert a.group.founding.notes == 1
    a.do(a.group.expel, c.id, village.now)
    assert a.group.founding.notes == 0
