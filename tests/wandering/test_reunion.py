"""A divided group whose members drop the other side, and take it back one by one when the network has healed.

Each side serves itself meanwhile, with holds that are shorter than a beat: a token that is always on the move.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from softmutex.core.events import SECOND, Instant, NodeId, to_seconds
from softmutex.sim import Scenario, simulate
from softmutex.sim.result import Result
from softmutex.sim.tally import EPOCH, PastRun
from softmutex.sim.world import World

CUT_S, HEALED_S, KNOWN_S = 4.0, 10.0, 16.0  # from the first look on


def divided(seed: int, op_s: float, side: tuple[NodeId, ...]) -> tuple[Result, Instant]:
    """What happened, and when the first two of different sides knew each other again."""
    dice = random.Random(seed)
    met_at: list[Instant] = []

    def divide(world: World) -> None:
        if met_at:
            return
        others = [node for node in world.nodes if node not in side]

        def at(moment_s: float, call: object, *args: object) -> Instant:
            world.after(round(moment_s * SECOND), call, *args)  # type: ignore[arg-type]
            return world.now + round(moment_s * SECOND)

        def cut(sender: NodeId, to: NodeId) -> bool:
            return (sender in side) != (to in side)

        at(CUT_S, world.network.cut, cut)
        at(HEALED_S, world.network.mend, cut)
        meetings = []
        for here in side:
            for there in others:
                for one, other in ((here, there), (there, here)):
                    at(CUT_S + 2 + dice.random(), world.group.tell_one, one, (), (other,))
                back_s = HEALED_S + (KNOWN_S - HEALED_S) * min(dice.random(), dice.random())
                at(back_s, world.group.tell_one, here, (there,), ())
                meetings.append(at(back_s + 0.0004, world.group.tell_one, there, (here,), ()))
        met_at.append(min(meetings) - EPOCH)

    scenario = Scenario(
        nodes=5, seed=seed, op_s=op_s, delay_s=0.0002, duration_s=20.0, own_views=True, laws=("effects",)
    )
    result = simulate(scenario.but(keep_holds=True), look=divide)
    return result, met_at[0]


def last_overlap(holds: Sequence[PastRun]) -> Instant:
    last = end = 0
    for hold in sorted(holds, key=lambda hold: hold.start):
        if hold.start < end:
            last = hold.start
        end = max(end, hold.end)
    return last


@pytest.mark.parametrize("side", [(1, 2), (4, 5)])
@pytest.mark.parametrize(("seed", "op_s"), [(1, 0.02), (3, 0.02), (4, 0.02), (5, 0.02), (5, 0.005)])
def test_two_tokens_do_not_live_side_by_side_for_longer_than_it_takes_two_nodes_to_meet(
    seed: int, op_s: float, side: tuple[NodeId, ...]
):
    """They did for five seconds, and one outranked the other in turn, three hundred times: each holder had heard of
    the other's token, could not ask whoever had it now, and took it for lost."""
    result, met_at = divided(seed, op_s, side)
    assert result.holds is not None
    assert to_seconds(last_overlap(result.holds) - met_at) < 0.2
    assert result.generated <= 4  # the first, one a side at most, and one more
    assert result.messages_per_acquisition < 7  # also while each side has members that the other one does not know
    assert result.violations == []
