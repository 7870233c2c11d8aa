"""What a sender and a receiver put out at each step, to the last timer: machines without a network.

A timer that is not ended finds nothing, and a message that is sent twice is answered twice: no law misses that, and on
a busy host both are dear.
"""

from __future__ import annotations

import pytest

from softmutex.core.at_once import OWED, OWED_FOR, STANDING, AtOnce
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import CancelTimer, Duration, Effect, FactKind, Note, Send, SetTimer, Token
from softmutex.core.handover import TIMER, Failed, Gone, Handover, Outcome, Passed, Passing, Taken
from softmutex.core.messages import Accept, Ask, Commit, Done, Message, Offer, Refuse, Void, Withdraw
from tests.handover.stage import TOKEN, Start

NAME = (TIMER, 1001)
P: Duration = 1600
COMMIT = Commit(1001, 7, TOKEN)
OTHER = TOKEN._replace(id=8)


class Side:
    def __init__(self, passing: Passing = Passing.FOUR_WAY, resends: int = 2) -> None:
        self.handover = Handover(1, Start(1), passing, P, resends)
        self.out: list[Effect] = []

    def give(self, now: int = 0) -> list[Effect]:
        self.out = []
        self.handover.give(TOKEN, 2, now, self.out)
        return self.out

    def hear(self, message: Message, now: int = 0, sender: int = 2, accept: bool = True) -> Outcome | None:
        self.out = []
        return self.handover.received(sender, message, now, self.out, accept)

    def fire(self, now: int, name: object = NAME) -> Outcome | None:
        self.out = []
        return self.handover.fired(name, now, self.out)  # type: ignore[arg-type]


def typed(*effects: Effect) -> list[object]:
    """DONE and VOID with the same numbers are equal, and so are effects: so compare the kinds too."""
    return [(type(each), type(getattr(each, "message", None)), each) for each in effects]


# --- the sender ------------------------------------------------------------------------------------------------------


def test_an_offer_that_is_accepted_is_committed_and_confirmed():
    side = Side()
    assert typed(*side.give()) == typed(Send(2, Offer(1001, TOKEN, False)), SetTimer(NAME, P))
    assert side.hear(Accept(1001, 7), 100) is None
    assert typed(*side.out) == typed(
        Send(2, COMMIT), SetTimer(NAME, 400)
    )  # it took 100; of its deviation nothing is known yet
    assert side.hear(Done(1001, 7), 150) == Passed(TOKEN, 2)
    assert typed(*side.out) == typed(CancelTimer(NAME), Note(FactKind.HANDED_OVER, TOKEN, 2))
    assert side.handover.idle


def test_what_is_not_answered_is_sent_again_ever_later_and_then_asked_about():
    side, said = Side(), list[tuple[str, int]]()
    side.give()
    side.hear(Accept(1001, 7), 1600)
    now = 1600
    for _ in range(30):
        ((_, at),) = [each for each in side.out if isinstance(each, SetTimer)]
        now_then, now = now, at
        outcome = side.fire(at)
        said += [(type(each.message).__name__, at - now_then) for each in side.out if isinstance(each, Send)]
        if outcome:
            break
    assert outcome == Gone(TOKEN, 2)
    assert typed(*side.out) == typed(Note(FactKind.TOKEN_LOST, TOKEN, 2, "committed, never confirmed"))
    assert said == [("Commit", 3 * P), ("Commit", 4 * P), *[("Ask", 4 * P)] * 5]
    assert now - 1600 > 6 * P


def test_an_offer_that_nobody_answers_fails_and_is_patient_longer_the_next_time():
    side, now = Side(), 0
    side.give()
    offers, outcome = 1, None
    for _ in range(9):
        now = next(each.at for each in side.out if isinstance(each, SetTimer))
        outcome = side.fire(now)
        offers += len([each for each in side.out if isinstance(each, Send)])
        if outcome:
            break
    assert (outcome, offers) == (Failed(TOKEN, 2, True), 3)
    assert typed(*side.out) == typed(Note(FactKind.HANDOVER_FAILED, TOKEN, 2, "no answer"))
    assert now == P + 2 * P + 2 * P
    assert side.handover.patience.wait(0) == 2 * P


