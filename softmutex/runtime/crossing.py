"""The way between an application and a mutex on a running node, there and back.

The application and the node live on one loop (the normal case: `Crossing`), or on two loops in two threads
(`Node(thread=True)`, `sync`: `FarCrossing`). The naive way, one kind of mutex for each, has each rule about
cancellation twice. Here only the crossing differs:

    application --ask, withdraw, give_back--> LocalMutex                   the same loop: an ordinary call
    application <--to_application------------ Claim._on_settled, ...       another one: loop.call_soon_threadsafe

One is made when a mutex is first used on a running node, and serves all of its acquisitions there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVarTuple, Unpack

from softmutex.core.errors import AcquireTimeout, NodeClosed, SoftMutexError
from softmutex.core.events import SECOND
from softmutex.ports import Observation
from softmutex.runtime import weighing
from softmutex.runtime.claim import MutexClaim, Progress
from softmutex.runtime.config import Settings
from softmutex.runtime.terms import Plan
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.runtime.diary import MutexDiary
    from softmutex.runtime.local import LocalMutex
    from softmutex.runtime.node import RunningNode
    from softmutex.runtime.statistics import MutexStatistics

Ts = TypeVarTuple("Ts")
Loop = asyncio.AbstractEventLoop

log = logger("hold")

_looked_after: set[asyncio.Future[Any]] = set()


class Host(Protocol):
    """Where a mutex gets a running node from: a `Node`, or a node of its own for as long as it is used."""

    lends_for_a_while: bool  # True: `lend_within` and `take_back` each; False: `running` is enough

    def settings(self) -> Settings: ...

    def running(self) -> RunningNode: ...

    async def lend_within(self, mutex: str, limit_s: float | None) -> RunningNode: ...

    async def take_back(self) -> None: ...

    def mutex_statistics(self, name: str) -> MutexStatistics: ...


class Crossing:
    __slots__ = ("application", "host", "local", "node", "plan")

    is_near = True

    def __init__(self, host: Host, node: RunningNode, plan: Plan, application: Loop | None) -> None:
        """`application`: the loop that it lives on; None where it is a thread without one."""
        self.host = host
        self.node = node
        self.plan = plan
        self.application = application
        self.local: LocalMutex | None = None  # once it is known that it wants the same as the group

    @property
    def resource(self) -> Hashable:
        """The same for whoever competes with this one, also by another node."""
        return (*self.node.where, self.plan.name)

    # --- there ------------------------------------------------------------------------------------------------------

    def ask(self, claim: MutexClaim) -> None:
        """What comes of it the claim is told: that a near one is refused at once, too."""
        node = self.node
        try:
            node.check_usable()
            if node.banned is not None:
                raise node.banned
            local = self.local
            if local is None or node.mutexes.get(local.name) is not local:
                local = self.local = node.open_mutex(self.plan)
            if node.observers.readers:
                (local.diary or node.observers.diary_of(local)).asked += 1
            if self.plan.policy.weight is not None:
                weighing.ask(self, local, claim, node.open_mutex)
                return
        except SoftMutexError as error:
            claim._fail(error)
        else:
            local.ask(claim)

    def withdraw(self, claim: MutexClaim) -> None:
        if claim._local is not None:
            claim._local.withdraw(claim)

    def release(self, claim: MutexClaim, baggage: bytes) -> None:
        if claim._local is not None:
            claim._local.release(claim, baggage)

    def give_back(self, claim: MutexClaim) -> None:
        """Ends a hold. Raises nothing: the troubles of the node are not those of the body."""
        try:
            if claim._followers or self.node.observers.plain:
                self._release_seen(claim)
            else:
                self.release(claim, b"")
        except Exception as trouble:
            log.warning("the mutex %r could not be handed on in good order: %r", self.plan.name, trouble)

    async def come_back(self, error: BaseException | None) -> None:
        """A node that was lent for this use alone leaves in good order. Over an error of the body, a cancellation that
        comes meanwhile is not raised."""
        if not self.host.lends_for_a_while:
            return
        try:
            await see_through(self.host.take_back())
        except asyncio.CancelledError:
            if error is None:
                raise
        except Exception as trouble:
            log.warning("the node of the mutex %r could not leave in good order: %r", self.plan.name, trouble)

    # --- and back ---------------------------------------------------------------------------------------------------

    def to_application(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        call(*args)

    def look_after(self, work: Awaitable[Any]) -> None:
        """Lets a coroutine of the application run beside it; what it raises is logged."""

        def done(task: asyncio.Future[Any]) -> None:
            _looked_after.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.error("a reaction to a hold of %r failed", self.plan.name, exc_info=task.exception())

        task = asyncio.ensure_future(work)
        _looked_after.add(task)
        task.add_done_callback(done)

    # --- observers, in the application's own context ------------------------------------------------------------------

    def notice_wait(self, claim: MutexClaim) -> None:
        values: Mapping[str, float | int | str] = {
            "claim": id(claim),
            "algorithm": self.plan.terms.algorithm,
            "slots": claim._slots(),
            "priority": claim._policy.priority,
        }
        told = self.node.observers.besides(claim._followers)
        self.node.observers.tell(told, Observation(self.plan.name, claim._life, "wait_started", values))

    def answered(self, claim: MutexClaim) -> None:
        """The application hears what came of it."""
        observers, local = self.node.observers, self.local
        if claim._error is not None:
            self.notice_end_of_wait(claim, "timeout" if isinstance(claim._error, AcquireTimeout) else "closed")
            return
        if observers.readers and local is not None:
            diary = local.diary or observers.diary_of(local)
            diary.waits.append(claim._granted_at - claim._asked_at)
            if claim._progress is Progress.ENDED:  # the node was quicker
                self.write(diary, claim)
        if claim._followers or observers.plain:
            self.notice_end_of_wait(claim, "granted")

    def write(self, diary: MutexDiary, claim: MutexClaim) -> None:
        diary.held(claim, self.node.now())

    def notice_end_of_wait(self, claim: MutexClaim, outcome: str) -> None:
        node, name = self.node, self.plan.name
        told = node.observers.besides(claim._followers) if outcome == "granted" else node.observers.awake
        waited_s = (node.now() - claim._asked_at) / SECOND
        algorithm = self.plan.terms.algorithm
        values: dict[str, float | int | str] = {
            "claim": id(claim),
            "algorithm": algorithm,
            "outcome": outcome,
            "seconds": waited_s,
        }
        node.observers.tell(told, Observation(name, claim._life, "wait_ended", values))
        if outcome == "granted":
            grant = claim._grant
            begun: dict[str, float | int | str] = {
                "claim": id(claim),
                "request": claim._request,
                "algorithm": algorithm,
                "epoch": grant.epoch,
                "hop": grant.hop,
                "rights": len(grant.rights),
                "slots": claim._slots(),
                "baggage": grant.baggage.hex(),
            }
            node.observers.tell(told, Observation(name, claim._life, "hold_started", begun))

    def trace_of(self, claim: MutexClaim) -> Mapping[str, str]:
        return self.node.observers.trace_of(
            Observation(self.plan.name, claim._life, "hold_started", {"request": claim._request})
        )

    def _release_seen(self, claim: MutexClaim) -> None:
        node = self.node
        held_s = (node.now() - claim._granted_at) / SECOND
        ended = Observation(self.plan.name, claim._life, "hold_ended", {"request": claim._request, "seconds": held_s})
        if self.local is not None and claim._followers:
            self.local.followers = claim._followers
        try:
            self.release(claim, node.observers.baggage(ended))
        finally:
            node.observers.tell(node.observers.besides(claim._followers), ended)


class FarCrossing(Crossing):
    """The node lives on another loop, in another thread."""

    __slots__ = ()

    is_near = False

    def ask(self, claim: MutexClaim) -> None:
        self._to_node(super().ask, claim)

    def withdraw(self, claim: MutexClaim) -> None:
        self._to_node(super().withdraw, claim)

    def release(self, claim: MutexClaim, baggage: bytes) -> None:
        self._to_node(super().release, claim, baggage)

    def write(self, diary: MutexDiary, claim: MutexClaim) -> None:
        with contextlib.suppress(NodeClosed):
            self._to_node(super().write, diary, claim)

    def _to_node(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        if not self.node.is_mine():
            self.node.check_usable()
        try:
            self.node.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            raise NodeClosed("the node is closed.") from None

    def to_application(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        if self.application is None:
            call(*args)
            return
        try:
            self.application.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("the loop of the application is closed; nobody hears of %r any more", self.plan.name)


def cross(host: Host, node: RunningNode, plan: Plan, application: Loop | None) -> Crossing:
    kind = Crossing if application is node.loop else FarCrossing
    return kind(host, node, plan, application)


async def see_through(work: Awaitable[None]) -> None:
    """Awaits to the end, whatever happens to the caller meanwhile. A cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break  # raised below
    if cancelled is not None:
        if not task.cancelled() and task.exception() is not None:
            log.warning("%r went wrong, in a task that was cancelled", work, exc_info=task.exception())
        raise cancelled
    task.result()
