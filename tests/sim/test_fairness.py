"""First come, first served: nobody waits for more than two rounds in fair weather, however long A is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest

from softmutex.core.laws import Law
from softmutex.sim import Scenario, simulate

FEW = {"anywhere": range(12), "short turns on long ways": range(4)}
MANY: Mapping[str, Iterable[int]] = {
    "anywhere": [*range(12, 56), *range(57, 61)],  # 56 is a limit (docs/limits.md)
    "short turns on long ways": range(4, 12),
}


def drawn(seed: int, where: str) -> Scenario:
    """A group of 2 to 100, A of 0.1 ms to 60 s, 0.1 to 300 ms each way; or many members, and ways longer than turns."""
    dice = Random(f"fair {seed} {where != 'anywhere'}")

    def log(low: float, high: float) -> float:
        return float(f"{low * (high / low) ** dice.random():.3g}")

    if where == "anywhere":
        nodes, delay_s, op_s = round(log(2, 100)), log(0.0001, 0.3), log(0.0001, 60.0)
        longest_s = float("inf")
    else:
        nodes, delay_s = dice.randint(32, 99), log(0.02, 0.3)
        op_s = log(0.05, 1.0) * delay_s
        longest_s = 0.0
    cycle_s = op_s + delay_s
    fields: dict[str, Any] = {"jitter": dice.choice([0.0, 0.2, 0.5, 0.9]), "place": dice.randrange(1 << 53)}
    kind = dice.choice(["saturated", "saturated", "busy", "periodic"])
    if kind == "busy":
        fields["demand"] = f"poisson:{(0.7 + dice.random() / 2) / cycle_s:.3g}"
    elif kind == "periodic":
        fields["demand"] = f"periodic:{nodes * cycle_s * (0.8 + dice.random()):.3g}"
    fields["hold"] = dice.choice(["fixed", "fixed", "exponential"])
    duration_s = min(14 * nodes * cycle_s, 4000 * cycle_s) + 3
    if longest_s:
        duration_s = min(duration_s, 4000 * cycle_s)
    return Scenario(
        nodes=nodes, op_s=op_s, delay_s=delay_s, ids="random", seed=seed, bound_s=60.0, duration_s=duration_s, **fields
    )


def unfair(where: str, seeds: Iterable[int]) -> dict[int, list[str]]:
    found = {}
    for seed in seeds:
        result = simulate(drawn(seed, where))
        assert result.acquisitions > 5
        if result.violations:
            found[seed] = [str(each) for each in result.violations]
    return found


@pytest.mark.parametrize("where", FEW)
def test_nobody_waits_for_more_than_two_rounds(where: str):
    """Of sixty such worlds five broke the law, of twelve of the worse ones seven: those near the token's trail got in
    again and again, and what followed the token for a round lost its place."""
    assert unfair(where, FEW[where]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("where", MANY)
def test_the_same_in_many_worlds(where: str):
    assert unfair(where, MANY[where]) == {}


def test_the_law_looks_at_waits_of_a_tenth_of_a_second():
    """It once excused the first second of each: a thousand turns of a millisecond."""
    crowd = Scenario(nodes=60, op_s=0.001, delay_s=0.0005, duration_s=2.0, bound_s=60.0)
    assert simulate(crowd).looked[Law.FAIRNESS] > 100
