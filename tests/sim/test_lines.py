"""`sim/lines.py`: whatever happens has a line that a person reads, and what differs has another one."""

from typing import Any, get_args

import pytest

from softmutex.core import events
from softmutex.core.algorithms.wandering.messages import Place, Presence, Probe, Seen, Sight, Span, Want
from softmutex.core.at_once import STANDING
from softmutex.core.events import (
    SECOND,
    CallRoll,
    CancelTimer,
    Depart,
    Escort,
    FactKind,
    Fired,
    Grant,
    Leaving,
    Level,
    Lose,
    LostReason,
    MembersChanged,
    Note,
    Overlapped,
    Reach,
    Received,
    Released,
    Requested,
    Returned,
    Right,
    Send,
    SetTimer,
    Silenced,
    Slept,
    Started,
    Suspect,
    Ticket,
    Token,
    Withdrawn,
)
from softmutex.core.handover import Taken
from softmutex.core.machine import View
from softmutex.core.messages import Accept, Commit, Offer, Ping
from softmutex.sim.lines import Story
from tests.wire.shapes import CLASSES, example, fields_of

START = 1000 * SECOND
TOKEN = Token(1, START, 10**15, 4)
RIVAL = Token(2, START, 10**15 + 1, 0)

EVENTS = [
    (Started(), "2 starts"),
    (Started(True), "2 starts, as the founder"),
    (Received(1, Ping(7)), "1→2 PING #7"),
    (Fired("want"), "2 timer want"),
    (Fired(("beat", 1)), "2 timer beat:1"),
    (Requested(3), "2 wants #3"),
    (Withdrawn(3), "2 wants #3 no more"),
    (Released(3), "2 releases #3"),
    (Released(3, b"\x01\xff"), "2 releases #3 with 01ff"),
    (MembersChanged((4, 5), (6,)), "2 joined: 4,5, left: 6"),
    (MembersChanged((), ()), "2 members changed"),
    (Slept(5 * SECOND // 2), "2 slept 2.5s"),
    (Leaving(), "2 is to leave"),
    (Silenced(4), "2 hears of its group: silenced(node=4)"),
    (Returned(4), "2 hears of its group: returned(node=4)"),
    (Reach(Level.HALF), "2 hears of its group: reach(half)"),
]
EFFECTS = [
    (Send(3, Accept(7, 8)), "2→3 ACCEPT #7/8"),
    (SetTimer("want", START + SECOND), "timer want at 1.000"),
    (SetTimer(("handover", 2**50), START + 1), "timer handover:1 at 0.000"),
    (CancelTimer("want"), "no timer want"),
    (Grant.by(TOKEN._replace(baggage=b"\x09"), 3), "grants #3 e1/h4 with 09"),
    (Grant(3, hop=9, alone=False), "grants #3 e0/h9, not alone"),
    (Grant(3, rights=(Right(1, 1, 8, 2), Right(0, 1, 9, 2))), "grants #3 e1/h2s1 e1/h2'"),
    (Lose(3, LostReason.LEASE), "tells #3 that it may be lost: lease"),
    (Note(FactKind.GENERATED, TOKEN, 4, "none was there"), "notes generated e1/h4 node 4: none was there"),
    (Note(FactKind.ISOLATED), "notes isolated"),
    (Depart(), "departs"),
    (Suspect(4), "suspects 4"),
    (CallRoll(True), "calls the roll of all"),
    (Overlapped(3, 4, 5, SECOND), "tells #3 that it overlapped with #5 of 4 for 1s"),
]
MESSAGES = [
    (Offer(2**40, TOKEN), "OFFER #1 e1/h4"),
    (Offer(2**40, TOKEN, True), "OFFER #1 e1/h4 early"),
    (Commit(2**40, STANDING + 6, RIVAL), "COMMIT #1/r6 e2/h0"),
    (Commit(1, 2**41, TOKEN._replace(slot=2, queue=(Ticket(2, 7), Ticket(3, 1)))), "COMMIT #1/1 e1/h4s2 queue=2#7,3#1"),
    (Offer(1, TOKEN._replace(escort=Escort((4, 5), SECOND, True))), "OFFER #1 e1/h4 watch=4,5 unseen=1s more"),
    (Want(5, 2, False, 0), "WANT node=5 request=2"),
    (Probe(2**40, 0, 9, Place(0, 1, START, 10**15, 4, 2), True), "PROBE #1 ballot=9 rival=e1/h4@2 overlap"),
    (Sight(3, 0, None, Presence.IN_USE, True), "SIGHT #3 in use free"),
    (Seen(Place(1, 1, START, 10**15, 4, 2), SECOND, ()), "SEEN e1/h4s1@2 lease=1s"),
]


def lines() -> Story:
    return Story(START)


@pytest.mark.parametrize(("event", "line"), EVENTS, ids=str)
def test_an_event_is_a_line_with_its_moment(event: events.Event, line: str):
    assert lines().event(START + SECOND // 8, 2, event) == f"     0.125  {line}"


@pytest.mark.parametrize(("effect", "line"), EFFECTS, ids=str)
def test_an_effect_is_a_line_below_its_event(effect: events.Effect, line: str):
    assert lines().effects(2, [effect]) == [" " * 16 + line]


@pytest.mark.parametrize(("message", "line"), MESSAGES, ids=str)
def test_a_message_is_its_name_and_what_it_tells(message: tuple[Any, ...], line: str):
    assert lines().message(1, 2, message) == f"1→2 {line}"


def test_every_event_and_every_effect_is_among_these():
    assert {type(event) for event, _ in EVENTS} == set(get_args(events.Event))
    assert {type(effect) for effect, _ in EFFECTS} == set(get_args(events.Effect))


def test_a_story_names_its_second_token_and_its_second_random_number_otherwise():
    said = lines()
    story = [
        said.message(1, 2, Offer(nonce, token)) for nonce, token in ((2**40, TOKEN), (2**41, RIVAL), (2**40, TOKEN))
    ]
    assert story == ["1→2 OFFER #1 e1/h4", "1→2 OFFER #2 e2/h0'", "1→2 OFFER #1 e1/h4"]


def test_other_settings_than_the_first_are_told():
    said = lines()
    for settings, tells in ((2**60, False), (2**60, False), (2**61, True), (0, False)):
        assert ("other settings" in said.told(TOKEN._replace(settings=settings))) is tells


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (View((), (), 0), "= no state"),
        (
            View((TOKEN,), (7,), 2, 3, (4, 5), 1, "holding"),
            "= holding, token e1/h4, runs #7, 2 waiting, holder 3, queue 4,5, e1",
        ),
        (Taken(TOKEN, 3), "= taken(e1/h4 sender=3)"),
        (Span(1, SECOND, 2 * SECOND), "= span(#1 begun=1s ended=2s)"),
    ],
    ids=str,
)
def test_a_state_is_a_line_in_words(shown: object, line: str):
    assert lines().state(shown) == " " * 16 + line


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_messages_that_differ_in_a_field_have_different_lines(cls: Any):
    typical = example(cls, "typical")
    for field, hint in fields_of(cls).items():
        value = next(
            each for each in (example(hint, "smallest"), example(hint, "largest")) if each != getattr(typical, field)
        )
        other = typical._replace(**{field: value})
        assert lines().message(1, 2, other) != lines().message(1, 2, typical), field
