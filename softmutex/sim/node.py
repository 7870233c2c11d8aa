"""What the world keeps of one node: its machine, its clock, its timers, its requests. No behaviour worth the name.

A hundred thousand of these must fit, so they have slots, share what they can, and timers come into being when set.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from softmutex.core.events import Duration, Event, Fired, Grant, Instant, NodeId, RequestId, TimerName
from softmutex.core.machine import Algorithm
from softmutex.sim import trace

if TYPE_CHECKING:
    from softmutex.sim.roll import Roll

NEVER: Instant = -1


class Timer:
    """`due` is what the machine asked for, `queued` when its one live entry in the heap comes up (`world.W2`).

    Most timers watch over an answer that comes, so what is needed when one fires is made then.
    """

    __slots__ = ("code", "due", "fired", "name", "queued")

    def __init__(self, name: TimerName) -> None:
        self.name = name
        self.due = NEVER
        self.queued = NEVER
        self.fired: Fired | None = None
        self.code = 0

    def fire(self) -> Fired:
        if self.fired is None:
            self.fired = Fired(self.name)
            self.code = trace.code_of(self.name)
        return self.fired


class Clock:
    """What one node's clock shows, where it is not the world's: off, at another rate, or jumping ahead."""

    __slots__ = ("offset", "per_million", "since")

    def __init__(self, offset: Duration, rate: float, since: Instant) -> None:
        self.offset = offset
        self.per_million = round(rate * 1_000_000)
        self.since = since

    def shows(self, now: Instant) -> Instant:
        return self.since + self.offset + (now - self.since) * self.per_million // 1_000_000

    def when(self, shown: Instant) -> Instant:
        """The first moment at which it shows that."""
        return self.since - (self.since + self.offset - shown) * 1_000_000 // self.per_million


class Running:
    """A run of A that has not ended yet."""

    __slots__ = ("alarm", "asked", "hop", "lost_at", "node", "overlapped", "request", "rights", "start", "told")

    def __init__(self, node: NodeId, asked: Instant, start: Instant, grant: Grant) -> None:
        self.node = node
        self.request = grant.request
        self.asked = asked
        self.start = start
        self.hop = grant.hop
        self.rights = grant.rights
        self.told = not grant.alone
        self.alarm = "" if grant.alone else "granted"  # why the application was told that it may not be alone
        self.overlapped = False
        self.lost_at: Instant = NEVER  # when the application was told, while it ran


class SimNode:
    """`awake` is False while it is paused (then `backlog` fills) and for ever once it is gone."""

    __slots__ = (
        "acquired",
        "asleep_at",
        "awake",
        "backlog",
        "clock",
        "holds",
        "id",
        "last_request",
        "last_start",
        "leaving",
        "machine",
        "members",
        "pending",
        "roll",
        "timers",
    )

    def __init__(self, node_id: NodeId, machine: Algorithm, members: list[NodeId]) -> None:
        self.id = node_id
        self.machine = machine
        self.members = members
        self.awake = True
        self.asleep_at: Instant = 0
        self.leaving = False
        self.backlog: list[Event] | None = None
        self.clock: Clock | None = None
        self.timers: dict[TimerName, Timer] = {}
        self.pending: dict[RequestId, Instant] = {}
        self.holds: dict[RequestId, Running] = {}
        self.last_request: RequestId = 0
        self.last_start: Instant = 0
        self.acquired = 0
        self.roll: Roll | None = None  # from the moment when its machine first asks something of it

    def knows(self, other: NodeId) -> bool:
        at = bisect_left(self.members, other)
        return at < len(self.members) and self.members[at] == other
