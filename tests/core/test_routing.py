"""`core/routing.py`: whose a key is, and how a message gets there."""

from __future__ import annotations

import math
import random

import pytest

from softmutex.core.routing import PrefixRing, key_of, spot_of

SIZES = (1, 2, 3, 7, 50, 1000)


def group(size: int, seed: int = 1) -> list[int]:
    """Ids of both kinds that there are: one after the other, or at random."""
    if seed % 2:
        return list(range(1, size + 1))
    return random.Random(seed).sample(range(1, 1 << 63), size)


def keys(count: int) -> list[int]:
    return [key_of(place, replica) for place in range(count) for replica in range(3)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [1, 2])
def test_from_anywhere_a_message_arrives_where_the_key_is(size: int, seed: int):
    members = group(size, seed)
    ring = PrefixRing(members)
    for key in keys(5):
        for start in members[:100]:
            steps = ring.path(start, key)
            assert (steps[-1] if steps else start) == ring.owner(key)
            assert len(set(steps)) == len(steps) and start not in steps


@pytest.mark.parametrize("size", SIZES)
def test_it_takes_few_steps(size: int):
    ring = PrefixRing(group(size, 2))
    steps = [len(ring.path(start, key)) for key in keys(5) for start in group(size, 2)[:200]]
    assert max(steps) <= math.log(size, 16) + 4
    assert sum(steps) / len(steps) <= math.log(size, 16) + 1


def test_the_ways_to_one_key_soon_meet_and_those_to_different_keys_do_not():
    members = group(1000, 2)
    ring = PrefixRing(members)
    first_steps = {key: {ring.next_hop(me, key) for me in members[:300]} for key in keys(20)}
    assert all(len(steps) <= 6 for steps in first_steps.values())
    assert len(set().union(*first_steps.values())) > 100


def test_keys_are_spread_over_the_members():
    ring = PrefixRing(group(20))
    owned = [ring.owner(key_of(place, 0)) for place in range(4000)]
    assert set(owned) == set(group(20))
    assert max(map(owned.count, set(owned))) < 5 * 4000 / 20


@pytest.mark.parametrize("seed", range(1, 7))
def test_with_comers_and_goers_it_is_the_ring_of_those_who_are_there(seed: int):
    chance = random.Random(seed)
    members = group(30, seed)
    ring = PrefixRing(members)
    for _ in range(60):
        comers = [chance.randrange(1 << 40, 1 << 41) for _ in range(chance.randrange(3))]
        goers = chance.sample(members, min(len(members) - 1, chance.randrange(3)))
        members = [node for node in members if node not in goers] + comers
        for _ in range(chance.randrange(1, 3)):  # two machines that share it tell it alike
            ring.update(comers, goers)
        fresh = PrefixRing(members)
        for key in keys(4):
            assert ring.owner(key) == fresh.owner(key)
            assert ring.next_hop(members[0], key) == fresh.next_hop(members[0], key)
        assert len(ring) == len(members)


def test_who_comes_takes_keys_for_itself_and_moves_no_others():
    before, after = PrefixRing(group(50)), PrefixRing([*group(50), 99])
    for key in keys(300):
        assert after.owner(key) in (before.owner(key), 99)
        assert after.owner(key, but=99) == before.owner(key)


def test_who_goes_changes_no_step_that_it_was_not_in():
    members = group(200, 2)
    before, after = PrefixRing(members), PrefixRing(members[1:])
    for key in keys(50):
        for me in members[1:20]:
            if before.next_hop(me, key) != members[0] and before.owner(key) != members[0]:
                assert after.next_hop(me, key) == before.next_hop(me, key)


def test_nobody_is_nobody():
    ring = PrefixRing([])
    assert ring.owner(1) == 0 and ring.next_hop(7, 1) == 0
    assert PrefixRing([7]).owner(1) == 7 and PrefixRing([7]).owner(1, but=7) == 0


def test_whatever_it_was_not_told_it_agrees_with_those_who_are_there():
    ring, members = PrefixRing(group(30)), [*group(30)[3:], 77, 78, 79]
    ring.agree(members)
    assert [ring.owner(key) for key in keys(20)] == [PrefixRing(members).owner(key) for key in keys(20)]


# --- by the definition -----------------------------------------------------------------------------------------------


def test_where_a_number_lies_is_agreed_on_for_ever():
    """As SplitMix64 has it: what it draws first from this seed."""
    assert [spot_of(number) for number in (0, 1)] == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    assert spot_of((1 << 64) - 0x9E3779B97F4A7C15) == 0 and spot_of(1 << 64) == spot_of(0)
    assert key_of(5, 2) == spot_of(spot_of(5) + 2) != key_of(2, 5)
    assert key_of(5 + (1 << 64), 2) == key_of(5, 2)


def apart(one: int, other: int) -> int:
    return min((one - other) % 2**64, (other - one) % 2**64)


def nearest(members: list[int], key: int) -> int:
    return min(members, key=lambda node: (apart(spot_of(node), key), node))


def step(members: list[int], me: int, key: int) -> int:
    """One more hexadecimal digit in common with the key; of those who have it the first one after the key's point."""
    owner = nearest(members, key)
    digits, mine = f"{key:016x}", f"{spot_of(me):016x}"
    common = next((at for at in range(16) if digits[at] != mine[at]), 16)
    those = sorted(
        (spot_of(node), node) for node in members if f"{spot_of(node):016x}"[: common + 1] == digits[: common + 1]
    )
    if owner == me or common >= 15 or not those:
        return owner
    rest = 64 - 4 * (common + 1)
    point = (key >> rest << rest) + (spot_of(key) >> 64 - rest)
    return next((node for spot, node in those if spot >= point), those[0][1])


@pytest.mark.parametrize("size", [1, 2, 3, 17, 300])
def test_owners_and_steps_are_what_the_definition_says(size: int):
    members = group(size, 3)
    ring = PrefixRing(members)
    for key in [*keys(12), 0, 2**64 - 1, spot_of(members[0]), spot_of(members[-1])]:
        assert ring.owner(key) == nearest(members, key)
        for me in members[:8]:
            assert ring.next_hop(me, key) == step(members, me, key)
            others = [node for node in members if node != me]
            assert ring.owner(key, but=me) == (nearest(others, key) if others else 0)
