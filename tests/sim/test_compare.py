"""`softmutex sim compare`: what the page *Which algorithm* says of them is what comes out, at a size that is cheap."""

from functools import cache

import pytest

from softmutex.sim import compare
from softmutex.sim.compare import Compared, as_text, measure
from softmutex.sim.world import TooLong


@cache
def rows() -> dict[str, Compared]:
    names = ("central", "ricart-agrawala", "token-ring", "voting", "wandering")
    return {row.algorithm: row for row in measure(names, [10], 1, 60)}


def test_central_takes_the_fewest_messages_and_its_coordinator_carries_them_all():
    found = rows()["central"]
    assert (found.messages_rare or 9) < 3.5 and (found.messages_busy or 9) <= 3
    assert (found.load_busiest or 0) > 4 * (found.load_mean or 9)
    assert all((found.messages_rare or 9) < (other.messages_rare or 0) for other in rows().values() if other != found)


def test_the_token_ring_takes_two_messages_where_everybody_wants_it_and_many_where_nobody_does():
    found = rows()["token-ring"]
    assert round(found.messages_busy or 0, 1) == 2.0 and (found.messages_rare or 0) > 50


def test_ricart_agrawala_takes_all_others_twice_and_spreads_the_load():
    found = rows()["ricart-agrawala"]
    assert round(found.messages_busy or 0) == 18
    assert (found.load_busiest or 9) < 1.1 * (found.load_mean or 0)


def test_what_is_strict_does_not_overlap_and_what_dies_is_followed():
    for name in ("central", "ricart-agrawala", "token-ring"):
        row = rows()[name]
        assert row.overlap == row.overlap_lossy == row.overlap_churning == row.overlap_killed == 0
        assert row.laws_broken == () and not row.ended and (row.fairness or 0) > 0.95


def test_the_default_is_in_use_most_when_messages_are_lost_and_holders_die():
    wandering = rows()["wandering"]
    for name in ("central", "voting", "ricart-agrawala"):
        assert (wandering.use_lossy or 0) > (rows()[name].use_lossy or 1)
    assert (wandering.use_killed or 0) >= (rows()["central"].use_killed or 1)


def test_elections_are_not_compared_with_what_takes_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compare, "one_row", lambda name, *_: name)
    assert {"bully", "ring"}.isdisjoint(measure((), [3], 1, 1)) and "wandering" in measure((), [3], 1, 1)


def test_the_table_has_a_line_for_each_and_says_what_was_left_out():
    text = as_text(list(rows().values()))
    assert len(text.splitlines()) == 2 + len(rows())
    assert compare.shown(None, ".1f") == "-"


def test_what_takes_more_events_than_was_said_is_left_out(monkeypatch: pytest.MonkeyPatch):
    def too_long(*_: object, most_events: int, **__: object) -> None:
        raise TooLong(f"{most_events} events")

    monkeypatch.setattr(compare, "simulate", too_long)
    (row,) = measure(["central"], [3], 1, 5, events=7)
    assert row.messages_rare is None and row.messages_busy is None
    monkeypatch.setattr(compare, "one_row", lambda *how: how[-1])
    assert measure(["central"], [3], 1, 5, events=7) == [7]