@pytest.mark.parametrize(("answer", "why"), [(Refuse(1001), "refused"), (Void(1001, 0), "void")])
def test_an_offer_that_is_not_wanted_fails_at_once(answer: Message, why: str):
    side = Side()
    side.give()
    assert side.hear(answer) == Failed(TOKEN, 2, False)
    assert typed(*side.out) == typed(CancelTimer(NAME), Note(FactKind.HANDOVER_FAILED, TOKEN, 2, why))


def test_an_early_offer_waits_for_the_release_without_a_timer_and_can_be_taken_back():
    side = Side()
    side.handover.offer_early(TOKEN, 2, 0, side.out)
    assert typed(*side.out) == typed(Send(2, Offer(1001, TOKEN, True)), SetTimer(NAME, P))
    assert side.hear(Accept(1001, 7), 100) is None
    assert typed(*side.out) == typed(CancelTimer(NAME))
    out: list[Effect] = []
    later = TOKEN._replace(baggage=b"x")
    assert side.handover.commit(later, 500, out) is None
    assert typed(*out) == typed(Send(2, Commit(1001, 7, later)), SetTimer(NAME, 500 + 300))
    out.clear()
    assert not side.handover.withdraw(later, out) and out == []
    side = Side()
    side.handover.offer_early(TOKEN, 2, 0, side.out)
    assert side.handover.withdraw(TOKEN, out)
    assert typed(*out) == typed(Send(2, Withdraw(1001)), CancelTimer(NAME))
    side = Side()
    side.handover.offer_early(TOKEN, 2, 0, side.out)
    side.hear(Accept(1001, 7))
    out.clear()
    assert side.handover.withdraw(TOKEN, out)
    assert typed(*out) == typed(Send(2, Withdraw(1001)))  # its timer has ended
    assert not side.handover.withdraw(OTHER, out)


def test_a_release_before_the_answer_waits_for_it():
    side = Side()
    side.handover.offer_early(TOKEN, 2, 0, side.out)
    out: list[Effect] = []
    assert side.handover.commit(TOKEN, 50, out) is None and out == []
    side.hear(Accept(1001, 7), 100)
    assert typed(*side.out) == typed(Send(2, COMMIT), SetTimer(NAME, 400))


def test_whose_timer_ran_out_before_is_silent():
    side = Side()
    side.give()
    side.handover.give(OTHER, 3, 0, side.out)
    assert not side.handover.is_silent(NAME)
    side.fire(P)
    assert side.handover.is_silent(NAME)
    assert not side.handover.is_silent((TIMER, 1002)) and not side.handover.is_silent("other")


def test_a_token_that_was_seen_further_on_was_passed_whatever_brings_it():
    for message in (Offer(5, TOKEN._replace(hop=1), False), Commit(5, STANDING + 9, TOKEN._replace(hop=1))):
        side = Side()
        side.give()
        side.hear(Accept(1001, 7))
        assert side.hear(message, sender=3) == Passed(TOKEN, 2)
        assert CancelTimer(NAME) in side.out and side.handover.find(TOKEN) is None
        side = Side()
        side.give()
        assert side.hear(message, sender=3) is None  # it was not committed


def test_where_somebody_left_what_was_under_way_to_him_ends_with_its_timer():
    side = Side()
    side.give()
    out: list[Effect] = []
    assert side.handover.departed(3, out) == [] and out == []
    assert side.handover.departed(2, out) == [Failed(TOKEN, 2, False)]
    assert typed(*out) == typed(CancelTimer(NAME), Note(FactKind.HANDOVER_FAILED, TOKEN, 2, "left"))
    side = Side()
    side.give()
    side.hear(Accept(1001, 7))
    out.clear()
    assert side.handover.departed(2, out) == [Gone(TOKEN, 2)]
    assert typed(*out) == typed(CancelTimer(NAME), Note(FactKind.TOKEN_LOST, TOKEN, 2, "left, and never confirmed"))


