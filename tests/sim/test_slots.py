"""Several slots, of which a node may use one or all: none lies idle for long while somebody waits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from softmutex.core.events import SECOND, Effect, Event, Grant, Instant, NodeId, Released, Requested
from softmutex.sim import Scenario, nemesis, simulate


def crowd(seed: int) -> Scenario:
    """2 to 9 nodes, 2 to 20 slots, holds of 0.05 to 20 s, links of 0.2 to 50 ms, nothing wrong."""
    dice = random.Random(seed)
    nodes, slots = dice.randint(2, 9), dice.choice((2, 3, 5, 8, 10, 20))
    each = dice.choice((1, 1, slots))
    hold_s, delay_s = round(0.05 * 400 ** dice.random(), 3), round(0.0002 * 250 ** dice.random(), 5)
    rate = min(dice.uniform(0.3, 0.95) * min(slots, nodes * each) / hold_s, 40)
    return Scenario(
        nodes=nodes,
        slots=slots,
        options={"each": each},
        op_s=hold_s,
        hold=dice.choice(("exponential", f"uniform:{hold_s / 10:g}:{2 * hold_s:g}")),
        delay_s=delay_s,
        demand=f"poisson:{rate:.3f}",
        duration_s=max(60, 8 * hold_s),
        settle_s=60 + 30 * hold_s,
        seed=seed,
        ids="random",
        place=dice.randrange(2**30),
        bound_s=10.0,
    )


def longest_idle_s(run: Scenario) -> float:
    """In which a slot was free, a node that may use another one waited, and nobody was granted."""
    changes: list[tuple[Instant, int, NodeId]] = []  # asked, granted, released: those that last to the end, too

    def spy(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        changes.extend([(now, 0, node)] if isinstance(event, Requested) else [])
        changes.extend((now, 1, node) for effect in effects if isinstance(effect, Grant))
        changes.extend([(now, 2, node)] if isinstance(event, Released) else [])

    assert simulate(run, spy=spy).violations == []
    each = run.options["each"]
    waiting: Counter[NodeId] = Counter()
    using: Counter[NodeId] = Counter()
    longest = since = 0
    for at, what, node in sorted(changes, key=lambda change: (change[0], -change[1])):
        free = using.total() < run.slots and any(waiting[one] and using[one] < each for one in waiting)
        longest = max(longest, at - since if free else 0)
        waiting[node] += (1, -1, 0)[what]
        using[node] += (0, 1, -1)[what]
        if what == 1 or not free:
            since = at
    return longest / SECOND


# They waited for 1.9 to 6.4 s while a slot was free.
@pytest.mark.parametrize("seed", [13, 14, 59, 72, 105])
def test_no_slot_lies_idle_while_somebody_waits(seed: int) -> None:
    """A home put who waited into the queue of a token that it, or the one that waited, used itself; and
    nobody looked for a free slot when a ticket had come to one that was taken again just then."""
    assert longest_idle_s(crowd(seed)) < 1.0


def test_who_was_offered_a_second_slot_in_vain_asks_again() -> None:
    """Who may use one at a time, had one, and waited for the next: that came too early, and the ticket was used up."""
    assert simulate(nemesis.draw(3181, (2, 16))).violations == []


def test_who_is_killed_with_one_slot_while_it_waits_for_another_is_counted_out():
    simulate(nemesis.draw(5175, nodes=(2, 16)))  # the checker itself broke off
