"""What the tests of the runtime have in common: nodes in memory, a machine on a string, and waiting for a condition."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from softmutex import Node, SoftMutex
from softmutex.core.events import (
    Depart,
    Effect,
    Event,
    Grant,
    Instant,
    Leaving,
    Lose,
    LostReason,
    Released,
    Requested,
    Started,
    Token,
    Withdrawn,
)
from softmutex.core.machine import Setup, View
from softmutex.runtime.seat import Seat
from softmutex.testing import MemoryNetwork

PATIENCE_S = 10.0


async def until(condition: Callable[[], Any | Awaitable[Any]]) -> Any:
    """Waits for the condition, a turn of the loop at a time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.001)


class Puppet:
    """A machine for one node: grants in order, one at a time, and shows what it was told."""

    name: ClassVar[str] = "puppet"
    options: ClassVar[tuple[str, ...]] = ("when_isolated",)

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.told: list[Event] = []
        self.waiting: list[int] = []
        self.holding: list[int] = []
        self.granting = True
        self.leaving = False
        self.hop = 0

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        self.told.append(event)
        match event:
            case Requested(request):
                self.waiting.append(request)
            case Withdrawn(request):
                self.waiting.remove(request)
            case Released(request):
                self.holding.remove(request)
            case Leaving():
                self.leaving = True
            case Started():
                pass
        out: list[Effect] = []
        if self.granting and self.waiting and not self.holding:
            out.append(self.grant_next())
        if self.leaving and not self.holding:
            out.append(Depart())
        return out

    def grant_next(self) -> Grant:
        request = self.waiting.pop(0)
        self.holding.append(request)
        self.hop += 1
        return Grant(request, Token(epoch=1, stamp=1, id=1, hop=self.hop))

    def view(self) -> View:
        return View((), tuple(self.holding), len(self.waiting), state="puppet")


class Pulled:
    """A node whose mutex `x` runs on a puppet, and the strings."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.life = node.life()

    @property
    def seat(self) -> Seat:
        return self.life.seats["x"]

    @property
    def puppet(self) -> Puppet:
        machine = self.seat.machine
        assert isinstance(machine, Puppet)
        return machine

    def perform(self, effect: Effect) -> None:
        self.life.perform(self.seat, effect)

    def lose(self, reason: LostReason = LostReason.OVERLAP) -> None:
        self.perform(Lose(self.puppet.holding[0], reason))

    def grant(self) -> None:
        self.perform(self.puppet.grant_next())


def puppet_mutex(node: Node, name: str = "x", **options: Any) -> SoftMutex:
    return node.mutex(name, algorithm=Puppet, **options)


def node_on(network: MemoryNetwork, **options: Any) -> Node:
    return Node(transport=network.transport(), membership=network.membership(), **options)
