"""A network that lives in memory: seeded loss, delay, duplication, partitions and crashes, for tests without sockets.

What it decides: faults happen where the test says and the same way each time. The naive fake delivers everything at
once and in order, and what was tested with it breaks at the first lost datagram.

    sender --send--> [crashed? cut? lost?] --delay--> mailbox --receive--> receiver
                                  `--duplicate?--delay--^

The fate of each datagram is drawn from one seeded generator in the order of sending, so that one seed in one event
loop gives one history. Under `softmutex.testing.virtual_time()` delays cost no real time.

>>> import asyncio
>>> from softmutex.testing import MemoryNetwork, virtual_time
>>> async def main() -> list[bytes]:
...     network = MemoryNetwork(seed=7, loss=0.5, delay=0.010)
...     here, there = network.transport("here"), network.transport("there")
...     await here.open()
...     await there.open()
...     for number in range(8):
...         here.send("there", b"%d" % number)
...     await asyncio.sleep(1)
...     arrived = [datagram.payload for datagram in await there.receive()]
...     await here.aclose()
...     await there.aclose()
...     return arrived
>>> with virtual_time() as runner:
...     once, again = runner.run(main()), runner.run(main())
>>> once == again, 0 < len(once) < 8
(True, True)
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from softmutex.core.errors import ConfigError
from softmutex.mailbox import Mailbox
from softmutex.ports import CannotOpen, Closed, Datagram, Member
from softmutex.urls import Url

MAX_DATAGRAM = 1400
_NETWORKS: weakref.WeakValueDictionary[str, MemoryNetwork] = weakref.WeakValueDictionary()
_NETWORKS_LOCK = threading.Lock()


class MemoryNetwork:
    """`loss` and `duplicate` are probabilities; `delay` is one way, in seconds, and varies by up to ± `jitter`.

    All four may be changed at any time. Addresses are any strings; where none is given, they are numbered.
    `tap`, where it is set, is told of each datagram that anybody sends, whatever becomes of it: from, to, payload.
    """

    tap: Callable[[str, str, bytes], None] | None = None

    def __init__(
        self,
        *,
        seed: int = 0,
        loss: float = 0.0,
        delay: float = 0.0,
        jitter: float = 0.0,
        duplicate: float = 0.0,
    ) -> None:
        for name, value in (("loss", loss), ("duplicate", duplicate)):
            if not 0 <= value <= 1:
                raise ConfigError(f"MemoryNetwork: {name}={value} is a probability, between 0 and 1.")
        if delay < 0 or jitter < 0:
            raise ConfigError(f"MemoryNetwork: delay={delay} and jitter={jitter} are seconds, and not negative.")
        self.settings = (seed, loss, delay, jitter, duplicate)
        self.loss, self.delay, self.jitter, self.duplicate = loss, delay, jitter, duplicate
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._places: dict[str, MemoryTransport] = {}
        self._members: dict[str, Member] = {}
        self._watching: dict[MemoryMembership, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._off: set[str] = set()
        self._lock = threading.RLock()  # the nodes may live on several loops in several threads

    @classmethod
    def named(cls, name: str, **settings: float) -> MemoryNetwork:
        """The network of that name, one in a process for as long as somebody uses it."""
        with _NETWORKS_LOCK:
            network = _NETWORKS.get(name)
            asked = cls(**settings)  # type: ignore[arg-type]  # seed is whole: the URL reader saw to it
            if network is None:
                network = _NETWORKS[name] = asked
            elif settings and network.settings != asked.settings:
                raise ConfigError(f"memory://{name} exists with other settings. Give them once, or the same each time.")
            return network

    def transport(self, address: str | None = None) -> MemoryTransport:
        return MemoryTransport(self, address or f"memory-{next(self._numbers)}")

    def membership(self) -> MemoryMembership:
        return MemoryMembership(self)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where somebody listens now."""
        with self._lock:
            return tuple(self._places)

    @property
    def members(self) -> tuple[Member, ...]:
        """Who has joined, and has not left."""
        with self._lock:
            return tuple(self._members.values())

    # --- faults -----------------------------------------------------------------------------------------------------

    def partition(self, a: str | Iterable[str], b: str | Iterable[str]) -> None:
        """Nothing passes between the two sides (an address, or several) until `heal`."""
        self.cut(a, b)
        self.cut(b, a)

    def cut(self, senders: str | Iterable[str], receivers: str | Iterable[str]) -> None:
        """One way only: what `senders` send no longer reaches `receivers`."""
        with self._lock:
            self._cuts |= set(itertools.product(_several(senders), _several(receivers)))

    def heal(self) -> None:
        with self._lock:
            self._cuts.clear()

    def crash(self, address: str) -> None:
        """As `kill -9`: whoever is there neither sends nor receives any more, and says no farewell. Its host goes on,
        and refuses what is sent to it."""
        with self._lock:
            if transport := self._places.pop(address, None):
                transport.crashed = True
            self._withdraw(address)

    def switch_off(self, address: str) -> None:
        """As a power cut: from there comes nothing more, not even a refusal."""
        with self._lock:
            self._off.add(address)
        self.crash(address)

    # --- what transports and memberships call -----------------------------------------------------------------------

    def _carry(self, sender: MemoryTransport, to: str, payload: bytes) -> None:
        if self.tap is not None:
            self.tap(sender.address, to, payload)
        with self._lock:
            receiver = self._places.get(to)
            if receiver is None or sender.crashed or (sender.address, to) in self._cuts:
                sender.count("send_unreachable")
                if receiver is None and not self._is_silent(sender, to):
                    sender.hand_in(Datagram(to, b""), 2 * self._draw_delay(), sender)
                return
            if self._happens(self.loss):
                sender.count("lost")
                return
            copies = 2 if self._happens(self.duplicate) else 1
            delays = [self._draw_delay() for _ in range(copies)]
        for delay in delays:
            receiver.hand_in(Datagram(sender.address, payload), delay, sender)

    def _is_silent(self, sender: MemoryTransport, to: str) -> bool:
        """Where nobody listens: whether nobody says so either."""
        here = sender.address
        is_cut = (here, to) in self._cuts or (to, here) in self._cuts
        return sender.crashed or is_cut or to in self._off or self._happens(self.loss)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _draw_delay(self) -> float:
        if not self.jitter:
            return self.delay
        return max(0.0, self.delay + self.jitter * (2 * self._random.random() - 1))

    def _enter(self, transport: MemoryTransport) -> None:
        with self._lock:
            self._off.discard(transport.address)
            if transport.address in self._places:
                raise CannotOpen(f"memory://: the address {transport.address!r} is taken. Give each node its own.")
            self._places[transport.address] = transport

    def _quit(self, transport: MemoryTransport) -> None:
        with self._lock:
            if self._places.get(transport.address) is transport:
                del self._places[transport.address]

    def _announce(self, member: Member) -> None:
        with self._lock:
            self._members[member.address] = member
            self._tell()

    def _withdraw(self, address: str) -> None:
        with self._lock:
            if self._members.pop(address, None):
                self._tell()

    def _tell(self) -> None:
        for membership in list(self._watching):
            membership.look_again()


