"""A suspicion by itself: what is believed of a member that does not answer, and rosters, of whom each is asked once.

Each sentence is one that a mutant once broke while whole groups went on well.
"""

from __future__ import annotations

import random

import pytest

from softmutex.core.events import SECOND, CancelTimer, Instant, NodeId, Send, SetTimer
from softmutex.core.group.company import Company
from softmutex.core.group.effects import Listed
from softmutex.core.group.rosters import ASKED_AT_ONCE as ROSTERS_AT_ONCE
from softmutex.core.group.rosters import Rosters
from softmutex.core.group.suspicion import ASKED_AT_ONCE, PINGS, Suspicion
from softmutex.core.messages import Roster
from softmutex.core.patience import Patience


class Owner:
    """Notes what is asked of it; timers fire when told to."""

    def __init__(self, isolated_timeout_s: int | None = 600) -> None:
        self.now: Instant = 1000 * SECOND
        self.timers: dict[object, Instant] = {}
        self.pinged: list[int] = []  # the nonces
        self.said: list[str] = []
        timeout = None if isolated_timeout_s is None else isolated_timeout_s * SECOND
        self.suspicion = Suspicion(self, random.Random(1), Patience(SECOND), timeout)

    def put(self, effect: SetTimer | CancelTimer) -> None:
        if isinstance(effect, SetTimer):
            self.timers[effect.timer] = effect.at
        else:
            self.timers.pop(effect.timer, None)

    def ping(self, node: NodeId, nonce: int, tries: int, now: Instant) -> None:
        self.pinged.append(nonce)

    def found_dead(self, node: NodeId, why: str, now: Instant) -> None:
        self.said.append("dead")

    def found_silent(self, node: NodeId, now: Instant) -> None:
        self.said.append("silent")

    def found_back(self, node: NodeId, now: Instant) -> None:
        self.said.append("back")

    def given_up(self, node: NodeId, now: Instant) -> None:
        self.said.append("given up")

    def fire(self, kind: str = "ping") -> None:
        self.now = self.timers.pop((kind, 7))
        self.suspicion.fired(kind, 7, self.now)

    def look(self, *, is_refused: bool = False) -> None:
        self.now += SECOND
        self.suspicion.look(7, self.now)
        if is_refused:
            self.suspicion.refused(7, self.now)


def silent(isolated_timeout_s: int | None = 600) -> Owner:
    owner = Owner(isolated_timeout_s)
    owner.suspicion.suspect(7, owner.now)
    while ("ping", 7) in owner.timers:
        owner.fire()
    assert owner.said == ["silent"] and len(owner.pinged) == PINGS
    return owner


def test_a_silent_one_is_dead_when_two_looks_in_a_row_are_refused():
    owner = silent()
    owner.look(is_refused=True)
    assert owner.said == ["silent"] and owner.suspicion.is_silent(7)
    owner.look(is_refused=True)
    assert owner.said == ["silent", "dead"] and not owner.suspicion.is_silent(7)
    assert owner.timers == {}


@pytest.mark.parametrize("between", [1, 2, 3])
def test_two_refusals_with_a_look_between_them_that_was_not_refused_prove_nothing(between: int):
    """The host was there without its process, and is cut off again, say: one refusal may be late or forged."""
    owner = silent()
    for _ in range(4):
        owner.look(is_refused=True)
        for _ in range(between):
            owner.look()
    assert owner.said == ["silent"]


def test_what_is_refused_more_often_than_it_was_pinged_is_not_believed():
    """Two forged refusals of one ping."""
    owner = Owner()
    owner.suspicion.suspect(7, owner.now)
    owner.suspicion.refused(7, owner.now)
    owner.suspicion.refused(7, owner.now)
    assert owner.said == []
    owner.fire()
    owner.suspicion.refused(7, owner.now)
    assert owner.said == ["dead"]


def test_who_is_heard_while_it_is_pinged_and_answers_no_ping_is_not_silent():
    owner = Owner()
    owner.suspicion.suspect(7, owner.now)
    owner.suspicion.heard(7, owner.now)
    assert owner.suspicion.is_suspected(7)
    while ("ping", 7) in owner.timers:
        owner.fire()
    assert owner.said == [] and len(owner.pinged) == PINGS
    assert not owner.suspicion.is_suspected(7) and not owner.suspicion.is_silent(7)


