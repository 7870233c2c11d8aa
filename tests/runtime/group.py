"""What the tests of the runtime have in common: nodes in memory, a machine on a string, strangers, and waiting.

All of it stands outside: a node is known by what it says, shows and lets the application do, never by its inside.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from softmutex import Node, SoftMutex, sync
from softmutex.core.events import (
    SECOND,
    Depart,
    Effect,
    Event,
    Fired,
    Grant,
    Instant,
    Leaving,
    Lose,
    LostReason,
    NodeId,
    Released,
    Requested,
    SetTimer,
    Started,
    Withdrawn,
)
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.core.messages import Challenge, Hello, Message, Welcome
from softmutex.core.wire import Frame, decode, encode
from softmutex.ports import Closed, Member, Transport
from softmutex.runtime.keys import group_fingerprint, seal_with
from softmutex.runtime.status import Visitor
from softmutex.testing import MemoryNetwork, MemoryTransport

PATIENCE_S = 100.0
GROUP = group_fingerprint("default")


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


def node_on(network: MemoryNetwork, **options: Any) -> Node:
    return Node(transport=network.transport(), membership=network.membership(), **options)


# --- a machine on a string --------------------------------------------------------------------------------------------


class Puppet(Algorithm):
    """A machine for one node: grants in order, one at a time, and shows what it was told.

    What is pulled (an effect, or something that makes one) it does a moment later, as if a message had come.
    """

    name: ClassVar[str] = "puppet"
    looks_every: ClassVar[int] = SECOND // 1000
    made: ClassVar[WeakValueDictionary[NodeId, Puppet]] = WeakValueDictionary()

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.told: list[Event] = []
        self.waiting: list[int] = []
        self.holding: list[int] = []
        self.granting = True
        self.leaving = False
        self.hop = 0
        self.pulled: deque[Effect | Callable[[], Effect]] = deque()
        self.made[setup.me] = self

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out: list[Effect] = []
        match event:
            case Fired("strings"):
                out += [SetTimer("strings", now + self.looks_every), *self._take_what_was_pulled()]
            case Requested(request):
                self.waiting.append(request)
            case Withdrawn(request):
                self.waiting.remove(request)
            case Released(request):
                self.holding.remove(request)
            case Leaving():
                self.leaving = True
            case Started():
                out.append(SetTimer("strings", now + self.looks_every))
        if not isinstance(event, Fired):
            self.told.append(event)
        if self.granting and self.waiting and not self.holding:
            out.append(self.grant_next())
        if self.leaving and not self.holding:
            out.append(Depart())
        return out

    def _take_what_was_pulled(self) -> list[Effect]:
        effects = [each() if callable(each) else each for each in self.pulled]
        self.pulled.clear()
        return effects

    def grant_next(self) -> Grant:
        request = self.waiting.pop(0)
        self.holding.append(request)
        self.hop += 1
        return Grant(request, epoch=1, hop=self.hop)

    def view(self) -> View:
        return View((), tuple(self.holding), len(self.waiting), state="puppet")

    # --- the strings; from any thread ---------------------------------------------------------------------------------

    def pull(self, effect: Effect | Callable[[], Effect]) -> None:
        self.pulled.append(effect)

    def lose(self, reason: LostReason = LostReason.OVERLAP) -> None:
        request = self.holding[0]
        self.pull(Lose(request, reason))

    def grant(self) -> None:
        self.pull(self.grant_next)

    async def done(self) -> None:
        """All that was pulled was done."""
        await until(lambda: not self.pulled)


def puppet_mutex(node: Node, name: str = "x", **options: Any) -> SoftMutex:
    return node.mutex(name, algorithm=Puppet, **options)


def puppet_of(node: Node | sync.Node) -> Puppet:
    """The machine of the mutex that `puppet_mutex` gave, as soon as it was used."""
    return Puppet.made[node.id]


async def perform(node: Node, effect: Effect) -> None:
    """As if the machine of the puppet mutex of this node had come to that."""
    puppet_of(node).pull(effect)
    await puppet_of(node).done()


# --- strangers --------------------------------------------------------------------------------------------------------


class Stranger:
    """Somebody at an address who says what the test wants, and hears what is said to it."""

    def __init__(self, transport: MemoryTransport, id: int) -> None:
        self.transport = transport
        self.id = id
        self.heard: list[Frame] = []
        self.sizes: list[int] = []

    async def open(self) -> None:
        await self.transport.open()
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        await self.transport.aclose()
        await self._task

    async def __aenter__(self) -> Stranger:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def _listen(self) -> None:
        try:
            while True:
                for datagram in await self.transport.receive():
                    self.heard.append(decode(datagram.payload))
                    self.sizes.append(len(datagram.payload))
        except Closed:
            return

    def say(self, to: Node, message: Message, receiver: int | None = None, mutex: str = "") -> int:
        frame = encode(Frame(self.id, to.id if receiver is None else receiver, mutex, message))
        self.transport.send(to.address, frame)
        return len(frame)

    async def hear(self, kind: type[Message]) -> Frame:
        return await until(lambda: next((each for each in self.heard if isinstance(each.message, kind)), None))

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(frame.message, kind) for frame in self.heard)

    async def introduce(self, to: Node, name: str) -> None:
        """Greets properly: with the cookie that it was given."""
        self.heard.clear()
        self.say(to, Hello(7, 0, GROUP, False, ""), receiver=0)
        self.say(to, Hello(7, await self.cookie(), GROUP, False, name))
        await self.hear(Welcome)

    async def cookie(self) -> int:
        challenge = (await self.hear(Challenge)).message
        assert isinstance(challenge, Challenge)
        return challenge.cookie


async def opened(network: MemoryNetwork, address: str, id: int = 4711) -> Stranger:
    stranger = Stranger(network.transport(address), id)
    await stranger.open()
    return stranger


class Overheard:
    """All frames that cross a network without keys, with where they go."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.frames: list[tuple[str, Frame]] = []
        network.tap = lambda _source, to, payload: self.frames.append((to, decode(payload)))

    def of(self, kind: type[Message], sender: NodeId) -> list[Frame]:
        return [frame for _, frame in self.frames if isinstance(frame.message, kind) and frame.sender == sender]


# --- what a node shows to visitors ----------------------------------------------------------------------------------


async def shown(
    node: Node, by: Transport, keys: Sequence[bytes] = (), group: str = "default", at: str | None = None
) -> Any:
    """The document that `softmutex status` gets from this node; `by`: a transport of the visitor's own."""
    me = secrets.randbits(63) + 1
    await by.open()
    visitor = Visitor(by, seal_with(keys, group, me), me)
    listening = asyncio.create_task(visitor.listen())
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await visitor.ask(Member(at or node.address, node.id))
    finally:
        await by.aclose()
        await listening


async def mutex_shown(node: Node, network: MemoryNetwork, name: str = "x") -> Any:
    """What it says there of one mutex; None where it takes no part in it."""
    document = await shown(node, network.transport())
    return next((each for each in document["mutexes"] if each["name"] == name), None)
