"""One wish of the application on its way through the node: asked, held, let go.

    NEW --ask--> WAITING --Grant--> HELD --release, overrun, close--> ENDED
                    '--time limit, withdrawal, isolation, close--> ENDED (error)

A claim lives on the node's loop and nowhere else. What the application has in hand (`hold.py`, `sync.py`) may live on
another loop or in another thread; it is told through `Listener`, whose methods carry the news over.

C1  A claim ends exactly once. `settled` is told exactly once: when it is granted, or when it ends without.
C2  A claim that is withdrawn after its grant is released at once: nobody keeps a token that nobody wants.
C3  `lost` and `overran` are told at most once each, and only between the grant and the end.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from softmutex.core.errors import SoftMutexError
from softmutex.core.events import Grant, Instant, LostReason, RequestId
from softmutex.runtime.terms import Policy

if TYPE_CHECKING:
    from softmutex.runtime.seat import Seat


NOT_YET = Grant(0)  # what is told of a claim that was never granted


class Stage(Enum):
    NEW = "new"
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


class Listener(Protocol):
    """The application's side of a claim. Called on the node's loop; returns at once and never raises."""

    def _settled(self) -> None: ...

    def _lost(self, reason: LostReason) -> None: ...

    def _overran(self) -> None: ...


class Claim:
    __slots__ = (
        "asked_at",
        "deadline",
        "error",
        "grant",
        "granted_at",
        "listener",
        "peers",
        "policy",
        "request",
        "seat",
        "stage",
        "timeout_s",
    )

    def __init__(self, listener: Listener, policy: Policy, timeout_s: float | None) -> None:
        self.listener = listener
        self.policy = policy
        self.timeout_s = timeout_s
        self.stage = Stage.NEW
        self.seat: Seat | None = None
        self.request: RequestId = 0
        self.asked_at: Instant = 0
        self.granted_at: Instant = 0
        self.deadline: Instant | None = None  # when the hold overruns, unless touched before
        self.grant = NOT_YET
        self.peers = 0  # how many others were known at the grant
        self.error: SoftMutexError | None = None

    def fail(self, error: SoftMutexError) -> None:
        if self.stage in (Stage.NEW, Stage.WAITING):
            self.stage = Stage.ENDED
            self.error = error
            self.listener._settled()
