"""Two tokens of one slot: who is told, which one goes, and who is asked. Each sentence is one that a mutant broke."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import Place, Presence, Probe, Recall, Sight
from softmutex.core.at_once import STANDING
from softmutex.core.events import (
    SECOND,
    Effect,
    Event,
    FactKind,
    Instant,
    LostReason,
    NodeId,
    Received,
    Released,
    Send,
    Slept,
    Token,
)
from softmutex.core.messages import Commit, Void
from softmutex.sim.spy import SpiedOn
from tests.wandering.stage import Stage, place_of_token, said_by


@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("better_by", [-1, 1])
def test_who_uses_a_token_learns_of_another_one_from_the_question_of_its_holder(better_by: int, is_used: bool):
    """At once where that one is used, too. The weaker one's holder looks into it; the other one goes on."""
    stage = Stage(nodes=5)
    stage.request(3)
    stage.run(0.5)
    mine = place_of_token(stage, 3)
    theirs = mine._replace(epoch=mine.epoch + better_by, id=mine.id + 1, holder=4)
    stage.tell(3, Received(4, Probe(7, 0, 0, theirs, is_used)))
    assert stage.lost == [(3, LostReason.OVERLAP)] * is_used
    assert (stage.sent["PROBE"] > 0) is (better_by > 0)


@pytest.mark.parametrize("better_by", [-1, 1])
def test_of_two_tokens_at_one_node_the_better_one_stays_whichever_came_first(better_by: int):
    """The first one is doubted, or it would be used: its node slept. Both were real, and the group is told of it."""
    stage = Stage(nodes=3)
    stage.request(3)
    stage.run(0.5)
    stage.release(3)
    stage.run(1)
    stage.cut = {3}
    stage.tell(3, Slept(5 * SECOND))
    stage.request(3, 2)
    stage.run(1.5)
    (first,) = stage.machines[3].view().tokens
    other = Token(first.epoch + better_by, first.stamp, first.id + 1, 4, 0, (), first.settings)
    stage.tell(3, Received(2, Commit(1, STANDING + 2, other)))
    stays, goes = (other, first) if better_by > 0 else (first, other)
    assert [token.id for token in stage.machines[3].view().tokens] == [stays.id]
    assert [note.token.id for _, note in stage.notes if note.kind is FactKind.DISCARDED and note.token] == [goes.id]
    assert stage.granted == ([(3, 1), (3, 2)] if stays is other else [(3, 1)])
    assert stage.sent["RECALL"] == 1


def test_who_gets_its_token_back_shows_itself_as_the_holder_whatever_it_heard_meanwhile():
    """The home tells others where the token will be as soon as it is committed."""
    stage = Stage(nodes=3)
    stage.request(3)
    stage.run(0.1)
    stage.request(2)
    stage.run(0.1)
    there = place_of_token(stage, 3)._replace(holder=2)
    stage.cut = {2}
    sent: Sequence[Effect] = stage.machines[3].handle(Released(stage.holding.pop(3)), stage.now)
    (commit,) = [each.message for each in sent if isinstance(each, Send) and isinstance(each.message, Commit)]
    stage.tell(3, Received(1, Sight(0, 0, there._replace(hop=there.hop + 1), Presence.ABSENT, False)))
    assert stage.machines[3].view().holder == 2
    stage.tell(3, Received(2, Void(commit.nonce, commit.reply)))
    assert stage.machines[3].view().holder == 3


def test_where_a_chain_is_broken_everybody_is_asked_who_had_that_token_before():
    """Its last holder but one has left. Whoever had it before may have used it beside the other one."""
    stage = Stage(nodes=6)
    stage.request(2)
    stage.run(0.1)
    stage.request(3)
    stage.run(0.1)
    asked: list[tuple[NodeId, Place]] = []

    def look(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        recalls = [each for each in effects if isinstance(each, Send) and isinstance(each.message, Recall)]
        asked.extend((each.to, each.message.place) for each in recalls if isinstance(each.message, Recall))

    broken = place_of_token(stage, 2)
    stage.sleep(3)
    stage.release(2)  # the COMMIT lies in its socket
    stage.run(0.1)
    stage.kill(2)
    stage.news(left=(2,))
    stage.request(4)
    stage.run(20)
    assert stage.granted[-1] == (4, 1)
    stage.machines[3] = SpiedOn(stage.machines[3], 3, look)  # type: ignore[assignment]
    stage.wake(3, 20)
    stage.run(5)
    around = {to: place for to, place in asked if place[1:4] == broken[1:4] and place.hop == broken.hop}
    assert {1, 4, 5, 6} <= set(around)


@pytest.mark.parametrize("better_by", [-1, 1])
def test_who_doubts_its_token_gives_way_to_a_better_one_that_it_finds_and_to_no_worse_one(better_by: int):
    stage = Stage(nodes=3)
    stage.request(3)
    stage.run(0.5)
    mine = place_of_token(stage, 3)
    theirs = mine._replace(epoch=mine.epoch + better_by, id=mine.id + 1, holder=2)
    asked = stage.machines[3].handle(Slept(5 * SECOND), stage.now)
    (number,) = {each.message.number for each in asked if isinstance(each, Send) and isinstance(each.message, Probe)}
    stage.tell(3, Received(2, Sight(number, 0, theirs, Presence.PARKED, True)))
    assert [token.id for token in stage.machines[3].view().tokens] == [mine.id] * (better_by < 0)


def test_who_looks_for_a_token_promises_its_ballot_to_nobody_as_long_as_it_looks():
    """Its own promise is as old as its question: two newcomers would each make one, with the other's word."""
    stage = Stage(nodes=3, founder=False)
    stage.run(1)
    stage.cut = {1, 2, 3}
    stage.request(2)
    asked, refused = 0, 0
    for _ in range(40):
        before = stage.sent["PROBE"]
        stage.run(0.1)
        if stage.sent["PROBE"] > before:
            asked += 1
            for each in said_by(stage, 2, 1, Probe(77, 0, 5, None, False)):
                if isinstance(each.message, Sight):
                    refused += not each.message.free
    assert refused == asked > 3
