"""Who holds a keeper's token: when it is used, given on, told of to the keeper, and for how long it is believed in."""

from __future__ import annotations

import random
from typing import Any

import pytest

from softmutex.core.algorithms.keeper.desk import Desk, KeeperOptions
from softmutex.core.algorithms.keeper.holder import ASKED, LOST_AFTER, QUEUE, Holder, Seat
from softmutex.core.algorithms.keeper.ledger import Ledger
from softmutex.core.algorithms.keeper.messages import Beat, Fed, Lease, Name, Reckon, Unclaimed, Unconfirmed
from softmutex.core.algorithms.keeper.waiter import Waiter
from softmutex.core.events import SECOND, Grant, Lose, LostReason, NodeId, Suspect, Ticket, Token, escorted
from softmutex.core.handover import Gone, Handover, Passed, Passing
from softmutex.core.messages import Commit, Message, Offer, Refuse, Void
from tests.algorithms.keepers import ME, NOW, desk, done, keeping, name, notes, said, timers

KEEPER: NodeId = 20
LEASE = 4 * SECOND


def token(*queue: NodeId, hop: int = 5, epoch: int = 7, more: bool = False, slot: int = 0) -> Token:
    tickets = tuple(Ticket(node, 1) for node in queue)
    return escorted(Token(epoch, 70, 700, hop, slot, tickets), unseen=LEASE, more=more)


