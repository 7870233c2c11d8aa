"""The books of a keeper: who waits, to which token it is fed, for how long that is lent, and what is passed on."""

from __future__ import annotations

import pytest

from softmutex.core.algorithms.keeper.desk import KeeperOptions
from softmutex.core.algorithms.keeper.messages import Beat, Claim, Entered, Fed, Keeps, Lease, Legacy
from softmutex.core.algorithms.keeper.office import FEED, LOW, STEPS, Office, Post, announce
from softmutex.core.events import SECOND, CallRoll, Duration, Level, NodeId, Suspect, Ticket
from tests.algorithms.keepers import ME, NOW, Desk, desk, done, keeping, name, notes, said, timers

HOLDER: NodeId = 9


class Books:
    """An office that keeps, with a token at node 9."""

    def __init__(self, *, slots: int = 1, at: NodeId = HOLDER) -> None:
        self.desk: Desk = keeping(slots=slots)
        self.searches = 0
        self.office = Office(self.desk, KeeperOptions(), self.search)
        self.office.begin(NOW)
        for slot in range(slots):
            self.office.found(name(slot=slot), at + slot)
        self.post: Post = self.office.posts[0]
        done(self.desk)

    def search(self) -> None:
        self.searches += 1

    def later(self, seconds: float) -> None:
        self.desk.now += round(seconds * SECOND)

    def claim(self, node: NodeId, request: int = 1, *, waited: Duration = 0, late: Duration = 0) -> list[object]:
        self.office.claimed(Claim(node, request, 3, waited, late, 0))
        return done(self.desk)

    def beat(self, sender: NodeId = HOLDER, *queue: NodeId, hop: int = 5, **how: object) -> list[object]:
        told: dict[str, object] = {"lease": 2 * SECOND, "parked": False, "sent": self.desk.now, **how}
        tickets = tuple(Ticket(node, 1) for node in queue)
        self.office.beat(sender, Beat(3, name(hop), queue=tickets, **told))  # type: ignore[arg-type]
        return done(self.desk)

    def waiting(self) -> list[NodeId]:
        return list(self.office.register)

    def fed(self, slot: int = 0) -> list[NodeId]:
        return list(self.office.posts[slot].fed)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_how_long_a_turn_takes_is_learnt_from_beat_to_beat():
    post = Post(name(5), HOLDER, 0, 0)
    assert post.turn == 10 * SECOND
    post.count_turns(6, NOW)
    assert post.turn == 10 * SECOND  # nobody knows when the last one began
    post.name = name(6)
    post.count_turns(8, NOW + 4 * SECOND)
    assert post.turn == 6 * SECOND  # the mean of ten, and of two in four seconds
    post.name = name(8)
    post.count_turns(8, NOW + 9 * SECOND)
    assert post.turn == 6 * SECOND
    post.count_turns(8, NOW + 11 * SECOND)
    assert post.turn == 7 * SECOND  # it goes on
    post.parked = True
    post.count_turns(8, NOW + 90 * SECOND)
    assert post.turn == 7 * SECOND


# --- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "turn_s", "patience_s"),
    [(1, 10, 6), (1, 1, 4), (1, 0.1, 2), (3, 1, 12), (3, 10, 18), (20, 0.05, 4), (20, 10, 120)],
)
def test_who_waits_is_told_to_ask_again_after_several_turns_or_as_long_as_all_together_may_ask(
    waiting: int, turn_s: float, patience_s: float
):
    books = Books()
    books.post.turn = round(turn_s * SECOND)
    for node in range(10, 10 + waiting):
        books.claim(node)
    (told,) = said(books.claim(10), Entered)
    assert told == (10, Entered(1, 3, round(patience_s * SECOND)))


def test_newcomers_are_told_to_come_again_at_different_times_and_nobody_before_the_least():
    books = Books()
    for node in range(10, 39):
        books.claim(node)
    books.office.register.pop(38)
    times = set()
    for _ in range(10):
        ((_, entered),) = said(books.claim(38), Entered)
        books.office.unclaimed(Ticket(38, 1))
        times.add(entered.patience)
    assert len(times) == 10 and min(times) >= 6 * SECOND and max(times) <= 29 * 6 * SECOND


