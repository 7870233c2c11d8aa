"""Who keeps next: whom it asks, what is promised to whom, when it is installed, and when a token is gone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from softmutex.core.algorithms.keeper.desk import Desk, KeeperOptions
from softmutex.core.algorithms.keeper.holder import LEASE_MOST, Holder
from softmutex.core.algorithms.keeper.installer import PASSING, Installer
from softmutex.core.algorithms.keeper.ledger import Ledger
from softmutex.core.algorithms.keeper.messages import Keeps, Name, Propose, Report
from softmutex.core.algorithms.keeper.office import Office
from softmutex.core.algorithms.keeper.waiter import PROMISE, Waiter
from softmutex.core.events import NOBODY, SECOND, NodeId, Suspect, Token
from softmutex.core.handover import Handover, Passing
from tests.algorithms.keepers import ME, NOW, desk, done, name, notes, said, timers

OLD: NodeId = 2  # who kept before
UNHEARD = 1 << 50


class Rounds:
    """One of five. Nothing fires, and nobody answers, but by hand."""

    def __init__(self, *members: NodeId, keeper: NodeId = OLD, me: NodeId = ME) -> None:
        self.desk: Desk = desk(members=members or (ME, 2, 3, 4, 5), me=me)
        self.desk.follow(3, keeper)
        self.made: list[int] = []
        self.claims = 0
        self.installer = Installer(self.desk, self.made.append)
        waiter = Waiter(self.desk, self.installer.consider)
        handover = Handover(ME, random.Random(1), Passing.FOUR_WAY)
        ledger = Ledger(self.desk, lambda request: None)
        self.holder = Holder(self.desk, KeeperOptions(), waiter, handover, ledger)
        self.office = Office(self.desk, KeeperOptions(), self.installer.search)
        self.installer.connect(self.office, self.holder, self.claim_again)
        if keeper == ME:
            self.office.begin(NOW)

    def claim_again(self) -> None:
        self.claims += 1

    def later(self, seconds: float) -> None:
        self.desk.now += round(seconds * SECOND)

    def fire(self) -> list[Any]:
        self.installer.fired()
        return done(self.desk)

    def propose(self) -> Propose:
        """The first question, to all."""
        self.desk.silent[OLD] = None
        self.installer.consider()
        done(self.desk)
        self.found = self.fire()
        return said(self.found, Propose)[0][1]

    def search(self) -> Propose:
        """Who keeps misses something."""
        self.installer.search()
        self.found = self.fire()
        return said(self.found, Propose)[0][1]

    def report(self, sender: NodeId, question: Propose, promised: bool = True, **how: Any) -> list[Any]:
        known = Report(question.number, promised, 3, OLD, UNHEARD, len(self.desk.members), (), (), (), (), ())._replace(
            **how
        )
        self.installer.reported(sender, known)
        return done(self.desk)

    def asked(self, sender: NodeId, term: int, *left: NodeId) -> Report:
        """By another one."""
        self.promised = self.installer.proposed(sender, Propose(7 << 16, term, left))
        self.found = done(self.desk)
        ((to, report),) = said(self.found, Report)
        assert to == sender and report.number == 7 << 16
        return report


def in_s(found: list[Any], timer: str = "round") -> float:
    due = timers(found)[timer]
    assert due is not None
    return due / SECOND


# --- it begins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_token", "most_s"), [(False, 2.0), (True, 1.0)])
def test_who_needs_a_keeper_waits_a_little_and_who_has_a_token_half_as_long(has_token: bool, most_s: float):
    waits = []
    for seed in range(30):
        rounds = Rounds()
        rounds.desk.rng.seed(seed)  # type: ignore[attr-defined]
        if has_token:
            rounds.holder.take(Token(7, 70, 700, 5), NOW)
            done(rounds.desk)
        rounds.installer.consider()
        waits.append(in_s(done(rounds.desk)))
        rounds.installer.consider()
        assert done(rounds.desk) == []
    assert 0.6 * most_s < max(waits) <= most_s and min(waits) < 0.3 * most_s


def test_who_leaves_needs_none():
    rounds = Rounds()
    rounds.desk.leaving = True
    rounds.installer.consider()
    assert done(rounds.desk) == []
    rounds.desk.leaving = False
    rounds.installer.consider()
    rounds.desk.leaving = True
    done(rounds.desk)
    assert timers(rounds.fire()) == {"round": None}
    assert rounds.fire() == []


def test_all_are_asked_for_a_later_term_and_again_and_who_does_not_answer_is_suspected_the_third_time():
    rounds = Rounds()
    rounds.desk.departed = (5, 99)
    first = rounds.propose()
    assert [to for to, _ in said(rounds.found, Propose)] == [2, 3, 4]
    assert first.term == 4 and first.number & 0xFFFF == 1 and first.left == (5, 99)
    assert 0.75 <= in_s(rounds.found) <= 1.25
    rounds.report(3, first, False)
    spans, suspects = [], []
    for copy in range(2, 6):
        before_s = (rounds.desk.now - NOW) / SECOND
        found = rounds.fire()
        numbers = {question.number for _, question in said(found, Propose)}
        assert numbers == {first.number - 1 + copy} and [to for to, _ in said(found, Propose)] == [2, 4]
        spans.append(in_s(found) - before_s)
        suspects.append([each.node for each in found if isinstance(each, Suspect)])
        rounds.later(1)
    assert all(1.5 <= span <= 2.5 for span in spans)
    assert suspects == [[], [2, 4], [], []]


def test_the_next_term_is_later_than_any_that_was_proposed_or_promised():
    rounds = Rounds()
    rounds.desk.silent[OLD] = None
    assert rounds.asked(4, 9).promised
    assert rounds.propose().term == 10
    rounds.installer.stop()
    assert timers(done(rounds.desk)) == {"round": None}
    assert rounds.propose().term == 11


# --- being asked ------------------------------------------------------------------------------------------------------


def test_who_is_asked_says_what_it_knows():
    rounds = Rounds()
    rounds.desk.members_changed((4, 5), (99,))
    rounds.desk.learn(name())
    rounds.holder.take(Token(7, 70, 700, 5), NOW)
    done(rounds.desk)
    rounds.desk.heard_at = NOW - 3 * SECOND
    report = rounds.asked(4, 9, 5, 77)
    assert (report.promised, report.term, report.keeper, report.heard) == (True, 3, OLD, 3 * SECOND)
    assert (report.members, report.joined, report.left) == (
        4,
        (4, 5),
        (99,),
    )  # but for 5, that the other knows to be gone
    assert (report.here, report.passing, report.best) == ((name(),), (), (name(),))
    rounds.desk.silent[OLD] = None
    assert rounds.asked(4, 9).heard == UNHEARD
    rounds.desk.follow(20, ME)
    assert rounds.asked(4, 30).heard == 0


def test_who_hears_a_keeper_promises_nothing_to_another_one():
    rounds = Rounds()
    for since_s, promised in ((1.9, False), (2.0, True)):
        rounds.desk.heard_at = NOW - round(since_s * SECOND)
        assert rounds.asked(4, 9).promised is promised
    keeps = Rounds(keeper=ME)
    assert not keeps.asked(4, 9).promised
    assert not Rounds(keeper=NOBODY).asked(4, 0).promised
    assert keeps.asked(ME, 3).promised  # its own term is its own
    assert Rounds().asked(OLD, 3).promised and not Rounds().asked(4, 3).promised


def test_of_two_that_propose_a_later_term_wins_and_the_first_one_while_its_promise_lasts():
    rounds = Rounds()
    rounds.desk.silent[OLD] = None
    assert rounds.asked(4, 5).promised and rounds.asked(4, 5).promised
    assert not rounds.asked(3, 5).promised and not rounds.asked(3, 4).promised
    assert rounds.asked(3, 6).promised
    rounds.later(PROMISE / SECOND)
    assert rounds.asked(4, 5).promised


def test_who_proposes_itself_yields_to_a_later_term_and_of_one_term_to_the_higher_node():
    for sender, term, promised in ((5, 5, True), (5, 4, True), (3, 4, False), (3, 5, True)):
        rounds = Rounds(me=4)
        rounds.propose()
        assert rounds.asked(sender, term).promised is promised


def test_who_has_promised_a_later_term_begins_anew_after_a_while_if_at_all():
    rounds = Rounds()
    rounds.desk.patience.learn(SECOND // 10)  # it waits for 0.3 s
    rounds.propose()
    assert rounds.asked(4, 5).promised
    assert 0.6 <= in_s(rounds.found) <= 1.2  # half of four times that, or all of it
    same = Rounds()
    same.propose()
    assert same.asked(4, 4).promised and timers(same.found) == {}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_more_than_half_install_it_and_all_who_answered_hear_of_it():
    rounds = Rounds()
    first = rounds.propose()
    assert said(rounds.report(3, first), Keeps) == [] and not rounds.desk.keeps
    found = rounds.report(4, first)
    assert rounds.desk.keeps and rounds.desk.term == 4 and rounds.claims == 1
    told = said(found, Keeps)
    assert {3, 4} <= {to for to, _ in told} and {keeps.number for _, keeps in told} >= {first.number & ~0xFFFF}
    assert rounds.office.confirmed and rounds.office.unlent_from == NOW + LEASE_MOST
    assert rounds.made == []  # a lease may run


def test_where_it_took_long_leases_may_run_from_when_the_promises_began():
    rounds = Rounds()
    rounds.propose()
    rounds.later(90)
    again = said(rounds.fire(), Propose)[0][1]
    rounds.report(3, again)
    rounds.report(4, again)
    assert rounds.office.unlent_from == rounds.desk.now - PROMISE + LEASE_MOST


def test_half_is_not_enough_for_a_new_term_and_is_for_ones_own():
    rounds = Rounds(ME, 2, 3, 4)
    first = rounds.propose()
    rounds.report(3, first)
    assert not rounds.desk.keeps
    own = Rounds(ME, 2, 3, 4, keeper=ME)
    own.office.confirmed = False
    question = own.search()
    assert question.term == 3
    own.report(3, question)
    assert own.office.confirmed


def test_members_that_only_others_know_are_asked_at_once_and_count():
    rounds = Rounds()
    first = rounds.propose()
    found = rounds.report(3, first, joined=(30, 4))
    assert [to for to, _ in said(found, Propose)] == [30] and in_s(found) == 1.0
    rounds.report(4, first)
    assert not rounds.desk.keeps  # three of six
    rounds.report(30, said(found, Propose)[0][1])
    assert rounds.desk.keeps


def test_how_many_more_others_know_counts_as_well():
    rounds = Rounds()
    first = rounds.propose()
    rounds.report(3, first, members=7)
    rounds.report(4, first)
    assert not rounds.desk.keeps  # three of seven
    rounds.report(5, first)
    assert rounds.desk.keeps


def test_who_others_know_to_have_left_does_not_count():
    rounds = Rounds()
    first = rounds.propose()
    rounds.report(3, first, left=(4, 5))
    assert rounds.desk.departed == (4, 5)
    assert rounds.desk.keeps  # two of three


def test_an_answer_of_who_was_not_asked_or_of_before_is_none():
    rounds = Rounds()
    first = rounds.propose()
    rounds.later(1)
    again = said(rounds.fire(), Propose)[0][1]
    rounds.report(3, again, False)
    rounds.report(3, first)  # it was overtaken
    rounds.report(77, again)
    rounds.report(4, first._replace(number=first.number + 9))
    rounds.report(5, first._replace(number=first.number + (1 << 16)))
    rounds.report(4, again)
    assert not rounds.desk.keeps  # two of five
    rounds.report(5, again)
    assert rounds.desk.keeps


def test_who_promised_a_round_that_is_over_is_told_who_keeps():
    rounds = Rounds(keeper=ME)
    assert said(rounds.report(4, Propose(77 << 16, 3, ())), Keeps) == [(4, Keeps(3, ME, 77 << 16))]
    assert rounds.report(4, Propose(77 << 16, 3, ()), False) == []
    assert Rounds().report(4, Propose(77 << 16, 3, ())) == []


def test_where_somebody_hears_the_keeper_it_is_looked_for_and_not_replaced():
    for heard_s, lives in ((1.9, True), (2.0, False)):
        rounds = Rounds()
        first = rounds.propose()
        found = rounds.report(3, first, False, heard=round(heard_s * SECOND))
        assert (Suspect(OLD) in found) is lives and (OLD in rounds.desk.silent) is not lives
        if lives:
            assert in_s(found) == 1.0
            for sender in (4, 5):
                rounds.report(sender, first)
            assert not rounds.desk.keeps
            assert timers(rounds.fire()) == {"round": None}


def test_where_half_refuse_another_round_begins_after_a_while_that_grows():
    rounds = Rounds(ME, 2, 3, 4)
    rounds.desk.patience.learn(SECOND // 10)
    longest = []
    for _ in range(6):
        terms = rounds.propose() if not longest else said(rounds.fire(), Propose)[0][1]
        for sender in (3, 4):
            rounds.report(sender, terms, False)
        spans = []
        rounds.desk.rng.random = lambda: 1.0  # type: ignore[method-assign]
        found = rounds.fire()
        spans.append(in_s(found))
        assert said(found, Propose) == []
        longest.append(spans[0])
    assert longest == pytest.approx([0.6, 1.2, 2, 2, 2, 2])


def test_who_hears_of_another_keeper_stops_and_goes_on_where_that_is_gone():
    rounds = Rounds()
    rounds.propose()
    rounds.desk.follow(9, 4)
    rounds.installer.followed()
    assert timers(done(rounds.desk)) == {"round": None}
    rounds.installer.consider()
    done(rounds.desk)
    rounds.desk.silent[4] = None
    rounds.installer.followed()
    assert in_s(done(rounds.desk)) >= 0


def test_who_reaches_no_majority_for_four_seconds_says_that_it_is_isolated():
    rounds = Rounds()
    rounds.propose()
    said_at = []
    for _ in range(8):
        rounds.later(1)
        said_at += ["isolated"] if "isolated" in notes(rounds.fire()) else []
        said_at += [str((rounds.desk.now - NOW) // SECOND)] if said_at == ["isolated"] else []
    assert said_at == ["isolated", "5"]


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_what_is_at_a_member_is_found_and_what_was_replaced_is_not():
    rounds = Rounds(keeper=ME)
    question = rounds.search()
    rounds.report(3, question, here=(name(epoch=6),), best=(name(),))
    rounds.report(4, question, here=(name(),))
    assert rounds.office.posts[0].holder == 4 and rounds.office.missing() == []
    assert rounds.made == [] and rounds.fire() == []


def test_what_all_say_that_they_do_not_have_is_made_anew_at_once():
    rounds = Rounds(keeper=ME)
    question = rounds.search()
    for sender in (2, 3, 4):
        rounds.report(sender, question)
    assert rounds.made == []
    rounds.report(5, question)
    assert rounds.made == [0]


def test_what_more_than_half_do_not_have_is_gone_when_its_lease_is_over_and_others_had_time_to_answer():
    rounds = Rounds(keeper=ME)
    rounds.office.begin(NOW + 2 * SECOND)
    question = rounds.search()
    for sender in (3, 4):
        rounds.report(sender, question)
    current: list[int] = []
    for tenth in range(60):
        rounds.later(0.1)
        for to, again in said(rounds.fire(), Propose):
            if to in (3, 4):
                rounds.report(to, again)
        if rounds.made and not current:
            current.append(tenth)
    assert rounds.made and 38 <= current[0] <= 41


def test_what_is_on_its_way_is_not_gone_until_it_should_have_arrived():
    rounds = Rounds(keeper=ME)
    question = rounds.search()
    for sender in (2, 3, 4, 5):
        rounds.report(sender, question, passing=(name(),) if sender == 3 else ())
    assert rounds.made == []
    found = rounds.fire()
    assert [to for to, _ in said(found, Propose)] == [3]  # who passes it on is asked again
    rounds.later(PASSING / SECOND - 0.1)
    rounds.installer.members_changed()
    assert rounds.made == []
    rounds.later(0.1)
    for to, again in said(rounds.fire(), Propose):
        rounds.report(to, again, passing=(name(),) if to == 3 else ())
    assert rounds.made[:1] == [0]


def test_a_token_that_is_made_has_a_later_epoch_than_any_that_was_heard_of():
    rounds = Rounds(keeper=ME)
    assert rounds.installer.make(0, 1).epoch == 1
    made = rounds.installer.make(0)
    assert (made.epoch, made.stamp, made.hop, made.slot) == (NOW // SECOND, NOW, 0, 0)
    assert made.settings == rounds.desk.fingerprint and notes(done(rounds.desk)) == ["generated"] * 2
    rounds.desk.learn(Name(0, NOW // SECOND, 1, 1, 1))
    assert rounds.installer.make(0).epoch == NOW // SECOND + 1
    assert rounds.installer.make(1).epoch == NOW // SECOND


def test_who_left_is_missing_no_more_and_who_joined_is_asked():
    rounds = Rounds()
    rounds.propose()
    rounds.desk.members.append(6)  # type: ignore[attr-defined]
    rounds.desk.members_changed((6,), ())
    rounds.installer.members_changed()
    assert [to for to, _ in said(done(rounds.desk), Propose)] == [6]
    rounds.installer.members_changed()
    assert done(rounds.desk) == []
