"""One wandering machine, the clock, and what it does at once: `tests/wandering/stage.py` has several, and a network."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.at_once import STANDING
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Effect,
    Event,
    Fired,
    Instant,
    NodeId,
    Received,
    Send,
    SetTimer,
    Started,
    TimerName,
    Token,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Commit, Message
from softmutex.core.timing import Timing
from softmutex.core.wire import Frame, learn, write_body

M = TypeVar("M", bound=Message)
ME, HOME = 4, 1
TOKEN = Token(7, 5, 50, 3)


class Node:
    """The machine of node 4, and the clock; the first home is 1."""

    def __init__(self, members: tuple[NodeId, ...] = (1, 2, 3, 4, 5), slots: int = 1, **options: Any) -> None:
        setup = Setup(ME, list(members), random.Random(4), Timing(op=1.0), options, slots=slots)
        learn(Wandering.name, Wandering.messages)
        self.members = setup.members
        self.machine = Wandering(setup)
        self.now: Instant = 1000 * SECOND
        self.timers: dict[TimerName, Instant] = {}
        self.tell(Started(False))

    def tell(self, event: Event) -> list[Effect]:
        effects = list(self.machine.handle(event, self.now))
        for effect in effects:
            if isinstance(effect, Send):
                assert write_body(Frame(ME, effect.to, "x", effect.message)), "it can be said"
            elif isinstance(effect, SetTimer):
                self.timers[effect.timer] = effect.at
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.timer, None)
        return effects

    def fire(self, timer: TimerName) -> list[Effect]:
        self.now = max(self.now, self.timers.pop(timer))
        return self.tell(Fired(timer))

    def hear(self, sender: NodeId, message: Message) -> list[Effect]:
        return self.tell(Received(sender, message))

    def takes(self, sender: NodeId, request: int, token: Token = TOKEN, nonce: int = 1) -> list[Effect]:
        return self.hear(sender, Commit(nonce, STANDING + request, token))

    @property
    def asks_in(self) -> Instant | None:
        return self.timers["want"] - self.now if "want" in self.timers else None


def sent(effects: Sequence[Effect], kind: type[M]) -> list[tuple[NodeId, M]]:
    return [(each.to, each.message) for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]
