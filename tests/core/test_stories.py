"""Short stories of the published algorithms, pinned event by event in `tests/traces`."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from softmutex.core.algorithms.adaptive import Adaptive
from softmutex.core.algorithms.random_access import RandomAccess
from softmutex.core.algorithms.sandwich import Sandwich
from softmutex.core.events import SECOND, Event, Fired, Leaving, MembersChanged, Received, Released, Requested, Started
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Accept, Commit, Done, Offer, Refuse
from softmutex.core.timing import Timing
from tests.core.bench import token
from tests.tracing import Trace

ELDER, YOUNGER = token(0, 5), token(1, 4)
Story = list[tuple[float, Event]]


@pytest.fixture
def play(request: pytest.FixtureRequest, rewrite: bool) -> Callable[..., None]:
    """Tells a story to one machine, and compares what it did with what is pinned."""

    def told(machine: type[Algorithm], story: Story, members: list[int] | None = None, **options: object) -> None:
        trace = Trace(machine.name, request.node.name)
        setup = Setup(1, members or [1, 2, 3], random.Random(1), Timing(), options)
        each = machine(setup)
        for at_s, event in story:
            trace.handle(each, event, round(at_s * SECOND))
        trace.check(rewrite)

    return told


def test_a_founder_skips_uses_and_passes_the_token(play: Callable[..., None]):
    play(
        Adaptive,
        [
            (1000, Started(founder=True)),
            (1001, Fired("skip")),
            (1500, Requested(1)),
            (1600, Received(2, Offer(1, ELDER))),
            (1604, Released(1, b"trace")),
        ],
        passing="direct",
    )


def test_patience_grows_with_a_token_made_and_shrinks_with_one_received(play: Callable[..., None]):
    play(
        Adaptive,
        [
            (0, Started()),
            (1800, Fired("silence")),
            (1801, Fired("skip")),
            (2000, Received(2, Offer(1, ELDER))),
            (2001, Fired("skip")),
            (4500, Fired("silence")),
            (4655, Fired("silence")),
        ],
        passing="direct",
    )


def test_a_younger_token_is_discarded_where_an_elder_was_used(play: Callable[..., None]):
    play(
        Adaptive,
        [
            (0, Started()),
            (10, Requested(1)),
            (11, Received(2, Offer(1, ELDER))),
            (12, Received(3, Offer(1, YOUNGER))),
            (15, Released(1)),
            (16, Received(3, Offer(2, YOUNGER))),
            (612, Received(3, Offer(3, YOUNGER))),
        ],
        passing="direct",
    )


def test_a_token_comes_in_four_steps_and_goes_after_a_refusal(play: Callable[..., None]):
    first = int(random.Random(1).random() * 2**53)
    play(
        Adaptive,
        [
            (0, Started()),
            (1, Received(2, Offer(70, ELDER))),
            (2, Received(2, Commit(70, first + 1, ELDER))),
            (3, Fired("skip")),
            (4, Received(2, Refuse(first + 2))),
            (5, Fired("skip")),
            (6, Received(2, Accept(first + 3, 80))),
            (7, Received(2, Done(first + 3, 80))),
        ],
        members=[1, 2],
    )


def test_whoever_leaves_hands_the_token_over_first(play: Callable[..., None]):
    first = int(random.Random(1).random() * 2**53)
    play(
        Sandwich,
        [
            (0, Started(founder=True)),
            (0.05, Requested(1)),
            (3, Leaving()),
            (4, Released(1)),
            (5, Received(2, Accept(first + 1, 80))),
            (6, Received(2, Done(first + 1, 80))),
        ],
        members=[1, 2],
    )


def test_a_token_between_two_visits_of_an_elder_and_itself_is_sandwiched(play: Callable[..., None]):
    play(
        Sandwich,
        [
            (0, Started()),
            (1, Received(2, Offer(1, YOUNGER))),
            (1.1, Fired("skip")),
            (2, Received(3, Offer(2, ELDER))),
            (2.1, Fired("skip")),
            (3, Received(2, Offer(3, YOUNGER))),
        ],
        passing="direct",
    )


def test_alone_the_token_is_parked_until_somebody_joins(play: Callable[..., None]):
    members = [1]
    story: Story = [
        (0, Started(founder=True)),
        (0.1, Fired("skip")),
        (5, Requested(1)),
        (9, Released(1)),
        (10, Requested(2)),
        (10.1, Fired("skip")),
        (605, Fired("skip")),
        (609, Released(2)),
        (700, MembersChanged((), ())),
        (700.1, Fired("skip")),
    ]
    play(Sandwich, story, members=members, passing="direct")


def test_requests_are_granted_a_random_period_apart(play: Callable[..., None]):
    play(
        RandomAccess,
        [
            (0, Started()),
            (10, Requested(1)),
            (813, Fired("gap")),
            (817, Released(1)),
            (820, Requested(2)),
            (1645, Fired("gap")),
            (1646, Leaving()),
            (1649, Released(2)),
        ],
    )
