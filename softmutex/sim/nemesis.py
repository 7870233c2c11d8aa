"""The nemesis: from a seed, a group of any size and shape in any weather, watched by the laws of `bounds.py`.

A matrix of named faults says something about nine nodes that all know each other. What breaks a promise is mostly a
combination that nobody thought of: so everything is drawn, from the whole of its range, and most runs are small, so
that there are many. Each has a rough phase of four minutes or more and a calm one, in which all must come in order.

    draw(seed) --> Scenario --simulate--> broken? --shrink.py--> the smallest that breaks the same law --> one command

What is drawn costs about the same for every seed: where holds are short or the network is fast, demand comes in bursts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from softmutex import plugins
from softmutex.core.laws import Weather
from softmutex.sim.faults import (
    Batch,
    Churn,
    Clocks,
    DeadLink,
    Fault,
    Kill,
    Lives,
    Partition,
    Pause,
    Replay,
    TokenLoss,
)
from softmutex.sim.group import IDS
from softmutex.sim.scenario import Scenario

FEWEST, MOST = 2, 200
ROUGH_S = (240.0, 300.0)
CALM_S = 120.0  # at least
GRANTS = 2500  # about so many in the rough phase, where the demand is not lower
FEWEST_AROUND_A_DEAD_LINK = 4  # in a smaller group it cuts somebody off, or halves it
BOUND_S, BOUND_OF_MANY_S, MANY = 10.0, 20.0, 16
AT_MESSAGES = ("OFFER", "ACCEPT", "COMMIT", "DONE")
TWO = ("both", "first")  # targets that are two nodes


class Dice:
    """Draws of one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"nemesis {seed}").random

    def between(self, low: float, high: float) -> float:
        return rounded(low + (high - low) * self._chance())

    def log(self, low: float, high: float, towards_low: float = 1.0) -> float:
        """Each order of magnitude is as likely as any other; `towards_low` above 1: the small ones are likelier."""
        return rounded(low * (high / low) ** (self._chance() ** towards_low))

    def whole(self, low: int, high: int) -> int:
        return low + int((high - low + 1) * self._chance())

    def one_of(self, *values: Any) -> Any:
        return values[int(self._chance() * len(values))]

    def happens(self, share: float) -> bool:
        return self._chance() < share


def rounded(value: float) -> float:
    """To three digits: what is printed is what was run."""
    return float(f"{value:.3g}")


def draw(seed: int, nodes: tuple[int, int] = (FEWEST, MOST), algorithm: str = "wandering") -> Scenario:
    """The scenario of this seed."""
    dice = Dice(seed)
    fewest, most = nodes
    count = min(most, round(dice.log(fewest, most, towards_low=1.7))) if most > fewest else fewest
    fields: dict[str, Any] = {"algorithm": algorithm, "nodes": count, "seed": seed, "ids": "random"}
    fields["place"] = dice.whole(0, IDS)
    fields["duration_s"] = dice.between(*ROUGH_S)
    fields["delay_s"] = dice.log(0.0001, 0.6)
    fields["jitter"] = dice.one_of(0.0, 0.2, 0.5, 0.9)
    fields["slots"] = min(dice.whole(2, 8) if dice.happens(0.25) else 1, plugins.algorithm(algorithm).slots_most)
    fields["on_lost"] = dice.one_of("continue", "continue", "cancel")
    fields["when_isolated"] = "wait" if dice.happens(0.85) else dice.one_of("proceed", "raise")
    _draw_use(dice, fields)
    faults: list[Fault] = []
    names = list(TROUBLES)
    for _ in range(dice.one_of(0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 6)):
        name = dice.one_of(*names)
        names.remove(name)
        found = TROUBLES[name](dice, count, fields)
        faults += [found] if isinstance(found, Fault) else found
    fields["faults"] = tuple(faults)
    newcomers = sum(fault.count for fault in faults if isinstance(fault, Batch))
    fields["settle_s"] = rounded(CALM_S + (fields["settle_s"] - CALM_S) * (count + newcomers) / count)  # they wait, too
    return Scenario(**fields, bound_s=bound_of(count, tuple(faults)))


def bound_of(nodes: int, faults: tuple[Fault, ...]) -> float:
    """B: asking everybody takes longer in a larger group."""
    newcomers = sum(fault.count for fault in faults if isinstance(fault, Batch))
    return BOUND_S if nodes + newcomers <= MANY else BOUND_OF_MANY_S


