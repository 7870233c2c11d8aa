"""Small machines for the simulator's own tests: right by being simple, or wrong in one chosen way.

`Walk` passes one token around at random and regenerates nothing. Each of `BROKEN` has one rule of it taken away, and
names the law that must notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Depart,
    Effect,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    Leaving,
    Lose,
    LostReason,
    MembersChanged,
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
from softmutex.core.handover import Passing
from softmutex.core.machine import Algorithm, Setup, View, pick_other
from softmutex.core.messages import Offer

TICK = SECOND // 10


class Walk(Algorithm):
    name: ClassVar[str] = "walk"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.token: Token | None = None
        self.waiting: list[int] = []
        self.holding: tuple[int, ...] = ()
        self.leaving = False

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(_, Offer(_, token)):
                self.token = token._replace(hop=token.hop + 1)
                return self.use(now)
            case Fired("tick"):
                return self.use(now) if self.waiting else self.pass_on(now)
            case Released():
                self.holding = ()
                return self.pass_on(now)
            case Requested(request):
                self.waiting.append(request)
            case Withdrawn(request):
                self.waiting.remove(request)
            case Started(founder=True):
                return [*self.make(now), *self.use(now)]
            case Leaving():
                self.leaving = True
                return [Depart()] if self.token is None else [] if self.holding else self.pass_on(now)
            case MembersChanged() | Started():
                pass
        return ()

    def make(self, now: Instant) -> list[Effect]:
        self.token = Token(1, now, int(self.setup.rng.random() * 2**53), 0)
        return [Note(FactKind.GENERATED, self.token)]

    def use(self, now: Instant) -> list[Effect]:
        if not self.waiting or self.leaving:
            return [SetTimer("tick", now + TICK)]
        assert self.token is not None
        self.holding = (self.waiting.pop(0),)
        return [Grant.by(self.token, self.holding[0])]

    def pass_on(self, now: Instant) -> list[Effect]:
        to = pick_other(self.setup.members, self.setup.me, self.setup.rng)
        token, self.token = self.token, None
        if token is None or to == NOBODY:
            return []
        return [CancelTimer("tick"), Send(to, Offer(token.hop, token)), *([Depart()] if self.leaving else [])]

    @classmethod
    def passing(cls, setup: Setup) -> Passing:
        return Passing.DIRECT

    def view(self) -> View:
        return View(() if self.token is None else (self.token,), self.holding, len(self.waiting))


class GrantsTwice(Walk):
    breaks = "effects"

    def use(self, now: Instant) -> list[Effect]:
        effects = super().use(now)
        return effects + [effect for effect in effects if isinstance(effect, Grant)]


class SetsTimersInThePast(Walk):
    breaks = "effects"

    def use(self, now: Instant) -> list[Effect]:
        return [SetTimer("late", now - 1), *super().use(now)]


class Raises(Walk):
    breaks = "effects"

    def pass_on(self, now: Instant) -> list[Effect]:
        raise ZeroDivisionError("on purpose")


class LosesWhatDoesNotRun(Walk):
    breaks = "effects"

    def pass_on(self, now: Instant) -> list[Effect]:
        return [Lose(1, LostReason.OVERLAP), *super().pass_on(now)]


class ForgetsOneRequest(Walk):
    breaks = "requests"

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return () if event == Requested(3) else super().handle(event, now)


class KeepsACopy(Walk):
    """The token it passes on stays: two places have it."""

    breaks = "tokens"

    def pass_on(self, now: Instant) -> list[Effect]:
        token = self.token
        effects = super().pass_on(now)
        if self.setup.me == 2 and token is not None and token.hop < 9:
            self.token = token
            effects.append(SetTimer("tick", now + TICK))
        return effects


class MakesAnotherToken(Walk):
    breaks = "tokens"

    def pass_on(self, now: Instant) -> list[Effect]:
        effects = super().pass_on(now)
        if self.setup.me == 3 and now % 7 == 0:
            effects += [*self.make(now), *self.use(now)]
        return effects


class LosesTheToken(Walk):
    """After a while there is none: in the calm phase nobody is granted."""

    breaks = "tokens"

    def pass_on(self, now: Instant) -> list[Effect]:
        if self.token is not None and self.token.hop > 20:
            self.token = None
        return super().pass_on(now)


class LeavesWithTheToken(Walk):
    breaks = "tokens"

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return [Depart()] if isinstance(event, Leaving) else super().handle(event, now)


class ForgetsToCount(Walk):
    breaks = "order"

    def use(self, now: Instant) -> list[Effect]:
        if self.token is not None:
            self.token = self.token._replace(hop=min(self.token.hop, 5))
        return super().use(now)


class RunsWithoutToken(Walk):
    breaks = "overlap"

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = super().handle(event, now)
        if self.setup.me == 4 and self.waiting and not self.holding and self.waiting[0] > 2:
            self.holding = (self.waiting.pop(0),)
            return [*effects, Grant.by(Token(9, now, 9, 9), self.holding[0])]
        return effects


class CriesWolf(Walk):
    breaks = "evidence"

    def pass_on(self, now: Instant) -> list[Effect]:
        return [Note(FactKind.OVERLAP, self.token), *super().pass_on(now)]


BROKEN = (
    GrantsTwice,
    SetsTimersInThePast,
    Raises,
    LosesWhatDoesNotRun,
    ForgetsOneRequest,
    KeepsACopy,
    MakesAnotherToken,
    LosesTheToken,
    LeavesWithTheToken,
    ForgetsToCount,
    RunsWithoutToken,
    CriesWolf,
)
