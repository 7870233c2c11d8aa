"""Several algorithms under equal conditions: seed 002's comparison table, measured.

    rare     one node in a while wants it: what an entry costs when there is nobody to share the cost with
    busy     everybody always wants it: what an entry costs then, once the queue stands, and how long the resource waits
             between two holders
    killed   busy, and the holder dies again and again: how long until the next entry, and how long two overlap

Times are in message times, as in the seed: one message takes 50 ms here, and A takes twenty times that. Messages are
everything that is sent, tokens that wander while nobody wants them included.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from softmutex import plugins
from softmutex.core.events import SECOND
from softmutex.sim.faults import Kill
from softmutex.sim.result import Result, percentile
from softmutex.sim.run import Progress, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.steady import messages_each

MESSAGE_S = 0.05
OP_S = 20 * MESSAGE_S
RARE = 0.1  # share of the time in which the resource is asked for
KILLS = 4  # deaths of the holder


@dataclass(frozen=True)
class Compared:
    algorithm: str
    nodes: int
    messages_rare: float  # per entry and exit
    messages_busy: float
    delay_rare: float  # median, before entry
    delay_busy: float  # mean, from one holder's exit to the next one's entry
    recovery: float | None  # median, from the holder's death to the next entry; None: there was no pause
    ended: bool  # nobody entered any more
    overlap: float  # share of the time, without a fault
    overlap_killed: float  # the same with holders killed
    laws_broken: tuple[str, ...]


def measure(
    names: Sequence[str], sizes: Sequence[int], seed: int, entries: int, progress: Progress | None = None
) -> list[Compared]:
    chosen = list(names) or list(plugins.installed(plugins.Role.ALGORITHM))
    for name in chosen:
        plugins.algorithm(name)  # before a long run, not in the middle of it
    rows = []
    for nodes in sizes:
        for name in chosen:
            rows.append(_row(name, nodes, seed, entries))
            if progress is not None:
                progress(len(rows) / (len(sizes) * len(chosen)))
    return rows


def _row(name: str, nodes: int, seed: int, entries: int) -> Compared:
    base = Scenario(
        algorithm=name,
        nodes=nodes,
        nodes_max=nodes,
        seed=seed,
        delay_s=MESSAGE_S,
        jitter=0.0,
        op_s=OP_S,
        duration_s=entries * OP_S,
    )
    rare = simulate(base.but(demand=f"poisson:{RARE / OP_S}", duration_s=entries * OP_S / RARE))
    busy, messages_busy = messages_each(base)
    kills = (Kill(entries * OP_S),)
    killed = simulate(base.but(duration_s=(KILLS + 1) * entries * OP_S, faults=kills))
    laws = {violation.law for result in (rare, busy, killed) for violation in result.violations}
    recoveries = sorted(killed.recoveries_ns)
    return Compared(
        algorithm=name,
        nodes=nodes,
        messages_rare=rare.messages_per_acquisition,
        messages_busy=messages_busy,
        delay_rare=rare.wait_s(0.5) / MESSAGE_S,
        delay_busy=_between_holders_s(busy) / MESSAGE_S,
        recovery=percentile(recoveries, 0.5) / SECOND / MESSAGE_S if recoveries else None,
        ended=killed.bereft_ns > entries * OP_S * SECOND,
        overlap=max(rare.overlap, busy.overlap),
        overlap_killed=killed.overlap,
        laws_broken=tuple(sorted(laws)),
    )


def _between_holders_s(result: Result) -> float:
    """How long the resource is idle for each entry."""
    return result.concurrency_ns.get(0, 0) / SECOND / max(1, result.acquisitions)


def as_json(rows: Sequence[Compared]) -> str:
    settings = {"message_s": MESSAGE_S, "op_s": OP_S, "rare_load": RARE, "kills": KILLS}
    return json.dumps({"settings": settings, "rows": [dataclasses.asdict(row) for row in rows]}) + "\n"


def as_text(rows: Sequence[Compared]) -> str:
    head = f"{'':<16} {'':>6}  {'messages per entry':^19}  {'delay (message times)':^21}  problems seen"
    below = f"{'algorithm':<16} {'nodes':>6}  {'rare':>9} {'busy':>9}  {'rare':>10} {'busy':>10}"
    return "\n".join([head, below, *map(_line, rows), ""])


def _line(row: Compared) -> str:
    numbers = f"{row.messages_rare:>9.2f} {row.messages_busy:>9.2f}  {row.delay_rare:>10.2f} {row.delay_busy:>10.2f}"
    return f"{row.algorithm:<16} {row.nodes:>6}  {numbers}  {problems(row)}"


def problems(row: Compared) -> str:
    after = "others go on" if row.recovery is None else f"{row.recovery:.0f} until the next entry"
    after = "nobody enters any more" if row.ended else after
    found = [f"holder dies: {after}"]
    if row.overlap:
        found.append(f"overlaps {row.overlap:.1%} of the time")
    if row.overlap_killed > row.overlap:
        found.append(f"{row.overlap_killed:.1%} when holders die")
    if row.laws_broken:
        found.append(f"breaks the law of {', '.join(row.laws_broken)}")
    return ", ".join(found)
