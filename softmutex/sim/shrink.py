"""From a scenario that breaks a law to the smallest that still breaks it: what a person can read, and replay.

Greedy: everything that makes a scenario simpler is tried (a fault less, fewer nodes, a trouble of the network less, a
shorter run, rounder numbers), and kept where the same law is still broken, by this seed or one of a few others; until
nothing helps any more, or the time is over. A change of anything changes all later dice, so a seed is no part of what
is kept: it is the cheapest thing to try again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from softmutex.core.errors import ConfigError
from softmutex.sim.faults import Fault
from softmutex.sim.nemesis import is_sound
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.world import TooLong

SPARE_EVENTS = 20_000  # a simpler scenario may take so many more than twice those of the first one
SEEDS = 3  # that are tried with each change
SPARE_S = 20.0  # a run is cut off so long after what was broken: it shows late, where it is a law of lateness
SIMPLE: tuple[tuple[str, ...], ...] = (  # fields that go back to their default together
    ("loss",),
    ("duplication",),
    ("reordering",),
    ("corruption",),
    ("changes_mind",),
    ("patience_s",),
    ("own_views", "known", "late_s", "detection_s"),
    ("known", "late_s"),
    ("detection_s",),
    ("slots",),
    ("on_lost",),
    ("when_isolated",),
    ("jitter",),
    ("place",),
    ("ids", "place"),
    ("hold",),
    ("founders",),
)
_DEFAULT: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(Scenario)}


def shrink(
    scenario: Scenario, law: str, patience_s: float, tell: Callable[[Scenario], object] | None = None
) -> Scenario:
    """The simplest scenario found in that time that breaks the law as well."""
    begun = time.monotonic()
    best = scenario
    most_events = SPARE_EVENTS + 2 * simulate(scenario).events
    tried: set[str] = set()

    def out_of_time() -> bool:
        return time.monotonic() - begun > patience_s

    improved = True
    while improved and not out_of_time():
        improved = False
        for change in _simpler(best, law):
            found = None if out_of_time() else _still_broken(change, law, tried, most_events)
            if found is not None:
                best, improved = found, True
                if tell is not None:
                    tell(best)
                break
    return best


def _still_broken(scenario: Scenario, law: str, tried: set[str], most_events: int) -> Scenario | None:
    key = repr(scenario.but(seed=0))
    if key in tried:
        return None
    tried.add(key)
    for seed in range(scenario.seed, scenario.seed + SEEDS):
        candidate = scenario.but(seed=seed)
        try:
            result = simulate(candidate, most_events=most_events)
        except TooLong:
            continue
        if any(violation.law == law for violation in result.violations):
            return candidate
    return None


def _simpler(scenario: Scenario, law: str) -> Iterator[Scenario]:
    """What might do as well, the largest steps first. What cannot be is left out."""
    for change in _changes(scenario, law):
        try:
            simpler = scenario.but(**change())
        except ConfigError:
            continue
        if simpler != scenario and is_sound(simpler):
            yield simpler


def _changes(scenario: Scenario, law: str) -> Iterator[Callable[[], dict[str, Any]]]:
    faults = scenario.faults
    if len(faults) > 1:
        for fault in faults:
            yield lambda fault=fault: {"faults": (fault,)}  # type: ignore[misc]
    for number in range(len(faults)):
        yield lambda number=number: {"faults": faults[:number] + faults[number + 1 :]}  # type: ignore[misc]
    for names in SIMPLE:
        if any(getattr(scenario, name) != _DEFAULT[name] for name in names):
            yield lambda names=names: {name: _DEFAULT[name] for name in names}  # type: ignore[misc]
    for nodes in dict.fromkeys([2, 3, 4, 5, 7, scenario.nodes // 2, scenario.nodes * 3 // 4, scenario.nodes - 1]):
        if 2 <= nodes < scenario.nodes:
            yield lambda nodes=nodes: {"nodes": nodes}  # type: ignore[misc]
    if scenario.demand != "saturated":
        yield lambda: {"demand": "saturated"}
    yield lambda: _shorter(scenario, law)
    for name in ("duration_s", "settle_s"):
        for share in (0.25, 0.5, 0.8):
            shorter = _up(getattr(scenario, name) * share)
            if shorter < getattr(scenario, name):
                yield lambda name=name, shorter=shorter: {name: shorter}  # type: ignore[misc]
    for number, fault in enumerate(faults):
        for simpler in _simpler_faults(fault):
            yield lambda n=number, f=simpler: {"faults": (*faults[:n], f, *faults[n + 1 :])}  # type: ignore[misc]
    for name in ("delay_s", "op_s", "loss", "duplication", "reordering", "changes_mind", "patience_s", "late_s"):
        value = getattr(scenario, name)
        if value:
            yield lambda name=name, value=value: {name: _round(value)}  # type: ignore[misc]


def _shorter(scenario: Scenario, law: str) -> dict[str, Any]:
    """Up to where it was broken, and no phase after it where it was broken before."""
    first = min((each.at_s for each in simulate(scenario).violations if each.law == law), default=scenario.duration_s)
    if first < scenario.duration_s:
        return {"duration_s": _up(first + SPARE_S)} if first + SPARE_S < 0.9 * scenario.duration_s else {}
    needed = _up(first - scenario.duration_s + SPARE_S)
    return {"settle_s": needed} if needed < 0.9 * scenario.settle_s else {}


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    """The same kind with a default more, fewer of it, and round numbers."""
    for each in dataclasses.fields(fault):
        value = getattr(fault, each.name)
        if each.default is not dataclasses.MISSING and value != each.default:
            yield dataclasses.replace(fault, **{each.name: each.default})
        if each.name in ("count", "times") and isinstance(value, int):
            for fewer in dict.fromkeys([1, value // 2, value - 1]):
                if 0 < fewer < value:
                    yield dataclasses.replace(fault, **{each.name: fewer})
        elif isinstance(value, float) and _round(value) != value:
            yield dataclasses.replace(fault, **{each.name: _round(value)})


def _round(value: float) -> float:
    """To one digit, which may be a 1, 2 or 5 more often than not."""
    return float(f"{value:.1g}") if value < 20 else float(f"{value:.2g}")


def _up(value: float) -> float:
    return float(10 * (int(value) // 10 + 1))
