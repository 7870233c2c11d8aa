"""Who waits for a keeper's token, and what is remembered of holds: whom it asks, how often, and what it makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from softmutex.core.algorithms.keeper.desk import Desk
from softmutex.core.algorithms.keeper.ledger import AGAIN, CASES, IN_A_MESSAGE, TRIES, WORTH, Ledger
from softmutex.core.algorithms.keeper.messages import Claim, Entered, Keeps, KeptSpan, Reckon, Reckoned, Told
from softmutex.core.algorithms.keeper.waiter import LOSSY, PROMISE, STEPS, Waiter
from softmutex.core.events import NOBODY, SECOND, Instant, NodeId, Overlapped, Suspect, Token
from tests.algorithms.keepers import ME, NOW, desk, done, keeping, name, notes, said, timers

KEEPER: NodeId = 20


class Waits:
    """One that waits at a node, and does not keep."""

    def __init__(self, *, keeper: NodeId = NOBODY, hint: NodeId = NOBODY, least: float = 0.0) -> None:
        self.desk: Desk = desk(least=least)
        self.desk.follow(3, keeper)
        self.looks = 0
        self.waiter = Waiter(self.desk, self.look)
        self.waiter.started(hint)
        self.waiter.waiting[1] = NOW

    def look(self) -> None:
        self.looks += 1

    def want(self) -> list[Any]:
        self.waiter.want()
        return done(self.desk)

    def fire(self) -> list[Any]:
        self.waiter.fired()
        return done(self.desk)

    def later(self, seconds: float) -> None:
        self.desk.now += round(seconds * SECOND)


def asked(found: list[Any]) -> list[NodeId]:
    return [to for to, _ in said(found, Claim)]


# --- claims -----------------------------------------------------------------------------------------------------------


def test_the_keeper_is_asked_as_long_as_it_counts_and_suspected_from_the_first_silence_on():
    waits = Waits(keeper=KEEPER)
    assert said(found := waits.want(), Claim) == [(KEEPER, Claim(ME, 1, 3, 0, 0, STEPS))]
    assert 0.75 * SECOND <= timers(found)["claim"] <= 1.25 * SECOND  # type: ignore[operator]
    for tries in range(1, 8):
        waits.later(1)
        found = waits.fire()
        assert said(found, Claim) == [(KEEPER, Claim(ME, 1, 3, tries * SECOND, 0, STEPS))]
        assert Suspect(KEEPER) in found and waits.looks == max(0, tries - 5)
        assert 1.5 * SECOND <= timers(found)["claim"] - tries * SECOND <= 5 * SECOND  # type: ignore[operator]


def test_of_a_keeper_that_does_not_count_two_questions_are_asked_and_then_others():
    waits = Waits(keeper=KEEPER, hint=33)
    waits.desk.silent[KEEPER] = None
    homes = waits.desk.homes()
    assert [asked(waits.want()), asked(waits.fire())] == [[KEEPER], [KEEPER]] and waits.looks == 0
    assert asked(waits.fire()) == [homes[1]] and waits.looks == 1
    (other,) = asked(waits.fire())
    assert other in waits.desk.members and waits.looks == 2


def test_who_knows_no_keeper_asks_whom_it_was_told_of_then_the_homes_then_anybody():
    waits = Waits(hint=33)
    homes = waits.desk.homes()
    assert len(homes) == 2
    order = [asked(waits.want()), *(asked(waits.fire()) for _ in range(2))]
    assert order == [[33], [homes[0]], [homes[1]]] and waits.looks == 0
    others = {node for _ in range(30) for node in asked(waits.fire())}
    assert len(others) > 10 and waits.looks == 30
    gone = Waits(hint=99)  # no member
    assert asked(gone.want()) == [homes[0]]


def test_who_is_told_that_nobody_knows_asks_the_next_at_once_and_looks_for_a_keeper_after_three():
    waits = Waits(hint=33)
    homes = waits.desk.homes()
    waits.want()
    for home in homes:
        waits.waiter.nobody_known()
        assert asked(done(waits.desk)) == [home]
    waits.waiter.nobody_known()
    assert waits.looks == 1 and done(waits.desk) == []
    known = Waits(keeper=KEEPER)
    known.want()
    known.waiter.nobody_known()
    assert done(known.desk) == []


def test_a_claim_says_how_long_is_waited_and_for_how_long_others_go_first():
    waits = Waits(keeper=KEEPER, least=5.0)
    waits.later(2)
    assert waits.waiter.next() == 1
    waits.later(1)
    waits.waiter.waiting[2] = NOW
    ((_, claim),) = said(waits.want(), Claim)
    assert (claim.waited, claim.late) == (SECOND, 4 * SECOND)  # since its turn, though it was asked before
    waits.later(9)
    ((_, claim),) = said(waits.want(), Claim)
    assert (claim.waited, claim.late, claim.request) == (10 * SECOND, 0, 2)


def test_who_was_entered_comes_again_after_its_patience_and_as_if_for_the_first_time():
    waits = Waits(keeper=KEEPER)
    waits.want()
    waits.later(0.1)
    waits.waiter.entered(Entered(2, 3, 90 * SECOND))
    assert done(waits.desk) == []  # another request
    waits.waiter.entered(Entered(1, 3, 40 * SECOND))
    assert waits.desk.patience.round_trip == SECOND // 10
    assert 30 * SECOND <= timers(done(waits.desk))["claim"] <= 50.1 * SECOND  # type: ignore[operator]
    waits.later(40)
    assert Suspect(KEEPER) not in waits.fire()
    assert Suspect(KEEPER) in waits.fire()


def test_where_questions_were_lost_lately_it_comes_again_soon():
    for later_s, most_s in ((0, 6.26), (LOSSY / SECOND - 1, 6.26), (LOSSY / SECOND, 50)):
        waits = Waits(keeper=KEEPER)
        waits.want()
        waits.fire()
        waits.waiter.entered(Entered(1, 3, 40 * SECOND))
        waits.later(later_s)
        done(waits.desk)
        waits.waiter.entered(Entered(1, 3, 40 * SECOND))
        wait_s = timers(done(waits.desk))["claim"] / SECOND - later_s  # type: ignore[operator]
        assert 0.75 * most_s / 1.26 < wait_s <= most_s


def test_an_answer_to_what_was_asked_twice_teaches_patience_only():
    waits = Waits(keeper=KEEPER)
    waits.want()
    waits.later(1)
    waits.fire()
    waits.later(1)
    waits.waiter.entered(Entered(1, 3, 40 * SECOND))
    assert waits.desk.patience.round_trip == 0 and waits.desk.patience.wait() == 2 * SECOND


def test_when_nothing_waits_nothing_is_claimed_and_a_keeper_that_was_silent_is_suspected():
    for after_s, suspected in ((0.9, False), (1.0, True)):
        waits = Waits(keeper=KEEPER)
        waits.want()
        waits.later(after_s)
        waits.waiter.waiting.clear()
        waits.waiter.settle()
        found = done(waits.desk)
        assert (Suspect(KEEPER) in found) is suspected
        assert timers(found) == {"claim": None} and waits.waiter.claim == 0 and waits.looks == 0
        waits.waiter.settle()
        assert done(waits.desk) == []
    nobody = Waits()
    nobody.want()
    nobody.waiter.waiting.clear()
    nobody.waiter.settle()
    assert nobody.looks == 1


def test_who_has_promised_to_take_none_claims_nothing_until_the_promise_is_over_or_somebody_keeps():
    waits = Waits(keeper=KEEPER)
    waits.want()
    waits.waiter.freeze()
    assert waits.waiter.frozen and waits.waiter.claim == 0
    assert timers(done(waits.desk)) == {"claim": PROMISE + 1}
    assert waits.want() == waits.fire() == []
    waits.waiter.thaw()
    assert not waits.waiter.frozen and timers(done(waits.desk)) == {"claim": 1}
    assert said(waits.fire(), Claim)[0][1].request == 2
    waits.waiter.thaw()
    assert done(waits.desk) == []
    waits.waiter.freeze()
    waits.later(PROMISE / SECOND)
    assert not waits.waiter.frozen and waits.waiter.claimed == 2


# --- what is remembered of holds --------------------------------------------------------------------------------------

OTHER: NodeId = 2


class Remembers:
    def __init__(self, *members: NodeId) -> None:
        self.desk: Desk = keeping(members=members or (ME, OTHER, 3))
        self.lost: list[int] = []
        self.ledger = Ledger(self.desk, self.lost.append)

    def hold(self, begun_s: float, ended_s: float | None, *, request: int = 1, id: int = 700, slot: int = 0) -> None:
        """In seconds from now."""
        now = self.desk.now
        self.desk.now = now + round(begun_s * SECOND)
        self.ledger.begin(Token(7, 70, id, 5, slot), request)
        if ended_s is not None:
            self.desk.now = now + round(ended_s * SECOND)
            self.ledger.end(request)
        self.desk.now = now

    def open(self, slot: int = 0) -> Reckon:
        self.ledger.open(slot)
        self.found = done(self.desk)
        ((_, reckon), *_) = said(self.found, Reckon)
        return reckon

    def answer(self, sender: NodeId, number: int, *spans: KeptSpan) -> list[Any]:
        self.ledger.answered(sender, Reckoned(number, spans))
        return done(self.desk)


def span(begun_s: float, ended_s: float, *, request: int = 9, token: int = 800) -> KeptSpan:
    return KeptSpan(token, request, round(begun_s * SECOND), round(ended_s * SECOND))


def test_who_is_asked_tells_of_its_holds_by_that_slot_by_how_long_ago_they_were():
    one = Remembers()
    one.hold(-9, -8, request=1)
    one.hold(-7, None, request=2)
    one.hold(-5, -4, request=3, slot=1)
    one.ledger.recalled(OTHER, Reckon(77, 0))
    spans = (KeptSpan(700, 1, 9 * SECOND, 8 * SECOND), KeptSpan(700, 2, 7 * SECOND, 0))
    assert said(done(one.desk), Reckoned) == [(OTHER, Reckoned(77, spans))]
    for request in range(10, 90):
        one.hold(-3, -2, request=request)
    one.ledger.recalled(OTHER, Reckon(78, 0))
    ((_, told),) = said(done(one.desk), Reckoned)
    assert [each.request for each in told.spans] == list(range(90 - IN_A_MESSAGE, 90))


def test_all_are_asked_and_again_as_long_as_one_has_not_answered():
    one = Remembers()
    first = one.open()
    case = ("case", first.number - 1)
    assert [to for to, _ in said(one.found, Reckon)] == [OTHER, 3]
    assert timers(one.found) == {case: 2 * SECOND}
    one.answer(OTHER, first.number)
    numbers = [first.number]
    for tries in range(2, TRIES + 1):
        one.ledger.fired(first.number - 1)
        ((to, reckon),) = said(done(one.desk), Reckon)
        assert (to, reckon.number) == (3, first.number - 1 + tries)
        numbers.append(reckon.number)
    one.ledger.fired(first.number - 1)
    assert timers(done(one.desk)) == {case: None}
    one.ledger.fired(first.number - 1)
    assert done(one.desk) == [] and len(set(numbers)) == TRIES


def test_who_is_a_member_no_longer_is_not_waited_for():
    one = Remembers()
    first = one.open()
    one.desk.members.remove(3)  # type: ignore[attr-defined]
    one.answer(OTHER, first.number)
    one.ledger.fired(first.number - 1)
    assert timers(done(one.desk)) == {("case", first.number - 1): None}


def test_when_all_have_answered_it_is_over_and_asked_anew_for_a_hold_that_still_runs():
    for ended_s, again in ((-1.0, False), (None, True)):
        one = Remembers()
        one.hold(-9, ended_s)
        first = one.open()
        one.answer(OTHER, first.number)
        assert timers(one.answer(3, first.number)) == {("case", first.number - 1): AGAIN}
        one.ledger.fired(first.number - 1)
        found = done(one.desk)
        assert bool(said(found, Reckon)) is again and timers(found)[("case", first.number - 1)] is None


def test_a_slot_has_one_case_and_so_many_have_one_at_a_time():
    one = Remembers()
    first = one.open()
    one.open()
    assert timers(one.found)[("case", first.number - 1)] is None
    assert one.answer(OTHER, first.number) == []
    numbers = [one.open(slot).number - 1 for slot in range(1, CASES + 1)]
    assert len(set(numbers)) == CASES
    one.ledger.fired(numbers[-1])
    assert said(done(one.desk), Reckon)


def test_both_sides_of_an_overlap_are_told_how_long_it_was_at_least():
    one = Remembers()
    one.hold(-9, -5, request=4)
    first = one.open()
    one.desk.now += SECOND // 5  # there and back: they said it a tenth of a second ago, or up to that more or less
    found = one.answer(OTHER, first.number, span(8, 2))
    told = dict(said(found, Told))
    assert set(told) == {ME, OTHER}
    assert (told[ME].request, told[ME].other, told[ME].their_request) == (4, OTHER, 9)
    assert (told[OTHER].request, told[OTHER].other, told[OTHER].their_request) == (9, ME, 4)
    assert told[ME].length == told[OTHER].length == 2_800_000_000  # 7.9 to 5, and a tenth is uncertain


def test_holds_of_two_others_are_compared_as_well_but_not_of_one_node_or_one_token():
    one = Remembers()
    first = one.open()
    assert said(one.answer(OTHER, first.number, span(8, 2), span(7, 3, request=10, token=801)), Told) == []
    found = one.answer(3, first.number, span(5, 1, request=30, token=800))
    assert {(to, told.other) for to, told in said(found, Told)} == {(OTHER, 3), (3, OTHER)}
    assert {told.their_request for to, told in said(found, Told) if to == 3} == {10}


@pytest.mark.parametrize(("began_s", "overlaps"), [(2.1, True), (1.9, False)])
def test_what_may_have_been_after_it_is_no_overlap(began_s: float, overlaps: bool):
    one = Remembers()
    one.hold(-9, -2)
    first = one.open()
    assert bool(said(one.answer(OTHER, first.number, span(began_s, 0)), Told)) is overlaps


def test_an_answer_that_was_long_on_its_way_is_vague_and_asked_for_again_while_there_are_tries():
    one = Remembers()
    one.hold(-9, -2)
    first = one.open()
    one.desk.now += SECOND // 100
    one.answer(OTHER, first.number)
    one.desk.now += SECOND
    assert one.answer(3, first.number, span(8, 3)) == []
    one.ledger.fired(first.number - 1)
    ((_, again),) = said(done(one.desk), Reckon)
    one.desk.now += SECOND // 25
    assert said(one.answer(3, again.number, span(8, 3)), Told)


def test_who_was_not_asked_or_by_another_number_or_answers_twice_says_nothing():
    one = Remembers()
    one.hold(-9, -2)
    first = one.open()
    for sender, number in ((40, first.number), (OTHER, first.number + 1), (OTHER, first.number + (1 << 16))):
        assert one.answer(sender, number, span(8, 3)) == []
    assert said(one.answer(OTHER, first.number, span(8, 3)), Told)
    assert one.answer(OTHER, first.number, span(8, 3)) == []


def test_who_is_told_of_an_overlap_says_so_once_and_again_where_it_was_longer():
    one = Remembers()
    one.hold(-9, None, request=4)

    def tell(other: NodeId, length: Instant, request: int = 4) -> list[Any]:
        one.ledger.told(Told(request, other, 9, length))
        return done(one.desk)

    assert tell(OTHER, SECOND, request=5) == []
    found = tell(OTHER, 1000)
    assert notes(found) == ["overlap"] and Overlapped(4, OTHER, 9, 1000) in found and one.lost == [4]
    assert tell(OTHER, 1000 + WORTH) == []
    found = tell(OTHER, 1001 + WORTH)
    assert notes(found) == [] and Overlapped(4, OTHER, 9, 1001 + WORTH) in found and one.lost == [4, 4]
    assert notes(tell(3, SECOND)) == []
    one.ledger.end(4)
    assert tell(3, 9 * SECOND) and len(one.lost) == 3  # it is over: nobody loses it


# --- the desk ---------------------------------------------------------------------------------------------------------


def test_the_higher_term_is_followed_and_of_one_term_the_higher_node():
    at = desk()
    assert at.follow(1, 5) and (at.term, at.keeper, at.former) == (1, 5, [])
    assert not at.follow(1, 5) and not at.follow(1, 4) and not at.follow(2, NOBODY)
    assert at.follow(1, 6) and at.former == [5]
    assert at.follow(2, 3) and at.former == [5, 6] and at.heard_at == NOW
    assert not at.keeps and at.keeper_counts
    at.silent[3] = None
    assert not at.keeper_counts


def test_who_left_is_remembered_and_counts_no_more_and_who_joined_until_it_leaves():
    at = desk(members=(ME, 2, 3, 4))
    at.members_changed((3, 4), (50,))
    assert (at.joined, at.departed) == ((3, 4), (50,))
    at.members_changed((), (4,))
    assert (at.joined, at.departed) == ((3,), (50, 4))
    at.members_changed((), (50,))
    assert at.departed == (4, 50)
    at.learn_departed((2, 4, ME, 99))
    assert at.departed == (4, 50, 2) and at.departed_members == 2
    at.members_changed(range(60, 70), range(100, 120))
    assert at.joined == tuple(range(62, 70)) and at.departed == tuple(range(104, 120))


def test_of_two_tokens_of_one_slot_the_later_epoch_is_better_then_the_older_one_then_the_lower_number():
    order = [name(epoch=6), name(id=701), name(stamp=69, id=999), name(epoch=8, stamp=99)]
    order.insert(1, name(stamp=71))
    at = desk()
    for best in order:
        assert at.better(best) is None
        at.learn(best)
        assert all(at.better(each) == best for each in order[: order.index(best)])
    at.learn(order[0])
    assert at.best[0] == order[-1]
    at.learn(order[-1]._replace(hop=9))
    at.learn(order[-1]._replace(hop=8))
    assert at.best[0].hop == 9 and at.better(name(slot=1)) is None


def test_to_oneself_nothing_is_sent_and_nobody_suspects_itself():
    at = keeping()
    at.tell_keeper(ME)
    at.suspect(ME)
    at.suspect(NOBODY)
    assert at.inbox == [Keeps(3, ME)] and at.out == []