# --- who wants it, for how long --------------------------------------------------------------------------------------


def _draw_use(dice: Dice, fields: dict[str, Any]) -> None:
    nodes, delay_s, duration_s = fields["nodes"], fields["delay_s"], fields["duration_s"]
    hold_s = 0.0 if dice.happens(0.1) else dice.log(0.001, 60.0)
    fields["op_s"] = max(hold_s, 0.001)
    kind = "fixed" if hold_s == 0 else dice.one_of("fixed", "exponential", "uniform")
    if kind == "uniform":
        fields["hold"] = f"uniform:{rounded(hold_s / 10):g}:{rounded(min(60, 2 * hold_s)):g}"
    else:
        fields["hold"] = "fixed:0" if hold_s == 0 else kind
    cycle_s = hold_s + 2 * delay_s + 0.0005
    demands = ["saturated", "busy", "rare", "periodic"] if hold_s else ["busy", "rare", "periodic"]
    demand = dice.one_of(*demands)
    most = GRANTS / duration_s
    if demand == "saturated":
        share = GRANTS * cycle_s / duration_s  # of the time in which there may be demand
        fields["demand"] = demand if share >= 1 else _bursts(dice, duration_s, share)
    elif demand == "busy":
        fields["demand"] = f"poisson:{rounded(min(most, dice.between(0.3, 1.2) / cycle_s)):g}"
    elif demand == "rare":
        fields["demand"] = f"poisson:{rounded(min(most, dice.log(0.005, 0.2) / cycle_s, 1.0)):g}"
    else:
        fields["demand"] = f"periodic:{rounded(max(nodes / most, nodes * cycle_s * dice.between(0.8, 5.0))):g}"
    rounds_s = 2.5 * nodes * (hold_s * (2 if kind == "exponential" else 1) + 8 * delay_s + 0.1)
    fields["settle_s"] = rounded(CALM_S + rounds_s)


def _bursts(dice: Dice, duration_s: float, share: float) -> str:
    period_s = duration_s / dice.whole(3, 12)
    return f"bursts:{rounded(share * period_s):g}:{rounded((1 - share) * period_s):g}"


# --- what goes wrong -------------------------------------------------------------------------------------------------

Found = Fault | list[Fault]


