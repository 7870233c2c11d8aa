"""Who is asked and wondered about, for how long, and by whose way: each sentence is one that a mutant once broke."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from softmutex.core.events import NOBODY, SECOND, Instant, NodeId
from softmutex.core.group import Listed
from softmutex.core.group.company import Company
from softmutex.core.group.effects import Drop, Mail, Unwrap
from softmutex.core.group.inquiry import SUSPECT_AFTER, Inquiry
from softmutex.core.group.ways import RELAYS, Ways
from softmutex.core.messages import Ping, Relay
from tests.group.village import START, TERMS

WAIT = SECOND // 10
PATIENCE = 2 * SECOND
ME, SILENT, OTHER = 1, 2, 3


def inquiry(*others: NodeId) -> Inquiry:
    asks = Inquiry("x", TERMS, "wait", 1, number=1, stage=1, now=START)
    asks.line_up([ME, *others], others, random.Random(1))
    return asks


def test_who_does_not_answer_is_wondered_about_after_each_third_question():
    asks, now, wondered = inquiry(SILENT), START, list[int]()
    for question in range(1, 3 * SUSPECT_AFTER + 1):
        while not asks.whom_to_ask(1, 8, WAIT, now):
            now += WAIT
        if asks.is_overdue(SILENT):
            wondered.append(question)
    assert wondered == [3, 6, 9]


@pytest.mark.parametrize(
    ("wait", "pauses"),
    [(SECOND // 10, [1, 2, 4, 8, 10, 10, 10]), (3 * SECOND, [30, 30, 30])],
    ids=["a quick network", "a slow one"],
)
def test_who_does_not_answer_is_asked_ever_more_rarely_but_once_a_second(wait: int, pauses: list[int]):
    """Or as often as an answer takes, where that is longer."""
    asks, now, asked = inquiry(SILENT), START, list[Instant]()
    while len(asked) <= len(pauses):
        asked += [now] * len(asks.whom_to_ask(1, 8, wait, now))
        now += SECOND // 10
    assert [(later - earlier) // (SECOND // 10) for earlier, later in pairwise(asked)] == pauses


def test_a_few_are_asked_first_and_the_others_when_these_answered_or_took_too_long():
    """Most likely the first one knows: not everybody need be asked."""
    for answering in (True, False):
        asks = inquiry(*range(2, 30))
        first = asks.whom_to_ask(3, 8, WAIT, START)
        assert len(first) == 3
        for node in first[:2]:
            asks.answered(node, 0)
            assert asks.whom_to_ask(3, 8, WAIT, START + 1) == []
        if answering:
            asks.answered(first[2], 0)
            assert len(asks.whom_to_ask(3, 8, WAIT, START + 2)) == 8
        else:
            assert asks.whom_to_ask(3, 8, WAIT, START + WAIT - 1) == []
            others = asks.whom_to_ask(3, 8, WAIT, START + WAIT)
            assert len(set(others) - {first[2]}) == 7


def test_by_hearsay_nobody_is_asked_who_has_answered_and_nobody_in_place_of_who_is_said_to_use_it():
    asks = inquiry(2, 3, 4)
    asks.whom_to_ask(8, 8, WAIT, START)
    asks.answered(3, 0)
    asks.pointed(3, START)
    assert asks.known_by == NOBODY
    asks.pointed(2, START)
    asks.pointed(4, START)
    assert asks.known_by == 2


def test_who_was_never_asked_is_not_wondered_about():
    assert not inquiry(SILENT).is_overdue(OTHER)


def test_who_is_said_to_use_it_has_as_long_as_everybody_from_when_that_was_said():
    asks, said_at = inquiry(SILENT, OTHER), START + 10 * SECOND
    asks.pointed(OTHER, said_at)
    assert asks.may_still_tell([SILENT, OTHER], said_at + PATIENCE - 1, PATIENCE)
    assert not asks.may_still_tell([SILENT, OTHER], said_at + PATIENCE, PATIENCE)


def test_who_was_said_to_use_it_before_is_waited_for_anew_when_the_asking_begins_anew():
    asks, anew = inquiry(SILENT, OTHER), START + 10 * SECOND
    asks.pointed(OTHER, START)
    asks.resume(2, anew)
    assert asks.may_still_tell([SILENT, OTHER], anew + PATIENCE - 1, PATIENCE)
    assert not asks.may_still_tell([SILENT, OTHER], anew + PATIENCE, PATIENCE)


class Posted:
    """The owner of ways that keeps what they send."""

    def __init__(self, *silent: NodeId) -> None:
        self.silent = silent
        self.mails: list[Mail] = []
        self.others: list[Unwrap | Drop] = []

    def put(self, effect: Mail | Unwrap | Drop) -> None:
        if isinstance(effect, Mail):
            self.mails.append(effect)
        else:
            self.others.append(effect)

    def is_silent(self, node: NodeId) -> bool:
        return node in self.silent

    def is_within(self, what: str, most: int, now: Instant) -> bool:
        return True


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("others", [1, 2, 3, 5, 20])
def test_a_suspect_is_asked_by_way_of_two_others_whom_this_node_hears_itself(others: int, seed: int):
    company = Company(ME)
    company.add([Listed(f"10.0.0.{node}:1", node) for node in range(SILENT, SILENT + others)])
    owner = Posted(5)
    ways = Ways(owner, company, random.Random(seed))
    if others >= 3:
        ways.answered(OTHER, 0, SILENT + 2, START, of_suspicion=True)  # it is reached by way of another one
    ways.ping(SILENT, 7, 2, START)
    assert [mail.by for mail in owner.mails[:1]] == [NOBODY]
    relays = [mail.by for mail in owner.mails[1:]]
    fit = {node for node in company.peers if node not in (SILENT, 5) and not (node == OTHER and others >= 3)}
    assert len(relays) == len(set(relays)) <= RELAYS
    assert set(relays) <= fit
    if len(fit) >= 10:
        assert len(relays) == RELAYS
    assert all(mail.to == SILENT for mail in owner.mails)


def ways_of(*others: NodeId, seed: int = 1) -> tuple[Ways, Company, Posted]:
    company, owner = Company(ME), Posted()
    company.add([Listed(f"10.0.0.{node}:1", node) for node in others])
    return Ways(owner, company, random.Random(seed)), company, owner


@pytest.mark.parametrize("seed", range(5))
def test_the_way_that_served_last_is_tried_first(seed: int):
    ways, _, owner = ways_of(*range(SILENT, 40), seed=seed)
    ways.answered(SILENT, 0, 33, START, of_suspicion=True)
    ways.ping(SILENT, 7, 1, START)
    assert [mail.by for mail in owner.mails][:2] == [NOBODY, 33] and len(owner.mails) == 1 + RELAYS


def test_the_direct_way_is_taken_again_when_the_very_ping_that_tried_it_is_answered_on_it():
    ways, company, owner = ways_of(SILENT, OTHER)
    ways.came_by(company.peers[SILENT], OTHER, START)
    (tried,) = owner.mails
    assert isinstance(tried.message, Ping) and tried.by == NOBODY
    for nonce, by in ((tried.message.nonce + 1, NOBODY), (tried.message.nonce, OTHER)):
        ways.answered(SILENT, nonce, by, START, of_suspicion=False)
        assert ways.route(SILENT, START) == ("10.0.0.3:1", OTHER)
    ways.answered(SILENT, tried.message.nonce, NOBODY, START, of_suspicion=False)
    assert ways.route(SILENT, START) == ("10.0.0.2:1", NOBODY)


def test_the_direct_way_is_tried_again_every_five_seconds_while_another_one_is_taken():
    ways, company, owner = ways_of(SILENT, OTHER)
    ways.came_by(company.peers[SILENT], OTHER, START)
    tried = []
    for tenth in range(160):
        before = len(owner.mails)
        ways.route(SILENT, START + tenth * SECOND // 10)
        tried += [tenth] * (len(owner.mails) - before)
    assert tried == [50, 100, 150]


def test_whose_direct_way_was_proved_within_a_second_is_reached_on_it_whatever_way_it_takes_itself():
    """It may not know yet that this one works."""
    ways, company, _ = ways_of(SILENT, OTHER)
    ways.answered(SILENT, 0, NOBODY, START, of_suspicion=True)
    for later, by in ((SECOND - 1, NOBODY), (SECOND, OTHER)):
        ways.came_by(company.peers[SILENT], OTHER, START + later)
        assert company.peers[SILENT].by == by


def test_whose_relay_is_no_member_any_more_is_reached_directly():
    ways, company, _ = ways_of(SILENT, OTHER)
    ways.came_by(company.peers[SILENT], OTHER, START)
    company.remove([OTHER])
    assert ways.route(SILENT, START) == ("10.0.0.2:1", NOBODY)
    company.add([Listed("10.0.0.3:1", OTHER)])
    assert ways.route(SILENT, START) == ("10.0.0.2:1", NOBODY)


def test_a_frame_is_passed_on_between_members_once_and_for_a_stranger_never():
    ways, _, owner = ways_of(SILENT, OTHER)
    ways.pass_on(OTHER, Relay(SILENT, b"sealed"), SILENT, START)  # it came by way of another already
    ways.pass_on(99, Relay(SILENT, b"sealed"), NOBODY, START)
    ways.pass_on(OTHER, Relay(99, b"sealed"), NOBODY, START)
    assert owner.others == [Drop("relays of strangers"), Drop("relays of strangers"), Drop("relays to nobody")]
    assert not owner.mails
    ways.pass_on(OTHER, Relay(SILENT, b"sealed"), NOBODY, START)
    assert owner.mails == [Mail("10.0.0.2:1", SILENT, Relay(SILENT, b"sealed"))]
    ways.pass_on(OTHER, Relay(ME, b"sealed"), NOBODY, START)
    assert owner.others[3:] == [Unwrap(b"sealed", OTHER)]
