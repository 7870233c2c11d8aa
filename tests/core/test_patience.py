"""How long an answer is waited for: Jacobson's estimate with Karn's rule, in figures; and a machine's outbox."""

from __future__ import annotations

import random

import pytest

from softmutex.core.events import CancelTimer, FactKind, Note, Send, SetTimer, Token
from softmutex.core.machine import Setup
from softmutex.core.messages import Ping
from softmutex.core.outbox import Outbox
from softmutex.core.patience import Patience
from softmutex.core.timing import Timing

FIRST = 1600


def test_while_nothing_is_known_the_wait_doubles_up_to_twice_the_first_one():
    patience = Patience(FIRST)
    assert [patience.wait(tries) for tries in range(4)] == [1600, 3200, 3200, 3200]
    assert patience.round_trip == 0


def test_it_is_the_round_trip_and_four_times_how_far_that_varies_and_twice_the_round_trip_at_least():
    patience, learnt = Patience(FIRST), []
    for round_trip in (400, 400, 800, 400, *[400] * 60):
        patience.learn(round_trip, 0)
        learnt.append((patience.round_trip, patience.wait(0)))
    #                       deviation 200,      150,        150 + 62,            varies by 212 and less
    assert learnt[:3] == [(400, 1200), (400, 1000), (450, 450 + 4 * 212)]
    assert learnt[-1][1] == 2 * learnt[-1][0] and 400 <= learnt[-1][0] <= 408


def test_it_is_a_sixteenth_of_the_first_wait_at_least_and_four_times_that_at_most():
    patience = Patience(FIRST)
    patience.learn(1, 0)
    assert patience.wait(0) == 100
    assert [patience.wait(tries) for tries in (1, 2, 3, 4, 9)] == [200, 400, 800, 800, 800]  # half of the first wait
    patience = Patience(FIRST)
    patience.learn(9000, 0)
    assert [patience.wait(tries) for tries in (0, 1, 5)] == [6400] * 3


def test_an_answer_to_what_was_sent_twice_teaches_nothing_but_patience():
    patience = Patience(FIRST)
    patience.learn(100, 0)
    assert (patience.wait(0), patience.round_trip) == (300, 100)
    for wait in (600, 1200, 2400, 4800, 6400, 6400):
        patience.learn(50, 1)
        assert (patience.wait(0), patience.round_trip) == (wait, 100)


def test_what_is_said_to_oneself_is_heard_before_the_event_ends_and_nobody_is_said_nothing():
    outbox = Outbox(Setup(3, [1, 3], random.Random(1), Timing(), {}))
    for to in (3, 0, 1):
        outbox.post(to, Ping(to))
    assert outbox.inbox == [Ping(3)] and outbox.out == [Send(1, Ping(1))]


def test_a_timer_goes_off_later_than_now():
    outbox = Outbox(Setup(3, [1, 3], random.Random(1), Timing(), {}))
    outbox.now = 100
    for at in (99, 100, 101):
        outbox.timer("x", at)
    outbox.cancel("x")
    assert outbox.out == [SetTimer("x", 101), SetTimer("x", 101), SetTimer("x", 101), CancelTimer("x")]


def test_a_fact_is_noted_with_what_is_known_of_it():
    outbox = Outbox(Setup(3, [1, 3], random.Random(1), Timing(), {}))
    outbox.note(FactKind.STALE)
    outbox.note(FactKind.OVERLAP, Token(1, 2, 3, 4), 5, "so")
    assert outbox.out == [Note(FactKind.STALE, None, 0, ""), Note(FactKind.OVERLAP, Token(1, 2, 3, 4), 5, "so")]


def test_what_many_begin_at_once_comes_back_between_three_and_five_quarters_of_the_time():
    outbox = Outbox(Setup(3, [1, 3], random.Random(1), Timing(), {}))
    spans = [outbox.jitter(1_000_000) for _ in range(2000)]
    assert 750_000 <= min(spans) < 755_000 and 1_245_000 < max(spans) <= 1_250_000
    assert sum(spans) / len(spans) == pytest.approx(1_000_000, rel=0.02)
