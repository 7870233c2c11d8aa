"""What each machine shows of itself is so: `status`, checkers and pictures are made of it, and no rule needs it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from softmutex import plugins
from softmutex.core.events import NOBODY, SECOND, Effect, Event, Grant, Instant, NodeId, Released, Requested, Withdrawn
from softmutex.sim import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.world import World

LATELY = SECOND // 2
# What else than its own holds and waits it shows. Of those: who holds, and who waits, elsewhere.
SHOWN = {
    "adaptive": {"epoch", "tokens"},
    "binary-search": {"epoch", "tokens", "holder", "queue"},
    "central": {"epoch", "holder", "queue"},
    "e2e": {"holder"},
    "keeper": {"epoch", "tokens", "holder", "queue"},
    "non-e2e": {"holder"},
    "random-access": set(),
    "raymond": {"epoch", "tokens", "holder"},
    "ricart-agrawala": set(),
    "ring-search": {"epoch", "tokens", "holder", "queue"},
    "sandwich": {"epoch", "tokens"},
    "sigma": {"holder"},
    "suzuki-kasami": {"epoch", "tokens", "holder"},
    "token-ring": {"epoch", "tokens", "holder"},
    "voting": set(),
    "wandering": {"epoch", "tokens", "holder", "queue"},
}
AT_ONCE = {"central", "binary-search", "ring-search"}  # who shows another holder knows it from that one, or from itself


@pytest.mark.parametrize("algorithm", SHOWN)
def test_who_holds_and_who_waits_is_shown_by_itself_and_by_others_as_far_as_they_know(algorithm: str):
    holds: dict[NodeId, list[int]] = defaultdict(list)
    waits: Counter[NodeId] = Counter()
    held_at: dict[NodeId, Instant] = {}
    waited_at: dict[NodeId, Instant] = {}
    shown: Counter[str] = Counter()

    def spy(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        waits[node] += isinstance(event, Requested)
        waits[node] -= isinstance(event, Withdrawn)
        if isinstance(event, Released):
            holds[node].remove(event.request)
            held_at[node] = now
        for effect in effects:
            if isinstance(effect, Grant):
                waits[node] -= 1
                holds[node].append(effect.request)
                waited_at[node] = now

    def look(world: World) -> None:
        for id, node in world.nodes.items():
            view = node.machine.view()
            assert (sorted(view.holding), view.waiting) == (sorted(holds[id]), waits[id])
            assert (view.state in ("holding", "running")) == bool(holds[id])
            assert not holds[id] or view.holder == id or algorithm == "random-access"
            shown["epoch"] += view.epoch > 0
            shown["tokens"] += bool(view.tokens)
            if view.holder not in (NOBODY, id):
                shown["holder"] += 1
                shown["holder, rightly"] += bool(holds[view.holder]) or world.now - held_at.get(view.holder, 0) < LATELY
            for other in view.queue:
                shown["queue"] += 1
                shown["queue, rightly"] += bool(waits[other]) or world.now - waited_at.get(other, 0) < LATELY

    simulate(
        Scenario(algorithm, 6, 20.0, op_s=0.3, delay_s=0.01, settle_s=10.0, demand="poisson:0.3"), spy=spy, look=look
    )
    assert {what for what in ("epoch", "tokens", "holder", "queue") if shown[what]} == SHOWN[algorithm]
    assert shown["queue, rightly"] >= 0.8 * shown["queue"]
    assert algorithm not in AT_ONCE or shown["holder, rightly"] >= 0.9 * shown["holder"]


def test_each_algorithm_is_here():
    installed = {name: plugins.algorithm(name) for name in plugins.installed(plugins.Role.ALGORITHM)}
    ours = {name for name, each in installed.items() if each.__module__.startswith("softmutex.") and not each.elects}
    assert ours == SHOWN.keys()