class Held:
    """One node that does not keep, or does; what waits there is put in by hand."""

    def __init__(self, *waiting: int, keeper: NodeId = KEEPER, slots: int = 1, **options: Any) -> None:
        self.desk: Desk = keeping(slots=slots) if keeper == ME else desk(slots=slots)
        self.desk.follow(3, keeper)
        self.desk.patience.learn(SECOND // 10)  # so that it waits for 0.3 s
        self.waiter = Waiter(self.desk, lambda: None)
        self.waiter.waiting = dict.fromkeys(waiting, NOW)
        self.handover = Handover(ME, random.Random(1), Passing.FOUR_WAY)
        ledger = Ledger(self.desk, lambda request: None)
        self.holder = Holder(self.desk, KeeperOptions(**options), self.waiter, self.handover, ledger)

    def take(self, token: Token) -> list[Any]:
        self.holder.take(token)
        return done(self.desk)

    def later(self, seconds: float) -> None:
        self.desk.now += round(seconds * SECOND)

    def seat(self) -> Seat:
        return self.holder.seats[0]

    def fire(self) -> list[Any]:
        self.holder.fired(0)
        return done(self.desk)

    def lend(self, sent: int | None = None, **how: Any) -> list[Any]:
        """The keeper answers the beat that was sent last."""
        told: dict[str, Any] = {"renewed": True, "more": False, "better": None, **how}
        now = self.seat().token
        self.holder.lent(
            Lease(3, name(now.hop), told["renewed"], told["more"], told["better"], sent or self.seat().beat_at)
        )
        return done(self.desk)

    def answer(self, sender: NodeId, message: Message) -> list[Any]:
        """What it says to the token that it is given."""
        self.holder.outcome(self.handover.received(sender, message, self.desk.now, self.desk.out, False))
        return done(self.desk)

    def release(self, request: int = 1) -> list[Any]:
        self.holder.release(request, b"told")
        return done(self.desk)


def granted(found: list[Any]) -> list[int]:
    return [each.request for each in found if isinstance(each, Grant)]


def beats(found: list[Any]) -> list[tuple[float, bool]]:
    """For how many seconds a lease is asked for, and whether it is parked."""
    return [(beat.lease / SECOND, beat.parked) for _, beat in said(found, Beat)]


def given(found: list[Any]) -> list[tuple[NodeId, Token]]:
    return [(to, each.token) for to, each in said(found, Commit)]


# --- it is used -------------------------------------------------------------------------------------------------------


def test_who_waits_uses_it_at_once_and_renews_its_lease_before_it_is_over():
    held = Held(1)
    found = held.take(token())
    assert granted(found) == [1] and held.holder.using == [1]
    assert timers(found)[("seat", 0)] == LEASE - SECOND * 6 // 5
    held.later(2.8)
    assert said(found := held.fire(), Beat) == [(KEEPER, Beat(3, name(), 2_800_000_000, False, (), held.desk.now))]
    held.later(0.1)
    assert timers(held.lend())[("seat", 0)] == 2_800_000_000 + 2_800_000_000 - SECOND * 6 // 5  # from when it was sent


@pytest.mark.parametrize(("held_s", "lease_s"), [(0, 2.8), (3.2, 2.8), (8, 5.2), (11.6, 7), (90, 7)])
def test_the_longer_it_is_held_the_more_rarely_it_is_told_of_and_the_longer_the_lease(held_s: float, lease_s: float):
    held = Held(1)
    held.take(token())
    held.later(held_s)
    assert beats(held.fire()) == [(pytest.approx(lease_s), False)]


def test_what_is_lent_is_not_shortened_and_an_answer_to_what_was_not_asked_is_none():
    held = Held(1)
    held.take(token())
    first = held.desk.now
    held.fire()
    held.later(2)
    held.fire()
    assert held.lend(sent=first + 5) == []
    held.lend()
    assert held.seat().lease_end == NOW + 2 * SECOND + 2_800_000_000
    assert held.lend(sent=first) == []  # it was asked before that one
    held.fire()
    held.seat().lease_end = NOW + 90 * SECOND
    held.lend()
    assert held.seat().lease_end == NOW + 90 * SECOND


def test_of_beats_that_nobody_answers_the_last_ones_may_be_answered():
    held = Held(1)
    held.take(token())
    for _ in range(ASKED + 3):
        held.fire()
        held.later(0.1)
    assert len(held.seat().asked) == ASKED
    assert held.lend(sent=NOW) == []


def test_who_has_lost_its_lease_is_told_once_and_renews_it_when_it_is_done():
    held = Held(1)
    held.take(token())
    held.later(4)
    found = held.fire()
    assert Lose(1, LostReason.LEASE) in found
    assert not [each for each in held.fire() if isinstance(each, Lose)]
    held.holder.lose(1)
    assert done(held.desk) == []
    assert held.holder.using == [1]


def test_an_overlap_is_told_to_whom_it_concerns():
    held = Held(1)
    held.take(token())
    held.holder.lose(2)
    assert done(held.desk) == []
    held.holder.lose(1)
    assert done(held.desk) == [Lose(1, LostReason.OVERLAP)]


def test_who_waits_takes_no_token_whose_lease_is_nearly_over_but_renews_it():
    for left_s, takes in ((0.85, True), (0.83, False)):
        held = Held()
        held.take(token())
        held.waiter.waiting[1] = NOW
        held.later(LEASE / SECOND - left_s)
        held.holder.serve()
        found = done(held.desk)
        assert (granted(found) == [1]) is takes and (beats(found) == [(2.8, False)]) is not takes


def test_it_is_used_once_a_turn_unless_nobody_else_waits():
    held = Held(1, 2)
    held.take(token(4))
    assert held.seat().using == 1
    held.later(1)
    assert given(held.release()) == [(4, held.seat().token)] and held.waiter.waiting == {2: NOW}
    alone = Held(1, 2)
    alone.take(token())
    alone.later(1)
    found = alone.release()
    assert granted(found) == [2] and alone.seat().token.hop == 6  # each hold has a hop of its own
    assert alone.seat().token.baggage == b"told"


def test_tasks_of_one_node_are_served_in_a_row_for_so_long_and_so_many():
    held = Held(1, 2, 3, 4, row=3)
    held.take(token(9))
    assert granted(held.release(1)) == [2]
    assert granted(held.release(2)) == [3]
    assert given(held.release(3))[0][0] == 9
    slow = Held(1, 2)
    slow.take(token(9))
    slow.later(0.02)
    assert given(slow.release(1))[0][0] == 9


def test_whose_turn_it_is_in_the_queue_uses_it_and_is_taken_out():
    held = Held(1)
    held.take(token(ME, 4, hop=0))
    assert held.seat().using == 1 and [ticket.node for ticket in held.seat().token.queue] == [4]
    assert held.seat().token.hop == 1  # hop 0 is never granted


def test_no_more_than_one_slot_is_used_by_a_node():
    held = Held(1, 2, slots=3)
    held.take(token())
    held.take(token(slot=1))
    assert held.holder.using == [1] and held.holder.serve()
    assert granted(held.release()) == [2]


# --- it is given on ---------------------------------------------------------------------------------------------------


def test_it_goes_to_the_first_in_the_queue_with_what_is_left_of_its_lease():
    held = Held()
    found = held.take(token(4, 5))
    ((to, passed),) = given(found)
    assert to == 4 and passed.queue == (Ticket(5, 1),)
    assert passed.escort.unseen == LEASE - SECOND * 3 // 20  # half of what an answer takes is allowed for the way
    assert passed.settings == held.desk.fingerprint
    assert timers(found)[("seat", 0)] is None
    assert held.holder.here() == () and held.holder.passing() == (name(),)


def test_whom_nobody_here_knows_the_keeper_knows():
    held = Held()
    assert given(held.take(token(99, 4)))[0][0] == 4
    found = Held().take(token(99))
    ((to, offer),) = said(found, Offer)
    assert to == KEEPER and offer.token.queue == (Ticket(99, 1),)
    keeps = Held(keeper=ME)
    assert given(keeps.take(token(99))) == [] and keeps.seat().token.queue == ()
    order = Held()
    ((_, passed),) = given(order.take(token(98, 4, 99, 5)))
    assert [ticket.node for ticket in passed.queue] == [5, 98, 99]


def test_what_cannot_arrive_in_time_is_not_sent():
    held = Held()
    held.desk.now += LEASE
    found = held.take(escorted(token(4), unseen=SECOND // 10))
    assert given(found) == [] and beats(found) == [(2.8, False)]
    held.lend()
    assert held.holder.passing() == (name(),)


def test_who_does_not_take_it_is_told_to_the_keeper_and_the_next_one_gets_it():
    held = Held()
    ((_, commit),) = said(held.take(token(4, 5)), Commit)
    found = held.answer(4, Void(commit.nonce, commit.reply))
    assert said(found, Unclaimed) == [(KEEPER, Unclaimed(Ticket(4, 1)))]
    assert given(found)[0][0] == 5


def test_to_whom_it_went_is_remembered_for_what_comes_after_it():
    held = Held()
    held.take(token(4))
    went = held.seat().token
    held.holder.fed(Fed(name(), (Ticket(6, 1),), False, 40))  # while it is on its way
    assert done(held.desk) == []
    held.holder.outcome(Passed(went, 4))
    assert said(done(held.desk), Fed) == [(4, Fed(name(6), (Ticket(6, 1),), False, 39))]
    held.holder.fed(Fed(name(), (Ticket(6, 1),), False, 40))  # a copy
    assert done(held.desk) == []
    held.holder.fed(Fed(name(), (Ticket(7, 1),), False, 2))
    assert [fed.steps for _, fed in said(done(held.desk), Fed)] == [1]
    for lost in (Fed(name(), (Ticket(8, 1),), False, 1), Fed(name(6), (Ticket(9, 1),), False, 40)):
        held.holder.fed(lost)
        assert said(done(held.desk), Fed) == [(KEEPER, lost._replace(steps=0))]
    held.desk.members.remove(4)  # type: ignore[attr-defined]
    held.holder.fed(Fed(name(), (Ticket(9, 1),), False, 40))
    assert [to for to, _ in said(done(held.desk), Fed)] == [KEEPER]


def test_what_was_committed_and_never_confirmed_is_told_to_the_keeper():
    held = Held()
    held.take(token(4))
    held.holder.outcome(Gone(held.seat().token, 4))
    assert said(done(held.desk), Unconfirmed) == [(KEEPER, Unconfirmed(name(6)))] and held.holder.seats == {}


def test_who_does_not_answer_what_it_is_given_is_suspected_the_second_time():
    held = Held()
    held.take(token(4))
    held.holder.unanswered()
    assert done(held.desk) == []
    held.holder.unanswered()
    assert done(held.desk) == [Suspect(4)]


def test_who_leaves_gives_it_to_the_keeper_then_to_one_after_the_other():
    held = Held()
    held.take(token())
    held.desk.leaving = True
    held.holder.advance_all()
    found, offered = done(held.desk), []
    for _ in range(6):
        ((to, offer),) = said(found, Offer)
        offered.append(to)
        found = held.answer(to, Refuse(offer.nonce))
    assert offered == [KEEPER, 2, 3, 4, KEEPER, 2]


# --- it rests ---------------------------------------------------------------------------------------------------------


def test_one_that_nobody_wants_is_parked_and_the_keeper_is_told_soon_and_again_every_eight_seconds():
    held = Held()
    found = held.take(token())
    assert timers(found) == {("seat", 0): SECOND // 20} and beats(found) == []
    assert beats(held.fire()) == [(0, True)]
    held.later(0.1)
    assert timers(held.lend(renewed=False)) == {("seat", 0): 8 * SECOND + SECOND // 10}
    assert held.seat().idle and held.seat().lease_end == NOW + LEASE


def test_with_several_slots_the_keeper_is_told_at_once_and_says_whose_turn_it_is():
    held = Held(slots=2)
    assert timers(held.take(token())) == {("seat", 0): 1}
    waits = Held(1, slots=2)
    waits.take(token(more=True))
    assert waits.seat().using == 1
    waits.lend(more=True)
    waits.later(0.1)
    waits.waiter.waiting[2] = waits.desk.now
    found = waits.release()
    assert granted(found) == [] and beats(found) == [(0, True)]
    assert granted(waits.lend(more=True, renewed=False)) == [] and waits.seat().more
    waits.fire()
    assert granted(waits.lend(more=False, renewed=False)) == [2]


def test_where_more_wait_than_the_queue_tells_the_keeper_is_asked_at_once():
    assert beats(Held(1).take(token(4, 5, more=True))) == [(2.8, False)]
    assert beats(Held(1).take(token(4, 5, 6, more=True))) == []
    assert beats(Held(1).take(token(4, 5))) == []


def test_a_keeper_that_does_not_answer_is_asked_again_suspected_and_lost_after_six():
    held = Held(1)
    held.take(token())
    waits = []
    for tries in range(LOST_AFTER + 1):
        found = held.fire()
        assert len(beats(found)) == 1 and (Suspect(KEEPER) in found) is (tries >= 2)
        assert held.holder.is_lost(held.seat()) is (tries >= LOST_AFTER)
        waits.append(timers(found)[("seat", 0)])
    assert waits[:3] == [SECOND * 3 // 10, SECOND * 6 // 10, SECOND * 6 // 10]
    held.desk.silent[KEEPER] = None
    held.seat().tries = 2
    assert held.holder.is_lost(held.seat())
    held.seat().tries = 1
    assert not held.holder.is_lost(held.seat())


def test_a_new_keeper_hears_at_once_what_is_here_and_of_nothing_else():
    held = Held(1)
    held.take(token())
    held.fire()
    held.fire()
    held.desk.follow(4, 30)
    held.later(1)
    held.holder.beat_all()
    assert [to for to, _ in said(done(held.desk), Beat)] == [30] and held.seat().tries == 0
    assert list(held.seat().asked) == [held.desk.now]


def test_who_slept_has_no_lease_and_tells_who_used_it():
    held = Held(1)
    held.take(token())
    held.fire()
    held.later(1)
    held.holder.doubt_all()
    found = done(held.desk)
    assert Lose(1, LostReason.LEASE) in found and beats(found) == [(2.8, False)]
    assert held.seat().lease_end == held.desk.now and list(held.seat().asked) == [held.desk.now]


def test_what_is_fed_waits_in_the_token_each_node_once_and_so_many():
    held = Held(1)
    held.take(token(4))
    held.holder.fed(Fed(name(), (Ticket(4, 3), Ticket(5, 2), Ticket(5, 1)), True, 40))
    assert held.seat().token.queue == (Ticket(4, 3), Ticket(5, 2)) and held.seat().more
    held.holder.fed(Fed(name(), tuple(Ticket(node, 1) for node in range(6, 60)), False, 40))
    assert len(held.seat().token.queue) == QUEUE and not held.seat().more


def test_who_wants_nothing_any_more_says_so_in_place_of_waiting_for_itself():
    held = Held()
    held.take(token())
    done(held.desk)
    held.holder.fed(Fed(name(), (Ticket(ME, 7), Ticket(4, 1)), False, 40))
    found = done(held.desk)
    assert said(found, Unclaimed) == [(KEEPER, Unclaimed(Ticket(ME, 7)))] and given(found)[0][0] == 4


# --- it is replaced ---------------------------------------------------------------------------------------------------


def test_one_that_was_replaced_is_taken_by_nobody_and_its_holds_are_asked_for():
    held = Held(1)
    held.desk.learn(name(epoch=8))
    found = held.take(token())
    assert held.holder.seats == {} and notes(found) == ["discarded"] and said(found, Reckon)
    assert not held.holder.welcome(token()) and held.holder.welcome(token(epoch=8))


def test_who_uses_one_that_is_replaced_is_told_and_holds_on_until_it_is_done():
    held = Held(1)
    held.take(token())
    held.holder.replaced(Name(0, 7, 70, 700, 99))  # of the same one
    assert done(held.desk) == []
    held.holder.replaced(name(epoch=8))
    found = done(held.desk)
    assert Lose(1, LostReason.OVERLAP) in found and notes(found) == ["discarded"] and said(found, Reckon)
    assert timers(found)[("seat", 0)] is None
    assert held.holder.seats == {} and held.holder.using == [1]
    assert said(held.release(), Reckon) and held.holder.using == []


def test_the_better_one_takes_the_place_of_one_that_is_here():
    held = Held(1)
    held.take(token())
    found = held.take(token(epoch=8))
    assert notes(found)[:1] == ["discarded"] and held.seat().token.epoch == 8
    assert granted(found) == []  # one at a time


def test_settings_that_differ_are_told_once_each():
    held = Held()
    for settings in (0, held.desk.fingerprint, 5, 5, 6, 5):
        held.holder.take(token()._replace(settings=settings))
    assert notes(done(held.desk)) == ["mismatch", "mismatch"]


def test_who_leaves_or_has_promised_to_take_none_welcomes_no_token():
    held = Held()
    assert held.holder.welcome(token())
    held.waiter.freeze()
    assert not held.holder.welcome(token())
    held.waiter.thaw()
    held.desk.leaving = True
    assert not held.holder.welcome(token())
