"""`adaptive`, seed 000: which tokens are spurious, and a patience that grows and shrinks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from softmutex.core.algorithms.adaptive import Adaptive
from softmutex.core.errors import ConfigError
from softmutex.core.events import SECOND, FactKind, Fired, Token
from softmutex.core.machine import Setup
from softmutex.core.timing import Timing
from tests.core.bench import START, Bench, token

ELDER, YOUNGER = token(START - 100, 5), token(START - 50, 4)


def having_run(enabler: Token, **options: Any) -> Bench:
    """A node that ran A four seconds ago, when this token enabled it."""
    b = Bench(Adaptive, **options)
    b.start()
    b.request()
    b.visit(enabler)
    b.at(4).release()
    return b


def discarded(b: Bench) -> list[Token | None]:
    return [note.token for note in b.noted(FactKind.DISCARDED)]


# --- which tokens are spurious ----------------------------------------------------------------------------------------


def test_a_token_is_discarded_where_an_older_one_enabled_the_last_run():
    b = having_run(ELDER)
    b.visit(YOUNGER)
    assert discarded(b) == [YOUNGER._replace(hop=1)]
    assert b.machine.view().tokens == ()
    assert b.due_in("skip") is None


def test_it_is_kept_where_that_was_min_ago():
    b = having_run(ELDER)
    b.at(599.999).visit(YOUNGER)
    assert len(discarded(b)) == 1
    b.at(600).visit(YOUNGER)
    assert discarded(b) == []


def test_an_older_token_is_kept_and_skipped_on():
    b = having_run(YOUNGER)
    b.visit(ELDER)
    assert discarded(b) == []
    assert b.due_in("skip") == 1


def test_the_same_token_is_no_other_token():
    b = having_run(ELDER)
    b.at(10).visit(ELDER._replace(hop=40))
    assert discarded(b) == []
    b.fire("skip")
    b.request(2)
    b.at(700).visit(ELDER._replace(hop=90))
    assert b.granted == [2]


@pytest.mark.parametrize(("other_id", "spurious"), [(4, False), (6, True)])
def test_of_two_tokens_of_one_moment_the_lower_id_wins(other_id: int, spurious: bool):
    b = having_run(ELDER)
    b.visit(ELDER._replace(id=other_id))
    assert bool(discarded(b)) is spurious


def test_a_token_that_was_only_skipped_on_condemns_no_other():
    b = Bench(Adaptive)
    b.start()
    b.visit(ELDER)
    b.fire("skip")
    b.visit(YOUNGER)
    assert discarded(b) == []


def test_a_discarded_token_is_received_all_the_same():
    b = having_run(ELDER)
    b.at(1000 - 600).visit(YOUNGER)
    b.fire("silence")
    assert b.noted(FactKind.GENERATED) == []
    assert b.due_in("silence") == pytest.approx(400)


def test_the_next_token_in_line_follows_a_discarded_one():
    b = Bench(Adaptive)
    b.start()
    b.request()
    b.visit(ELDER)
    b.visit(YOUNGER)
    b.visit(token(START - 200, 1))
    b.at(4).release()
    assert discarded(b) == [YOUNGER._replace(hop=1)]
    assert [each.key for each in b.machine.view().tokens] == [token(START - 200, 1).key]


def test_a_pause_of_another_length_changes_nothing_about_what_is_spurious():
    b = having_run(ELDER, min_interval=0)
    b.request(2)
    b.at(5).visit(YOUNGER)
    assert len(discarded(b)) == 1
    b.at(599).visit(ELDER)
    assert b.granted == [2]


# --- how long a silence is borne --------------------------------------------------------------------------------------


def test_at_first_max_is_borne():
    b = Bench(Adaptive)
    b.start()
    assert b.due_in("silence") == 1800


def test_silence_counts_from_the_last_token_received_not_from_the_last_one_used():
    b = Bench(Adaptive)
    b.start()
    b.at(1000).visit(ELDER)
    b.fire("skip")
    b.fire("silence")
    assert b.noted(FactKind.GENERATED) == []
    b.fire("silence")
    assert b.now_s == START + 2800
    assert len(b.noted(FactKind.GENERATED)) == 1


def test_each_token_made_makes_it_half_as_long_again():
    b = Bench(Adaptive)
    b.start()
    for expected in (2700, 4050, 6075):
        b.fire("silence")
        assert b.noted(FactKind.GENERATED)
        assert b.patience() == expected
        b.fire("skip")


def test_each_token_received_takes_a_twentieth_of_the_excess_back():
    b = Bench(Adaptive)
    b.start()
    b.fire("silence")
    b.fire("skip")
    for expected in (2700 - 45, 2655 - 42.75, 2612.25 - 40.6125):
        b.visit(ELDER)
        assert b.patience() == pytest.approx(expected)
        b.fire("skip")


def test_it_never_falls_below_max():
    b = Bench(Adaptive)
    b.start()
    b.fire("silence")
    b.fire("skip")
    for hop in range(2000):
        b.visit(ELDER._replace(hop=hop))
        if hop % 50 == 0:
            assert b.patience() >= 1800
        b.fire("skip")
    b.visit(ELDER._replace(hop=2000))
    assert 1800 <= b.patience() < 1800 + 20 / SECOND


def test_a_silence_that_became_shorter_moves_the_timer_forward():
    b = Bench(Adaptive, decay=1.0)
    b.start()
    b.fire("silence")
    b.fire("skip")
    assert b.due_in("silence") == pytest.approx(2700 - 1)
    b.visit(ELDER)
    assert b.due_in("silence") == 1800


def test_the_first_token_is_no_reason_to_lose_patience():
    b = Bench(Adaptive)
    b.start(founder=True)
    b.fire("skip")
    b.visit(ELDER)
    assert b.patience() == 1800


def test_growth_and_decay_can_be_chosen():
    b = Bench(Adaptive, growth=3, decay=0.5)
    b.start()
    b.fire("silence")
    assert b.patience() == 5400
    b.fire("skip")
    b.visit(ELDER)
    assert b.patience() == 3600


def test_with_a_growth_of_one_the_timeout_is_fixed():
    b = Bench(Adaptive, growth=1)
    b.start()
    b.fire("silence")
    assert b.patience() == 1800


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"growth": 0.9}, "growth is 0.9, give a number from 1 to 10"),
        ({"growth": 11}, "growth is 11"),
        ({"growth": 0.99}, "growth is 0.99"),
        ({"growth": 10.1}, "growth is 10.1"),
        ({"decay": 1.01}, "decay is 1.01"),
        ({"decay": 1.5}, "decay is 1.5, give a number from 0 to 1"),
        ({"decay": -0.1}, "decay is -0.1"),
        ({"decay": "x"}, "decay is 'x'"),
        ({"grwth": 1}, "Did you mean 'growth'?"),
    ],
)
def test_impossible_growth_and_decay_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as error:
        Adaptive(Setup(1, [1, 2], random.Random(1), Timing(), options))
    assert said in str(error.value)


def test_a_timer_that_fires_late_makes_the_token_now():
    b = Bench(Adaptive)
    b.start()
    b.at(5000)
    b.timers.clear()
    b.handle(Fired("silence"))
    (made,) = b.noted(FactKind.GENERATED)
    assert made.token is not None
    assert made.token.stamp == b.now
    assert b.patience() == 2700
