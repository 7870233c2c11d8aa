"""A run for a person: what it was, what it showed, what was broken and the command that shows it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from softmutex.core.events import SECOND, to_seconds
from softmutex.sim.faults import Churn, Fault, Kill, Partition, TokenLoss
from softmutex.sim.result import Result, percentile
from softmutex.sim.scenario import Scenario

# field -> flag; what has none is given as --settings
FLAGS = {
    "algorithm": "--algorithm",
    "nodes": "--nodes",
    "duration_s": "--duration",
    "seed": "--seed",
    "op_s": "--op",
    "skip_s": "--skip",
    "min_interval_s": "--min-interval",
    "max_interval_s": "--max-interval",
    "nodes_max": "--nodes-max",
    "demand": "--demand",
    "hold": "--hold",
    "delay_s": "--delay",
    "jitter": "--jitter",
    "loss": "--loss",
    "duplication": "--duplication",
    "reordering": "--reordering",
    "settle_s": "--settle",
    "slots": "--slots",
}


def command(scenario: Scenario) -> str:
    """What to type in order to see this run again."""
    data = scenario.to_json()
    words = ["softmutex", "sim", "run"]
    for field, flag in FLAGS.items():
        if field in data:
            words += [flag, str(data.pop(field))]
    others = []
    for fault in scenario.faults:
        as_flag = _flag(fault)
        if as_flag:
            words += as_flag
        else:
            others.append(fault)
    data.pop("faults", None)
    if others:
        data["faults"] = Scenario(faults=tuple(others), own_views=True).to_json()["faults"]
    if data:
        words += ["--settings", json.dumps(data)]
    return shlex.join(words)


def _flag(fault: Fault) -> list[str]:
    if isinstance(fault, TokenLoss):
        return ["--token-loss-every", f"{fault.every_s:g}"]
    if fault == Kill(getattr(fault, "every_s", 0)):
        return ["--kill-holder-every", f"{fault.every_s:g}"]
    if isinstance(fault, Churn):
        return ["--churn", f"{fault.rate:g}"]
    if isinstance(fault, Partition) and fault == Partition(fault.start_s, fault.end_s, fault.share):
        return ["--partition", f"{fault.start_s:g}:{fault.end_s:g}:{fault.share:g}"]
    return []


def as_text(result: Result) -> str:
    return "".join(line + "\n" for line in _lines(result))


def _lines(result: Result) -> Iterator[str]:
    scenario = result.scenario
    total = sum(result.concurrency_ns.values()) or 1
    yield f"{scenario.algorithm_name}, {scenario.nodes} nodes, {scenario.duration_s:g} s, seed {scenario.seed}"
    in_use = ", ".join(f"{level}: {spent / total:.2%}" for level, spent in result.concurrency_ns.items() if spent)
    yield f"  running A at once     {in_use}"
    yield f"  acquisitions          {result.acquisitions} (Jain's fairness index {result.fairness:.4f})"
    yield f"  wait                  {_spread(sorted(result.waits))}"
    yield f"  start to start        {_spread(sorted(result.intervals))}"
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(result.sent.items(), key=lambda kind: -kind[1]))
    yield f"  messages              {result.messages_per_acquisition:.2f} per acquisition ({kinds or 'none'})"
    if result.idle_ns:
        rate = result.idle_messages * SECOND / result.idle_ns
        yield f"  when nobody wants it  {rate:.3f} messages a second, over {to_seconds(result.idle_ns):g} s"
    alive = ", ".join(f"{level}: {spent / total:.2%}" for level, spent in result.tokens_ns.items() if spent)
    yield f"  tokens                {result.generated} made, {result.discarded} discarded, {result.lost} lost"
    yield f"  tokens alive at once  {alive}"
    if result.recoveries_ns:
        yield f"  recovery from a loss  {_spread(sorted(result.recoveries_ns))}"
    if scenario.settle_s:
        settled = "never" if result.settled_s is None else f"within {result.settled_s:g} s"
        yield f"  after healing         in order {settled}, {result.unserved} requests unserved"
    yield f"  simulated             {result.events} events in {result.wall_s:.2f} s; digest {result.digest[:16]}"


def _spread(ordered: list[int]) -> str:
    if not ordered:
        return "none"
    shown = (f"{name} {percentile(ordered, share) / SECOND:.4g}" for name, share in (("median", 0.5), ("99 %", 0.99)))
    return f"{', '.join(shown)}, longest {ordered[-1] / SECOND:.4g} s"


def violations(result: Result, replay_with: str = "") -> str:
    """What was broken, when, by whom, and how to see it again; empty where nothing was."""
    if not result.violation_count:
        return ""
    lines = [str(violation) for violation in result.violations]
    if more := result.violation_count - len(result.violations):
        lines.append(f"and {more} more")
    return "\n".join([*lines, f"replay: {replay_with or command(result.scenario)}", ""])