def test_an_older_claim_says_nothing_and_a_newer_one_takes_the_place_of_the_first():
    books = Books()
    books.post.fed.clear()
    books.post.missing = True  # nobody is fed
    books.claim(10, 5)
    books.later(2)
    books.claim(11, 1)
    assert books.claim(10, 4) == []
    assert said(books.claim(10, 6), Entered)[0][1].request == 6
    assert books.office.register[10].request == 6
    assert books.office.register[10].since == NOW  # since the first one
    assert books.office.register[10].claimed_at == NOW + 2 * SECOND


def test_who_was_fed_and_claims_the_same_is_known_and_with_another_request_waits_anew():
    books = Books()
    books.claim(10, 5)
    assert (books.fed(), books.waiting()) == ([10], [])
    assert said(books.claim(10, 5), Entered) and books.fed() == [10]
    assert books.claim(10, 4) == []
    books.post.missing = True
    books.claim(10, 6)
    assert (books.fed(), books.waiting()) == ([], [10])


def test_who_waits_longer_comes_first_and_who_had_its_turn_lately_later():
    books = Books()
    books.post.missing = True
    books.claim(10, waited=SECOND)
    books.claim(11, waited=3 * SECOND)
    books.claim(12, waited=3 * SECOND, late=4 * SECOND)
    books.post.missing = False
    books.office.feed_all()
    assert books.fed() == [11, 10, 12]


def test_a_ticket_that_nobody_stands_for_is_taken_back_but_not_a_newer_one():
    books = Books()
    books.claim(10, 5)
    books.office.unclaimed(Ticket(10, 4))
    assert books.fed() == [10]
    books.office.unclaimed(Ticket(10, 5))
    assert books.fed() == []
    books.post.missing = True
    books.claim(11, 5)
    books.office.unclaimed(Ticket(11, 4))
    assert books.waiting() == [11]
    books.office.unclaimed(Ticket(11, 6))
    assert books.waiting() == []


# --- feeding ----------------------------------------------------------------------------------------------------------


def test_so_many_are_fed_at_once_and_the_rest_when_few_are_left():
    books = Books()
    books.post.missing = True
    for node in range(10, 10 + FEED + 2):
        books.claim(node)
    books.post.missing, books.post.parked = False, True
    books.office.feed_all()
    ((to, fed),) = said(found := done(books.desk), Fed)
    assert (to, fed.token, fed.more, fed.steps) == (HOLDER, name(), True, STEPS)
    assert [ticket.node for ticket in fed.tickets] == books.fed() == list(range(10, 10 + FEED))
    assert not books.post.parked and books.post.more
    assert timers(found)["watch", 0] is not None
    while len(books.post.fed) > LOW + 1:
        books.office.unclaimed(Ticket(books.fed()[0], 1))
        books.office.feed_all()
        assert len(books.waiting()) == 2
    books.office.unclaimed(Ticket(books.fed()[0], 1))
    books.office.feed_all()
    assert books.waiting() == [] and not books.post.more
    assert said(done(books.desk), Fed)[0][1].more is False


def test_of_several_slots_only_tokens_that_are_idle_are_fed_and_with_one_ticket_each():
    books = Books(slots=3)
    for post in books.office.posts.values():
        post.parked = False
    books.claim(10)
    books.claim(11)
    assert books.waiting() == [10, 11]
    books.office.posts[1].parked = True
    books.office.feed_all()
    assert (books.fed(0), books.fed(1), books.fed(2)) == ([], [10], [])
    ((to, fed),) = said(done(books.desk), Fed)
    assert to == HOLDER + 1 and fed.tickets == (Ticket(10, 1),) and fed.more
    books.office.posts[1].parked = True
    books.office.feed_all()
    assert books.waiting() == [11]  # it has one


