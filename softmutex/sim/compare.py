"""Several algorithms under equal conditions: seed 002's comparison table, measured.

    rare       one node in a while wants it: what an entry costs when there is nobody to share the cost with
    busy       everybody always wants it: what an entry costs then, once the queue stands, and how long the resource
               waits between two holders
    lossy      busy, and one message in twenty is lost
    churning   busy, and three members in ten leave in good order each minute, and as many join
    killed     busy, and the holder dies again and again: how long until the next entry, and how long two overlap

Times are in message times, as in the seed: one message takes 50 ms here, and A takes twenty times that. Messages are
everything that is sent, tokens that wander while nobody wants them included; a node's load is what it sends and
receives for each entry of anybody. What would take more than `events` is left out, and shown as '-'.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from softmutex import plugins
from softmutex.core import wire
from softmutex.core.events import SECOND, Effect, Event, Instant, NodeId, Received, Send
from softmutex.sim.engine import Engine, InThisProcess
from softmutex.sim.faults import Churn, Kill
from softmutex.sim.result import Result, percentile
from softmutex.sim.run import Progress, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH
from softmutex.sim.world import TooLong, World

MESSAGE_S = 0.05
OP_S = 20 * MESSAGE_S
RARE = 0.1  # share of the time in which the resource is asked for
KILLS = 4  # deaths of the holder
LOSS = 0.05
CHURN = 0.3  # of the members, a minute
MOST = 2_000_000  # events of one run, where nothing else is said
SAMPLED = 16  # of so many messages of a kind one is encoded


@dataclass(frozen=True)
class Compared:
    """None: there was too much to simulate."""

    algorithm: str
    nodes: int
    messages_rare: float | None  # per entry and exit
    messages_busy: float | None
    messages_lossy: float | None
    bytes_busy: float | None  # the same, as they travel, without what seals them
    delay_rare: float | None  # median, before entry
    delay_busy: float | None  # mean, from one holder's exit to the next one's entry
    wait_busy: float | None  # the longest of 99 in 100, in turns that all members would take
    use_busy: float | None  # share of the time in which A runs
    use_lossy: float | None
    use_churning: float | None
    use_killed: float | None
    fairness: float | None  # Jain's index, busy
    load_busiest: float | None  # messages that the busiest node sends and receives for each entry, busy
    load_mean: float | None
    recovery: float | None  # median, from the holder's death to the next entry; None: there was no pause
    ended: bool  # nobody entered any more
    overlap: float  # share of the time, without a fault
    overlap_lossy: float
    overlap_churning: float
    overlap_killed: float
    laws_broken: tuple[str, ...]


def measure(
    names: Sequence[str],
    sizes: Sequence[int],
    seed: int,
    entries: int,
    progress: Progress | None = None,
    engine: Engine | None = None,
    events: int = MOST,
) -> list[Compared]:
    chosen = list(names)
    if not chosen:
        chosen = [name for name in plugins.installed(plugins.Role.ALGORITHM) if not plugins.algorithm(name).elects]
    for name in chosen:
        plugins.algorithm(name)  # before a long run, not in the middle of it
    wanted = [(one_row, (name, nodes, seed, entries, events)) for nodes in sizes for name in chosen]
    rows = []
    for row in (engine or InThisProcess()).run(iter(wanted)):
        rows.append(row)
        if progress is not None:
            progress(len(rows) / len(wanted))
    return rows


@dataclass
class Traffic:
    """What was sent by whom in the second half of a run, when the queue stands."""

    scenario: Scenario
    half: tuple[int, int] | None = None  # messages and entries until then
    load: Counter[NodeId] = field(default_factory=Counter)
    sent: Counter[type] = field(default_factory=Counter)
    sizes: dict[type, list[int]] = field(default_factory=dict)

    def look(self, world: World) -> None:
        if self.half is None and world.now - EPOCH >= self.scenario.duration_s * SECOND / 2:
            self.half = (sum(world.sent.values()), len(world.tally.waits))

    def spy(self, now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        if self.half is None:
            return
        self.load[node] += type(event) is Received
        for effect in effects:
            if type(effect) is Send:
                self.load[node] += 1
                kind = type(effect.message)
                if self.sent[kind] % SAMPLED == 0 and wire.number_of(kind) is not None:
                    frame = wire.Frame(node, effect.to, "resource", effect.message)
                    self.sizes.setdefault(kind, []).append(len(wire.encode(frame)))
                self.sent[kind] += 1

    def bytes(self) -> float:
        return sum(self.sent[kind] * sum(sizes) / len(sizes) for kind, sizes in self.sizes.items())


def _run(events: int, scenario: Scenario, traffic: Traffic | None = None) -> Result | None:
    try:
        if traffic is None:
            return simulate(scenario, most_events=events)
        return simulate(scenario, look=traffic.look, spy=traffic.spy, most_events=events)
    except TooLong:
        return None


def one_row(name: str, nodes: int, seed: int, entries: int, events: int = MOST) -> Compared:
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
    traffic = Traffic(base)
    run = partial(_run, events)
    rare = run(base.but(demand=f"poisson:{RARE / OP_S}", duration_s=entries * OP_S / RARE))
    busy = run(base, traffic)
    lossy = run(base.but(loss=LOSS)) if busy else None
    churning = run(base.but(faults=(Churn(CHURN),))) if busy else None
    killed = run(base.but(duration_s=(KILLS + 1) * entries * OP_S, faults=(Kill(entries * OP_S),))) if busy else None
    runs = [result for result in (rare, busy, lossy, churning, killed) if result is not None]
    recoveries = sorted(killed.recoveries_ns) if killed else []
    messages, served = traffic.half or (0, 0)
    later = max(1, busy.acquisitions - served) if busy else 1
    return Compared(
        algorithm=name,
        nodes=nodes,
        messages_rare=rare.messages_per_acquisition if rare else None,
        messages_busy=(busy.messages - messages) / later if busy else None,
        messages_lossy=lossy.messages_per_acquisition if lossy else None,
        bytes_busy=traffic.bytes() / later if busy else None,
        delay_rare=rare.wait_s(0.5) / MESSAGE_S if rare else None,
        delay_busy=_between_holders_s(busy) / MESSAGE_S if busy else None,
        wait_busy=busy.wait_s(0.99) / (nodes * OP_S) if busy else None,
        use_busy=busy.busy if busy else None,
        use_lossy=lossy.busy if lossy else None,
        use_churning=churning.busy if churning else None,
        use_killed=killed.busy if killed else None,
        fairness=busy.fairness if busy else None,
        load_busiest=max(traffic.load.values(), default=0) / later if busy else None,
        load_mean=sum(traffic.load.values()) / nodes / later if busy else None,
        recovery=percentile(recoveries, 0.5) / SECOND / MESSAGE_S if recoveries else None,
        ended=killed is not None and killed.bereft_ns > entries * OP_S * SECOND,
        overlap=max((result.overlap for result in (rare, busy) if result), default=0.0),
        overlap_lossy=lossy.overlap if lossy else 0.0,
        overlap_churning=churning.overlap if churning else 0.0,
        overlap_killed=killed.overlap if killed else 0.0,
        laws_broken=tuple(sorted({violation.law for result in runs for violation in result.violations})),
    )


def _between_holders_s(result: Result) -> float:
    """How long the resource is idle for each entry."""
    return result.concurrency_ns.get(0, 0) / SECOND / max(1, result.acquisitions)


def as_json(rows: Sequence[Compared]) -> str:
    settings = {"message_s": MESSAGE_S, "op_s": OP_S, "rare_load": RARE, "kills": KILLS, "loss": LOSS, "churn": CHURN}
    return json.dumps({"settings": settings, "rows": [dataclasses.asdict(row) for row in rows]}) + "\n"


COLUMNS = (  # over which group, the head, its width, what of a row, how
    ("messages per entry", "rare", 7, "messages_rare", ".1f"),
    ("", "busy", 7, "messages_busy", ".1f"),
    ("", "lossy", 7, "messages_lossy", ".1f"),
    ("bytes", "busy", 7, "bytes_busy", ".0f"),
    ("delay", "rare", 6, "delay_rare", ".1f"),
    ("", "busy", 6, "delay_busy", ".1f"),
    ("wait", "busy", 5, "wait_busy", ".1f"),
    ("in use %", "busy", 5, "use_busy", ".0%"),
    ("", "lossy", 5, "use_lossy", ".0%"),
    ("", "churn", 5, "use_churning", ".0%"),
    ("", "kill", 5, "use_killed", ".0%"),
    ("fair", "busy", 5, "fairness", ".2f"),
    ("load", "most", 6, "load_busiest", ".1f"),
    ("", "mean", 6, "load_mean", ".2f"),
)


def as_text(rows: Sequence[Compared]) -> str:
    over = below = ""
    for group, head, width, _, _ in COLUMNS:
        over, below = over.ljust(len(below)) + (f"  {group}" if group else ""), below + f"  {head:>{width}}"
    start = f"{'algorithm':<16} {'nodes':>5}"
    return "\n".join([f"{'':<{len(start)}}{over}", f"{start}{below}  problems seen", *map(_line, rows), ""])


def _line(row: Compared) -> str:
    words = [f"{shown(getattr(row, name), how):>{width}}" for _, _, width, name, how in COLUMNS]
    return "  ".join([f"{row.algorithm:<16} {row.nodes:>5}", *words, problems(row)])


def shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def problems(row: Compared) -> str:
    found = []
    if row.use_killed is not None:
        after = "others go on" if row.recovery is None else f"{row.recovery:.0f} until the next entry"
        found.append(f"holder dies: {'nobody enters any more' if row.ended else after}")
    if row.overlap:
        found.append(f"overlaps {row.overlap:.1%} of the time")
    for when, overlap in (
        ("with loss", row.overlap_lossy),
        ("when members come and go", row.overlap_churning),
        ("when holders die", row.overlap_killed),
    ):
        if overlap > row.overlap:
            found.append(f"{overlap:.1%} {when}")
    if row.laws_broken:
        found.append(f"breaks the law of {', '.join(row.laws_broken)}")
    return ", ".join(found)
