"""One mutex, as one application uses it on one life of a node: the way there, and the way back.

The application and the node live on one loop (the normal case), or on two loops in two threads (`Node(thread=True)`,
`sync`). The naive way, one class for each, has each rule about cancellation twice. Here only the crossing differs:

    application --to_node--> Life.ask, Seat.withdraw, Seat.release      the same loop: an ordinary call
    application <--to_application-- Hold._wake, _on_lost, _on_overrun   another one: loop.call_soon_threadsafe
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVarTuple, Unpack

from softmutex.core.errors import AcquireTimeout, NodeClosed
from softmutex.core.events import SECOND
from softmutex.ports import Observation
from softmutex.runtime import forks
from softmutex.runtime.claim import Claim
from softmutex.runtime.config import Settings
from softmutex.runtime.statistics import MutexStatistics
from softmutex.runtime.terms import Plan

if TYPE_CHECKING:
    from softmutex.runtime.node import Life

Ts = TypeVarTuple("Ts")

log = logging.getLogger("softmutex")

OUTCOMES: dict[type, str] = {type(None): "granted", AcquireTimeout: "timeout"}

_looked_after: set[asyncio.Future[Any]] = set()


class Host(Protocol):
    """Where a mutex gets the life of a node from: a `Node`, or a node of its own for as long as it is used."""

    lends_for_a_while: bool  # True: `lend` and `take_back` each; False: `life` is enough

    def settings(self) -> Settings: ...

    def life(self) -> Life: ...

    async def lend_within(self, mutex: str, limit_s: float | None) -> Life: ...

    async def take_back(self) -> None: ...

    def mutex_statistics(self, name: str) -> MutexStatistics: ...


class Use:
    __slots__ = ("application", "direct", "host", "life", "plan", "resource")

    def __init__(self, host: Host, life: Life, plan: Plan, application: asyncio.AbstractEventLoop | None) -> None:
        """`application`: the loop that it lives on; None where it is a thread without one."""
        self.host = host
        self.life = life
        self.plan = plan
        self.application = application
        self.direct = application is life.loop
        self.resource: Hashable = (*life.where, plan.name)

    @property
    def each(self) -> int:
        """How many holds one node may have at once."""
        return self.plan.terms.holds_of_one_node()

    # --- there and back ---------------------------------------------------------------------------------------------

    def to_node(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        if self.direct:
            call(*args)
            return
        if self.life.born != forks.count():
            self.life.check_usable()
        try:
            self.life.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            raise NodeClosed("the node is closed.") from None

    def to_application(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        if self.direct or self.application is None:
            call(*args)
            return
        try:
            self.application.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("the loop of the application is closed; nobody hears of %r any more", self.plan.name)

    def ask(self, claim: Claim) -> None:
        self.to_node(self.life.ask, self.plan, claim)

    def withdraw(self, claim: Claim) -> None:
        self.to_node(self.life.withdraw, claim)

    async def give_back(self, claim: Claim, error: BaseException | None) -> None:
        """Ends a hold. Raises nothing of its own: neither the node's troubles nor, over an error of the body, a
        cancellation that comes meanwhile."""
        try:
            self.release(claim)
        except Exception as trouble:
            log.warning("the mutex %r could not be handed on in good order: %r", self.plan.name, trouble)
        await self.come_back(error)

    async def come_back(self, error: BaseException | None) -> None:
        """A node that was lent for this use alone leaves in good order."""
        if not self.host.lends_for_a_while:
            return
        try:
            await see_through(self.host.take_back())
        except asyncio.CancelledError:
            if error is None:
                raise
        except Exception as trouble:
            log.warning("the node of the mutex %r could not leave in good order: %r", self.plan.name, trouble)

    def release(self, claim: Claim) -> None:
        life = self.life
        if not life.observers:
            self.to_node(life.release, claim, b"")
            return
        held_s = (life.now() - claim.granted_at) / SECOND
        ended = Observation(self.plan.name, life.id, "hold_ended", {"request": claim.request, "seconds": held_s})
        try:
            self.to_node(life.release, claim, life.observers.baggage(ended))
        finally:
            life.observers.notice(ended)

    # --- observers, in the application's own context ------------------------------------------------------------------

    def tell_waiting(self, claim: Claim) -> None:
        if self.life.observers.look():
            values: Mapping[str, float | int | str] = {"claim": id(claim), "algorithm": self.plan.terms.algorithm}
            self.life.observers.notice(Observation(self.plan.name, self.life.id, "wait_started", values))

    def tell_waited(self, claim: Claim, outcome: str = "") -> None:
        life = self.life
        if not life.observers:
            return
        if not outcome:
            outcome = OUTCOMES.get(type(claim.error), "closed")
        waited_s = (life.now() - claim.asked_at) / SECOND
        values: dict[str, float | int | str] = {"claim": id(claim), "outcome": outcome, "seconds": waited_s}
        life.observers.notice(Observation(self.plan.name, life.id, "wait_ended", values))
        if outcome == "granted":
            grant = claim.grant
            begun: dict[str, float | int | str] = {
                "claim": id(claim),
                "request": claim.request,
                "algorithm": self.plan.terms.algorithm,
                "epoch": grant.epoch,
                "hop": grant.hop,
                "baggage": grant.baggage.hex(),
            }
            life.observers.notice(Observation(self.plan.name, life.id, "hold_started", begun))

    def look_after(self, work: Awaitable[Any]) -> None:
        """Lets a coroutine of the application run beside it; what it raises is logged."""

        def done(task: asyncio.Future[Any]) -> None:
            _looked_after.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.error("a reaction to a hold of %r failed", self.plan.name, exc_info=task.exception())

        task = asyncio.ensure_future(work)
        _looked_after.add(task)
        task.add_done_callback(done)


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
