"""Seed 004's figures: Sigma, End-to-End and Non-End-to-End over one DHT, 65 resources, by rounds.

The figures print no numbers but what the text says: 1.5 to 2.5 times fewer messages than Sigma, an even load, growth
under churn that flattens. What the paper leaves open was decided (`decisions/0022`, `0030`): five replicas, a majority
of them, hexadecimal digits; a message is counted at each hop; T_cs is the mean hold, two rounds; twenty nodes make all
requests; and of those who wait in a queue only Sigma's ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from softmutex.sim.many import Counted, Rounds, count
from softmutex.sim.papers_cells import Cell, Effort, Exhibit, Panel, Series, Shown, Verdict, mean_and_spread
from softmutex.sim.papers_runs import PaperRun, Runner

ALGORITHMS = ("sigma", "e2e", "non-e2e")
SIZES = (250, 500, 1000, 2000)
DEMANDS = (20, 40, 60)  # requests a round; the paper has 20
REQUESTERS = 20  # nodes, one request each a round
NEVER = 1000.0  # rounds: so long takes a turn whose end is waited for without a word
TRIED: tuple[tuple[str, dict[str, int | float]], ...] = (  # other readings of what the paper does not say
    ("requests by any node", {"requesters": 0}),
    ("those who wait ask again", {"turn_rounds": 0.0}),
    ("both", {"requesters": 0, "turn_rounds": 0.0}),
    ("3 replicas", {"replicas": 3}),
    ("9 replicas", {"replicas": 9}),
    ("holds of 4 rounds", {"ends": 0.25}),
    ("20 resources", {"mutexes": 20}),
)
REPLICAS = (3, 5, 9)
CHURNS = (0, 500, 1000, 2000, 3000)
CHURNED_NODES = 10_000  # not printed; 3,000 in transition are 15 % of them that die in each round
CHURNED_LEASE = 2.0  # rounds: who dies and who comes is a reset of memory, so votes must end
FEWER = (1.5, 2.5)


TINY = 0.05  # a smaller share than that goes all the way, and judges nothing


def _job(effort: Effort, name: str, nodes: int, **more: int | float) -> Rounds:
    if name == "sigma":
        more = {**more, "turn_rounds": 0.0}
    more = {"requesters": REQUESTERS, "turn_rounds": NEVER, **more}
    if effort.share < TINY:
        return Rounds(name, 100, **{"mutexes": 5, "rounds": 3, **more})  # type: ignore[arg-type]
    return Rounds(name, nodes, **more)  # type: ignore[arg-type]


def _none(effort: Effort) -> list[PaperRun]:
    return []


def _counted(runner: Runner, effort: Effort, jobs: Iterable[Rounds]) -> list[list[Counted]]:
    """Of each job, one for each seed."""
    each = [Rounds(**{**vars(job), "seed": seed}) for job in jobs for seed in effort.over_seeds()]
    found = runner.map(count, each)
    return [found[at : at + effort.seeds] for at in range(0, len(found), effort.seeds)]


def _messages(group: Sequence[Counted]) -> float:
    return fmean(counted.messages for counted in group)


def _fewer(what: str, sigma: Sequence[Counted], other: Sequence[Counted], judged: bool = True) -> Cell:
    ratios = [one.messages / two.messages for one, two in zip(sigma, other, strict=True)]
    measured, spread = mean_and_spread(ratios)
    holds = Verdict.OK if FEWER[0] <= measured <= FEWER[1] else Verdict.DIFFERS
    return Cell(
        what, "1.5 to 2.5", None, measured, spread, holds if judged else Verdict.SHOWN, "times fewer than sigma"
    )


def figure_3(effort: Effort, runner: Runner) -> Shown:
    sizes = SIZES[::2] if effort.is_quick else SIZES
    jobs = [_job(effort, name, nodes) for nodes in sizes for name in ALGORITHMS]
    jobs += [_job(effort, name, 1000, requests=demand) for demand in DEMANDS for name in ALGORITHMS]
    jobs += [_job(effort, name, 1000, **how) for _, how in TRIED for name in ALGORITHMS]
    groups = dict(zip(jobs, _counted(runner, effort, jobs), strict=True))
    cells = [
        _fewer(f"{name}, N={nodes:,}", groups[_job(effort, "sigma", nodes)], groups[_job(effort, name, nodes)])
        for nodes in sizes
        for name in ALGORITHMS[1:]
    ]
    cells += [
        _fewer(
            f"{name}, N=1,000, {demand} requests a round",
            groups[_job(effort, "sigma", 1000, requests=demand)],
            groups[_job(effort, name, 1000, requests=demand)],
            judged=False,
        )
        for demand in DEMANDS[1:]
        for name in ALGORITHMS[1:]
    ]
    cells += [
        _fewer(
            f"{name}, N=1,000, {what}",
            groups[_job(effort, "sigma", 1000, **how)],
            groups[_job(effort, name, 1000, **how)],
            judged=False,
        )
        for what, how in TRIED
        for name in ALGORITHMS[1:]
    ]
    for name in ALGORITHMS:
        most, least = (_messages(groups[_job(effort, name, nodes)]) for nodes in (sizes[-1], sizes[0]))
        grows = Verdict.OK if 1 < most / least < sizes[-1] / sizes[0] / 2 else Verdict.FAIL
        what = f"{name}, N={sizes[-1]:,} : N={sizes[0]:,}"
        cells.append(Cell(what, "linear", None, most / least, None, grows, "as hops do: by the logarithm of N"))
    overlaps = sum(counted.overlaps for group in groups.values() for counted in group)
    cells.append(_none_at_once(overlaps))
    panel = Panel(
        "65 resources, 20 rounds, 20 requests a round",
        "nodes",
        "messages",
        [Series(name, sizes, [_messages(groups[_job(effort, name, n)]) for n in sizes], "line") for name in ALGORITHMS],
    )
    by_demand = Panel(
        "N=1,000: the same by demand",
        "requests a round (paper: 20)",
        "messages",
        [
            Series(name, DEMANDS, [_messages(groups[_job(effort, name, 1000, requests=d)]) for d in DEMANDS], "line")
            for name in ALGORITHMS
        ],
    )
    notes = (
        "20 nodes make all requests: who requests is not churned (VI.C), and has several holds to release one of (VI)",
        "so more is asked for than released, and most wait: a hand-over costs e2e a token, sigma a way to each replica",
        "of those who wait in a queue only sigma's ask again (its T_cs (P + 1/2)): no step of the other two says so",
        "without either (shown): most find their resource free, and e2e pays for I_AM_WINNER what sigma does not",
        "the print grows with N in a line; here requests are constant, so only the ways get longer",
    )
    return Shown(cells, (panel, by_demand), notes)


def figure_4(effort: Effort, runner: Runner) -> Shown:
    jobs = [_job(effort, name, 1000, replicas=replicas) for name in ALGORITHMS for replicas in REPLICAS]
    groups = dict(zip(jobs, _counted(runner, effort, jobs), strict=True))
    cells = []
    for name in ALGORITHMS:
        means = [_messages(groups[_job(effort, name, 1000, replicas=replicas)]) / 1000 for replicas in REPLICAS]
        for replicas, mean in zip(REPLICAS, means, strict=True):
            group = groups[_job(effort, name, 1000, replicas=replicas)]
            busiest = [sorted(each.load.values(), reverse=True) for each in group]
            share, spread = mean_and_spread(
                100 * loads[REQUESTERS] / each.messages for loads, each in zip(busiest, group, strict=True)
            )
            even = Verdict.OK if share < 1 else Verdict.FAIL
            what = f"{name}, n={replicas}, busiest of 1,000 nodes but {REQUESTERS}"
            cells.append(Cell(what, "even", None, share, spread, even, "under 1 % of all messages", "%"))
            first, spread = mean_and_spread(
                100 * loads[0] / each.messages for loads, each in zip(busiest, group, strict=True)
            )
            cells.append(
                Cell(f"{name}, n={replicas}, busiest of all", "-", None, first, spread, Verdict.SHOWN, "", "%")
            )
            cells.append(Cell(f"{name}, n={replicas}, mean load", "-", None, mean, None, Verdict.SHOWN))
        more = Verdict.OK if means == sorted(means) else Verdict.FAIL
        cells.append(
            Cell(f"{name}, n=9 : n=3", "more", None, means[-1] / means[0], None, more, "more replicas, more load")
        )
    panels = [
        Panel(
            f"{name}: load of a node (N=1,000)",
            "messages that it processes",
            "% of the nodes with at most so many",
            [_distribution(groups[_job(effort, name, 1000, replicas=replicas)], replicas) for replicas in REPLICAS],
        )
        for name in ALGORITHMS[1:]
    ]
    return Shown(
        cells,
        panels,
        (
            "the paper prints the shape only; n are our numbers of replicas",
            f"the {REQUESTERS} that request get all answers; where any node requests, the busiest of all is under 1 %",
        ),
    )


def _distribution(group: Sequence[Counted], replicas: int) -> Series:
    loads = sorted(load for counted in group for load in counted.load.values())
    places = range(0, len(loads), max(1, len(loads) // 100))
    return Series(f"n={replicas}", [loads[at] for at in places], [100 * at / len(loads) for at in places], "line")


def figure_5(effort: Effort, runner: Runner) -> Shown:
    churns = CHURNS[::2] if effort.is_quick else CHURNS
    churns = (0, 10, 20) if effort.share < TINY else churns
    few = Effort(min(effort.seeds, 3), effort.share, effort.transients)  # of one alone the noise is as large
    jobs = [
        _job(effort, name, CHURNED_NODES, churn=churn, lease_rounds=CHURNED_LEASE)
        for name in ALGORITHMS
        for churn in churns
    ]
    groups = dict(zip(jobs, _counted(runner, few, jobs), strict=True))
    messages = {
        name: [
            _messages(groups[_job(effort, name, CHURNED_NODES, churn=churn, lease_rounds=CHURNED_LEASE)])
            for churn in churns
        ]
        for name in ALGORITHMS
    }
    cells = []
    for name, each in messages.items():
        growth = each[-1] / each[0]
        flat = Verdict.OK if growth < 2 else Verdict.FAIL
        cells.append(Cell(f"{name}, churn 3,000 : none", "slight", None, growth, None, flat, "under twice as many"))
        first = (each[1] - each[0]) / (churns[1] - churns[0])
        last = (each[-1] - each[-2]) / (churns[-1] - churns[-2])
        flattens = Verdict.SHOWN if name == "sigma" else Verdict.OK if last < first else Verdict.DIFFERS
        what = f"{name}, messages a comer or goer, at last"
        cells.append(Cell(what, "fewer", None, last, None, flattens, f"fewer than the {first:.2f} at first"))
    cells.append(_none_at_once(sum(counted.overlaps for group in groups.values() for counted in group)))
    panel = Panel(
        f"N={CHURNED_NODES:,}",
        "nodes that die or join, a round",
        "messages",
        [Series(name, churns, messages[name], "line") for name in ALGORITHMS],
    )
    notes = (
        "N and the lease (two rounds) are ours; renewals of votes are counted, the paper has none",
        "who dies takes votes along: while a replica is quiet those who wait ask again",
    )
    return Shown(cells, (panel,), notes)


def _none_at_once(overlaps: int) -> Cell:
    verdict = Verdict.OK if not overlaps else Verdict.FAIL
    return Cell("two at once", "none", None, overlaps, None, verdict, "none that was not told")


EXHIBITS = (
    Exhibit("004-figure3", "Messages of sigma, e2e and non-e2e, by the number of nodes", _none, figure_3),
    Exhibit("004-figure4", "Load of each node, by the number of replicas", _none, figure_4),
    Exhibit("004-figure5", "Messages under churn", _none, figure_5),
)
