"""What is said of a promise to somebody who left: never DONE of a token that was not taken."""

from __future__ import annotations

import pytest

from softmutex.core.events import SECOND, Effect, Send, Token
from softmutex.core.handover import Handover, Outcome, Passing
from softmutex.core.messages import Accept, Ask, Commit, Done, Offer, Void
from tests.handover.stage import Start

TOKEN = Token(epoch=0, stamp=7, id=7, hop=0)
NONCE = 41


def promised() -> tuple[Handover, int]:
    """Node 2 has accepted what node 1 offers."""
    receiver, out = Handover(2, Start(2), Passing.FOUR_WAY, patience=SECOND), list[Effect]()
    receiver.received(1, Offer(NONCE, TOKEN), 0, out)
    (sent,) = out
    assert isinstance(sent, Send) and isinstance(sent.message, Accept)
    return receiver, sent.message.reply


@pytest.mark.parametrize("question", [Commit, Ask])
def test_after_a_sender_has_left_its_late_commit_is_not_taken_and_not_said_to_be(question: type):
    receiver, reply = promised()
    receiver.departed(1, [])
    out: list[Effect] = []
    message = Commit(NONCE, reply, TOKEN) if question is Commit else Ask(NONCE, reply)
    outcome: Outcome | None = receiver.received(1, message, SECOND, out)
    assert outcome is None
    answers = [effect.message for effect in out if isinstance(effect, Send)]
    assert answers == [Void(NONCE, reply)] and not any(isinstance(answer, Done) for answer in answers)
    assert receiver.idle


def test_the_departure_of_another_one_costs_nothing():
    receiver, reply = promised()
    receiver.departed(3, [])
    out: list[Effect] = []
    assert receiver.received(1, Commit(NONCE, reply, TOKEN), SECOND, out) is not None
    assert [type(effect.message) for effect in out if isinstance(effect, Send)] == [Done]
