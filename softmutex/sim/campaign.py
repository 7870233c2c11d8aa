"""Many seeds of the nemesis, side by side, and what they showed: broken laws, and which law was watched when.

A campaign that finds nothing proves only as much as it looked at. So each run tells which laws had something to look at
that no fault excused (`Laws.looked`), and what the machines did (messages, timers, facts), and the end shows both for
each kind of weather: a law that was never looked at under a weather, or a rule that never fired (`rules.py`), is a
finding as well.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice, takewhile
from typing import Any, NamedTuple

from softmutex import plugins
from softmutex.core.events import FactKind
from softmutex.core.laws import Law
from softmutex.core.messages import name_of
from softmutex.sim import nemesis, report, rules
from softmutex.sim.engine import Engine, map_on
from softmutex.sim.run import simulate
from softmutex.sim.shrink import shrink

SHRUNK_OF_A_LAW = 3  # seeds; the others are named only
SHRINKING_S = 60.0


class CampaignPlan(NamedTuple):
    """One seed to be run."""

    seed: int
    nodes: tuple[int, int]
    algorithm: str


class SeedOutcome(NamedTuple):
    """What one seed showed, small enough to be sent from process to process."""

    seed: int
    nodes: int
    weather: tuple[str, ...]
    looked: Mapping[str, int]
    did: Mapping[str, int]  # messages, timers, facts, and how often
    broken: Mapping[str, str]  # law -> the first time
    events: int
    virtual_s: float
    wall_s: float


class Smallest(NamedTuple):
    """A failure, as small as it gets."""

    seed: int
    law: str
    what: str
    command: str


def run(plan: CampaignPlan) -> SeedOutcome:
    scenario = nemesis.draw(*plan)
    result = simulate(scenario)
    broken: dict[str, str] = {}
    for violation in result.violations:
        broken.setdefault(violation.law, str(violation))
    return SeedOutcome(
        plan.seed,
        scenario.nodes,
        nemesis.weather_of(scenario),
        {str(law): times for law, times in result.looked.items() if times},
        {**result.sent, **result.seen},
        broken,
        result.events,
        scenario.duration_s + result.calm_s,
        result.wall_s,
    )


def run_smaller(plan: CampaignPlan, law: str, patience_s: float) -> Smallest:
    smallest = shrink(nemesis.draw(*plan), law, patience_s)
    what = next((str(each) for each in simulate(smallest).violations if each.law == law), law)
    return Smallest(plan.seed, law, what, report.command(smallest))


def outcomes(plans: Iterable[CampaignPlan], engine: Engine, until: float | None = None) -> Iterator[SeedOutcome]:
    """In their order; none is begun after `until`, by the monotonic clock."""
    return map_on(engine, run, takewhile(lambda plan: until is None or time.monotonic() < until, plans))


def smallest(
    plans: Iterable[tuple[CampaignPlan, str]], engine: Engine, patience_s: float = SHRINKING_S
) -> Iterator[Smallest]:
    return engine.run((run_smaller, (plan, law, patience_s)) for plan, law in plans)


def seeds(first: int, how_many: int | None) -> Iterator[int]:
    return count(first) if how_many is None else islice(count(first), how_many)


# --- what all of them showed -----------------------------------------------------------------------------------------


class Campaign:
    """Adds up."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.runs = 0
        self.events = 0
        self.virtual_s = 0.0
        self.run_s = 0.0
        self.failures: dict[str, list[int]] = {}  # law -> seeds
        self.seeds_with: Counter[str] = Counter()  # weather -> seeds
        self.looked: dict[str, Counter[str]] = defaultdict(Counter)  # weather -> law -> seeds
        self.broken: dict[str, Counter[str]] = defaultdict(Counter)  # the same, broken
        self.did: dict[str, Counter[str]] = defaultdict(Counter)  # weather -> what machines did -> how often

    def add(self, outcome: SeedOutcome) -> None:
        self.runs += 1
        self.events += outcome.events
        self.virtual_s += outcome.virtual_s
        self.run_s += outcome.wall_s
        for law in outcome.broken:
            self.failures.setdefault(law, []).append(outcome.seed)
        for weather in outcome.weather:
            self.seeds_with[weather] += 1
            self.looked[weather].update(dict.fromkeys(outcome.looked, 1))
            self.broken[weather].update(dict.fromkeys(outcome.broken, 1))
            self.did[weather].update(outcome.did)

    def broken_seeds(self) -> int:
        return len({seed for seeds in self.failures.values() for seed in seeds})

    def never_done(self) -> list[str]:
        """What the machines of this algorithm can say, and never did."""
        algorithm = plugins.algorithm(self.algorithm)
        known = [name_of(kind) for kind in algorithm.messages.values()]
        known += [f"fact {kind}" for kind in FactKind]
        done = {name for counter in self.did.values() for name in counter}
        return [name for name in known if name not in done]

    def silent(self) -> list[tuple[str, str]]:
        return rules.silent(self.algorithm, self.did, self.seeds_with)

    def to_json(self, wall_s: float) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm,
            "runs": self.runs,
            "broken": self.broken_seeds(),
            "failures": self.failures,
            "seeds_per_hour": self.runs / wall_s * 3600 if wall_s else 0.0,
            "virtual_seconds": self.virtual_s,
            "events": self.events,
            "weather": {
                weather: {"seeds": number, "looked": self.looked[weather], "broken": self.broken[weather]}
                for weather, number in sorted(self.seeds_with.items())
            },
            "did": {weather: dict(sorted(counter.items())) for weather, counter in sorted(self.did.items())},
            "fired": {weather: rules.fired(self.algorithm, did) for weather, did in sorted(self.did.items())},
            "silent": self.silent(),
            "never_done": self.never_done(),
        }

    def as_text(self, wall_s: float) -> str:
        return "".join(line + "\n" for line in self._lines(wall_s))

    def _lines(self, wall_s: float) -> Iterator[str]:
        laws = [str(law) for law in Law]
        yield "seeds in which a law had something to look at that no fault excused (and was broken)"
        yield "  ".join([f"{'weather':<14}", f"{'seeds':>6}", *(f"{law:>12}" for law in laws)])
        for weather, number in sorted(self.seeds_with.items(), key=lambda pair: (-pair[1], pair[0])):
            cells = [f"{self._cell(weather, law):>12}" for law in laws]
            yield "  ".join([f"{weather:<14}", f"{number:>6}", *cells])
        yield from self._fired()
        if never := self.never_done():
            yield f"never done: {', '.join(never)}"
        rate = self.runs / wall_s * 3600 if wall_s else 0.0
        long_s, events = self.virtual_s / max(1, self.runs), self.events / max(1, self.runs)
        each = f"{long_s:.0f} virtual seconds and {events:,.0f} events each"
        yield f"{self.broken_seeds()} of {self.runs} seeds broken; {rate:,.0f} seeds an hour, {each}"

    def _fired(self) -> Iterator[str]:
        """A line a rule, a column a kind of weather."""
        found = {weather: rules.fired(self.algorithm, did) for weather, did in self.did.items()}
        columns = sorted(found, key=lambda weather: (-self.seeds_with[weather], weather))
        names = list(dict.fromkeys(name for weather in columns for name in found[weather]))
        widest = max(map(len, names), default=0)
        yield "how often each rule fired (what no rule of the table shows stands under its own name)"
        yield "  ".join([f"{'':<{widest}}", *(f"{weather:>{max(9, len(weather))}}" for weather in columns)])
        for name in names:
            cells = [f"{found[weather].get(name, 0):>{max(9, len(weather))},}" for weather in columns]
            yield "  ".join([f"{name:<{widest}}", *cells])
        for name, weather in self.silent():
            yield f"finding: {name!r} never fired under {weather} ({self.seeds_with[weather]} seeds), which it is for"

    def _cell(self, weather: str, law: str) -> str:
        broken = self.broken[weather][law]
        return f"{self.looked[weather][law]}" + (f" ({broken})" if broken else "")
