"""What others say of who is where, and of what they open: what comes of it, and when it is forgotten."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from softmutex.core.events import SECOND, Instant, Level, NodeId, Reach
from softmutex.core.group import Listed
from softmutex.core.group.door import BANNED
from softmutex.core.group.effects import Answer
from softmutex.core.group.founding import differs
from softmutex.core.messages import Describe, Hello, Message, Roster
from tests.group.village import TERMS, House, Village

Frame = tuple[NodeId, NodeId, str, Message]


def test_an_address_that_somebody_named_and_that_refuses_is_looked_for_no_more():
    village = Village()
    a = village.house(1)
    a.do(a.group.hinted, Listed("h9", 9), village.now)
    assert "h9" in a.group.greeter and not a.group.greeter.is_settled
    village.run(2)
    assert "h9" not in a.group.greeter and a.group.greeter.is_settled
    greeted = village.sent[Hello]
    village.run(60)
    assert village.sent[Hello] == greeted


def test_who_is_banned_and_answers_each_look_is_never_waited_for():
    village = Village()
    door = SimpleNamespace(objection=lambda node: BANNED if node == 3 else "")
    a, b = village.house(1, door=door), village.house(3)
    a.listed(b, may_be_late=False)
    for _ in range(5):
        village.run(5)
        assert a.group.is_settled
    a.open()
    village.until(a.founded, within_s=1)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"slots": 2}, "slots is 2 there and 1 here"),
        ({"options": '{"ageing": 60}'}, 'options is {"ageing": 60} there and {} here'),
        ({"op": 5 * SECOND // 2}, "op is 2.5 there and 4.0 here"),
        ({"skip": SECOND}, "skip is 1.0 there and None here"),
        (
            {"algorithm": "central", "slots": 3},
            "algorithm is central there and wandering here, slots is 3 there and 1 here",
        ),
        ({}, ""),
    ],
    ids=str,
)
def test_in_which_terms_two_differ_is_told_in_words(other: dict[str, object], told: str):
    assert differs(TERMS, TERMS._replace(**other)) == told  # type: ignore[arg-type]


def test_who_asked_and_was_not_heard_of_again_is_forgotten():
    village = Village()
    a, b, c = village.neighbours(3)
    a.do(a.group.founding.received, b.id, "x", Describe(True, 1), village.now)
    assert a.group.founding.notes == 1
    village.run(3)
    a.do(a.group.founding.received, c.id, "x", Describe(False), village.now)
    assert a.group.founding.notes == 0


def asked_at(village: Village, who: House, for_s: float) -> list[Instant]:
    """When it asks anybody about a mutex, from now on."""
    asked: list[Instant] = []

    def note(source: str, _: str, frame: Frame) -> None:
        if source == who.address and isinstance(frame[3], Describe):
            asked.append(village.now)

    village.tap = note
    who.open()
    village.run(for_s)
    return asked


@pytest.mark.parametrize(("delay_s", "again_s"), [(0.0001, 0.1), (0.05, 0.2), (0.3, 0.8)])
def test_who_does_not_answer_is_asked_again_after_a_tenth_of_a_second_or_as_long_as_answers_take(
    delay_s: float, again_s: float
):
    village = Village(delay_s=delay_s, jitter=0)
    a, b = village.neighbours(2)
    for _ in range(30):
        a.suspect(b)
        village.run(5)
    village.cut([a], [b])
    first, second, *_ = asked_at(village, a, 3)
    assert (second - first) / SECOND == pytest.approx(again_s)


def test_who_takes_part_by_the_same_terms_has_answered_though_others_ask_as_well():
    village = Village(delay_s=0.01)
    low, middle, high = sorted(village.neighbours(3), key=lambda house: house.id)
    middle.group.founding.uses = lambda mutex: False
    middle.group.founding.joined("x", TERMS)
    high.open()
    low.open()
    village.until(lambda: "x" in low.started, within_s=1)
    assert low.started["x"].hint == middle.id


def test_a_member_that_does_not_say_whom_it_knows_is_asked_three_times():
    village = Village()
    a, b = village.neighbours(2)
    village.cut([a], [b])
    a.do(a.group.rosters.ask, b.id, village.now)
    village.run(5)
    assert village.sent[Roster] == 3 and b.id not in a.group.rosters


def test_who_is_heard_by_way_of_another_has_answered_a_roll_call_and_is_not_silent():
    village = Village()
    a, b, c = village.neighbours(3)
    village.run(5)
    village.cut([a], [b, c])
    a.do(a.group.call_roll, "x", True, village.now)
    a.suspect(b)
    village.run(0.01)
    assert a.reach == []
    assert a.do(a.group.relayed, b.id, c.id, village.now)
    assert a.reach == [Answer("x", Reach(Level.MORE))]
    village.run(5)
    assert not a.group.is_silent(b.id) and not a.group.suspicion.is_suspected(b.id)


def test_what_is_said_of_strangers_or_by_them_on_the_way_of_another_is_dropped():
    village = Village()
    a, b = village.neighbours(2)
    assert not a.do(a.group.relayed, 77, b.id, village.now)
    assert not a.do(a.group.relayed, b.id, 77, village.now)
    assert a.dropped["relays of strangers"] == 2
