"""The hand-over, explored: within the bounds below, every interleaving with loss, repetition, delay and reordering.

`pytest tests/handover/test_model.py -s` prints how many states were visited; SOFTMUTEX_DEEP=1 takes ten minutes more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from softmutex.core.handover import Handover, Passing
from tests.depth import DEEP
from tests.handover.broken import BREAKAGES, Breakage
from tests.handover.explorer import Bounds, Explorer, Found

THREE, FOUR = Passing.THREE_WAY, Passing.FOUR_WAY

# What a search must have met, or it has proved nothing: (act or message, outcome).
BASIC = {("Commit", "Taken"), ("fire", "Failed"), ("Commit", "NoneType")}
CONFIRMED = BASIC | {("Done", "Passed"), ("Void", "Failed"), ("fire", "Gone"), ("Ask", "NoneType")}
PROVEN = CONFIRMED | {("Offer", "Passed")}
AT_ONCE = {("Commit", "Taken"), ("Done", "Passed"), ("Void", "Failed"), ("fire", "Gone"), ("Ask", "NoneType")}
REFUSED = {("Refuse", "Failed")}

# Senders give up where a receiver forgets at once: then only safety is checked.
STANDING: dict[str, Any] = {"stands": 2, "offers": False}
STAND_ONCE: dict[str, Any] = {"stands": 1, "offers": False}
FORGETFUL: dict[str, Any] = {"promises": 1, "memory": 1, "finish": False}


class Search(NamedTuple):
    name: str
    passing: Passing
    bounds: Bounds
    states: int  # at least so many must be visited
    meets: set[tuple[str, str]]


SEARCHES = [
    Search("two nodes, more resends", FOUR, Bounds(attempts=4, resends=2), 11_000, PROVEN),
    Search("two nodes, 3-way", THREE, Bounds(attempts=5), 14_000, BASIC | {("Accept", "Passed")}),
    Search("three nodes", FOUR, Bounds(nodes=3, attempts=3), 12_000, PROVEN),
    Search("refusals, 3-way", THREE, Bounds(nodes=3, attempts=3, refusals=True), 20_000, BASIC | REFUSED),
    Search("pipelined", FOUR, Bounds(attempts=3, resends=0, early=True), 85_000, PROVEN),
    Search("pipelined, refusals", FOUR, Bounds(nodes=3, early=True, refusals=True), 80_000, PROVEN | REFUSED),
    Search("pipelined, 3-way", THREE, Bounds(attempts=3, early=True), 70_000, BASIC | {("commit", "Passed")}),
    Search("at once, resent", FOUR, Bounds(attempts=3, asks=1, early=True, **STANDING), 25_000, AT_ONCE),
    Search("at once, three nodes", FOUR, Bounds(nodes=3, attempts=3, resends=0, asks=1, **STAND_ONCE), 20_000, AT_ONCE),
    Search(
        "at once, impostors", FOUR, Bounds(nodes=3, resends=0, asks=1, impostors=True, **STAND_ONCE), 9_000, AT_ONCE
    ),
    Search("at once and offered", FOUR, Bounds(attempts=3, resends=0, asks=1, stands=1), 20_000, CONFIRMED),
    Search("at once, short memory", FOUR, Bounds(asks=1, attempts=3, **STANDING, **FORGETFUL), 24_000, AT_ONCE),
    Search(
        "at once to what was forgotten",
        FOUR,
        Bounds(resends=0, asks=1, memory=1, stands=3, offers=False),
        45_000,
        AT_ONCE,
    ),
    Search("short memory", FOUR, Bounds(attempts=4, replies=4, **FORGETFUL), 24_000, PROVEN),
    Search("short memory, three nodes", FOUR, Bounds(nodes=3, attempts=3, **FORGETFUL), 15_000, PROVEN),
    Search("short memory, pipelined", FOUR, Bounds(attempts=3, resends=0, early=True, **FORGETFUL), 120_000, PROVEN),
]
LONGER = [  # each of them has a smaller one of its kind above, or where what is broken is caught
    Search("two nodes", FOUR, Bounds(attempts=5), 60_000, PROVEN),
    Search("three nodes, 3-way", THREE, Bounds(nodes=3, attempts=4), 30_000, BASIC),
    Search("refusals", FOUR, Bounds(nodes=3, attempts=3, refusals=True), 90_000, PROVEN | REFUSED),
    Search("impostors", FOUR, Bounds(nodes=3, resends=0, early=True, impostors=True), 180_000, CONFIRMED),
    Search("at once", FOUR, Bounds(attempts=4, resends=0, asks=1, **STANDING), 80_000, AT_ONCE),
    Search("three nodes, longer", FOUR, Bounds(nodes=3, attempts=4, resends=0), 130_000, PROVEN),
]
DEEPER = [
    Search("two nodes, deep", FOUR, Bounds(attempts=6), 370_000, PROVEN),
    Search("three nodes, deep", FOUR, Bounds(nodes=3, attempts=4), 180_000, PROVEN),
    Search("two nodes, 3-way, deep", THREE, Bounds(attempts=7), 380_000, BASIC),
    Search("three nodes, 3-way, deep", THREE, Bounds(nodes=3, attempts=5), 340_000, BASIC),
    Search("pipelined, deep", FOUR, Bounds(attempts=3, early=True, refusals=True), 2_700_000, PROVEN | REFUSED),
    Search("impostors, deep", FOUR, Bounds(nodes=3, early=True, refusals=True, impostors=True), 2_000_000, CONFIRMED),
    Search("short memory, deep", FOUR, Bounds(attempts=5, replies=4, **FORGETFUL), 270_000, PROVEN),
    Search("short memory, pipelined, deep", FOUR, Bounds(attempts=3, early=True, **FORGETFUL), 500_000, PROVEN),
]


def slow(search: Search) -> Any:
    return pytest.param(search, marks=pytest.mark.slow)


@pytest.mark.timeout(1800 if DEEP else 120)
@pytest.mark.parametrize("search", [*SEARCHES, *map(slow, LONGER + DEEPER * DEEP)], ids=lambda search: search.name)
def test_at_most_one_node_may_ever_use_a_token_and_every_hand_over_can_end(search: Search):
    explorer = Explorer(Handover, search.passing, search.bounds)
    explorer.explore()
    print(f"{search.name}: {explorer.visited} states, depth {explorer.deepest}, {explorer.transitions} steps")  # noqa: T201
    assert explorer.visited >= search.states
    assert search.meets <= explorer.happened


@pytest.mark.parametrize("broken", BREAKAGES, ids=lambda broken: f"{broken.variant.__name__}, {broken.passing}")
def test_the_explorer_catches_what_is_broken_on_purpose(broken: Breakage):
    with pytest.raises(Found, match=broken.symptom):
        Explorer(broken.variant, broken.passing, broken.bounds).explore()


@pytest.mark.parametrize(
    ("passing", "bounds"),
    {(broken.passing, broken.bounds): None for broken in BREAKAGES},
    ids=lambda each: each if isinstance(each, Passing) else "",
)
def test_where_those_are_caught_the_true_one_is_not(passing: Passing, bounds: Bounds):
    Explorer(Handover, passing, bounds).explore()


def test_a_found_story_can_be_followed():
    broken = next(broken for broken in BREAKAGES if broken.variant.__name__ == "ResumesInsteadOfAsking")
    with pytest.raises(Found) as found:
        Explorer(broken.variant, broken.passing, broken.bounds).explore()
    assert str(found.value).splitlines() == [
        "ResumesInsteadOfAsking, 4-way: nodes [1, 2] may both use the token",
        "  1. give at 1 (2)",
        "  2. deliver Offer(1001, hop=0, False) from 1 to 2",
        "  3. deliver Accept(1001, 2001) from 2 to 1",
        "  4. fire at 1 (('handover', 1001))",
        "  5. fire at 1 (('handover', 1001))",
        "  6. deliver Commit(1001, 2001, hop=0) from 1 to 2",
    ]