def test_what_did_not_find_its_token_comes_first_again_and_the_token_is_looked_at_soon():
    books = Books()
    books.claim(10)
    books.post.missing = True
    books.claim(11)
    books.office.returned(Fed(name(), (Ticket(10, 1), Ticket(12, 1)), False, 0))
    assert books.waiting() == [10, 11] and books.fed() == []
    assert timers(done(books.desk)) == {("watch", 0): SECOND // 4}
    books.claim(13, 4)
    books.post.missing = False
    books.office.feed_all()
    books.office.returned(Fed(name(), (Ticket(13, 3),), False, 0))  # of an older claim
    assert 13 in books.fed()


# --- beats ------------------------------------------------------------------------------------------------------------


def test_a_lease_is_lent_for_as_long_as_it_was_asked_for_but_not_for_longer_than_the_most():
    books = Books()
    books.office.reaches(Level.MORE)
    found = books.beat(lease=2 * SECOND, sent=NOW - 5)
    assert said(found, Lease) == [(HOLDER, Lease(3, name(), True, False, None, NOW - 5))]
    assert books.post.lent_until == NOW + 2 * SECOND
    assert timers(found) == {("watch", 0): 2 * SECOND}  # when half of it is over, and a second for the way
    assert timers(books.beat(lease=4 * SECOND)) == {("watch", 0): 4 * SECOND - SECOND // 5}  # all but the slack
    books.later(0.4)
    books.beat(lease=60 * SECOND)
    assert books.post.lent_until == books.desk.now + 7 * SECOND
    books.beat(lease=SECOND)
    assert books.post.lent_until == books.desk.now + 7 * SECOND  # as lent before


def test_without_a_roll_call_nothing_is_lent_and_one_is_called():
    books = Books()
    books.later(1)
    found = books.beat()
    assert timers(found) == {("watch", 0): 4 * SECOND}  # for it, and a second for the way
    assert said(found, Lease) == [] and [type(each) for each in found if isinstance(each, CallRoll)] == [CallRoll]
    books.office.reaches(Level.HALF)
    assert [lease.renewed for _, lease in said(done(books.desk), Lease)] == [True]
    books.office.reaches(Level.HALF)
    assert said(done(books.desk), Lease) == []  # once


def test_where_too_few_answer_the_keeper_looks_for_a_majority_and_lends_nothing():
    books = Books()
    books.beat()
    books.office.reaches(Level.LESS)
    assert books.searches == 1 and not books.office.confirmed
    assert said(books.beat(), Lease) == [] and books.searches == 2
    books.office.confirm()
    assert [lease.renewed for _, lease in said(done(books.desk), Lease)] == [True]


def test_who_keeps_no_more_answers_no_beat_of_before():
    books = Books()
    books.beat()
    books.desk.follow(9, 20)
    books.office.reaches(Level.MORE)
    books.desk.follow(10, ME)
    books.office.reaches(Level.MORE)
    assert said(done(books.desk), Lease) == []


def test_a_token_that_was_replaced_is_told_by_which():
    books = Books()
    books.desk.learn(name(epoch=8))
    assert said(books.beat(), Lease) == [(HOLDER, Lease(3, name(), False, False, name(epoch=8), NOW))]


def test_a_beat_of_a_slot_that_is_none_is_nothing():
    books = Books()
    for slot in (1, 7):
        books.office.beat(HOLDER, Beat(3, name(slot=slot), SECOND, False, (), NOW))
    assert done(books.desk) == [] and list(books.office.posts) == [0]


def test_a_parked_token_is_lent_for_nothing_and_expected_again_after_its_pace():
    books = Books()
    found = books.beat(parked=True)
    assert said(found, Lease) == [(HOLDER, Lease(3, name(), False, False, None, NOW))]
    assert books.post.parked and timers(found)["watch", 0] == 8 * SECOND + SECOND


def test_a_late_beat_and_one_of_an_earlier_holder_change_nothing():
    books = Books()
    books.office.reaches(Level.MORE)
    books.beat(hop=6, sent=NOW + 50)
    assert (books.post.holder, books.post.name) == (HOLDER, name(6))
    assert books.beat(20, hop=5) == [] and books.post.holder == HOLDER
    assert books.beat(hop=6, sent=NOW + 49) == []
    assert said(books.beat(20, hop=7, sent=3), Lease)  # by another clock
    assert (books.post.holder, books.post.sent) == (20, 3)


def test_whose_turn_is_over_is_told_so_and_who_was_passed_over_comes_again():
    books = Books()
    for node in (10, 11, 12):
        books.claim(node)
    assert books.fed() == [10, 11, 12]
    found = books.beat(11, 12, hop=7)
    assert books.fed() == [12]
    assert said(found, Entered) == [(10, Entered(1, 3, 0))]  # most likely served; 11 knows that it was
    books.later(1.1)
    books.beat(11, hop=7, sent=NOW + 2 * SECOND)
    assert books.fed() == [12]  # not on its way, and there is nobody else: fed again
    assert books.post.fed[12].fed_at == books.desk.now


def test_a_beat_that_was_sent_before_the_tickets_came_shows_nothing_of_them():
    books = Books()
    books.claim(10)
    books.claim(HOLDER)
    books.beat(HOLDER)
    assert books.fed() == [10, HOLDER]
    books.beat(HOLDER, hop=6)
    assert books.fed() == []


def test_an_idle_token_gets_who_waits_for_one_that_is_in_use():
    books = Books(slots=2)
    books.office.posts[0].parked = books.office.posts[1].parked = True
    books.claim(10)
    assert (books.fed(0), books.fed(1)) == ([10], [])
    books.office.posts[1].parked = False
    idle = Beat(3, name(slot=1), 0, True, (), NOW)
    books.office.beat(HOLDER + 1, idle)
    assert books.fed(0) == [10]  # on its way, it may be
    books.later(1.1)
    books.office.beat(HOLDER + 1, idle._replace(sent=books.desk.now))
    assert (books.fed(0), books.fed(1)) == ([], [10])


def test_of_those_who_wait_for_tokens_in_use_an_idle_one_gets_who_waits_for_longest():
    books = Books(slots=3)
    for slot, node in ((0, 31), (1, 30)):
        for other, post in books.office.posts.items():
            post.parked = other == slot
        books.claim(node, waited=(32 - node) * SECOND)
    assert (books.fed(0), books.fed(1)) == ([31], [30])
    books.later(1.1)
    books.office.beat(HOLDER + 2, Beat(3, name(slot=2), 0, True, (), books.desk.now))
    assert (books.fed(0), books.fed(1), books.fed(2)) == ([31], [], [30])


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_token_is_expected_for_two_seconds_after_it_was_found():
    books = Books()
    books.office.found(name(), 20)
    assert (books.post.holder, books.post.sent) == (20, 0)
    assert timers(done(books.desk)) == {("watch", 0): 3 * SECOND}
    books.desk.learn(name(epoch=9))
    books.office.found(name(), 21)
    assert done(books.desk) == [] and books.post.holder == 20


def test_when_a_beat_is_overdue_the_holder_is_suspected_and_the_token_missed_when_its_lease_is_over():
    books = Books()
    books.claim(10)
    books.post.due, books.post.lent_until = NOW, NOW + 3 * SECOND
    books.office.fired(0)
    found = done(books.desk)
    assert Suspect(HOLDER) in found
    assert timers(found) == {("watch", 0): 3 * SECOND} and not books.post.missing
    books.later(3)
    books.office.fired(0)
    assert books.post.missing and books.searches == 1
    assert (books.fed(), books.waiting()) == ([], [10])
    books.office.fired(0)
    books.office.missed(name(9))
    assert books.searches == 1 and done(books.desk) == []  # it is searched for already


def test_tickets_that_did_not_reach_an_idle_token_are_fed_again():
    books = Books()
    books.claim(10)
    books.post.due = NOW + 90 * SECOND
    books.office.fired(0)
    found = done(books.desk)
    assert said(found, Fed) == []  # on their way
    assert timers(found) == {("watch", 0): 91 * SECOND}
    books.later(1)
    books.office.fired(0)
    assert [fed.tickets for _, fed in said(done(books.desk), Fed)] == [(Ticket(10, 1),)]


def test_who_gave_a_token_up_that_it_passed_on_says_that_it_is_missing():
    books = Books()
    books.office.missed(name(5))
    books.office.missed(name(6, epoch=6))
    assert books.searches == 0
    books.office.missed(name(6))
    assert books.searches == 1 and books.office.missing() == [0]


def test_what_a_holder_has_that_left_is_missing_and_nobody_waits_who_left():
    books = Books()
    books.claim(10)
    books.claim(11)
    books.office.left(10)
    assert books.fed() == [11] and books.searches == 0
    books.office.left(HOLDER)
    assert books.searches == 1 and books.waiting() == [11]
    books.office.left(11)
    assert books.waiting() == []


def test_who_did_not_answer_since_a_token_went_missing_claims_again():
    books = Books()
    books.post.missing = True
    for node in (10, 11, ME):
        books.claim(node)
    books.later(1)
    books.claim(12)
    books.office.forget_silent(NOW + 1, {10})
    assert books.waiting() == [10, ME, 12]
    assert said(done(books.desk), Entered) == [(11, Entered(1, 3, 0))]


def test_a_lease_of_an_earlier_keeper_counts_for_each_slot():
    books = Books()
    books.office.begin(NOW + 5 * SECOND)
    assert (books.office.lent_until(0), books.office.lent_until(3)) == (NOW + 5 * SECOND, NOW + 5 * SECOND)
    books.post.lent_until = NOW + 6 * SECOND
    assert books.office.lent_until(0) == NOW + 6 * SECOND


def test_who_is_isolated_says_so_once_and_that_it_is_not_any_more():
    books = Books()
    for isolated in (False, True, True, False, False):
        books.office.set_isolated(isolated)
    assert notes(done(books.desk)) == ["isolated", "rejoined"]


# --- the role ---------------------------------------------------------------------------------------------------------


def test_the_books_are_passed_on_with_who_waits_where_the_tokens_are_and_how_long_they_are_lent():
    books = Books()
    for node in (10, ME, 11):
        books.claim(node)
    books.post.lent_until = NOW + 9 * SECOND
    legacy = books.office.bequest()
    assert legacy == Legacy(4, (Ticket(10, 1), Ticket(11, 1)), (name(),), (HOLDER,), 7 * SECOND)
    books.later(8)
    assert books.office.bequest().lent == SECOND
    books.later(8)
    assert books.office.bequest().lent == 0
    books.post.missing = True
    assert books.office.bequest().tokens == books.office.bequest().holders == ()


def test_an_heir_knows_all_that_and_tells_the_holders():
    at = desk()
    at.follow(4, ME)
    searches: list[int] = []
    office = Office(at, KeeperOptions(), lambda: searches.append(1))
    office.inherit(Legacy(4, (Ticket(10, 1),), (name(),), (HOLDER,), 60 * SECOND))
    assert office.confirmed and office.unlent_from == NOW + 7 * SECOND
    assert list(office.register) == [10] and office.posts[0].holder == HOLDER
    assert said(done(at), Keeps) == [(HOLDER, Keeps(4, ME))] and searches == []
    office.posts.clear()
    office.inherit(Legacy(4, (), (), (), 0))
    assert searches == [1] and office.unlent_from == NOW


def test_who_doubts_that_it_keeps_lends_nothing_more():
    books = Books()
    books.office.reaches(Level.MORE)
    books.office.doubt()
    assert books.searches == 1 and not books.office.confirmed
    books.office.confirmed = True
    assert said(books.beat(), Lease) == []


def test_who_keeps_is_told_to_the_homes_and_to_whoever_kept_before_with_the_number_of_the_round():
    at = keeping()
    at.former = [20, ME]
    announce(at, 77)
    told = said(done(at), Keeps)
    assert {to for to, _ in told} == {20, *at.homes()} - {ME}
    assert {keeps for _, keeps in told} == {Keeps(3, ME, 77)} and len(told) == len(dict(told))