def test_a_commit_at_once_is_one_message_and_sent_again_like_any_other():
    side = Side()
    side.handover.give_at_once(TOKEN, 2, 9, 0, side.out)
    commit = Commit(1001, STANDING + 9, TOKEN)
    assert typed(*side.out) == typed(Send(2, commit), SetTimer(NAME, P))
    assert side.handover.offered == ()
    side.fire(P)
    assert typed(*side.out) == typed(Send(2, commit), SetTimer(NAME, P + 2 * P))
    assert side.hear(Void(1001, STANDING + 9), P) == Failed(TOKEN, 2, False)
    side = Side()
    side.handover.give_at_once(TOKEN, 2, STANDING, 0, side.out)  # no frame could carry the answer
    assert typed(*side.out) == typed(Send(2, Offer(1001, TOKEN, False)), SetTimer(NAME, P))


@pytest.mark.parametrize(
    ("sender", "message"),
    [(3, Done(1001, 7)), (2, Done(1002, 7)), (2, Done(1001, 8)), (2, Void(1001, 8)), (2, Refuse(1001)), (2, Ask(5, 7))],
)
def test_what_answers_nothing_that_is_under_way_is_noted(sender: int, message: Message):
    side = Side()
    side.give()
    side.hear(Accept(1001, 7))
    assert side.hear(message, sender=sender) is None
    assert typed(*side.out) == typed(Note(FactKind.STALE, None, sender, type(message).__name__))


# --- the receiver ----------------------------------------------------------------------------------------------------


def test_a_receiver_promises_takes_once_and_confirms_as_often_as_it_is_asked():
    side = Side()
    assert side.hear(Offer(5, TOKEN, False)) is None
    assert typed(*side.out) == typed(Send(2, Accept(5, 1001)))
    assert not side.handover.idle
    assert side.hear(Commit(5, 1001, TOKEN)) == Taken(TOKEN._replace(hop=1), 2)
    assert typed(*side.out) == typed(Send(2, Done(5, 1001)))
    assert side.handover.idle
    for question in (Commit(5, 1001, TOKEN), Ask(5, 1001)):
        assert side.hear(question) is None
        assert typed(*side.out) == typed(Send(2, Done(5, 1001)))


def test_in_three_steps_a_promise_lasts_for_the_limit_and_nothing_is_answered():
    for at, outcome in ((P, Taken(TOKEN._replace(hop=1), 2)), (P + 1, None)):
        side = Side(Passing.THREE_WAY)
        side.hear(Offer(5, TOKEN, False))
        assert side.hear(Commit(5, 1001, TOKEN), at) == outcome
        assert side.out == []
    side = Side(Passing.THREE_WAY, resends=1)
    assert typed(*side.give()) == typed(Send(2, Offer(1001, TOKEN, False)), SetTimer(NAME, P))
    assert side.fire(P) is None
    assert typed(*side.out) == typed(Send(2, Offer(1001, TOKEN, False)), SetTimer(NAME, 2 * P))
    assert side.fire(2 * P) == Failed(TOKEN, 2, True)
    side = Side(Passing.THREE_WAY)
    side.give()
    assert side.hear(Accept(1001, 7), 100) == Passed(TOKEN, 2)
    assert typed(*side.out) == typed(CancelTimer(NAME), Send(2, COMMIT), Note(FactKind.HANDED_OVER, TOKEN, 2))


def test_in_one_step_there_is_one_message_and_no_timer():
    side = Side(Passing.DIRECT)
    assert typed(*side.give()) == typed(Send(2, Offer(1001, TOKEN, False)))
    assert side.handover.idle
    assert side.hear(Offer(5, TOKEN, False), accept=False) == Taken(TOKEN._replace(hop=1), 2)
    out: list[Effect] = []
    side.handover.offer_early(TOKEN, 2, 0, out)
    assert out == [] and side.handover.offered == (TOKEN,)
    assert side.handover.withdraw(TOKEN, out) and out == []
    side.handover.offer_early(TOKEN, 2, 0, out)
    assert side.handover.commit(TOKEN, 0, out) == Passed(TOKEN, 2)
    assert [type(each) for each in out] == [Send]


