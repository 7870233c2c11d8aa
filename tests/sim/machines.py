"""Small machines for the simulator's own tests: right by being simple, or wrong in one chosen way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from softmutex.core.events import (
    SECOND,
    Effect,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    Note,
    Received,
    Released,
    Requested,
    Send,
    SetTimer,
    Started,
    Token,
    Withdrawn,
)
from softmutex.core.machine import Setup, View, pick_other
from softmutex.core.messages import Offer


class Walk:
    """One token on a random walk; nothing is ever regenerated."""

    name: ClassVar[str] = "walk"
    options: ClassVar[tuple[str, ...]] = ("passing",)

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.skip = round((setup.timing.skip or 0.1) * SECOND)
        self.token: Token | None = None
        self.waiting: list[int] = []
        self.holding: tuple[int, ...] = ()

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(_, Offer(_, token)):
                self.token = token._replace(hop=token.hop + 1)
                return self.use(now)
            case Fired():
                return self.use(now) if self.waiting else self.pass_on()
            case Released():
                self.holding = ()
                return self.pass_on()
            case Requested(request):
                self.waiting.append(request)
            case Withdrawn(request):
                self.waiting.remove(request)
            case Started(founder=True):
                self.token = Token(1, now, int(self.setup.rng.random() * 2**53), 0)
                return [Note(FactKind.GENERATED, self.token), *self.use(now)]
        return ()

    def use(self, now: Instant) -> list[Effect]:
        if not self.waiting:
            return [SetTimer("skip", now + self.skip)]
        self.holding = (self.waiting.pop(0),)
        assert self.token is not None
        return [Grant(self.holding[0], self.token)]

    def pass_on(self) -> list[Effect]:
        assert self.token is not None
        to = pick_other(self.setup.members, self.setup.me, self.setup.rng)
        token, self.token = self.token, None
        return [Send(to, Offer(token.hop, token))]

    def view(self) -> View:
        tokens = () if self.token is None else (self.token,)
        return View(tokens, self.holding, len(self.waiting))
