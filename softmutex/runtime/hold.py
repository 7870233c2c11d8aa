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
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from softmutex.core.errors import HoldLost, NodeClosed, SoftMutexError
from softmutex.runtime import nesting
from softmutex.runtime.claim import MutexClaim
from softmutex.saying import logger

log = logger("hold")


class Signal(asyncio.Event):
    """Set on the loop of a node that may live in another thread: `is_set` sees it at once, even while this loop is
    blocked, and `wait` as soon as the loop has its turn."""

    def __init__(self, hold: MutexClaim) -> None:
        super().__init__()
        self._hold = hold

    def is_set(self) -> bool:
        return self._hold.lost_reason is not None or super().is_set()

    async def wait(self) -> Literal[True]:
        return True if self.is_set() else await super().wait()


class Hold(MutexClaim):
    """The right to run, until the `async with` is over or `release()` was awaited."""

    _granted: asyncio.Future[None] | None = None  # while it is waited for
    _signal: Signal | None = None  # once somebody looks at `lost`
    _task: asyncio.Task[Any] | None = None  # the one that runs the body
    _cancels_before = 0
    _cancelled_because: str | None = None
    _over = False

    def __repr__(self) -> str:
        state = self._state(self._over)
        return f"<Hold of {self.name!r} on {self.node!r}, epoch {self.epoch}, hop {self.hop}, {state}>"

    @property
    def lost(self) -> asyncio.Event:
        """Set as soon as it is known that this hold may not be the only one: `lost_reason` says why."""
        if self._signal is None:
            self._signal = Signal(self)
        return self._signal

    async def __aenter__(self) -> Hold:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        because, crossing = self._cancelled_because, self._crossing
        if not self._over:
            self._leave()
            crossing.give_back(self)
            if crossing.host.lends_for_a_while:
                await crossing.come_back(error)
        if because is None or self._task is None:
            return
        cancelled_by_others = self._task.uncancel() > self._cancels_before
        if not cancelled_by_others and (error is None or isinstance(error, asyncio.CancelledError)):
            raise HoldLost(because) from error

    def _enter(self) -> None:
        """The body begins, in this task: from now on it can be cancelled, and must not ask again."""
        if self._over:
            raise SoftMutexError(f"this hold of the mutex {self.name!r} is over. Acquire it again.")
        self._task = task = asyncio.current_task()
        if task is not None:
            self._cancels_before = task.cancelling()
            nesting.enter(task, self)

    def _leave(self) -> None:
        self._over = True
        if self._task is not None:
            nesting.leave(self._task, self)

    async def release(self) -> None:
        """Hands the mutex on. The hand-off survives the cancellation of the caller, and it may be called again."""
        if not self._over:
            refuse_in_child(self)
            self._leave()
            self._crossing.give_back(self)
            await self._crossing.come_back(None)

    # --- news from the node's loop (claim.py) -----------------------------------------------------------------------

    def _on_settled(self) -> None:
        if self._granted is None:  # at once: nobody waits
            return
        if self._crossing.is_near:
            self._wake()
        else:
            self._crossing.to_application(self._wake)

    def _on_lost(self) -> None:
        self._crossing.to_application(self._react_to_loss)

    def _on_overrun(self) -> None:
        self._crossing.to_application(self._react, self._policy.on_overrun, True)

    # --- the same, on the application's loop ------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)

    def _react_to_loss(self) -> None:
        self.lost.set()
        self._react(self._policy.on_lost, False)

    def _react(self, reaction: str | Callable[..., Any], overran: bool) -> None:
        if self._over:
            return
        if reaction == "cancel":
            if self._task is not None and self._cancelled_because is None:
                self._cancelled_because = self._why_cancelled(overran)
                self._task.cancel(self._cancelled_because)
        elif callable(reaction):
            self._call(reaction)

    def _call(self, reaction: Callable[[Hold], Any]) -> None:
        try:
            result = reaction(self)
        except Exception:
            log.exception("a reaction of the application to its hold of %r failed", self.name)
            return
        if inspect.isawaitable(result):
            self._crossing.look_after(result)


def refuse_in_child(hold: MutexClaim) -> None:
    """A parent's hold in a forked child is not the child's to release."""
    if not hold._crossing.node.is_mine():
        raise NodeClosed(
            f"this hold of the mutex {hold.name!r} belongs to the parent of this forked process, which still has it: "
            "only the parent can release it. Acquire one of its own here."
        )
