"""Whatever arrives: nothing raises, nothing grows without bound, and nothing is taken that was not promised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softmutex.core.errors import InvariantBreach
from softmutex.core.events import CancelTimer, Effect, FactKind, NodeId, Note, Send, SetTimer, Token
from softmutex.core.handover import MAX_HOP, TIMER, Failed, Gone, Handover, Passed, Passing, Taken
from softmutex.core.messages import Accept, Ask, Commit, Done, Message, Offer, Ping, Refuse, Void, Withdraw
from tests.handover.broken import settle_behind_its_back
from tests.handover.stage import TOKEN, Start

OTHER = TOKEN._replace(id=8)


def make(passing: Passing = Passing.FOUR_WAY, node: NodeId = 1) -> Handover:
    return Handover(node, Start(node), passing)


def hear(handover: Handover, sender: NodeId, message: Message) -> list[Any]:
    """The outcome, and the messages that it answers with."""
    out: list[Effect] = []
    outcome = handover.received(sender, message, 0, out)
    return exactly(outcome, *(effect.message for effect in out if isinstance(effect, Send)))


def exactly(*values: Any) -> list[Any]:
    """Tuples of different kinds with the same numbers are equal, DONE and VOID for one: so compare the kinds too."""
    return [(type(value), value) for value in values]


NOTHING = exactly(None)


def promise(handover: Handover, sender: NodeId, nonce: int, token: Token = TOKEN, early: bool = False) -> int:
    _, (kind, accept) = hear(handover, sender, Offer(nonce, token, early))
    assert kind is Accept
    return int(accept.reply)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [False, True])
def test_a_promise_too_many_voids_the_oldest(early: bool):
    handover = make()
    replies = [promise(handover, sender, 5, early=early) for sender in range(10, 10 + Handover.PROMISES + 1)]
    assert len(set(replies)) == len(replies)
    assert hear(handover, 10, Commit(5, replies[0], TOKEN)) == exactly(None, Void(5, replies[0]))
    taken = Taken(TOKEN._replace(hop=1), 11)
    assert hear(handover, 11, Commit(5, replies[1], TOKEN)) == exactly(taken, Done(5, replies[1]))


def test_how_a_promise_was_settled_is_remembered_for_so_many_and_then_never_spoken_of():
    handover = make()
    taken = promise(handover, 10, 5)
    hear(handover, 10, Commit(5, taken, TOKEN))
    void = promise(handover, 11, 5)
    hear(handover, 11, Ask(5, void))
    for nonce in range(Handover.MEMORY - 2):
        promise(handover, 12, nonce)
        hear(handover, 12, Withdraw(nonce))
    assert hear(handover, 10, Ask(5, taken)) == exactly(None, Done(5, taken))
    assert hear(handover, 11, Ask(5, void)) == exactly(None, Void(5, void))
    promise(handover, 12, 1000)
    hear(handover, 12, Withdraw(1000))
    assert hear(handover, 10, Ask(5, taken)) == NOTHING
    assert hear(handover, 11, Ask(5, void)) == exactly(None, Void(5, void))
    promise(handover, 12, 1001)
    hear(handover, 12, Withdraw(1001))
    assert hear(handover, 11, Ask(5, void)) == NOTHING
    assert hear(handover, 11, Commit(5, void, TOKEN)) == NOTHING


def test_a_promise_made_anew_after_it_was_forgotten_has_another_reply():
    handover = make()
    first = promise(handover, 10, 5)
    hear(handover, 10, Ask(5, first))
    for nonce in range(Handover.MEMORY):
        promise(handover, 12, nonce)
        hear(handover, 12, Withdraw(nonce))
    assert promise(handover, 10, 5) != first
    assert hear(handover, 10, Commit(5, first, TOKEN)) == NOTHING


def test_what_is_withdrawn_or_renounced_is_void():
    handover = make()
    withdrawn, renounced = promise(handover, 2, 5), promise(handover, 3, 5)
    hear(handover, 2, Withdraw(5))
    assert hear(handover, 2, Commit(5, withdrawn, TOKEN)) == exactly(None, Void(5, withdrawn))
    out: list[Effect] = []
    handover.renounce(out)
    assert exactly(*out) == exactly(Send(3, Void(5, renounced)))
    assert hear(handover, 3, Commit(5, renounced, TOKEN)) == exactly(None, Void(5, renounced))


def test_a_promise_is_settled_once():
    handover = make()
    reply = promise(handover, 2, 5)
    settle_behind_its_back(handover, 2, 5, reply)
    with pytest.raises(InvariantBreach, match="settles a promise to 2 twice"):
        handover.received(2, Ask(5, reply), 0, [])


def test_nobody_is_given_up_on_before_four_times_the_patience():
    handover = Handover(1, Start(1), patience=100, resends=0)
    handover.give(TOKEN, 2, 0, [])
    assert handover.fired((TIMER, 1001), 399, []) is None
    assert exactly(handover.fired((TIMER, 1001), 400, [])) == exactly(Failed(TOKEN, 2, True))


@pytest.mark.parametrize(("resends", "asked_until", "tries"), [(0, 1200, 11), (3, 1200, 14), (0, 3000, 11)])
def test_a_sender_asks_so_often_and_so_long_before_the_token_is_gone(resends: int, asked_until: int, tries: int):
    handover = Handover(1, Start(1), patience=100, resends=resends)
    handover.give(TOKEN, 2, 0, [])
    hear(handover, 2, Accept(1001, 7))
    for _ in range(tries - 1):
        assert handover.fired((TIMER, 1001), asked_until, []) is None
    assert exactly(handover.fired((TIMER, 1001), asked_until, [])) == exactly(Gone(TOKEN, 2))


def test_a_token_is_gone_when_thirty_times_the_patience_is_over():
    """Whoever waits for it should look for it, however slow the network is and however few questions that were."""
    handover = Handover(1, Start(1), patience=100, resends=0)
    handover.give(TOKEN, 2, 0, [])
    hear(handover, 2, Accept(1001, 7))
    assert handover.fired((TIMER, 1001), 3000, []) is None
    assert isinstance(handover.fired((TIMER, 1001), 3001, []), Gone)


def test_a_token_is_not_gone_before_six_times_the_patience():
    handover = Handover(1, Start(1), patience=100, resends=0)
    handover.give(TOKEN, 2, 0, [])
    hear(handover, 2, Accept(1001, 7))
    for _ in range(50):
        assert handover.fired((TIMER, 1001), 599, []) is None
    assert exactly(handover.fired((TIMER, 1001), 600, [])) == exactly(Gone(TOKEN, 2))


def test_nonces_never_repeat_and_two_lives_begin_at_different_ones():
    one, other = make(node=1), make(node=2)
    replies = {hear(handover, 3, Offer(nonce, TOKEN))[1][1].reply for handover in (one, other) for nonce in range(900)}
    assert len(replies) == 1800


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_nobody_takes_part_in_the_hand_over_of_another():
    handover = make()
    out: list[Effect] = []
    handover.give(TOKEN, 2, 0, out)
    assert hear(handover, 3, Accept(1001, 7)) == NOTHING
    assert hear(handover, 3, Refuse(1001)) == NOTHING
    assert hear(handover, 2, Accept(1001, 7)) == exactly(None, Commit(1001, 7, TOKEN))
    assert hear(handover, 3, Done(1001, 7)) == NOTHING
    assert hear(handover, 3, Void(1001, 7)) == NOTHING
    assert hear(handover, 2, Done(1001, 8)) == NOTHING
    assert hear(handover, 2, Void(1001, 8)) == NOTHING
    assert hear(handover, 2, Done(1001, 7)) == exactly(Passed(TOKEN, 2))


def test_a_done_before_the_commit_proves_nothing():
    handover = make()
    out: list[Effect] = []
    handover.offer_early(TOKEN, 2, 0, out)
    assert hear(handover, 2, Done(1001, 0)) == NOTHING
    hear(handover, 2, Accept(1001, 7))
    assert hear(handover, 2, Done(1001, 7)) == NOTHING
    assert hear(handover, 2, Refuse(1001)) == NOTHING
    assert handover.offered == (TOKEN,)
    assert hear(handover, 2, Void(1001, 7)) == exactly(Failed(TOKEN, 2))


def test_a_promise_stands_whatever_a_new_offer_would_be_told():
    handover = make()
    reply = promise(handover, 2, 5)
    out: list[Effect] = []
    handover.received(2, Offer(5, TOKEN), 0, out, accept=False)
    assert exactly(*out) == exactly(Send(2, Accept(5, reply)))


def test_of_a_settled_promise_only_its_own_reply_is_spoken_of():
    handover = make()
    reply = promise(handover, 2, 5)
    hear(handover, 2, Commit(5, reply, TOKEN))
    assert hear(handover, 2, Ask(5, reply + 1)) == NOTHING
    assert hear(handover, 2, Commit(5, reply + 1, TOKEN)) == NOTHING


def test_nobody_commits_withdraws_or_asks_for_another():
    handover = make()
    reply = promise(handover, 2, 5)
    assert hear(handover, 3, Commit(5, reply, TOKEN)) == NOTHING
    assert hear(handover, 3, Ask(5, reply)) == NOTHING
    assert hear(handover, 3, Withdraw(5)) == NOTHING
    assert hear(handover, 2, Ask(5, reply + 1)) == NOTHING
    assert hear(handover, 2, Commit(5, reply + 1, TOKEN)) == NOTHING
    assert hear(handover, 2, Commit(5, reply, TOKEN)) == exactly(Taken(TOKEN._replace(hop=1), 2), Done(5, reply))


@pytest.mark.parametrize("token", [OTHER, TOKEN._replace(stamp=8), TOKEN._replace(hop=MAX_HOP)])
def test_a_commit_of_another_token_than_was_promised_is_void(token: Token):
    handover = make()
    reply = promise(handover, 2, 5)
    assert hear(handover, 2, Commit(5, reply, token)) == exactly(None, Void(5, reply))
    assert hear(handover, 2, Commit(5, reply, TOKEN)) == exactly(None, Void(5, reply))


def test_an_impossible_hop_is_not_promised():
    handover = make()
    assert hear(handover, 2, Offer(5, TOKEN._replace(hop=MAX_HOP))) == NOTHING
    assert hear(handover, 2, Offer(6, TOKEN._replace(hop=MAX_HOP - 1))) == exactly(None, Accept(6, 1001))


def test_an_offer_of_a_token_that_is_under_way_from_here_is_dropped():
    handover = make()
    later = TOKEN._replace(hop=1)
    handover.give(TOKEN, 2, 0, [])
    assert hear(handover, 3, Offer(5, later)) == NOTHING
    hear(handover, 2, Accept(1001, 7))
    assert hear(handover, 3, Offer(5, TOKEN)) == NOTHING
    assert hear(handover, 3, Offer(5, later)) == exactly(Passed(TOKEN, 2), Accept(5, 1002))  # it has moved on


def test_a_commit_of_a_token_that_is_under_way_from_here_is_void():
    handover = make()
    reply = promise(handover, 3, 5)
    handover.give(TOKEN, 2, 0, [])
    assert hear(handover, 3, Commit(5, reply, TOKEN)) == exactly(None, Void(5, reply))


def test_what_is_dropped_is_noted_with_its_kind_and_sender():
    handover = make()
    out: list[Effect] = []
    handover.received(9, Ask(5, 7), 0, out)
    assert exactly(*out) == exactly(Note(FactKind.STALE, None, 9, "Ask"))


# --- several tokens, other messages, other timers --------------------------------------------------------------------


def test_several_tokens_are_passed_on_at_once_each_by_itself():
    handover = make()
    handover.give(TOKEN, 2, 0, [])
    handover.offer_early(OTHER, 2, 0, [])
    assert handover.offered == (TOKEN, OTHER)
    assert hear(handover, 2, Accept(1002, 8)) == NOTHING
    assert hear(handover, 2, Accept(1001, 7)) == exactly(None, Commit(1001, 7, TOKEN))
    assert handover.withdraw(OTHER, [])
    assert hear(handover, 2, Done(1001, 7)) == exactly(Passed(TOKEN, 2))
    assert handover.idle


def test_messages_and_timers_of_others_are_not_looked_at():
    handover = make()
    handover.give(TOKEN, 2, 0, [])
    assert hear(handover, 2, Ping(1001)) == NOTHING
    out: list[Effect] = []
    for timer in ("handover", "skip", ("watch", 1001), (TIMER, 1002)):
        assert handover.fired(timer, 10**12, out) is None
    assert out == []


def test_a_timer_that_fires_although_it_was_cancelled_commits_nothing():
    handover = make()
    handover.offer_early(TOKEN, 2, 0, [])
    out: list[Effect] = []
    handover.received(2, Accept(1001, 7), 0, out)
    assert exactly(*out) == exactly(CancelTimer((TIMER, 1001)))
    assert handover.fired((TIMER, 1001), 10**12, out) is None
    assert len(out) == 1


# --- bugs of whoever embeds it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [0, 1])
def test_a_token_must_go_to_another_node(to: NodeId):
    with pytest.raises(InvariantBreach, match=f"to {to}: it must go to another node"):
        make().give(TOKEN, to, 0, [])


def test_a_token_cannot_be_passed_to_two_nodes_at_once():
    handover = make()
    handover.offer_early(TOKEN, 2, 0, [])
    with pytest.raises(InvariantBreach, match="to 3 while it is offered to 2"):
        handover.give(TOKEN, 3, 0, [])


@pytest.mark.parametrize("passing", list(Passing))
def test_only_what_was_offered_early_can_be_committed_and_only_once(passing: Passing):
    handover = make(passing)
    with pytest.raises(InvariantBreach, match="give it instead"):
        handover.commit(TOKEN, 0, [])
    handover.offer_early(TOKEN, 2, 0, [])
    handover.commit(TOKEN, 0, [])
    with pytest.raises(InvariantBreach, match="give it instead"):
        handover.commit(TOKEN, 0, [])


# --- anything at all -------------------------------------------------------------------------------------------------

SMALL = st.sampled_from([0, 1, 5, 1000, 1001, 1002, 1003, 1004, 2**64 - 1])
TOKENS = st.builds(
    Token,
    epoch=st.integers(0, 2),
    stamp=st.just(7),
    id=st.sampled_from([7, 8]),
    hop=st.sampled_from([0, 1, 2, MAX_HOP - 1, MAX_HOP, 2**64 - 1]),
)
MESSAGES = st.one_of(
    st.builds(Offer, SMALL, TOKENS, st.booleans()),
    st.builds(Commit, SMALL, SMALL, TOKENS),
    *(st.builds(kind, SMALL, SMALL) for kind in (Accept, Done, Ask, Void)),
    *(st.builds(kind, SMALL) for kind in (Refuse, Withdraw)),
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([1, 2, 3, 0]), MESSAGES, st.booleans()),
        st.sampled_from(["give", "offer_early", "commit", "withdraw", "renounce", "fire"]),
    ),
    max_size=60,
)


@given(ACTS, st.sampled_from([Passing.THREE_WAY, Passing.FOUR_WAY]))
def test_no_messages_of_whatever_kind_make_it_raise_grow_or_take_what_it_did_not_promise(acts: Any, passing: Passing):
    handover = make(passing)
    held: Token | None = TOKEN
    timers: list[Any] = []
    promised: set[tuple[NodeId, int, int]] = set()
    for act in acts:
        out: list[Effect] = []
        outcome: Any = None
        under_way = held is not None and held.key in {token.key for token in handover.offered}
        match act:
            case (sender, message, accept):
                outcome = handover.received(sender, message, 0, out, accept)
            case "give" if held is not None and not handover.remembered.outgoing:
                handover.give(held, 2, 0, out)
                held = None
            case "offer_early" if held is not None and not handover.remembered.outgoing:
                handover.offer_early(held, 2, 0, out)
            case "commit" if held is not None and under_way:
                outcome, held = handover.commit(held, 0, out), None
            case "withdraw" if handover.offered:
                token = handover.offered[0]
                assert handover.withdraw(token, out)
                held = token
            case "renounce":
                handover.renounce(out)
            case "fire" if timers:
                outcome = handover.fired(timers.pop(0), 0, out)
        for effect in out:
            match effect:
                case Send(to, Accept(nonce, reply)):
                    promised.add((to, nonce, reply))
                case SetTimer(timer):
                    timers = [*(other for other in timers if other != timer), timer]
                case CancelTimer(timer):
                    timers.remove(timer)
        match outcome:
            case Taken(token, sender):
                assert isinstance(act[1], Commit)
                assert (sender, act[1].nonce, act[1].reply) in promised
                promised.remove((sender, act[1].nonce, act[1].reply))
                assert token.hop <= MAX_HOP
                held = token if held is None and not handover.remembered.outgoing else held
            case Failed(token):
                held = token
        assert handover.remembered.promises <= Handover.PROMISES
        assert handover.remembered.settled <= Handover.MEMORY
        assert handover.remembered.outgoing <= 1
