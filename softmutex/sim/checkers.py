"""The laws that a run is held to, looked at from outside the machines.

effects   what machines order is legal: a grant only of a request that waits, one run of A a node at a time, no timer
          in the past, no exception
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from softmutex.core.events import Instant, LostReason, NodeId, Note

if TYPE_CHECKING:
    from softmutex.sim.world import Running

KEPT = 20  # violations that are remembered with their text; the others are counted


class Violation(NamedTuple):
    law: str
    at_s: float
    node: NodeId
    what: str


class Laws:
    def __init__(self, start: Instant) -> None:
        self._start = start
        self.violations: list[Violation] = []
        self.count = 0

    def broken(self, law: str, at: Instant, node: NodeId, what: str) -> None:
        self.count += 1
        if len(self.violations) < KEPT:
            self.violations.append(Violation(law, (at - self._start) / 1e9, node, what))

    def illegal(self, at: Instant, node: NodeId, what: str) -> None:
        self.broken("effects", at, node, what)

    def granted(self, at: Instant, new: Running, others: list[Running]) -> None:
        for other in others:
            if other.node == new.node:
                self.illegal(at, new.node, f"granted request {new.request} while {other.request} runs on the same node")

    def released(self, at: Instant, running: Running) -> None: ...

    def lost(self, at: Instant, running: Running, reason: LostReason) -> None: ...

    def noted(self, at: Instant, node: NodeId, note: Note) -> None: ...

    def disturbed(self, at: Instant, what: str) -> None: ...
