"""What `ring_search.py` and `binary_search.py` say, keep and choose between: their messages, traps and options."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from softmutex.core.algorithms.remake import (
    Sighting,
)
from softmutex.core.events import (
    NOBODY,
    Count,
    Instant,
    NodeId,
    RequestId,
    Ticket,
    Token,
)
from softmutex.core.handover import Passing
from softmutex.core.messages import Flag
from softmutex.core.options import Options, within

SLOWEST_S: Final = 30.0


class SearchKind(StrEnum):
    DELEGATED = "delegated"
    DIRECTED = "directed"


class Cleanup(StrEnum):
    ROTATION = "rotation"
    INVERSE = "inverse"


class Initiative(StrEnum):
    PULL = "pull"
    PUSH = "push"
    BOTH = "both"
    NONE = "none"


class Discipline(StrEnum):
    FAIR = "fair"
    FAST = "fast"


@dataclass(frozen=True)
class RingOptions(Options):
    search: SearchKind = SearchKind.DELEGATED
    cleanup: Cleanup = Cleanup.ROTATION
    initiative: Initiative = Initiative.PULL
    discipline: Discipline = Discipline.FAST
    throttle: bool = True
    rest: float | None = within(None, 1e-6)  # seconds that a token rests with who does not want it; None: skip
    slowest: float = within(SLOWEST_S, 1e-6)  # while nobody wants it, up to so many
    passing: Passing | None = None  # None: in four steps, or at once where nothing can be lost (`Setup.instant`)


class Gimme(NamedTuple):
    """`node` wants the token, as its `request`. It is between `low` and `high`: `low` saw it after `seen`."""

    node: NodeId
    request: RequestId
    low: NodeId
    high: NodeId
    seen: Sighting
    steps: Count = 0  # how often it was sent on
    again: Flag = False  # searched for before: say TRAPPED if you have the token, or lent it


class Missed(NamedTuple):
    """The token is not here. `seen`: when it was, last."""

    request: RequestId
    seen: Sighting


class Trapped(NamedTuple):
    """Your search ends here: the token is here, or comes back to here."""

    request: RequestId


class Anybody(NamedTuple):
    """`holder` has the token and needs it not: who does?"""

    holder: NodeId
    span: Count


class Trap(NamedTuple):
    request: RequestId
    via: NodeId  # the search came from there
    held_back: bool
    at: Instant = 0
    steps: Count = 0  # how far the search had come


class Mission(NamedTuple):
    """What a token's queue says: to whom it is lent, by whom (a ticket without a request), who was served of late."""

    loan: tuple[Ticket, ...]
    served: tuple[Ticket, ...]

    @classmethod
    def of(cls, token: Token) -> Mission:
        queue = token.queue
        ends = [number for number, ticket in enumerate(queue, 1) if not ticket.request]
        return cls(queue[: ends[0]], queue[ends[0] :]) if ends else cls((), queue)

    @property
    def lender(self) -> NodeId:
        return self.loan[-1].node if self.loan else NOBODY
