"""One wish of the application on its way through the node: asked, held, let go.

    NEW --ask--> WAITING --grant--> HELD --release, overrun, close--> ENDED
                    '--time limit, withdrawal, isolation, close--> ENDED (error)

What it decides: a wish and what comes of it are one object with two sides. The fields of `MutexClaim` are the node's:
`local.py` alone writes them, on the node's loop (`touch` moves a deadline); anybody may read them. `Hold` and
`BlockingHold` derive from it and add what the application has in hand, on its own loop or thread; three methods carry
the news over. The naive way, an object for each side and a third one between them, makes three of them for each
acquisition and two places for each fact.

C1  A claim ends exactly once. `_on_settled` is called exactly once: when it is granted, or when it ends without.
C2  A claim that is withdrawn after its grant is released at once: nobody keeps a token that nobody wants.
C3  `_on_lost` and `_on_overrun` are called at most once each, and only between the grant and the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from softmutex.core.errors import SoftMutexError
from softmutex.core.events import SECOND, Grant, Instant, LostReason, NodeId, RequestId, to_seconds
from softmutex.runtime.whom import purpose_of

if TYPE_CHECKING:
    from softmutex.ports import Observer
    from softmutex.runtime.crossing import Crossing
    from softmutex.runtime.local import LocalMutex
    from softmutex.runtime.weighing import Weighing

NOT_YET = Grant(0)  # what is known of a claim that was never granted


class Progress(Enum):
    NEW = "new"
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


class MutexClaim:
    peers: int = 0
    """How many other nodes were known at the grant. 0: nobody else could have held it, or it was not known."""

    _progress = Progress.NEW
    _local: LocalMutex | Weighing | None = None  # where it waits or holds
    _weighing: Weighing | None = None  # of one that takes several slots
    _is_part = False  # of such a one
    _is_known = False  # to the application: from here on it is a hold, for readers too
    _is_written = False  # into the diary
    _followers: Sequence[Observer] = ()  # readers that are told what becomes of it, one by one
    _request: RequestId = 0
    _asked_at: Instant = 0
    _granted_at: Instant = 0
    _overruns_at: Instant | None = None  # unless touched before
    _grant: Grant = NOT_YET
    _lost_as: LostReason | None = None
    _lost_because = ""
    _error: SoftMutexError | None = None  # why it ended without a grant

    def __init__(self, crossing: Crossing, timeout_s: float | None) -> None:
        self._crossing = crossing
        self._life: NodeId = crossing.node.id  # of the node, when this was asked for
        self._policy = crossing.plan.policy
        self._timeout_s = timeout_s
        self._purpose = purpose_of(self._policy.purpose)

    def _is_shown_by_another(self) -> bool:
        """As one of the slots that it takes."""
        return False

    def _whole(self) -> MutexClaim:
        """What the application asked for."""
        return self

    def _slots(self) -> int:
        """How many are wanted for it."""
        return self._policy.weight or 1

    def _close(self) -> None:
        """Its body waits for the node to close: it is over now, and handed on."""
        if self._local is not None and self._progress is Progress.HELD:
            self._local.tell_lost(self, LostReason.CLOSED)
            self._local.release(self, b"")

    def _fail(self, error: SoftMutexError) -> None:
        if self._progress in (Progress.NEW, Progress.WAITING):
            self._progress = Progress.ENDED
            self._error = error
            if self._weighing is not None:
                self._weighing.over()
            self._on_settled()

    # --- news, on the node's loop: they return at once and never raise ------------------------------------------------

    def _on_settled(self) -> None:
        raise NotImplementedError

    def _on_lost(self) -> None:
        raise NotImplementedError

    def _on_overrun(self) -> None:
        raise NotImplementedError

    # --- what the application sees of it ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of the mutex."""
        return self._crossing.plan.name

    @property
    def node(self) -> str:
        """The name of the node that it is held on."""
        return self._crossing.node.name

    @property
    def epoch(self) -> int:
        """The generation of the token. It orders holds of different generations; it is not a fence."""
        return self._grant.epoch

    @property
    def hop(self) -> int:
        """How often the token had been passed on: with `epoch`, it grows from hold to hold."""
        return self._grant.hop

    @property
    def waited(self) -> float:
        """Seconds from asking to the grant."""
        return (self._granted_at - self._asked_at) / SECOND

    @property
    def deadline(self) -> float | None:
        """When max_hold is over, by the clock of the loop (`time.monotonic()`), or None. `touch()` moves it."""
        if self._overruns_at is None:
            return None
        node = self._crossing.node
        return node.loop.time() + (self._overruns_at - node.now()) / SECOND

    @property
    def lost_reason(self) -> LostReason | None:
        """Why it may not be the only one any more; None while it is, as far as is known. The first reason stays."""
        if self._lost_as is None and not self._crossing.node.is_mine():
            return LostReason.CLOSED  # the parent of this forked process holds it, not this one
        return self._lost_as

    @property
    def lost_detail(self) -> str:
        """What was said of the loss: the reason of an eviction."""
        return self._lost_because

    def _trace(self) -> Mapping[str, str]:
        """The trace context of this hold, as W3C headers; empty where it is not traced."""
        return self._crossing.trace_of(self)

    def touch(self) -> None:
        """There is progress: max_hold begins anew."""
        if self._overruns_at is not None and self._policy.max_hold is not None:
            self._overruns_at = self._crossing.node.now() + self._policy.max_hold

    def _state(self, is_over: bool) -> str:
        return "over" if is_over else f"lost: {self.lost_reason.value}" if self.lost_reason else "held"

    def _why_cancelled(self, overran: bool) -> str:
        if overran:
            limit = to_seconds(self._policy.max_hold or 0)
            return f"the mutex {self.name!r} was held longer than max_hold={limit:g} s without touch()."
        return no_longer_alone(self.name, self.lost_reason, self._lost_because)


def no_longer_alone(mutex: str, reason: LostReason | None, detail: str = "") -> str:
    why = f"{reason or 'unknown'}{': ' * bool(detail)}{detail}"
    return f"the hold of the mutex {mutex!r} is no longer the only one for sure ({why})."
