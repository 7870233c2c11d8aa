"""Whom a list names without a proof of the group's key: others than members may write to such a list (ports.M13)."""

from __future__ import annotations

import pytest

from softmutex.core.group import Listed
from tests.group.village import House, Village

SEEDS = range(10)
INVENTED = 20


def among_invented(seed: int, *, is_proven: bool) -> list[House]:
    """Three neighbours, and then so many more in the list, at addresses that swallow whatever they are sent."""
    village = Village(seed, delay_s=(0.0001, 0.01, 0.1, 0.3)[seed % 4])
    houses = village.neighbours(3)
    village.run(2)
    for house in houses:
        show(house, houses, is_proven=is_proven)
    return houses


def show(house: House, houses: list[House], *, is_proven: bool) -> None:
    invented = [Listed(f"void{number}", 50_000 + number, is_proven=is_proven) for number in range(INVENTED)]
    house.village.silent_hosts.update(place.address for place in invented)
    others = [Listed(other.address, other.id) for other in houses if other is not house]
    house.listed(*others, *invented, complete=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_listed_and_proves_nothing_has_no_weight(seed: int):
    houses = among_invented(seed, is_proven=False)
    houses[0].open()
    houses[0].village.until(houses[0].founded, within_s=5)
    assert all(sorted(house.group.members) == sorted(each.id for each in houses) for house in houses)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_begins_among_them_greets_them_first_and_does_without_them(seed: int):
    houses = among_invented(seed, is_proven=False)
    village = houses[0].village
    newcomer = village.house(30_000 + seed)
    show(newcomer, houses, is_proven=False)
    for house in houses:
        show(house, [*houses, newcomer], is_proven=False)
    newcomer.open()
    village.until(newcomer.founded, within_s=8)
    assert sorted(newcomer.group.members) == sorted(each.id for each in [*houses, newcomer])


@pytest.mark.parametrize("seed", SEEDS)
def test_of_silent_ones_that_are_proven_all_count(seed: int):
    """They may be the larger side of a cut, whether anybody here has ever heard them or not."""
    houses = among_invented(seed, is_proven=True)
    houses[0].open()
    houses[0].village.run(60)
    assert not houses[0].founded()
    assert len(houses[0].group.members) == 3 + INVENTED


@pytest.mark.parametrize("seed", SEEDS)
def test_who_proves_nothing_in_the_list_and_is_there_is_met_all_the_same(seed: int):
    """As a member of an older version."""
    village = Village(seed)
    houses = [village.house(id) for id in (1, 2)]
    places = [Listed(house.address, house.id, is_proven=False) for house in houses]
    houses[0].listed(complete=True)
    village.run(1)
    houses[0].listed(places[1], complete=True)
    houses[1].listed(places[0], complete=True)
    village.until(lambda: all(house.group.members == [1, 2] for house in houses), within_s=1)