class MemoryTransport:
    """One place in a `MemoryNetwork`. By URL: `memory://name?seed=&loss=&delay=&jitter=&duplicate=&address=`."""

    max_datagram = MAX_DATAGRAM
    on_this_host = True  # T8: in this very process

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.crashed = False
        self._network = network
        self._address = address
        self._mailbox = Mailbox()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._on_the_way: dict[int, asyncio.TimerHandle] = {}
        self._numbers = itertools.count()
        self._counts = dict.fromkeys(
            ["sent", "received", "refused", "lost", "empty", "send_unreachable", "send_failed"], 0
        )

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        address = parts.text("address")
        network = _network_of(parts)
        return cls(network, address or f"memory-{next(network._numbers)}")

    @property
    def address(self) -> str:
        return self._address

    async def open(self) -> None:
        if self._loop is not None or self._closed:
            raise RuntimeError("this transport was opened before; make a new one")
        self._network._enter(self)
        self._loop = asyncio.get_running_loop()

    def send(self, address: str, payload: bytes) -> None:
        if len(payload) > MAX_DATAGRAM:
            raise ValueError(f"a datagram of {len(payload)} bytes is over the {MAX_DATAGRAM} of this network")
        if self._loop is None or self._closed:
            self.count("send_failed")
            return
        if not payload:  # nothing to carry, and it would look like a refusal where it arrives
            self.count("empty")
            return
        self.count("sent")
        self._network._carry(self, address, bytes(payload))

    async def receive(self) -> Sequence[Datagram]:
        return await self._mailbox.receive()

    async def aclose(self) -> None:
        self._closed = True
        self._network._quit(self)
        self._mailbox.close()
        for timer in self._on_the_way.values():
            timer.cancel()
        self._on_the_way.clear()

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "queue_overflow": self._mailbox.dropped}

    def count(self, what: str) -> None:
        self._counts[what] += 1

    def hand_in(self, datagram: Datagram, delay_s: float, sender: MemoryTransport) -> None:
        if self._loop is None:
            return
        if self._loop is sender._loop:
            self._set_off(datagram, delay_s)
            return
        try:
            self._loop.call_soon_threadsafe(self._set_off, datagram, delay_s)
        except RuntimeError:  # its loop was closed without a farewell
            sender.count("send_unreachable")

    def _set_off(self, datagram: Datagram, delay_s: float) -> None:
        if delay_s <= 0:
            self._arrive(datagram)
        elif self._loop is not None and not self._closed:
            number = next(self._numbers)
            self._on_the_way[number] = self._loop.call_later(delay_s, self._arrive, datagram, number)

    def _arrive(self, datagram: Datagram, number: int | None = None) -> None:
        if number is not None:
            del self._on_the_way[number]
        if not self.crashed and not self._closed:
            self.count("received" if datagram.payload else "refused")
            self._mailbox.put(datagram)


