"""What the protocol promises, sentence by sentence; each story is pinned in tests/traces/handover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softmutex.core.events import Effect, FactKind, Note, Token
from softmutex.core.handover import Failed, Gone, Passed, Passing, Taken
from softmutex.core.messages import Ask, Commit, Offer
from tests.handover.explorer import Posted
from tests.handover.stage import TOKEN, Stage
from tests.tracing import TRACES, Trace

HOP_1 = TOKEN._replace(hop=1)
HOP_2 = TOKEN._replace(hop=2)


@pytest.fixture
def stage(request: pytest.FixtureRequest, rewrite: bool) -> Iterator[Stage]:
    """Nodes 1, 2 and 3; node 1 has the token. The story is compared with its file at the end."""
    trace = Trace("handover", request.function.__name__)
    yield Stage(trace, getattr(request, "param", Passing.FOUR_WAY))
    trace.check(rewrite)


three_way = pytest.mark.parametrize("stage", [Passing.THREE_WAY], indirect=True, ids=["3-way"])
direct = pytest.mark.parametrize("stage", [Passing.DIRECT], indirect=True, ids=["direct"])


# --- four steps ------------------------------------------------------------------------------------------------------


def test_a_token_changes_hands_in_four_messages(stage: Stage):
    assert stage.give(1, to=2) is None
    assert stage.deliver() is None  # OFFER
    assert not stage.nodes[1].idle and not stage.nodes[2].idle
    assert stage.deliver() is None  # ACCEPT
    assert stage.deliver() == Taken(HOP_1, 1)  # COMMIT
    assert not stage.nodes[1].idle and stage.nodes[2].idle
    assert stage.deliver() == Passed(TOKEN, 2)  # DONE
    assert all(node.idle for node in stage.nodes.values())
    assert not stage.flying and not stage.timers


def test_a_lost_offer_is_sent_again(stage: Stage):
    stage.give(1, to=2)
    stage.lose()
    assert stage.fire(1) is None
    stage.deliver()
    stage.deliver()
    assert stage.deliver() == Taken(HOP_1, 1)
    assert stage.deliver() == Passed(TOKEN, 2)


def test_a_repeated_offer_is_answered_with_the_same_promise(stage: Stage):
    stage.give(1, to=2)
    offer = stage.flying[0]
    stage.deliver()
    stage.again(offer)
    first, second = (posted.message for posted in stage.flying)
    assert first == second
    assert stage.deliver() is None
    assert stage.deliver() is None  # the copy of the ACCEPT: no second COMMIT
    assert [posted.kind for posted in stage.flying] == ["Commit"]


def test_a_lost_commit_is_sent_again(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    stage.deliver()
    stage.lose()
    assert stage.fire(1) is None
    assert stage.deliver() == Taken(HOP_1, 1)
    assert stage.deliver() == Passed(TOKEN, 2)


def test_a_commit_is_taken_once_and_confirmed_as_often_as_it_comes(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    stage.deliver()
    assert stage.deliver() == Taken(HOP_1, 1)
    stage.lose()  # DONE
    stage.fire(1)
    assert stage.deliver() is None
    assert stage.deliver() == Passed(TOKEN, 2)


def test_a_sender_without_an_answer_to_its_commit_asks_and_resumes_on_void(stage: Stage):
    commit, *_ = commit_into_silence(stage)
    assert stage.flying[0].kind == "Ask"
    assert stage.deliver() is None
    assert stage.deliver() == Failed(TOKEN, 2)  # VOID: the token is node 1's again
    assert stage.again(commit) is None  # and the late COMMIT is refused
    assert stage.flying[0].kind == "Void"
    assert stage.deliver() is None
    assert stage.give(1, to=3) is None


def test_a_receiver_that_has_the_token_says_so_when_it_is_asked(stage: Stage):
    commit, *_ = commit_into_silence(stage)
    ask = stage.flying.pop()
    assert stage.again(commit) == Taken(HOP_1, 1)
    stage.lose()
    pass_on(stage, HOP_1, sender=2, to=3)
    assert stage.again(ask) is None
    assert stage.deliver() == Passed(TOKEN, 2)


def test_a_sender_that_is_never_answered_gives_the_token_up(stage: Stage):
    commit_into_silence(stage)
    outcome = None
    while outcome is None:
        assert stage.lose().kind == "Ask"
        outcome = stage.fire(1)
    assert outcome == Gone(TOKEN, 2)
    assert stage.now > 1_500_000_000  # 6 times the patience, at least
    assert not stage.timers and stage.nodes[1].idle


def test_an_offer_that_nobody_answers_fails_and_its_late_acceptance_changes_nothing(stage: Stage):
    stage.give(1, to=2)
    offer = stage.flying[0]
    outcome = None
    while outcome is None:
        stage.lose()
        outcome = stage.fire(1)
    assert outcome == Failed(TOKEN, 2, True)
    stage.give(1, to=3)
    stage.again(offer)
    assert stage.flying[-1].kind == "Accept"
    assert stage.deliver(-1) is None
    assert [posted.kind for posted in stage.flying] == ["Offer"]


def test_a_refusal_fails_the_hand_over_at_once(stage: Stage):
    stage.give(1, to=2)
    stage.deliver(accept=False)
    assert stage.deliver() == Failed(TOKEN, 2)
    assert not stage.timers


def test_a_refusal_of_an_earlier_copy_does_not_undo_an_acceptance(stage: Stage):
    stage.give(1, to=2)
    offer = stage.flying[0]
    stage.deliver(accept=False)
    stage.again(offer)
    assert stage.deliver(1) is None  # the ACCEPT overtakes the REFUSE
    assert stage.deliver(0) is None
    assert stage.deliver() == Taken(HOP_1, 1)


def test_an_offer_repeated_after_void_is_not_accepted_again(stage: Stage):
    stage.give(1, to=2)
    offer = stage.flying[0]
    stage.deliver()
    stage.deliver()
    commit = stage.lose()
    stage.say(1, 2, Ask(1001, 2001))
    assert stage.deliver() == Failed(TOKEN, 2)
    assert stage.again(offer) is None
    assert stage.again(commit) is None
    assert [posted.kind for posted in stage.flying] == ["Void"]


def test_an_acceptance_of_the_first_attempt_does_not_commit_the_second(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    late = stage.lose()
    while stage.fire(1) is None:
        stage.lose()
    stage.give(1, to=2)
    assert stage.again(late) is None
    assert [posted.kind for posted in stage.flying] == ["Offer"]
    stage.deliver()
    stage.deliver()
    assert stage.deliver() == Taken(HOP_1, 1)


def test_a_token_that_comes_back_proves_that_it_was_passed_on(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    stage.deliver()
    commit = stage.flying[0]
    stage.deliver()
    stage.lose()  # DONE
    stage.give(2, to=1, token=HOP_1)
    assert stage.deliver() == Passed(TOKEN, 2)  # the offer, better than any DONE
    stage.deliver()
    assert stage.deliver() == Taken(HOP_2, 2)
    assert stage.deliver() == Passed(HOP_1, 1)
    assert stage.again(commit) is None  # a copy of the very first COMMIT, long after
    assert stage.deliver() is None
    assert all(node.idle for node in stage.nodes.values())


# --- pipelined -------------------------------------------------------------------------------------------------------


def test_an_early_offer_costs_one_commit_at_the_release(stage: Stage):
    stage.offer_early(1, to=2)
    stage.deliver()
    assert stage.deliver() is None
    assert not stage.flying and not stage.timers  # A may run for hours
    stage.wait(3600)
    released = TOKEN._replace(baggage=b"trace")
    assert stage.commit(1, released) is None
    assert stage.deliver() == Taken(released._replace(hop=1), 1)
    assert stage.deliver() == Passed(released, 2)


def test_a_commit_after_a_long_hold_is_resent_no_less_than_any_other(stage: Stage):
    stage.offer_early(1, to=2)
    stage.deliver()
    stage.deliver()
    stage.wait(3600)
    stage.commit(1)
    commits = 0
    while stage.lose().kind == "Commit":
        commits += 1
        assert stage.fire(1) is None
    assert commits == len(commit_into_silence(Stage(stage.trace)))


def test_a_release_before_the_acceptance_is_committed_with_the_acceptance(stage: Stage):
    stage.offer_early(1, to=2)
    released = TOKEN._replace(baggage=b"trace")
    assert stage.commit(1, released) is None
    assert [posted.kind for posted in stage.flying] == ["Offer"]
    stage.deliver()
    stage.deliver()
    assert stage.deliver() == Taken(released._replace(hop=1), 1)


def test_an_early_offer_can_be_withdrawn_and_made_to_another(stage: Stage):
    stage.offer_early(1, to=2)
    stage.deliver()
    stage.deliver()
    assert stage.withdraw(1)
    stage.offer_early(1, to=3)
    stage.deliver()
    assert stage.nodes[2].idle
    assert stage.nodes[1].offered == (TOKEN,)


def test_an_acceptance_after_the_withdrawal_changes_nothing(stage: Stage):
    stage.offer_early(1, to=2)
    stage.deliver()
    assert stage.withdraw(1)
    assert not stage.timers
    assert stage.deliver() is None
    assert [posted.kind for posted in stage.flying] == ["Withdraw"]


def test_what_is_committed_cannot_be_withdrawn(stage: Stage):
    stage.give(1, to=2)
    assert stage.nodes[1].offered == (TOKEN,)
    stage.deliver()
    stage.deliver()
    assert stage.nodes[1].offered == ()
    assert stage.withdraw(1) is False
    assert stage.deliver() == Taken(HOP_1, 1)
    assert stage.deliver() == Passed(TOKEN, 2)
    assert stage.withdraw(1) is False


def test_an_early_offer_that_nobody_answers_fails_before_the_release(stage: Stage):
    stage.offer_early(1, to=2)
    outcome = None
    while outcome is None:
        stage.lose()
        outcome = stage.fire(1)
    assert outcome == Failed(TOKEN, 2, True)
    assert stage.nodes[1].idle


def test_a_leaver_renounces_its_promises_and_the_sender_knows_at_once(stage: Stage):
    stage.offer_early(1, to=2)
    stage.deliver()
    stage.deliver()
    assert not stage.nodes[2].idle
    stage.renounce(2)
    assert stage.nodes[2].idle
    assert stage.deliver() == Failed(TOKEN, 2)


def test_a_renunciation_that_overtakes_the_acceptance_fails_the_hand_over(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    stage.renounce(2)
    assert stage.deliver(1) == Failed(TOKEN, 2)
    assert stage.deliver(0) is None
    assert not stage.flying


# --- three steps: seed 000 section 4 ---------------------------------------------------------------------------------


@three_way
def test_in_three_steps_the_sender_is_done_with_its_commit(stage: Stage):
    assert stage.give(1, to=2) is None
    stage.deliver()
    assert stage.deliver() == Passed(TOKEN, 2)
    assert not stage.timers
    assert stage.deliver() == Taken(HOP_1, 1)
    assert not stage.flying


@three_way
def test_in_three_steps_a_sender_without_an_acceptance_keeps_the_token(stage: Stage):
    stage.give(1, to=2)
    for _ in range(2):
        stage.lose()
        assert stage.fire(1) is None
    assert stage.now == 500_000_000  # the waits do not grow
    stage.deliver()
    assert stage.fire(1) == Failed(TOKEN, 2, True)
    assert stage.deliver() is None  # the late ACCEPT, in silence
    assert not stage.flying


@three_way
def test_in_three_steps_a_late_commit_is_discarded_in_silence(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    stage.deliver()
    assert stage.deliver(after_s=0.25) is None
    assert not stage.flying


@three_way
def test_in_three_steps_a_commit_in_the_last_moment_is_taken_and_its_copy_is_not(stage: Stage):
    stage.give(1, to=2)
    stage.deliver()
    stage.deliver()
    commit = stage.flying[0]
    assert stage.deliver(after_s=0.24) == Taken(HOP_1, 1)
    assert stage.again(commit) is None
    assert not stage.flying


@three_way
def test_in_three_steps_an_early_offer_may_be_committed_hours_later(stage: Stage):
    stage.offer_early(1, to=2)
    stage.deliver()
    stage.deliver()
    assert not stage.timers
    stage.wait(3600)
    assert stage.commit(1) == Passed(TOKEN, 2)
    assert stage.deliver() == Taken(HOP_1, 1)


# --- one step --------------------------------------------------------------------------------------------------------


@direct
def test_in_one_step_the_token_is_passed_and_taken_without_an_answer(stage: Stage):
    assert stage.give(1, to=2) == Passed(TOKEN, 2)
    assert stage.deliver() == Taken(HOP_1, 1)
    assert not stage.flying and not stage.timers


@direct
def test_in_one_step_an_early_offer_says_nothing_before_the_release(stage: Stage):
    stage.offer_early(1, to=2)
    assert stage.nodes[1].offered == (TOKEN,)
    assert stage.withdraw(1)
    stage.offer_early(1, to=3)
    assert not stage.flying
    assert stage.commit(1) == Passed(TOKEN, 3)
    assert stage.deliver() == Taken(HOP_1, 1)
    assert stage.nodes[1].idle


# --- the files -------------------------------------------------------------------------------------------------------


def test_every_trace_belongs_to_a_sentence():
    for path in (TRACES / "handover").iterdir():
        assert f"test_{path.stem}" in globals(), f"{path.name} belongs to no test: delete it"


def commit_into_silence(stage: Stage) -> list[Posted]:
    """Node 1 commits to node 2, and every COMMIT is lost, until it asks. Returns them."""
    stage.give(1, to=2)
    stage.deliver()
    stage.deliver()
    commits = []
    while stage.flying[0].kind == "Commit":
        commits.append(stage.lose())
        assert stage.fire(1) is None
    assert all(commit.message == Commit(1001, 2001, TOKEN) for commit in commits)
    return commits


def pass_on(stage: Stage, token: Token, sender: int, to: int) -> None:
    stage.give(sender, to, token)
    stage.deliver()
    stage.deliver()
    assert stage.deliver() == Taken(token._replace(hop=token.hop + 1), sender)
    assert stage.deliver() == Passed(token, to)


def test_a_copy_of_an_offer_whose_promise_has_ended_is_noted_and_answered_with_nothing():
    stage = Stage(Trace("handover", "of nothing"))
    stage.give(1, to=2)
    offer = stage.flying[0]
    while stage.flying:
        stage.deliver()
    out: list[Effect] = []
    assert isinstance(offer.message, Offer)
    stage.nodes[2].on_offer(1, offer.message, stage.now, out, accept=True)
    assert out == [Note(FactKind.STALE, None, 1, "Offer")]