# --- at once ---------------------------------------------------------------------------------------------------------


def standing(request: int = 9) -> Side:
    side = Side()
    side.handover.stand(request)
    return side


def test_a_done_may_wait_for_four_milliseconds_and_is_said_once():
    side = standing()
    assert side.hear(Commit(5, STANDING + 9, TOKEN), 1000) == Taken(TOKEN._replace(hop=1), 2)
    assert typed(*side.out) == typed(SetTimer((OWED, 5), 1000 + OWED_FOR))
    assert not side.handover.idle and not side.handover.standing
    assert side.fire(2000, (OWED, 6)) is None and side.out == []
    side.fire(2000, (OWED, 5))
    assert typed(*side.out) == typed(Send(2, Done(5, STANDING + 9)))
    side.fire(2000, (OWED, 5))
    assert side.out == [] and side.handover.idle


def test_a_token_that_returns_or_whose_sender_left_needs_no_done():
    for sender, token, is_paid in ((2, TOKEN, True), (3, TOKEN, False), (2, OTHER, False)):
        side = standing()
        side.hear(Commit(5, STANDING + 9, TOKEN))
        side.out = []
        side.handover.give_at_once(token._replace(hop=1), sender, 1, 0, side.out)
        assert (CancelTimer((OWED, 5)) in side.out) is is_paid
    side = standing()
    side.hear(Commit(5, STANDING + 9, TOKEN))
    side.out = []
    side.handover.departed(3, side.out)
    assert side.out == []
    side.handover.departed(2, side.out)
    assert typed(*side.out) == typed(CancelTimer((OWED, 5)))
    assert side.handover.idle


def test_a_token_that_cannot_be_is_not_taken_and_its_request_is_over():
    side = standing()
    assert side.hear(Commit(5, STANDING + 9, TOKEN._replace(hop=2**53))) is None
    assert typed(*side.out) == typed(Send(2, Void(5, STANDING + 9)))
    assert not side.handover.standing


def test_who_stands_for_a_later_request_gives_the_earlier_one_up():
    side = standing(3)
    side.handover.stand(5)
    assert side.handover.standing == 5
    for nonce in (5, 1):
        side.hear(Commit(nonce, STANDING + 3, TOKEN))
        assert typed(*side.out) == typed(Send(2, Void(nonce, STANDING + 3)))
    side.handover.stand(4)  # they grow
    assert not side.handover.standing
    out: list[Effect] = []
    side.handover.stand(7)
    side.handover.renounce(out)
    assert not side.handover.standing and out == []
    side = Side()
    side.handover.renounce(out)
    assert not side.handover.standing


def test_a_question_about_a_first_commit_that_never_came_is_answered_with_void_as_often_as_it_comes():
    side = standing(3)
    for question in (Ask(1, STANDING + 3), Commit(1, STANDING + 3, TOKEN), Ask(1, STANDING + 3)):
        assert side.hear(question) is None
        assert typed(*side.out) == typed(Send(2, Void(1, STANDING + 3)))


def test_a_request_is_settled_once():
    promised = AtOnce(1, 4)
    promised.retire(3, 0)
    with pytest.raises(InvariantBreach, match="stands for request 3 twice"):
        promised.retire(3, 5)


def test_of_settled_requests_and_senders_so_many_are_remembered():
    promised = AtOnce(1, 4)
    for request in range(1, 8):
        promised.retire(request, 0)
        promised.remember((10 + request, request), request)
    assert (list(promised.retired), promised.forgotten_to, promised.retired_to) == ([4, 5, 6, 7], 3, 7)
    assert (list(promised.latest), promised.unsure_to, promised.senders) == ([14, 15, 16, 17], 3, 4)
    promised.remember((14, 2), 99)  # a later request by an earlier nonce
    assert promised.latest[14] == (4, 99) and list(promised.latest) == [15, 16, 17, 14]


def test_tokens_differ_by_their_keys_alone():
    side = Side()
    side.give()
    assert side.handover.find(Token(9, TOKEN.stamp, TOKEN.id, 77)) is not None
    assert side.handover.find(OTHER) is None
