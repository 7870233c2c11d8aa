"""Many seeds of the nemesis, side by side, and what they showed: broken laws, and which law was watched when.

A campaign that finds nothing proves only as much as it looked at. So each run tells which laws had something to look at
that no fault excused (`Laws.looked`), and what the machines did (messages, timers, facts), and the end shows both for
each kind of weather: a law that was never looked at under a weather, or a rule that never fired, is a finding as well.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice, takewhile
from typing import Any, NamedTuple, TypeVar

from softmutex import plugins
from softmutex.core.events import FactKind
from softmutex.core.laws import Law
from softmutex.core.messages import name_of
from softmutex.sim import nemesis, report
from softmutex.sim.run import simulate
from softmutex.sim.shrink import shrink

SHRUNK_OF_A_LAW = 3  # seeds; the others are named only
SHRINKING_S = 60.0
AHEAD = 3  # seeds that wait for each worker
T = TypeVar("T")


class Plan(NamedTuple):
    """One seed to be run."""

    seed: int
    nodes: tuple[int, int]
    algorithm: str


class Outcome(NamedTuple):
    """What one seed showed, small enough to be sent from process to process."""

    seed: int
    nodes: int
    weather: tuple[str, ...]
    looked: Mapping[str, int]
    did: frozenset[str]  # messages, timers, facts
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


def run(plan: Plan) -> Outcome:
    scenario = nemesis.draw(*plan)
    result = simulate(scenario)
    broken: dict[str, str] = {}
    for violation in result.violations:
        broken.setdefault(violation.law, str(violation))
    return Outcome(
        plan.seed,
        scenario.nodes,
        nemesis.weather_of(scenario),
        {str(law): times for law, times in result.looked.items() if times},
        frozenset(result.sent) | frozenset(result.seen),
        broken,
        result.events,
        scenario.duration_s + result.calm_s,
        result.wall_s,
    )


def run_smaller(plan: Plan, law: str, patience_s: float) -> Smallest:
    smallest = shrink(nemesis.draw(*plan), law, patience_s)
    what = next((str(each) for each in simulate(smallest).violations if each.law == law), law)
    return Smallest(plan.seed, law, what, report.command(smallest))


def outcomes(plans: Iterable[Plan], jobs: int, until: float | None = None) -> Iterator[Outcome]:
    """As they come; none is begun after `until`, by the monotonic clock."""
    timed = takewhile(lambda plan: until is None or time.monotonic() < until, plans)
    return _side_by_side(((run, (plan,)) for plan in timed), jobs)


def smallest(plans: Iterable[tuple[Plan, str]], jobs: int, patience_s: float = SHRINKING_S) -> Iterator[Smallest]:
    return _side_by_side(((run_smaller, (plan, law, patience_s)) for plan, law in plans), jobs)


def seeds(first: int, how_many: int | None) -> Iterator[int]:
    return count(first) if how_many is None else islice(count(first), how_many)


def _side_by_side(calls: Iterator[tuple[Callable[..., T], tuple[Any, ...]]], jobs: int) -> Iterator[T]:
    if jobs == 1:
        yield from (call(*arguments) for call, arguments in calls)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting: set[Future[T]] = set()
        try:
            while True:
                for call, arguments in islice(calls, jobs * AHEAD - len(waiting)):
                    waiting.add(pool.submit(call, *arguments))
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


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
        self.did: dict[str, Counter[str]] = defaultdict(Counter)  # weather -> what machines did -> seeds

    def add(self, outcome: Outcome) -> None:
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
            self.did[weather].update(dict.fromkeys(outcome.did, 1))

    def broken_seeds(self) -> int:
        return len({seed for seeds in self.failures.values() for seed in seeds})

    def never_done(self) -> list[str]:
        """What the machines of this algorithm can say, and never did."""
        algorithm = plugins.algorithm(self.algorithm)
        known = [name_of(kind) for kind in algorithm.messages.values()]
        known += [f"fact {kind}" for kind in FactKind]
        done = {name for counter in self.did.values() for name in counter}
        return [name for name in known if name not in done]

    def not_done_in(self, weather: str) -> list[str]:
        """What they did elsewhere, and never there."""
        done = {name for counter in self.did.values() for name in counter}
        return sorted(done - self.did[weather].keys())

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
        if never := self.never_done():
            yield f"never done: {', '.join(never)}"
        for weather in sorted(self.seeds_with):
            if missing := self.not_done_in(weather):
                yield f"not done under {weather}: {', '.join(missing)}"
        rate = self.runs / wall_s * 3600 if wall_s else 0.0
        long_s, events = self.virtual_s / max(1, self.runs), self.events / max(1, self.runs)
        each = f"{long_s:.0f} virtual seconds and {events:,.0f} events each"
        yield f"{self.broken_seeds()} of {self.runs} seeds broken; {rate:,.0f} seeds an hour, {each}"

    def _cell(self, weather: str, law: str) -> str:
        broken = self.broken[weather][law]
        return f"{self.looked[weather][law]}" + (f" ({broken})" if broken else "")
