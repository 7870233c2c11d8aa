"""What the application has in hand while it runs its work: `Hold`, and the exit that never hides an error.

    async with mutex as hold:            __aexit__ releases, whatever happened in the body:
        ...                                  nothing           -> nothing
                                             an error          -> that error, untouched
                                             cancelled by us   -> HoldLost (on_lost="cancel", on_overrun="cancel")
                                             cancelled by others -> CancelledError

What it decides: how news of the node's loop reach the application. A hold belongs to nobody's identity: any task may
release it, and a task that only passed it on may wait for the mutex again. The naive way, a lock that knows its owner
by task or thread, breaks as soon as work is handed from one to the other.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from softmutex.core.errors import HoldLost, SoftMutexError
from softmutex.core.events import SECOND, LostReason, to_seconds
from softmutex.runtime import nesting
from softmutex.runtime.claim import Claim

if TYPE_CHECKING:
    from softmutex.runtime.use import Use

log = logging.getLogger("softmutex")


class Told:
    """What both kinds of holds have in common. Filled in by the grant; the numbers never change afterwards."""

    _claim: Claim
    _use: Use
    name: str
    lost_reason: LostReason | None = None

    @property
    def node(self) -> str:
        """The name of the node that it is held on."""
        return self._use.life.name

    @property
    def epoch(self) -> int:
        """The generation of the token. It orders holds of different generations; it is not a fence."""
        return self._claim.grant.epoch

    @property
    def hop(self) -> int:
        """How often the token had been passed on: with `epoch`, it grows from hold to hold."""
        return self._claim.grant.hop

    @property
    def waited(self) -> float:
        """Seconds from asking to the grant."""
        return (self._claim.granted_at - self._claim.asked_at) / SECOND

    @property
    def deadline(self) -> float | None:
        """When max_hold is over, by the clock of the loop (`time.monotonic()`), or None. `touch()` moves it."""
        claim = self._claim
        if claim.deadline is None:
            return None
        life = self._use.life
        return life.loop.time() + (claim.deadline - life.now()) / SECOND

    @property
    def peers(self) -> int:
        """How many other nodes were known at the grant. 0: nobody else could have held it, or it was not known."""
        return self._claim.peers

    def touch(self) -> None:
        """There is progress: max_hold begins anew."""
        claim = self._claim
        if claim.deadline is not None and claim.policy.max_hold is not None:
            claim.deadline = self._use.life.now() + claim.policy.max_hold

    def _describe_loss(self, overran: bool) -> str:
        if overran:
            limit = to_seconds(self._claim.policy.max_hold or 0)
            return f"the mutex {self.name!r} was held longer than max_hold={limit:g} s without touch()."
        why = self.lost_reason.value if self.lost_reason else "unknown"
        return f"the hold of the mutex {self.name!r} is no longer the only one for sure ({why})."


class Signal(asyncio.Event):
    """Set on the loop of a node that may live in another thread: `is_set` sees it at once, even while this loop is
    blocked, and `wait` as soon as the loop has its turn."""

    raised = False

    def is_set(self) -> bool:
        return self.raised or super().is_set()


class Hold(Told):
    """The right to run, until the `async with` is over or `release()` was awaited."""

    def __init__(self, use: Use, timeout_s: float | None) -> None:
        self._use = use
        self._claim = Claim(self, use.plan.policy, timeout_s)
        self.name = use.plan.name
        self.lost: Signal = Signal()
        self._granted: asyncio.Future[None] | None = None  # while it is waited for
        self._task: asyncio.Task[Any] | None = None  # the one that runs the body
        self._cancels_before = 0
        self._cancelled_because: str | None = None
        self._over = False

    def __repr__(self) -> str:
        state = "over" if self._over else f"lost: {self.lost_reason.value}" if self.lost_reason else "held"
        return f"<Hold of {self.name!r} on {self.node!r}, epoch {self.epoch}, hop {self.hop}, {state}>"

    async def __aenter__(self) -> Hold:
        self._enter(asyncio.current_task())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        because = self._cancelled_because
        self._leave()
        await self._use.give_back(self._claim, error)
        if because is None or self._task is None:
            return
        cancelled_by_others = self._task.uncancel() > self._cancels_before
        if not cancelled_by_others and (error is None or isinstance(error, asyncio.CancelledError)):
            raise HoldLost(because) from error

    def _enter(self, task: asyncio.Task[Any] | None) -> None:
        """The body begins, in this task: from now on it can be cancelled, and must not ask again."""
        if self._over:
            raise SoftMutexError(f"this hold of the mutex {self.name!r} is over. Acquire it again.")
        self._task = task
        if task is not None:
            self._cancels_before = task.cancelling()
            nesting.enter(task, self)

    def _leave(self) -> None:
        self._over = True
        if self._task is not None:
            nesting.leave(self._task, self)

    async def release(self) -> None:
        """Hands the mutex on. The hand-off survives the cancellation of the caller, and it may be called again."""
        self._leave()
        await self._use.give_back(self._claim, None)

    # --- news from the node's loop (claim.py) -----------------------------------------------------------------------

    def _settled(self) -> None:
        if self._granted is not None:
            self._use.to_application(self._wake)

    def _lost(self, reason: LostReason) -> None:
        self.lost.raised = True
        self._use.to_application(self._on_lost, reason)

    def _overran(self) -> None:
        self._use.to_application(self._on_overrun)

    # --- the same, on the application's loop ------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)

    def _on_lost(self, reason: LostReason) -> None:
        if self._over or self.lost_reason is not None:
            return
        self.lost_reason = reason
        self.lost.set()
        reaction = self._claim.policy.on_lost
        log.warning("%s %s", self._describe_loss(False), "The body goes on." if reaction == "continue" else "")
        if reaction == "cancel":
            self._cancel(overran=False)
        elif callable(reaction):
            self._call(reaction)

    def _on_overrun(self) -> None:
        reaction = self._claim.policy.on_overrun
        if self._over:
            return
        if reaction == "cancel":
            self._cancel(overran=True)
        elif callable(reaction):
            self._call(reaction)

    def _cancel(self, overran: bool) -> None:
        if self._task is not None and self._cancelled_because is None:
            self._cancelled_because = self._describe_loss(overran)
            self._task.cancel(self._cancelled_because)

    def _call(self, reaction: Callable[[Hold], Any]) -> None:
        try:
            result = reaction(self)
        except Exception:
            log.exception("a reaction of the application to its hold of %r failed", self.name)
            return
        if inspect.isawaitable(result):
            self._use.look_after(result)