def _loss(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    fields["loss"] = dice.one_of(0.01, 0.05, 0.2, 0.4)
    return []


def _duplication(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    fields["duplication"] = dice.between(0.05, 0.5)
    return []


def _reordering(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    fields["reordering"] = dice.between(0.02, 0.3)
    return []


def _cancellations(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    if dice.happens(0.6):
        fields["changes_mind"] = dice.between(0.05, 0.6)
    if "changes_mind" not in fields or dice.happens(0.3):
        fields["patience_s"] = dice.log(0.1, 60.0)
    return []


def _views(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    fields["own_views"] = True
    fields["detection_s"] = dice.log(0.5, 20.0)
    if dice.happens(0.7):
        fields["known"] = rounded(dice.between(0.0, 0.9))
        fields["late_s"] = dice.log(0.5, 40.0)
    return []


def _dead_links(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    if nodes < FEWEST_AROUND_A_DEAD_LINK:
        return []
    links: list[Fault] = []
    for _ in range(dice.whole(1, 2)):
        start_s = dice.between(5, 200)
        target = dice.one_of("waiter", "waiter", "holder", "random")
        links.append(DeadLink(start_s, rounded(start_s + dice.log(5, 150)), target, dice.happens(0.4)))
    return links


def _cut(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    start_s = dice.between(10, 120)
    share = dice.one_of(0.5, 0.5, 0.001, dice.between(0.05, 0.45))
    one_way = dice.happens(0.25)
    end_s = rounded(start_s + dice.log(1, 110))
    target = dice.one_of("random", "holder")
    return Partition(start_s, end_s, share, one_way, target, mute=one_way and dice.happens(0.5))


def _flapping(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    start_s, length_s = dice.between(10, 60), dice.log(0.2, 8)
    period_s = rounded(length_s * dice.between(1.3, 4))
    target = dice.one_of("random", "holder")
    end_s, times = start_s + length_s, dice.whole(2, max(2, int(150 / period_s)))
    return Partition(start_s, end_s, dice.between(0.05, 0.5), False, target, every_s=period_s, times=min(60, times))


def _kill(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    restart_s = dice.one_of(None, dice.log(0.05, 20), dice.log(0.05, 20))
    target = dice.one_of("holder", "holder", "waiter", "passer", "both", "random", "first")
    silent = dice.happens(0.3)
    times = None
    if silent:  # the smaller part of them: half without the first one stands still, as it should
        target = "holder" if nodes <= 4 and target in TWO else target
        times = max(1, (nodes - 1) // 2 // (2 if target in TWO else 1) - 1)
    elif restart_s is None:
        times = dice.whole(1, max(1, nodes - 2))
    at_message = dice.one_of(*AT_MESSAGES) if dice.happens(0.25) else ""
    return Kill(dice.log(10, 120), target, restart_s, times, at_message, silent)


def _restarts(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    return Kill(dice.log(3, 30), "random", dice.log(0.05, 1.0))


def _pauses(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    return Pause(dice.log(5, 100), dice.log(0.2, 45), dice.one_of("holder", "holder", "waiter", "random"))


def _clocks(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    offset_s = dice.one_of(0.0, 0.1, 7200.0, 432000.0)
    rate = dice.one_of(1.0, 1.0, 1.001, 0.7, 1.5)
    jump_s = dice.log(0.1, 7200) if dice.happens(0.3) else 0.0
    return Clocks(dice.between(0.1, 0.9), offset_s, rate, jump_s, dice.between(20, 200))


def _churn(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    return Churn(min(dice.log(0.05, 2.0), rounded(60 / nodes)))  # a node a second at the most


def _batch(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    count = dice.whole(1, 2)
    return [Batch(dice.between(3, 200), round(dice.log(1, 50)), dice.happens(0.8)) for _ in range(count)]


def _lives(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    return Lives(dice.log(0.5, 30), dice.log(0.05, 5), dice.happens(0.8))


def _replay(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    return Replay(dice.between(0.02, 0.3), dice.log(0.5, 100))


def _token_loss(dice: Dice, nodes: int, fields: dict[str, Any]) -> Found:
    return TokenLoss(dice.log(15, 120))


TROUBLES: dict[str, Callable[[Dice, int, dict[str, Any]], Found]] = {
    "loss": _loss,
    "duplication": _duplication,
    "reordering": _reordering,
    "cancellations": _cancellations,
    "views": _views,
    "dead-link": _dead_links,
    "cut": _cut,
    "flapping": _flapping,
    "kill": _kill,
    "restarts": _restarts,
    "pause": _pauses,
    "clocks": _clocks,
    "churn": _churn,
    "batch": _batch,
    "lives": _lives,
    "replay": _replay,
    "token-loss": _token_loss,
}


# --- what a run was about --------------------------------------------------------------------------------------------


def weather_of(scenario: Scenario) -> tuple[str, ...]:
    """The names of what goes wrong in it, for a table: those of the faults, and those of the network's troubles."""
    found = {
        "loss": scenario.loss or scenario.corruption,
        "duplication": scenario.duplication,
        "reordering": scenario.reordering,
        "cancellation": scenario.changes_mind or scenario.patience_s,
        "views": scenario.own_views,
        "slow network": scenario.delay_s > 0.1,
    }
    names = [name for name, there in found.items() if there]
    names += [name for fault in scenario.faults if (name := _name_of(fault)) not in names]
    return tuple(dict.fromkeys(names)) or ("nothing",)


def _name_of(fault: Fault) -> str:
    if isinstance(fault, Partition):
        kind = "one-way cut" if fault.one_way else "flapping" if fault.times > 1 else "cut"
        return kind if fault.one_way or fault.times > 1 or math.isclose(fault.share, 0.5) else "cut (uneven)"
    if isinstance(fault, Kill):
        return "power cut" if fault.silent else "kill"
    return fault.kind


def is_sound(scenario: Scenario) -> bool:
    """Whether what goes wrong in it is what its names say."""
    dead_links = any(isinstance(fault, DeadLink) for fault in scenario.faults)
    return scenario.nodes >= FEWEST_AROUND_A_DEAD_LINK or not dead_links


def is_fair(scenario: Scenario) -> bool:
    """Nothing in it excuses anything."""
    excusing = Weather.LOSS | Weather.LATENESS | Weather.CUTS | Weather.DEATHS | Weather.PAUSES | Weather.CLOCKS
    return not scenario.weather() & (excusing | Weather.FOUNDERS)
