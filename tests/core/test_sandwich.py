"""`sandwich`, seed 001: which tokens are spurious, and when a new one is made."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from softmutex.core.algorithms.sandwich import HISTORY, Sandwich
from softmutex.core.chance import exponential
from softmutex.core.events import SECOND, FactKind, Token
from softmutex.core.timing import Timing
from tests.core.bench import START, Bench, token

A, B, C = (token(START - 300 + 100 * age, 7 - age) for age in range(3))  # A is the eldest


def visits(*visitors: Token, b: Bench | None = None) -> list[bool]:
    """Which of these visits ended with the token discarded."""
    if b is None:
        b = Bench(Sandwich)
        b.start()
    out = []
    for visitor in visitors:
        b.visit(visitor)
        out.append(bool(b.noted(FactKind.DISCARDED)))
        if not out[-1]:
            b.fire("skip")
    return out


# --- which tokens are spurious ----------------------------------------------------------------------------------------


def test_a_token_that_comes_back_after_an_elder_is_discarded():
    assert visits(B, A, B) == [False, False, True]


def test_a_token_that_was_never_here_is_not():
    assert visits(A, B) == [False, False]


def test_the_elder_is_never_discarded():
    assert visits(A, B, A, B, A) == [False, False, False, True, False]


def test_an_elder_that_came_before_is_no_proof():
    assert visits(A, B, B, B) == [False] * 4


def test_the_proof_is_forgotten_by_nobody_in_between():
    assert visits(B, A, C, C, B) == [False, False, False, False, True]


def test_a_younger_one_in_between_is_no_proof():
    assert visits(B, C, B) == [False, False, False]


def test_the_last_visit_counts():
    assert visits(A, B, C, B, C) == [False, False, False, False, True]


@pytest.mark.parametrize(("other_id", "spurious"), [(1, True), (9, False)])
def test_of_two_tokens_of_one_moment_the_lower_id_is_the_elder(other_id: int, spurious: bool):
    assert visits(B, B._replace(id=other_id), B) == [False, False, spurious]


def test_discarding_ends_the_step():
    b = Bench(Sandwich)
    b.start()
    visits(B, A, b=b)
    b.request(7)
    b.visit(B)
    assert [note.token for note in b.noted(FactKind.DISCARDED)] == [B._replace(hop=1)]
    assert b.granted == []
    assert b.machine.view().tokens == ()


def test_a_token_made_here_was_here():
    b = Bench(Sandwich)
    b.start()
    b.fire("silence")
    (made,) = b.noted(FactKind.GENERATED)
    b.fire("skip")
    assert made.token is not None
    assert visits(A, made.token, b=b) == [False, True]


def test_a_discarded_token_can_still_prove_another_one_spurious():
    assert visits(B, C, A, B, C) == [False, False, False, True, True]


def test_what_is_remembered_is_bounded_and_forgetting_only_delays():
    b = Bench(Sandwich)
    b.start()
    visits(C, b=b)
    crowd = [token(START + number, number) for number in range(HISTORY)]
    visits(*crowd, b=b)
    assert visits(C, b=b) == [False]  # its first visit is forgotten
    assert visits(A, C, b=b) == [False, True]


def test_the_history_reaches_back_over_as_many_tokens_as_it_says():
    crowd = [token(START + number, number) for number in range(HISTORY - 2)]
    assert visits(B, A, *crowd, B)[-1] is True


def test_no_token_is_remembered_twice():
    """Or it would take the place of others, and be held against them for longer."""
    crowd = [token(START + number, number) for number in range(HISTORY - 3)]
    for again in range(1, 4):
        assert visits(B, A, *crowd, *[C] * again, B)[-1] is True
        assert visits(B, A, *crowd, C, *[crowd[-1], C] * again, B)[-1] is True


# --- when a new one is made -------------------------------------------------------------------------------------------


def test_no_silence_shorter_than_min_is_too_long():
    for seed in range(200):
        b = Bench(Sandwich, seed=seed)
        b.start()
        assert b.patience() >= 600


def test_a_token_within_min_puts_the_silence_off_by_the_time_since_the_last():
    b = Bench(Sandwich)
    b.start()
    due = b.patience()
    b.at(250).visit(A)
    assert b.patience() == pytest.approx(due)


def test_a_token_after_min_puts_it_off_by_min():
    b = Bench(Sandwich)
    b.start()
    due = b.patience()
    b.at(900).visit(A)
    assert b.patience() == pytest.approx(due - 900 + 600)


def test_a_timeout_that_had_run_out_is_drawn_anew():
    b = Bench(Sandwich)
    b.start()
    due = b.patience()
    b.at(due + 1).visit(A)
    expected = random.Random(1)
    for _ in range(2):
        expected.random()  # one for the nonces of the hand-overs, one at the start
    assert b.patience() == pytest.approx(600 + exponential(expected, 180_000 * SECOND) / SECOND)


def test_waiting_on_is_the_same_as_drawing_anew_with_every_token():
    """The time until a token is made, with others coming at random: as done here, and as the pseudo-code has it."""
    visits_ns = random.Random(1)
    ours, theirs = [], []
    b = Bench(Sandwich, timing=Timing(op=1, nodes_max=4, skip=1e-6))  # min 2 s, mean 8 s
    b.start()
    draws = random.Random(2)
    begun = b.now
    for _ in range(10_000):
        visit = b.now + exponential(visits_ns, 3 * SECOND)
        while not b.noted(FactKind.GENERATED):
            if visit < b.timers["silence"]:
                b.at(visit / SECOND - START).visit(A)
                b.fire("skip")
                visit = b.now + exponential(visits_ns, 3 * SECOND)
            else:
                b.fire("silence")
        ours.append(b.now - begun)
        begun = b.now
        b.fire("skip")
        now, due = 0, 2 * SECOND + exponential(draws, 8 * SECOND)
        while (visit := now + exponential(visits_ns, 3 * SECOND)) < due:
            now = visit
            due = now + 2 * SECOND + exponential(draws, 8 * SECOND)
        theirs.append(due)
    assert fmean(ours) == pytest.approx(fmean(theirs), rel=0.04)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        at = int(share * len(ours))
        assert sorted(ours)[at] == pytest.approx(sorted(theirs)[at], rel=0.05)


def test_after_making_one_the_next_silence_is_drawn_anew():
    b = Bench(Sandwich)
    b.start()
    b.fire("silence")
    assert b.patience() >= 600
    assert b.patience() == b.patience(), "it is drawn once"
