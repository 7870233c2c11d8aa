"""Versions of the wandering token that are broken on purpose. The laws of the simulator must catch each of them.

Each leaves out one rule that the machine states, the way a hurried programmer might. Beside it stand the scenario of
the fault matrix in which it is caught, and a law that it breaks; the true version passes the same runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from softmutex.core.algorithms.wandering.context import Context
from softmutex.core.algorithms.wandering.evidence import OverlapEvidence, Visit
from softmutex.core.algorithms.wandering.machine import Wandering
from softmutex.core.algorithms.wandering.messages import Place, Presence, Together
from softmutex.core.algorithms.wandering.requests import OwnRequests
from softmutex.core.algorithms.wandering.search import TokenSearches
from softmutex.core.algorithms.wandering.tokens import HeldToken, TokenHolder, TokensHere
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

        class Stubborn(TokenHolder):
            __slots__ = ()

            def discard(self, held: HeldToken, better: Place, presence: Presence) -> None:
                held.doubt = False
                self.advance(held)

        self.holder.__class__ = Stubborn


class MakesATokenWithoutAsking(Wandering):
    """Silence is taken for death."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Hasty(TokenSearches):
            __slots__ = ()

            def start(self, slot: int, why: str, wide: bool = False) -> None:
                self.owner.regenerate(slot, why)

        self.search.__class__ = Hasty


class DoesNotCountGenerations(Wandering):
    """A new token has the epoch of the one that it replaces."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Timeless(Context):
            __slots__ = ()

            def next_epoch(self, slot: int) -> int:
                return 1

        self.context.__class__ = Timeless


class AsksOnce(Wandering):
    """A request is sent once, and then waited for."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Trusting(OwnRequests):
            __slots__ = ()

            def want_fired(self) -> None:
                pass

        self.requests.__class__ = Trusting


class NobodyLooksForIt(Wandering):
    """A token that is lost stays lost."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Blind(TokenSearches):
            __slots__ = ()

            def start(self, slot: int, why: str, wide: bool = False) -> None:
                pass

        self.search.__class__ = Blind


class UsesWhatItGivesAway(Wandering):
    """The token is still granted here while it is on its way."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = super().handle(event, now)
        on_their_way = [held.token for held in self.here.by_slot.values() if held.giving]
        return [*effects, *(Grant.by(token, self.requests.next()) for token in on_their_way if self.requests.waiting)]


class TakesBackWhatItCommitted(Wandering):
    """A hand-over that was never confirmed is taken for one that failed."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Impatient(TokenHolder):
            __slots__ = ()

            def gone(self, token: Token, to: NodeId) -> None:
                self.failed(token, to, is_silent=False)

        self.holder.__class__ = Impatient


class LeavesWithTheToken(Wandering):
    """A leaver goes as soon as nothing runs, and takes the token along."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = [*super().handle(event, now)]
        if self.here.leaving and not self.depart_said and not self.here.in_use:
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

        class Forgetful(OwnRequests):
            __slots__ = ()

            def remove(self, request: RequestId) -> None:
                pass

        self.requests.__class__ = Forgetful


class TellsNobody(Wandering):
    """Holds that are no longer alone are not told."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Discreet(TokensHere):
            __slots__ = ()

            def tell(self, held: HeldToken, reason: LostReason) -> None:
                pass

        self.here.__class__ = Discreet

        class Silent(OverlapEvidence):
            __slots__ = ()

            def tell(self, visit: Visit, told: Together, peer: NodeId) -> None:
                pass

        self.evidence.__class__ = Silent


class ForgetsItsHolds(Wandering):
    """When two tokens meet, nobody knows any more who had which."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Oblivious(OverlapEvidence):
            __slots__ = ()

            def find(self, place: Place) -> None:
                return None

        self.evidence.__class__ = Oblivious


class DoesNotCountHops(Wandering):
    """The same (epoch, hop) is shown to the resource twice."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Standing(TokenHolder):
            __slots__ = ()

            def advance(self, held: HeldToken) -> None:
                held.used = -1
                super().advance(held)

        self.holder.__class__ = Standing


class NeverDoubts(Wandering):
    """A token that was out of touch, or slept, is used as if it could not have been replaced."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

        class Trusting(TokenSearches):
            __slots__ = ()

            def doubt(self, held: HeldToken) -> None:
                pass

        self.search.__class__ = Trusting


class Break(NamedTuple):
    machine: type[Wandering]
    scenario: str  # of the fault matrix
    law: str
    first: int = 1  # seed that is tried


SEEDS = range(1, 10)  # one of these at least catches it
BREAKS = (
    Break(AsksOnce, "loss-20", "requests"),
    Break(DoesNotCountGenerations, "storm", "order", 2),
    Break(DoesNotCountHops, "nothing", "order"),
    Break(EveryJoinerMakesOne, "nothing", "overlap"),
    Break(ForgetsItsHolds, "blocked-loop", "evidence", 6),
    Break(KeepsTheWeakerToken, "partition-seen", "tokens", 5),
    Break(LeavesWithTheToken, "churn-30", "tokens"),
    Break(MakesATokenWithoutAsking, "pause-past-lease", "tokens"),
    Break(NeverDoubts, "pause-past-lease", "tokens"),
    Break(NobodyLooksForIt, "kill-holder", "requests"),
    Break(ServesTheWithdrawn, "cancellations", "effects"),
    Break(TakesBackWhatItCommitted, "loss-40", "tokens", 6),
    Break(TellsNobody, "clogged-links", "evidence"),
    Break(UsesWhatItGivesAway, "nothing", "overlap"),
)
