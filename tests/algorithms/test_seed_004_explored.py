"""`sigma`, `e2e`, `non-e2e`: every interleaving of two or three nodes, with nothing that goes wrong.

With one replica the search is of how a vote is asked for, queued, passed on and inherited; with three of how votes are
split and yielded. More replicas have more interleavings than there is time for: there the nemesis looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.e2e import E2E
from softmutex.core.algorithms.non_e2e import NonE2E
from softmutex.core.algorithms.quorum import Quorum
from softmutex.core.algorithms.quorum.messages import Response
from softmutex.core.algorithms.sigma import Sigma
from softmutex.core.events import Effect, Event, Instant, Received
from tests.algorithms.explorer import Found, explore

ONE, THREE = (("replicas", 1),), (("replicas", 3),)


@pytest.mark.parametrize("machine", [Sigma, E2E, NonE2E])
@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2},
        {"nodes": 2, "withdrawn": 1},
        {"nodes": 2, "leaves": 1},
        {"nodes": 2, "joins": 1, "askers": (2, 3)},
        {"nodes": 3, "askers": (2, 3)},
    ],
    ids=str,
)
def test_no_two_run_at_once_and_everybody_is_granted_whatever_overtakes_what(
    machine: type[Quorum], bounds: dict[str, Any]
):
    assert explore(machine, options=ONE, **bounds) > 30


def test_nor_where_three_vote_and_votes_are_split():
    assert explore(Sigma, nodes=2, options=THREE) > 10_000


class BelievesEachVote(Sigma):
    """Whoever has the vote of a replica: it is ours."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(sender, Response() as response):
                event = Received(sender, response._replace(owner=response.bid))
        return super().handle(event, now)


def test_a_machine_that_believes_each_vote_is_found():
    with pytest.raises(Found, match="run A at once"):
        explore(BelievesEachVote, nodes=3, askers=(2, 3), finish=False, options=ONE)
