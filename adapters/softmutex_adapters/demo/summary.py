"""The result in words: the table, and what the numbers say, whatever they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softmutex_adapters.demo.plan import MEGA, Plan
from softmutex_adapters.demo.tally import Tally

Figures = dict[str, Any]


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


ROWS: list[tuple[str, Callable[[Figures, Tally], str]]] = [
    ("finished", lambda seen, _: f"{seen['finished']} of {seen['clients']}"),
    ("goodput", lambda seen, _: f"{seen['goodput_mbit_s']:.1f} Mbit/s"),
    ("thrown away", lambda seen, _: f"{seen['wasted_bytes'] / MEGA:.1f} MB"),
    ("completion, mean", lambda seen, _: seconds(seen["completion_mean_s"])),
    ("completion, 99 %", lambda seen, _: seconds(seen["completion_p99_s"])),
    ("until the last one", lambda seen, _: seconds(seen["makespan_s"])),
    ("refused logins", lambda _, tally: str(tally.failed_logins)),
    ("more than {slots} at once", lambda seen, _: seconds(seen["overlap_s"])),
]


def rows(measured: list[Tally]) -> list[list[str]]:
    """The table, cell by cell: a head, then a line for each figure."""
    seen = [(tally.figures(), tally) for tally in measured]
    head = ["", *(tally.stage + ("" if tally.complete else " (part)") for tally in measured)]
    slots = measured[0].plan.slots
    return [head, *([name.format(slots=slots), *(show(*one) for one in seen)] for name, show in ROWS)]


def table(measured: list[Tally]) -> list[str]:
    return ["".join([f"{line[0]:<20}", *(f"{cell:>22}" for cell in line[1:])]).rstrip() for line in rows(measured)]


def sentences(measured: list[Tally]) -> list[str]:
    seen = {tally.stage: tally.figures() for tally in measured if tally.complete}
    if len(seen) < 3:
        return []
    plan, lost = measured[0].plan, sum(tally.lost for tally in measured)
    without, with_it, ideal = (seen[stage] for stage in ("uncoordinated", "coordinated", "ideal"))
    out = [compared(plan, without, with_it)]
    if ideal["goodput_mbit_s"]:
        share = with_it["goodput_mbit_s"] / ideal["goodput_mbit_s"]
        out.append(
            f"An ideal semaphore would need one machine and no network; softmutex has {share:.1%} of its goodput."
        )
    if lost:
        out.append(f"{lost} holders were told that they might not be within the slots.")
    return out


def compared(plan: Plan, without: Figures, with_it: Figures) -> str:
    if not plan.deadline_s:
        return (
            "Sharing a link does not make it collapse: both ways all is done after the same time "
            f"({without['makespan_s']:.1f} and {with_it['makespan_s']:.1f} s). What turns give: the mean completion is "
            f"{with_it['completion_mean_s']:.1f} s instead of {without['completion_mean_s']:.1f} s."
        )
    if not without["goodput_mbit_s"]:
        return f"Without coordination nobody finished; with it {with_it['finished']} of {with_it['clients']}."
    times = with_it["goodput_mbit_s"] / without["goodput_mbit_s"]
    if times < 1.2 and without["finished"] == without["clients"]:
        return (
            f"Nothing collapsed: {plan.clients} such transfers at once keep their deadline here "
            f"({plan.load:.0%} of what the link can carry within one). Try more --clients."
        )
    counts = f"{with_it['finished']} instead of {without['finished']} finished"
    return f"With softmutex {times:.1f} times the goodput: {counts}."
