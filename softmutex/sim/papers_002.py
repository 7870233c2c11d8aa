"""Seed 002's two tables of comparison: what an entry and an election cost, the formula beside what machines do here.

The tables print formulas for processes that never fail on channels that lose nothing; so nothing is drawn at random,
and a cell holds only where the count is the formula's, exactly. What is said besides, so that a message may be lost
(FOLLOW, GOES_ON, TOOK), is counted on lines of its own.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence

from softmutex.core.algorithms.elections import Coordinator, WithLeader
from softmutex.core.algorithms.leading import Bully, Leading, Ring
from softmutex.core.events import (
    SECOND,
    Effect,
    Fired,
    MembersChanged,
    NodeId,
    Received,
    Requested,
    Send,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Message, name_of
from softmutex.sim.papers_cells import Cell, Effort, Exhibit, Panel, Series, Shown, Verdict
from softmutex.sim.papers_runs import Runner
from softmutex.sim.result import Result
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario

DELAY_S = 0.05
SIZES = (3, 10, 50)


def exactly(what: str, formula: str, expected: float, measured: float) -> Cell:
    verdict = Verdict.OK if abs(measured - expected) < 1e-6 else Verdict.FAIL
    return Cell(what, formula, expected, measured, None, verdict, "exactly")


def shown(what: str, formula: str, measured: float) -> Cell:
    return Cell(what, formula, None, measured, None, Verdict.SHOWN)


# --- table 1: what an entry costs ------------------------------------------------------------------------------------


def seldom(algorithm: str, nodes: int, **options: object) -> Result:
    """One entry in a while, none beside another: each message takes one delay, none is lost."""
    return simulate(
        Scenario(
            algorithm, nodes, 60_000.0, op_s=0.2, delay_s=DELAY_S, jitter=0.0, demand="poisson:0.0007",
            keep_holds=True, options=options,
        )
    )  # fmt: skip


def each(result: Result, entries: int, *kinds: str) -> float:
    return sum(result.sent.get(kind, 0) for kind in kinds) / max(1, entries)


def delay(result: Result, but: NodeId = 0) -> float:
    """The median of what an entry waits, in message times."""
    waits = sorted(hold.start - hold.asked for hold in result.holds or () if hold.node != but)
    return waits[len(waits) // 2] / SECOND / DELAY_S


def entries(effort: Effort, runner: Runner) -> Shown:
    cells: list[Cell] = []
    messages: dict[str, list[float]] = {}
    for nodes in SIZES:
        central = seldom("central", nodes)
        theirs = sum(hold.node != 1 for hold in central.holds or ())
        asked = seldom("ricart-agrawala", nodes)
        busy = simulate(Scenario("token-ring", nodes, 400.0, op_s=1.0, delay_s=DELAY_S, jitter=0.0))
        costs = {
            "central": each(central, theirs, "ASK_FOR", "ALLOW", "FREE"),
            "ricart-agrawala": each(asked, asked.acquisitions, "REQUEST", "PERMIT"),
            "token-ring": round(each(busy, busy.acquisitions, "PASS"), 1),
        }
        for name, cost in costs.items():
            messages.setdefault(name, []).append(cost)
        cells += [
            exactly(f"central, n={nodes}: messages", "3", 3, costs["central"]),
            exactly(f"central, n={nodes}: delay", "2", 2, delay(central, but=1)),
            exactly(f"Ricart-Agrawala, n={nodes}: messages", "2(n-1)", 2 * (nodes - 1), costs["ricart-agrawala"]),
            shown(f"Ricart-Agrawala, n={nodes}: delay", "2(n-1)", delay(asked)),
            exactly(f"token ring, n={nodes}, all want it: messages", "1", 1, costs["token-ring"]),
        ]
        cells += _rarely_wanted(nodes)
    for votes in (3, 4, 5):
        result = seldom("voting", 50, coordinators=5, votes=votes)
        asking = each(result, result.acquisitions, "POLL", "RETRACT", "VOTE")
        cells.append(
            Cell(f"voting, m={votes} of 5: messages", "2mk + m", 3 * votes, asking, None, _near(asking, votes))
        )
        cells.append(shown(f"voting, m={votes} of 5: delay", "2mk", delay(result)))
    picture = Panel(
        "Messages an entry", "processes", "messages",
        [Series(name, SIZES, ys, "line") for name, ys in messages.items()],
        log=True, log_x=True,
    )  # fmt: skip
    notes = (
        "central: of processes other than the coordinator, whose own entries cost nothing",
        "delays of 2(n-1) and 2mk count messages one after the other; all are sent at once here, so 2 message times",
        "voting, k=1: a coordinator that wants to enter asks itself for nothing, so a few less than 3m",
        "token ring, delay: who asks while the token is on its way to the next one waits for up to n trips",
        "token ring: besides each PASS a TOOK; 1 to infinity: a token that nobody wants goes on for ever",
    )
    return Shown(cells, (picture,), notes)


def _rarely_wanted(nodes: int) -> list[Cell]:
    result = simulate(
        Scenario(
            "token-ring", nodes, 1500.0, op_s=0.2, delay_s=DELAY_S, jitter=0.0, demand="poisson:0.05", keep_holds=True,
            options={"rest": 0.0},
        )
    )  # fmt: skip
    holds = [hold for hold in result.holds or () if hold.asked > 10 * SECOND]
    alone = [hold for hold in holds if not any(hold.asked < other.end <= hold.start for other in holds)]
    longest = max((hold.start - hold.asked) / SECOND / DELAY_S for hold in alone)
    inside = Verdict.OK if longest <= nodes else Verdict.FAIL
    return [
        shown(f"token ring, n={nodes}, rarely wanted: messages", "1 to inf", each(result, result.acquisitions, "PASS")),
        Cell(f"token ring, n={nodes}: delay, longest", "0 to n-1", None, longest, None, inside, f"<= {nodes}"),
    ]


def _near(messages: float, votes: int) -> Verdict:
    return Verdict.OK if 3 * (votes - 1) <= messages <= 3 * votes else Verdict.FAIL


# --- table 2: what an election costs ---------------------------------------------------------------------------------


def elect(kind: type[Leading], nodes: int, first: NodeId) -> Counter[str]:
    """What is sent when the leader, the highest, is gone, and `first` is the one that notices."""
    members = list(range(1, nodes + 1))
    machines: dict[NodeId, WithLeader] = {}
    post: deque[tuple[NodeId, NodeId, Message]] = deque()
    sent: Counter[str] = Counter()
    now = SECOND

    def perform(sender: NodeId, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and effect.to in machines:
                sent[name_of(type(effect.message))] += 1
                post.append((sender, effect.to, effect.message))

    for node in members[:-1]:
        machines[node] = kind(Setup(node, members, random.Random(node)))
        machines[node].handle(Received(nodes, Coordinator(1)), now)
        machines[node].handle(Requested(1), now)
    members.pop()
    sent.clear()
    perform(first, machines[first].handle(MembersChanged((), (nodes,)), now))
    if not post:
        perform(first, machines[first].handle(Fired("election"), now))
    while post:
        sender, to, message = post.popleft()
        perform(to, machines[to].handle(Received(sender, message), now))
    if sum(machine.view().state == "leading" for machine in machines.values()) != 1:
        raise AssertionError(f"{kind.name}, {nodes} nodes: not one leads")
    return sent


def elections(effort: Effort, runner: Runner) -> Shown:
    cells: list[Cell] = []
    best, worst, rounds = [], [], []
    for n in SIZES:
        easy, hard, ring = elect(Bully, n, n - 1), elect(Bully, n, 1), elect(Ring, n, 1)
        best.append(easy["ELECTION"] + easy["TAKE_OVER"] + easy["COORDINATOR"])
        worst.append(hard["ELECTION"] + hard["TAKE_OVER"] + hard["COORDINATOR"])
        rounds.append(ring["BALLOT"] + ring["ELECTED"])
        alive = n - 1
        cells += [
            exactly(f"bully, n={n}, best", "n-2", n - 2, best[-1]),
            exactly(f"bully, n={n}, worst: ELECTION", "sum of i-1", alive * (alive - 1) / 2, hard["ELECTION"]),
            shown(f"bully, n={n}, worst: all", "O(n^2)", worst[-1]),
            exactly(f"ring, {alive} alive", "2n-1", 2 * alive - 1, rounds[-1]),
            shown(f"bully, n={n}: FOLLOW besides", "-", easy["FOLLOW"]),
            shown(f"ring, {alive} alive: GOES_ON, FOLLOW besides", "-", ring["GOES_ON"] + ring["FOLLOW"]),
        ]
    lines = (("bully, best", best), ("bully, worst", worst), ("ring", rounds))
    picture = Panel(
        "Messages of an election", "processes", "messages",
        [Series(name, SIZES, ys, "line") for name, ys in lines], log=True, log_x=True,
    )  # fmt: skip
    notes = (
        "bully: n counts the dead leader; best where the highest that is left notices, worst where the lowest does",
        "ring: n processes that are alive; with the last hop, back to who began, the text comes to 2n",
    )
    return Shown(cells, (picture,), notes)


EXHIBITS = (
    Exhibit("002-exclusion", "Seed 002: what an entry costs, and how long it waits", lambda effort: [], entries),
    Exhibit("002-election", "Seed 002: what an election costs", lambda effort: [], elections),
)
