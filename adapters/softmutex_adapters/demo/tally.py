"""From what the subscribers told to the figures. Pure: lines in, numbers out.

Every number that the demo shows is made here, from the times and bytes that each subscriber saw itself. Completion
counts from the moment when a subscriber wanted the file, so the waiting for the mutex is in it; goodput counts whole
files only; wasted is what came over the link and was thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from softmutex_adapters.demo.plan import MEGA, Plan


@dataclass
class Try:
    asked: float
    began: float
    ended: float | None = None
    why: str = ""  # done | deadline | refused | broken; "" while it goes on
    got: int = 0


@dataclass
class Client:
    wanted: float | None = None
    waits_since: float | None = None
    tries: list[Try] = field(default_factory=list)
    ended: float | None = None
    finished: bool = False
    lost: int = 0  # holds that were told that they may not be alone

    @property
    def state(self) -> str:
        if self.ended is not None:
            return "finished" if self.finished else "gave up"
        if self.wanted is None:
            return "idle"
        if self.tries and self.tries[-1].ended is None:
            return "transfers"
        return "waits" if self.waits_since is not None else "pauses"

    @property
    def got(self) -> int:
        return self.tries[-1].got if self.tries else 0

    def strips(self, now: float) -> Iterator[tuple[str, float, float]]:
        """What it did, from when to when: `waits`, `done`, or why a transfer did not end well."""
        for one in self.tries:
            yield "waits", one.asked, one.began
            yield one.why or "transfers", one.began, one.ended or now
        if self.waits_since is not None and self.ended is None:
            yield "waits", self.waits_since, now


class Tally:
    """One run of the demo, while it goes on and afterwards."""

    def __init__(self, plan: Plan, stage: str) -> None:
        self.plan, self.stage = plan, stage
        self.clients = [Client() for _ in range(plan.clients)]
        self.ready = 0
        self.complete = False  # to the end, not interrupted
        self.ended = 0.0  # the last that was heard of

    def hear(self, line: dict[str, Any]) -> None:
        client, at = self.clients[line["who"]], float(line["at"])
        self.ended = max(self.ended, at)
        match line["what"]:
            case "ready":
                self.ready += 1
            case "wants":
                client.wanted = at
            case "waits":
                client.waits_since = at
            case "in":
                client.tries.append(Try(client.waits_since or at, at))
                client.waits_since = None
            case "bytes":
                client.tries[-1].got = line["got"]
            case "out":
                last = client.tries[-1]
                last.ended, last.why, last.got = at, line["why"], line["got"]
                client.lost += line["lost"]
            case "end":
                client.ended, client.finished = at, line["ok"]
            case other:
                raise ValueError(f"subscribers do not say {other!r}")

    def count(self, state: str) -> int:
        return sum(client.state == state for client in self.clients)

    @property
    def began(self) -> float:
        return min((client.wanted for client in self.clients if client.wanted is not None), default=0.0)

    @property
    def tries(self) -> list[Try]:
        return [one for client in self.clients for one in client.tries]

    @property
    def failed_logins(self) -> int:
        return sum(one.why == "refused" for one in self.tries)

    @property
    def lost(self) -> int:
        return sum(client.lost for client in self.clients)

    def goodput_mbit_s(self, now: float) -> float:
        span = now - self.began
        return self.count("finished") * self.plan.size * 8 / MEGA / span if span > 0 else 0.0

    def figures(self) -> dict[str, Any]:
        took = sorted(c.ended - c.wanted for c in self.clients if c.finished and c.ended and c.wanted is not None)
        return {
            "clients": self.plan.clients,
            "finished": len(took),
            "goodput_mbit_s": round(self.goodput_mbit_s(self.ended), 2),
            "wasted_bytes": sum(one.got for one in self.tries if one.why not in ("", "done")),
            "completion_mean_s": round(sum(took) / len(took), 2) if took else None,
            "completion_p99_s": round(percentile(took, 0.99), 2) if took else None,
            "makespan_s": round(self.ended - self.began, 2),
            "overlap_s": round(time_above(self.plan.slots, self.tries, self.ended), 3),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above: of 32, the 99 % one is the largest."""
    return ordered[math.ceil(share * len(ordered)) - 1]


def time_above(most: int, tries: Iterable[Try], end: float) -> float:
    """How long more than `most` were transferring at once. Who leaves at the moment when another comes is gone."""
    steps = sorted((at, step) for one in tries for at, step in ((one.began, 1), (one.ended or end, -1)))
    total, running, before = 0.0, 0, 0.0
    for at, step in steps:
        if running > most:
            total += at - before
        running, before = running + step, at
    return total
