"""The runs behind the papers' tables and figures: what is run, once each, and what is looked at in it.

What it decides: a `PaperRun` is one run by the default settings, but for what it names; several tables may share it.
The machines are watched by a subclass that writes down and decides nothing: a token's visits are not in a `Result`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from softmutex import plugins
from softmutex.core.events import SECOND, Instant, NodeId, Token
from softmutex.sim.engine import Engine, InThisProcess, map_on
from softmutex.sim.faults import Fault, Kill, TokenLoss
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH, PastRun

T = TypeVar("T")
R = TypeVar("R")

BIN_S = 100
LONGEST_VISIT_S = 5.0  # a token that was seen so shortly before the end of a run was alive at its end


class PaperRun(NamedTuple):
    """One run. What is None or empty is left to the defaults."""

    algorithm: str
    nodes: int
    duration_s: float
    seed: int
    max_interval_s: float | None = None
    loss_every_s: float | None = None
    kill_at_s: float | None = None  # whoever has the token dies with it, and a newcomer takes the place
    options: tuple[tuple[str, float], ...] = ()
    watched: bool = False  # follow every token and every run of A


class TokenLife(NamedTuple):
    """From when a token was made to when it was last seen anywhere."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Findings:
    job: PaperRun
    running_s: dict[int, float]  # time with so many running A
    intervals: dict[int, int]  # from start to start of A on one node, ended by a visit; by lower edge, `BIN_S` wide
    recoveries_s: tuple[float, ...]
    visits: dict[int, int] = field(default_factory=dict)  # intervals between visits of a token, used or not
    lives: tuple[TokenLife, ...] = ()
    spans_s: tuple[tuple[float, float], ...] = ()  # every run of A

    def alive(self) -> list[tuple[float, int]]:
        """(since when, how many tokens were alive): a step function."""
        end = self.job.duration_s
        return steps((begin, until if until < end - LONGEST_VISIT_S else math.inf) for begin, until in self.lives)


@dataclass
class Log:
    """What the watched machines of one run write down."""

    made: dict[int, Instant] = field(default_factory=dict)
    seen: dict[int, Instant] = field(default_factory=dict)
    visited: dict[NodeId, Instant] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)

    def visit(self, node: NodeId, token: Token, now: Instant) -> None:
        self.seen[token.id] = now
        if node in self.visited:
            self.gaps.append(now - self.visited[node])
        self.visited[node] = now

    def lives(self) -> tuple[TokenLife, ...]:
        ends = {token_id: max(self.seen.get(token_id, 0), made) for token_id, made in self.made.items()}
        return tuple(
            TokenLife((made - EPOCH) / SECOND, (ends[token_id] - EPOCH) / SECOND)
            for token_id, made in self.made.items()
        )


def watched(machine: Any, log: Log) -> Any:
    """The same machine, which writes down what tokens it makes and sees."""

    class Watched(machine):  # type: ignore[misc]
        __slots__ = ()

        def _spurious(self, token: Token, now: Instant) -> bool:
            log.visit(self._me, token, now)
            return bool(super()._spurious(token, now))

        def _made(self, token: Token, regenerated: bool) -> None:
            log.made[token.id] = token.stamp
            super()._made(token, regenerated)

    return Watched


def perform(job: PaperRun) -> Findings:
    machine: Any = plugins.algorithm(job.algorithm)
    log = Log()
    faults: list[Fault] = []
    if job.loss_every_s is not None:
        faults.append(TokenLoss(job.loss_every_s))
    if job.kill_at_s is not None:
        faults.append(Kill(job.kill_at_s, times=1))
    result = simulate(
        Scenario(
            algorithm=watched(machine, log) if job.watched else job.algorithm,
            nodes=job.nodes,
            duration_s=job.duration_s,
            seed=job.seed,
            max_interval_s=job.max_interval_s,
            faults=tuple(faults),
            options=dict(job.options),
            keep_holds=True,
        )
    )
    holds = sorted(result.holds or (), key=lambda hold: hold.start)
    return Findings(
        job=job,
        running_s={level: spent / SECOND for level, spent in result.concurrency_ns.items() if spent},
        intervals=_histogram(_gaps(holds)),
        recoveries_s=tuple(recovery / SECOND for recovery in result.recoveries_ns),
        visits=_histogram(log.gaps),
        lives=log.lives(),
        spans_s=tuple((hold.start / SECOND, hold.end / SECOND) for hold in holds) if job.watched else (),
    )


def _gaps(holds: Iterable[PastRun]) -> Iterable[int]:
    """From start to start of A on one node. A run by which a node used the token that it had just made ends none: the
    printed columns fit when those, which follow a silence and not a visit, are left out."""
    last: dict[NodeId, Instant] = {}
    for hold in holds:
        if hold.node in last and hold.hop:
            yield hold.start - last[hold.node]
        last[hold.node] = hold.start


def _histogram(gaps: Iterable[int]) -> dict[int, int]:
    counts = Counter(gap // (BIN_S * SECOND) * BIN_S for gap in gaps)
    return dict(sorted(counts.items()))


def percent_below(histogram: dict[int, int], value_s: int) -> float:
    return 100 * sum(count for edge, count in histogram.items() if edge < value_s) / max(1, sum(histogram.values()))


def steps(spans: Iterable[tuple[float, float]]) -> list[tuple[float, int]]:
    """How many of the spans are open, as (since when, how many)."""
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    out: list[tuple[float, int]] = []
    level = 0
    for at, change in changes:
        if at == math.inf:
            break
        level += change
        if out and out[-1][0] == at:
            out[-1] = (at, level)
        else:
            out.append((at, level))
    return out


def stabilisations(findings: Findings, calm_s: float) -> list[float]:
    """For each loss of the only token: how long until, for more than `calm_s`, there was exactly one again. What lasts
    until the next loss is counted as that long."""
    alive = findings.alive()
    every = findings.job.loss_every_s or 0.0
    ended = [*alive, (findings.job.duration_s, 0)]
    calm = [since for (since, level), (until, _) in pairwise(ended) if level == 1 and until - since > calm_s]
    out = []
    loss = every
    while loss < findings.job.duration_s:
        lost = next((since for since, level in alive if since >= loss - 10 and level == 0), None)
        if lost is not None and lost < loss + 20:
            again = next((since for since in calm if since > lost), math.inf)
            out.append(min(again, loss + every) - lost)
        loss += every
    return out


class Runner:
    """Does pieces of work, each once."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.progress: Callable[[float], None] | None = None
        self._engine = engine or InThisProcess()
        self._done: dict[tuple[Callable[..., Any], Any], Any] = {}

    def perform(self, jobs: Iterable[PaperRun]) -> list[Findings]:
        return self.map(perform, jobs)

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """In the order of the items. What takes longest should come first."""
        wanted = list(items)
        missing = [item for item in dict.fromkeys(wanted) if (work, item) not in self._done]
        if missing:
            self._keep(work, missing, map_on(self._engine, work, missing))
        return [self._done[work, item] for item in wanted]

    def _keep(self, work: Callable[[T], R], items: Sequence[T], results: Iterable[R]) -> None:
        for number, (item, result) in enumerate(zip(items, results, strict=True), 1):
            self._done[work, item] = result
            if self.progress is not None:
                self.progress(number / len(items))
