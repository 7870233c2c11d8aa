"""Machines for the laws of `bounds.py`: lawful by being simple, or wrong in one chosen way that only a bound shows."""

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
    NodeId,
    Note,
    Overlapped,
    Received,
    Released,
    Requested,
    Send,
    SetTimer,
    Started,
    Token,
    Withdrawn,
)
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.core.messages import Offer, Refuse
from tests.sim.machines import TICK, Walk


class Ring(Walk):
    """Passes its token round, in the order of ids: nobody waits for more than one round."""

    name: ClassVar[str] = "ring"

    def pass_on(self, now: Instant) -> list[Effect]:
        to = self.next_one()
        token, self.token = self.token, None
        if token is None or to == NOBODY:
            self.token = token
            return [SetTimer("tick", now + TICK)]
        return [CancelTimer("tick"), Send(to, Offer(token.hop, token)), *([Depart()] if self.leaving else [])]

    def next_one(self) -> NodeId:
        others = [node for node in self.setup.members if node != self.setup.me]
        return next((node for node in others if node > self.setup.me), others[0] if others else NOBODY)


class Dozes(Ring):
    """Every now and then it sits on its token for 12 s."""

    breaks = "requests"

    def pass_on(self, now: Instant) -> list[Effect]:
        if self.setup.me == 2 and self.token is not None and self.token.hop % 50 < 6 and not self.leaving:
            self.token = self.token._replace(hop=self.token.hop + 6)
            return [SetTimer("dozed", now + 12 * SECOND)]
        return super().pass_on(now)

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return super().pass_on(now) if event == Fired("dozed") else super().handle(event, now)


class HasFavourites(Ring):
    """Nodes 1 and 2 pass it to and fro ten times before a third one gets it."""

    breaks = "fairness"
    turns = 0

    def next_one(self) -> NodeId:
        self.turns += 1
        if self.setup.me in (1, 2) and self.turns % 10:
            return 3 - self.setup.me
        return super().next_one()


class SaysLoseForNothing(Ring):
    breaks = "alarms"

    def use(self, now: Instant) -> list[Effect]:
        effects = super().use(now)
        granted = [effect.request for effect in effects if isinstance(effect, Grant)]
        return [*effects, *(Lose(request, LostReason.LEASE) for request in granted if request % 5 == 0)]


class NeverDeparts(Ring):
    breaks = "requests"

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return [effect for effect in super().handle(event, now) if not isinstance(effect, Depart)]


class PassesWithoutTrying(Ring):
    """Says that it is passing its token on, and waits for nothing."""

    breaks = "tokens"

    stuck = False

    def pass_on(self, now: Instant) -> list[Effect]:
        self.stuck = self.setup.me == 3 and self.token is not None and self.token.hop > 30
        return [] if self.stuck else super().pass_on(now)

    def view(self) -> View:
        return super().view()._replace(state="passing" if self.stuck else "")


class Breeds(Ring):
    """From the ninth hop on each message begets two."""

    breaks = "effects"

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = super().handle(event, now)
        match event:
            case Received(sender, Refuse()):
                return [Send(sender, Refuse(1)), Send(self.next_one(), Refuse(1))]
            case Received(sender, Offer(nonce)) if nonce == 9:
                return [*effects, Send(sender, Refuse(1))]
        return effects


OFFENDERS = (Dozes, HasFavourites, SaysLoseForNothing, NeverDeparts, PassesWithoutTrying, Breeds)


class Selfish(Algorithm):
    """Each node has a token of its own, and grants at once. What it reports of overlaps is in the script."""

    name: ClassVar[str] = "selfish"
    tells: ClassVar[bool] = True  # whether a holder is told when another one begins
    reports: ClassVar[tuple[tuple[float, NodeId, int, NodeId, float], ...]] = ()  # when: node, request, other, length

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.token = Token(1, 0, setup.me, 0)
        self.holding: list[int] = []

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Started():
                mine = [each for each in self.reports if each[1] == self.setup.me]
                timers = [
                    SetTimer(f"report {self.reports.index(each)}", now + round(each[0] * SECOND)) for each in mine
                ]
                return [Note(FactKind.GENERATED, self.token), *timers]
            case Fired(str() as name) if name.startswith("report"):
                _, _, request, other, length_s = self.reports[int(name.split()[-1])]
                return [Overlapped(request, other, request, round(length_s * SECOND))]
            case Requested(request):
                self.token = self.token._replace(hop=self.token.hop + 1)
                self.holding.append(request)
                told = [Lose(request, LostReason.OVERLAP)] if self.tells else []
                return [Grant.by(self.token, request), *told]
            case Released(request):
                self.holding.remove(request)
            case Withdrawn(request):
                pass
            case Leaving():
                return [Depart()]
        return ()

    def view(self) -> View:
        return View((self.token,), tuple(self.holding), 0)