def test_only_a_ping_of_this_round_can_be_answered():
    owner = Owner()
    owner.suspicion.suspect(7, owner.now)
    owner.fire()
    first, second = owner.pinged
    assert not owner.suspicion.answered(7, first - 1, owner.now)
    assert not owner.suspicion.answered(7, second + 1, owner.now)
    assert owner.suspicion.is_suspected(7)
    assert owner.suspicion.answered(7, second, owner.now)
    assert not owner.suspicion.is_suspected(7) and owner.timers == {}
    assert not owner.suspicion.answered(7, second, owner.now)


@pytest.mark.parametrize("timeout_s", [1, 600, 86_400])
def test_who_is_silent_is_given_up_so_long_after_the_first_ping(timeout_s: int):
    owner = silent(timeout_s)
    began = 1000 * SECOND
    owner.suspicion.wait_for_silent(timeout_s * SECOND, owner.now)  # the same again: nothing is put off
    owner.look()
    assert owner.timers == {("silent", 7): began + timeout_s * SECOND}
    owner.fire("silent")
    assert owner.said == ["silent", "given up"] and owner.suspicion.silent() == []


def test_another_time_limit_holds_for_those_who_are_silent_already():
    owner = silent(None)
    assert owner.timers == {}
    owner.now += 20 * SECOND
    owner.suspicion.wait_for_silent(5 * SECOND, owner.now)
    assert owner.timers == {("silent", 7): owner.now}  # it is over
    owner.suspicion.wait_for_silent(60 * SECOND, owner.now)
    assert owner.timers == {("silent", 7): 1060 * SECOND}
    owner.suspicion.wait_for_silent(None, owner.now)
    assert owner.timers == {}


def test_who_was_silent_and_speaks_is_back_once():
    owner = silent()
    owner.suspicion.heard(7, owner.now)
    owner.suspicion.heard(7, owner.now)
    assert owner.said == ["silent", "back"] and owner.timers == {}


def test_a_round_that_ends_makes_room_for_one_more_and_no_more():
    """Q2, also when many fell silent before."""
    owner = Owner()
    for node in (7, *range(100, 120)):
        owner.suspicion.suspect(node, owner.now)
    while owner.timers:
        kind, node = min(owner.timers, key=lambda timer: (owner.timers[timer], str(timer)))  # type: ignore[misc, arg-type]
        if kind != "ping":
            break
        owner.now = owner.timers.pop((kind, node))
        owner.suspicion.fired("ping", node, owner.now)
    assert owner.said == ["silent"] * 21
    before = len(owner.pinged)
    for node in range(1000, 1000 + 2 * ASKED_AT_ONCE):
        owner.suspicion.suspect(node, owner.now)
    assert len(owner.pinged) == before + ASKED_AT_ONCE


def test_who_waits_for_its_pings_and_is_heard_is_suspected_no_longer():
    owner = Owner()
    for node in range(ASKED_AT_ONCE + 1):
        owner.suspicion.suspect(node, owner.now)
    assert owner.suspicion.is_suspected(ASKED_AT_ONCE)
    owner.suspicion.heard(ASKED_AT_ONCE, owner.now)
    assert not owner.suspicion.is_suspected(ASKED_AT_ONCE)


def test_who_answers_makes_room_for_another_one():
    owner = Owner()
    for node in range(3 * ASKED_AT_ONCE):
        owner.suspicion.suspect(node, owner.now)
        assert owner.suspicion.answered(node, owner.pinged[-1], owner.now)
    assert len(owner.pinged) == 3 * ASKED_AT_ONCE


# --- rosters ---------------------------------------------------------------------------------------------------------


class Asker:
    def __init__(self) -> None:
        self.asked: list[NodeId] = []
        self.ended: list[NodeId] = []
        self.timers: set[object] = set()
        self.rosters = Rosters(self, Company(1), Patience(SECOND))

    def put(self, effect: Send | SetTimer | CancelTimer) -> None:
        if isinstance(effect, Send):
            assert isinstance(effect.message, Roster)
            self.asked.append(effect.to)

    def hinted(self, place: Listed, now: Instant) -> None:
        """Nobody is told of here."""

    def roster_ended(self, node: NodeId, now: Instant) -> None:
        self.ended.append(node)


def test_each_is_asked_once_whether_it_is_asked_already_or_waits_for_that():
    asker = Asker()
    many = range(2, 2 + 2 * ROSTERS_AT_ONCE)
    for _ in range(3):
        for node in many:
            asker.rosters.ask(node, SECOND)
    assert asker.asked == list(many[:ROSTERS_AT_ONCE])
    assert all(node in asker.rosters for node in many) and 1 not in asker.rosters
    for node in many:
        asker.rosters.left([node], SECOND)
    assert asker.ended == list(many)
    assert asker.asked == list(many) and not any(node in asker.rosters for node in many)
