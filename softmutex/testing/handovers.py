"""What one node remembers of its hand-overs, as a value: two that compare equal go on alike from here.

For searches through all states (`tests/handover/explorer.py`): a state is seen again by its value, and any of them can
be gone on from. Times are no part of it: who takes it is at one instant, and lets timers fire as it likes.
"""

from __future__ import annotations

from typing import NamedTuple

from softmutex.core.attempts import Outgoing, Promise, Settled, Stage
from softmutex.core.events import Instant, NodeId, Token
from softmutex.core.handover import Handover


class Attempt(NamedTuple):
    """A hand-over that its sender has under way."""

    nonce: int
    token: Token
    to: NodeId
    released: bool
    stage: int  # of Stage: a plain number is compared and hashed faster
    reply: int
    tries: int

    @property
    def committed(self) -> bool:
        return self.stage == Stage.COMMITTED


class Snapshot(NamedTuple):
    last_nonce: int
    outgoing: tuple[Attempt, ...] = ()
    promises: tuple[tuple[tuple[NodeId, int], Promise], ...] = ()
    settled: tuple[tuple[tuple[NodeId, int], Settled], ...] = ()
    standing: int = 0
    retired: tuple[tuple[int, int], ...] = ()
    retired_to: int = 0
    forgotten_to: int = 0
    latest: tuple[tuple[NodeId, tuple[int, int]], ...] = ()
    unsure_to: int = 0
    owed: tuple[tuple[tuple[NodeId, int], tuple[int, tuple[Instant, int]]], ...] = ()

    @classmethod
    def of(cls, handover: Handover) -> Snapshot:
        part = handover.at_once
        return cls(
            handover.last_nonce,
            tuple(
                Attempt(o.nonce, o.token, o.to, o.released, int(o.stage), o.reply, o.tries)
                for o in handover.outgoing.values()
            ),
            tuple(handover.promises.items()),
            tuple(handover.settled.items()),
            part.standing,
            tuple(part.retired.items()),
            part.retired_to,
            part.forgotten_to,
            tuple(part.latest.items()),
            part.unsure_to,
            tuple(part.owed.items()),
        )

    def restore(self, fresh: Handover, now: Instant) -> None:
        """`fresh`, just made, goes on as that one would; what it waits for, it waits for since `now`."""
        fresh.last_nonce = self.last_nonce
        for attempt in self.outgoing:
            outgoing = Outgoing(attempt.nonce, attempt.token, attempt.to, attempt.released, now)
            outgoing.stage, outgoing.reply, outgoing.tries = Stage(attempt.stage), attempt.reply, attempt.tries
            fresh.outgoing[attempt.nonce] = outgoing
        fresh.promises.update(self.promises)
        fresh.settled.update(self.settled)
        part = fresh.at_once
        part.standing, part.retired_to, part.forgotten_to = self.standing, self.retired_to, self.forgotten_to
        part.retired.update(self.retired)
        part.latest.update(self.latest)
        part.unsure_to = self.unsure_to
        part.owed.update(self.owed)
