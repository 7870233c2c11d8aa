"""Versions of the wandering token that are broken on purpose. The laws of the simulator must catch each of them.

Each leaves out one rule that the machine states, the way a hurried programmer might. Beside it stand the scenario of
the fault matrix in which it is caught, and a law that it breaks; the true version passes the same runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from softmutex.core.algorithms.wandering.desk import Desk
from softmutex.core.algorithms.wandering.inquirer import Inquirer
from softmutex.core.algorithms.wandering.ledger import Ledger, Visit
from softmutex.core.algorithms.wandering.machine import Wandering
from softmutex.core.algorithms.wandering.messages import Place, Presence, Told
from softmutex.core.algorithms.wandering.seat import Seat
from softmutex.core.algorithms.wandering.seats import Seats
from softmutex.core.algorithms.wandering.waiter import Waiter
from softmutex.core.events import (
    Depart,
    Effect,
    Event,
    Grant,
    Instant,
    LostReason,
    NodeId,
    RequestId,
    Started,
    Token,
)
from softmutex.core.machine import Setup


class KeepsTheWeakerToken(Wandering):
    """Of two tokens none is discarded."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Stubborn(Seats):
            def discard(self, seat: Seat, better: Place, presence: Presence) -> None:
                seat.doubt = False
                self.advance(seat)

        self.seats = Stubborn(self, self.handover)


class MakesATokenWithoutAsking(Wandering):
    """Silence is taken for death."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Hasty(Inquirer):
            def start(self, slot: int, why: str, wide: bool = False) -> None:
                self.machine.regenerate(slot, why)

        self.inquirer = Hasty(self)


class DoesNotCountGenerations(Wandering):
    """A new token has the epoch of the one that it replaces."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Timeless(Desk):
            __slots__ = ()

            def next_epoch(self, slot: int) -> int:
                return 1

        self.desk.__class__ = Timeless


class AsksOnce(Wandering):
    """A request is sent once, and then waited for."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Trusting(Waiter):
            def want_fired(self) -> None:
                pass

        self.waiter = Trusting(self, setup.timing)


class NobodyLooksForIt(Wandering):
    """A token that is lost stays lost."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Blind(Inquirer):
            def start(self, slot: int, why: str, wide: bool = False) -> None:
                pass

        self.inquirer = Blind(self)


class UsesWhatItGivesAway(Wandering):
    """The token is still granted here while it is on its way."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = super().handle(event, now)
        on_their_way = [seat.token for seat in self.seats.by_slot.values() if seat.giving]
        return [*effects, *(Grant.by(token, self.waiter.next()) for token in on_their_way if self.waiter.waiting)]


class TakesBackWhatItCommitted(Wandering):
    """A hand-over that was never confirmed is taken for one that failed."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Impatient(Seats):
            def gone(self, token: Token, to: NodeId) -> None:
                self.failed(token, to)

        self.seats = Impatient(self, self.handover)


class LeavesWithTheToken(Wandering):
    """A leaver goes as soon as nothing runs, and takes the token along."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = [*super().handle(event, now)]
        if self.seats.leaving and not self.depart_said and not self.seats.in_use:
            self.depart_said = True
            effects.append(Depart())
        return effects


class EveryJoinerMakesOne(Wandering):
    """A newcomer does not listen."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return super().handle(Started(founder=True) if isinstance(event, Started) else event, now)


class ServesTheWithdrawn(Wandering):
    """A request that was withdrawn stays in the list."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Forgetful(Waiter):
            def remove(self, request: RequestId) -> None:
                pass

        self.waiter = Forgetful(self, setup.timing)


class TellsNobody(Wandering):
    """Holds that are no longer alone are not told."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Discreet(Seats):
            def tell(self, seat: Seat, reason: LostReason) -> None:
                pass

        self.seats = Discreet(self, self.handover)

        class Silent(Ledger):
            __slots__ = ()

            def tell(self, visit: Visit, told: Told, peer: NodeId) -> None:
                pass

        self.ledger = Silent(self)


class ForgetsItsHolds(Wandering):
    """When two tokens meet, nobody knows any more who had which."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Oblivious(Ledger):
            __slots__ = ()

            def find(self, place: Place) -> None:
                return None

        self.ledger = Oblivious(self)


class DoesNotCountHops(Wandering):
    """The same (epoch, hop) is shown to the resource twice."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Standing(Seats):
            def advance(self, seat: Seat) -> None:
                seat.used = -1
                super().advance(seat)

        self.seats = Standing(self, self.handover)


class NeverDoubts(Wandering):
    """A token that was out of touch, or slept, is used as if it could not have been replaced."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Trusting(Inquirer):
            def doubt(self, seat: Seat) -> None:
                pass

        self.inquirer = Trusting(self)


class Break(NamedTuple):
    machine: type[Wandering]
    scenario: str  # of the fault matrix
    law: str


SEEDS = range(1, 10)  # one of these at least catches it
BREAKS = (
    Break(AsksOnce, "loss-20", "requests"),
    Break(DoesNotCountGenerations, "kill-holder", "order"),
    Break(DoesNotCountHops, "nothing", "order"),
    Break(EveryJoinerMakesOne, "nothing", "overlap"),
    Break(ForgetsItsHolds, "blocked-loop", "evidence"),
    Break(KeepsTheWeakerToken, "partition-seen", "tokens"),
    Break(LeavesWithTheToken, "churn-30", "tokens"),
    Break(MakesATokenWithoutAsking, "nothing", "tokens"),
    Break(NeverDoubts, "pause-past-lease", "tokens"),
    Break(NobodyLooksForIt, "kill-holder", "requests"),
    Break(ServesTheWithdrawn, "cancellations", "effects"),
    Break(TakesBackWhatItCommitted, "two-nodes", "tokens"),
    Break(TellsNobody, "blocked-loop", "evidence"),
    Break(UsesWhatItGivesAway, "nothing", "overlap"),
)
