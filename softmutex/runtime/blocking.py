"""The same mutex for threads: `sync.SoftMutex`, and plain functions under `guard`.

    thread: ask ----call_soon_threadsafe----> node's loop (the background thread, or that of the application's Node)
            wait on an Event <----- set ----- granted, failed
            release --call_soon_threadsafe--> node's loop

What it decides: a thread waits, the loop works. The naive way, `asyncio.run` around each use, has no node in between:
it cannot hold a token, answer others or notice a loss while the body of the thread runs.

A thread cannot be cancelled: where asyncio's hold would cancel its task, this one raises `HoldLost` after the body.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from softmutex.core.errors import HoldLost, SoftMutexError
from softmutex.front import UNSET, Threads, Unset, limit_of
from softmutex.runtime import background, nesting
from softmutex.runtime.background import Background
from softmutex.runtime.claim import MutexClaim
from softmutex.runtime.crossing import Crossing, Host, cross
from softmutex.runtime.hold import refuse_in_child
from softmutex.runtime.mutex import MutexBase
from softmutex.runtime.node import RunningNode
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.seen import MutexSeen, PastSeen

log = logger("hold")

R = TypeVar("R")


class ThreadSignal(threading.Event):
    """`hold.lost` of a thread. In a forked child of the process that holds it, it is set: there nobody holds it."""

    def __init__(self, hold: MutexClaim) -> None:
        super().__init__()
        self._hold = hold

    def is_set(self) -> bool:
        return super().is_set() or not self._hold._crossing.node.is_mine()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or super().wait(timeout)


class BlockingHold(MutexClaim):
    """The right to run, for a thread: until the `with` is over or `release()` was called, by whichever thread."""

    _bodies: list[MutexClaim] | None = None  # of the thread that runs the body
    _raise_afterwards: str | None = None
    _over = False

    def __init__(self, crossing: Crossing, timeout_s: float | None, thread: Background | None) -> None:
        super().__init__(crossing, timeout_s)
        self.lost: threading.Event = ThreadSignal(self)
        self._answered = threading.Event()
        self._thread = thread  # that of the node of its own

    def __repr__(self) -> str:
        state = self._state(self._over)
        return f"<sync.Hold of {self.name!r} on {self.node!r}, epoch {self.epoch}, hop {self.hop}, {state}>"

    def __enter__(self) -> BlockingHold:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._crossing.node.is_mine():
            self.release()
        if error is None and self._raise_afterwards is not None:
            raise HoldLost(self._raise_afterwards)

    def _enter(self) -> None:
        """The body begins, in this thread, which must not ask again."""
        if self._over:
            raise SoftMutexError(f"this hold of the mutex {self.name!r} is over. Acquire it again.")
        self._bodies = nesting.of_thread.holds
        self._bodies.append(self)

    def release(self) -> None:
        """Hands the mutex on. It may be called again. `NodeClosed` in a forked child of the process that holds it."""
        if self._over:
            return
        refuse_in_child(self)
        self._over = True
        if self._bodies is not None and self in self._bodies:
            self._bodies.remove(self)
        self._crossing.give_back(self)
        if self._thread is not None:
            leave(self._crossing.host, self._crossing.node, self._thread)

    # --- news from the node's loop, on its thread -------------------------------------------------------------------

    def _on_settled(self) -> None:
        self._answered.set()

    def _on_lost(self) -> None:
        if not self._over:
            self._react(self._policy.on_lost, overran=False)
        self.lost.set()

    def _on_overrun(self) -> None:
        if not self._over:
            self._react(self._policy.on_overrun, overran=True)

    def _react(self, reaction: str | Callable[..., Any], overran: bool) -> None:
        if reaction == "cancel":
            self._raise_afterwards = self._why_cancelled(overran)
        elif callable(reaction):
            # Not on this thread: it is the node's, and what the application does there would make the node deaf.
            threading.Thread(target=self._call, args=(reaction,), name="softmutex reaction", daemon=True).start()

    def _call(self, reaction: Callable[..., Any]) -> None:
        try:
            result = reaction(self)
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception:
            log.exception("a reaction of the application to its hold of %r failed", self.name)


class BlockingMutex(MutexBase, Threads[BlockingHold]):
    """What `sync.SoftMutex` and plain functions under `guard` have in common."""

    def __init__(self, name: str, host: Host, keywords: Mapping[str, Any]) -> None:
        MutexBase.__init__(self, name, host, keywords)
        Threads.__init__(self)

    def acquire(self, timeout: float | Unset | None = UNSET) -> BlockingHold:
        """A hold without a `with`: it lasts until its `release()`, by whichever thread.

        `AcquireTimeout`, `Isolated` (`when_isolated="raise"`) or `NodeClosed` where it is not granted.
        """
        if self._host.lends_for_a_while:
            return self._acquire_on_a_node_of_its_own(timeout)
        crossing = self._crossing
        if crossing is None or not crossing.node.is_open:
            crossing = self._cross(None)
        refuse_own_loop(crossing.node, self.name)
        return wait_for(BlockingHold(crossing, limit_of(timeout, crossing.plan.policy.timeout_s), None))

    def look(self) -> MutexSeen:
        """Who holds it, who waits and since when, in the whole group: one round trip, a second at most."""
        return self._on_node(lambda node: node.lookout.look(self.name))

    def history(self) -> tuple[PastSeen, ...]:
        """Who held it lately, the oldest first: what the members remember, which is some dozens of holds each."""
        return self._on_node(lambda node: node.lookout.history(self.name))

    def evict(self, reason: str) -> int:
        """Takes it from whoever holds it, as `softmutex.SoftMutex.evict` does. How many holds were ended."""
        return self._on_node(lambda node: node.lookout.evict(self.name, reason))

    def _on_node(self, work: Callable[[RunningNode], Coroutine[Any, Any, R]]) -> R:
        if not self._host.lends_for_a_while:
            node = self._host.running()
            refuse_own_loop(node, self.name)
            return asyncio.run_coroutine_threadsafe(work(node), node.loop).result()
        thread = background.acquire()
        try:
            node = thread.wait(self._host.lend_within(self.name, None))
        except BaseException:
            background.release(thread)
            raise
        try:
            return thread.wait(work(node))
        finally:
            leave(self._host, node, thread)

    def _acquire_on_a_node_of_its_own(self, timeout: float | Unset | None) -> BlockingHold:
        wanted = self._plan()
        limit_s = limit_of(timeout, wanted.policy.timeout_s)
        thread = background.acquire()
        try:
            node = thread.wait(self._host.lend_within(self.name, limit_s))
        except BaseException:
            background.release(thread)
            raise
        try:
            return wait_for(BlockingHold(cross(self._host, node, wanted, None), limit_s, thread))
        except BaseException:
            leave(self._host, node, thread)
            raise


def wait_for(hold: BlockingHold) -> BlockingHold:
    """Asks, and waits for what comes of it."""
    crossing = hold._crossing
    if nesting.of_thread.holds:
        nesting.check(nesting.of_thread.holds, "thread", crossing, hold._timeout_s)
    observers = crossing.node.observers
    hold._followers = observers.look()
    if hold._followers or observers.plain:
        crossing.notice_wait(hold)
    crossing.ask(hold)
    try:
        hold._answered.wait()
    except BaseException:  # KeyboardInterrupt
        crossing.notice_end_of_wait(hold, "cancelled")
        crossing.withdraw(hold)
        raise
    hold._is_known = True
    if observers.awake or hold._error is not None:
        crossing.answered(hold)
    if hold._error is not None:
        raise hold._error
    return hold


def refuse_own_loop(node: RunningNode, name: str) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is node.loop:
        raise SoftMutexError(
            f"the mutex {name!r} would be waited for on the very loop that its node lives on, which could not answer. "
            "Call it in a thread (await asyncio.to_thread(...)), make the function async, or use Node(thread=True)."
        )


def leave(host: Host, node: RunningNode, thread: Background) -> None:
    """The node of its own leaves in good order, and takes the thread along where nobody else uses it."""
    if not node.is_mine():
        return
    try:
        thread.wait(host.take_back())
    except Exception as trouble:
        log.warning("a node could not leave in good order: %r", trouble)
    background.release(thread)
