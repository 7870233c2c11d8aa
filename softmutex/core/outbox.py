"""Where the parts of one machine put what is to be done: messages, timers, facts.

A node is often the one that it would ask. `post` therefore takes messages to oneself too: they wait in `inbox` and are
handled before the current event ends, so that no rule has a second version for "and if it is me".
"""

from __future__ import annotations

from softmutex.core.events import (
    NOBODY,
    CancelTimer,
    Duration,
    Effect,
    FactKind,
    Instant,
    NodeId,
    Note,
    Send,
    SetTimer,
    TimerName,
    Token,
    new,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Message


class Outbox:
    __slots__ = ("inbox", "me", "now", "out", "rng")

    def __init__(self, setup: Setup) -> None:
        self.me: NodeId = setup.me
        self.rng = setup.rng
        self.now: Instant = 0
        self.out: list[Effect] = []
        self.inbox: list[Message] = []

    def post(self, to: NodeId, message: Message) -> None:
        if to == self.me:
            self.inbox.append(message)
        elif to != NOBODY:
            self.out.append(new(Send, (to, message)))

    def timer(self, name: TimerName, at: Instant) -> None:
        if at <= self.now:
            at = self.now + 1  # a clock of another rate may round `now` to the past
        self.out.append(new(SetTimer, (name, at)))

    def cancel(self, name: TimerName) -> None:
        self.out.append(new(CancelTimer, (name,)))

    def note(self, kind: FactKind, token: Token | None = None, peer: NodeId = NOBODY, detail: str = "") -> None:
        self.out.append(Note(kind, token, peer, detail))

    def jitter(self, span: Duration) -> Duration:
        """75 to 125 % of it: what many nodes start at once must not come back at once."""
        return round(span * (0.75 + self.rng.random() / 2))