class MemoryMembership:
    """Who joined a `MemoryNetwork`. By URL: `memory://name`. Partitions do not touch it: it is only a hint."""

    complete = True  # M7
    on_this_host = True  # M9

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._me: Member | None = None
        self._shown: tuple[Member, ...] | None = None
        self._closed = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        return cls(_network_of(Url(url)))

    async def join(self, me: Member) -> None:
        self._me = me
        self._network._announce(me)

    async def watch(self) -> Sequence[Member]:
        self._network._watching[self] = None
        try:
            while not self._closed:
                with self._network._lock:  # else a change between looking and waiting would be missed
                    others = self._others()
                    if others == self._shown:
                        loop = asyncio.get_running_loop()
                        self._waiter = (loop, loop.create_future())
                if self._waiter is None:
                    self._shown = others
                    return others
                await self._waiter[1]
                self._waiter = None
        finally:
            self._waiter = None
            self._network._watching.pop(self, None)
        raise Closed("the membership is closed")

    def _others(self) -> tuple[Member, ...]:
        mine = self._me.address if self._me else None
        return tuple(member for address, member in sorted(self._network._members.items()) if address != mine)

    async def leave(self) -> None:
        if self._me is not None:
            self._network._withdraw(self._me.address)
            self._me = None

    async def aclose(self) -> None:
        await self.leave()
        self._closed = True
        self.look_again()

    def group_key(self) -> bytes | None:
        return None

    def statistics(self) -> Mapping[str, int]:
        return {"members": len(self._network._members)}

    def look_again(self) -> None:
        """Something changed: whoever waits in `watch` compares again. From any thread."""
        waiter = self._waiter
        if waiter is None:
            return
        try:
            waiter[0].call_soon_threadsafe(_resolve, waiter[1])
        except RuntimeError:  # its loop was closed without a farewell
            self._network._watching.pop(self, None)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _network_of(parts: Url) -> MemoryNetwork:
    settings = {
        "loss": parts.number("loss", -1, high=1),
        "delay": parts.number("delay", -1),
        "jitter": parts.number("jitter", -1),
        "duplicate": parts.number("duplicate", -1, high=1),
        "seed": parts.integer("seed", -1),
    }
    parts.finish()
    return MemoryNetwork.named(parts.place, **{name: value for name, value in settings.items() if value >= 0})


def _several(side: str | Iterable[str]) -> list[str]:
    return [side] if isinstance(side, str) else list(side)
