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
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from softmutex.core.errors import AcquireTimeout, ConfigError, HoldLost, SoftMutexError
from softmutex.core.events import LostReason
from softmutex.runtime import background, nesting
from softmutex.runtime.background import Background
from softmutex.runtime.claim import Claim
from softmutex.runtime.hold import Told
from softmutex.runtime.mutex import UNSET, MutexBase, Unset, limit_of
from softmutex.runtime.use import Use

if TYPE_CHECKING:
    from softmutex.runtime.node import Life

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("softmutex")


class BlockingHold(Told):
    """The right to run, for a thread: until the `with` is over or `release()` was called, by whichever thread."""

    def __init__(self, use: Use, timeout_s: float | None, thread: Background | None) -> None:
        self._use = use
        self._claim = Claim(self, use.plan.policy, timeout_s)
        self.name = use.plan.name
        self.lost = threading.Event()
        self._answered = threading.Event()
        self._thread = thread
        self._who: int | None = None
        self._raise_afterwards: str | None = None
        self._over = False

    def __repr__(self) -> str:
        state = "over" if self._over else f"lost: {self.lost_reason.value}" if self.lost_reason else "held"
        return f"<sync.Hold of {self.name!r} on {self.node!r}, epoch {self.epoch}, hop {self.hop}, {state}>"

    def __enter__(self) -> BlockingHold:
        if self._over:
            raise SoftMutexError(f"this hold of the mutex {self.name!r} is over. Acquire it again.")
        self._who = threading.get_ident()
        nesting.enter(self._who, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        if error is None and self._raise_afterwards is not None:
            raise HoldLost(self._raise_afterwards)

    def release(self) -> None:
        """Hands the mutex on. It may be called again, and raises nothing."""
        if self._over:
            return
        self._over = True
        if self._who is not None:
            nesting.leave(self._who, self)
        try:
            if self._use.life.is_mine():
                self._use.release(self._claim)
        except SoftMutexError as trouble:
            log.warning("the mutex %r could not be handed on in good order: %s", self.name, trouble)
        if self._thread is not None:
            leave(self._use.host, self._use.life, self._thread)

    # --- news from the node's loop, on its thread -------------------------------------------------------------------

    def _settled(self) -> None:
        self._answered.set()

    def _lost(self, reason: LostReason) -> None:
        if self._over or self.lost_reason is not None:
            return
        self.lost_reason = reason
        reaction = self._claim.policy.on_lost
        log.warning("%s %s", self._describe_loss(False), "" if callable(reaction) else "The body goes on.")
        self._react(reaction, overran=False)
        self.lost.set()

    def _overran(self) -> None:
        self._react(self._claim.policy.on_overrun, overran=True)

    def _react(self, reaction: str | Callable[..., Any], overran: bool) -> None:
        if reaction == "cancel":
            self._raise_afterwards = self._describe_loss(overran)
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


class BlockingMutex(MutexBase):
    """What `sync.SoftMutex` and plain functions under `guard` have in common."""

    def __init__(self, name: str, host: Any, keywords: Any) -> None:
        super().__init__(name, host, keywords)
        self._entered: dict[int, list[BlockingHold]] = {}

    def __enter__(self) -> BlockingHold:
        hold = self._acquire(UNSET).__enter__()
        self._entered.setdefault(threading.get_ident(), []).append(hold)
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        who = threading.get_ident()
        holds = self._entered[who]
        hold = holds.pop()
        if not holds:
            del self._entered[who]
        hold.__exit__(kind, error, traceback)

    def hold(self, timeout: float | Unset | None = UNSET) -> BlockingHolding:
        """`with mutex.hold(timeout=30) as hold`. None: wait for ever; 0: try; not given: as the mutex is set."""
        return BlockingHolding(self, timeout)

    def try_acquire(self) -> BlockingHold | None:
        """A hold where nobody has it now, else None: `if hold := mutex.try_acquire(): with hold: ...`"""
        try:
            return self._acquire(0)
        except AcquireTimeout:
            return None

    def guard(self, timeout: float | Unset | None = UNSET) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a plain function, which then runs only while the mutex is held."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ConfigError(f"guard: {function.__qualname__} is a generator, whose body runs after the call.")
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"guard: {function.__qualname__} is a coroutine function: use softmutex.SoftMutex.")

            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.hold(timeout):
                    return function(*args, **kwargs)

            return guarded

        return decorate

    # --- how it is done ---------------------------------------------------------------------------------------------

    def _acquire(self, timeout: float | Unset | None) -> BlockingHold:
        wanted = self._plan()
        limit_s = limit_of(timeout, wanted)
        thread: Background | None = None
        if self._host.lends_for_a_while:
            thread = background.acquire()
            try:
                life = thread.wait(self._host.lend_within(self.name, limit_s))
            except BaseException:
                background.release(thread)
                raise
        else:
            life = self._host.life()
            refuse_own_loop(life, self.name)
        use = Use(self._host, life, wanted, None)
        try:
            return self._wait(BlockingHold(use, limit_s, thread), use, limit_s)
        except BaseException:
            if thread is not None:
                leave(self._host, life, thread)
            raise

    def _wait(self, hold: BlockingHold, use: Use, timeout_s: float | None) -> BlockingHold:
        nesting.check(threading.get_ident(), "thread", use, timeout_s)
        claim = hold._claim
        use.tell_waiting(claim)
        use.ask(claim)
        try:
            hold._answered.wait()
        except BaseException:  # KeyboardInterrupt
            use.tell_waited(claim, "cancelled")
            use.withdraw(claim)
            raise
        use.tell_waited(claim)
        if claim.error is not None:
            raise claim.error
        return hold


class BlockingHolding:
    """`with mutex.hold(timeout=30)`: acquires when it is entered."""

    def __init__(self, mutex: BlockingMutex, timeout: float | Unset | None) -> None:
        self._mutex = mutex
        self._timeout = timeout
        self._holds: list[BlockingHold] = []

    def __enter__(self) -> BlockingHold:
        hold = self._mutex._acquire(self._timeout).__enter__()
        self._holds.append(hold)
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holds.pop().__exit__(kind, error, traceback)


def refuse_own_loop(life: Life, name: str) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is life.loop:
        raise SoftMutexError(
            f"the mutex {name!r} would be waited for on the very loop that its node lives on, which could not answer. "
            "Call it in a thread (await asyncio.to_thread(...)), make the function async, or use Node(thread=True)."
        )


def leave(host: Any, life: Life, thread: Background) -> None:
    """The node of its own leaves in good order, and takes the thread along where nobody else uses it."""
    if not life.is_mine():
        return
    try:
        thread.wait(host.take_back())
    except Exception as trouble:
        log.warning("a node could not leave in good order: %r", trouble)
    background.release(thread)
