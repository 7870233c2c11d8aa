"""The promises of a transport hold with sealing on: what a node puts on the line is what is carried here."""

import socket
from collections.abc import Mapping, Sequence

import pytest
from softmutex_adapters.transports.http import HttpTransport
from softmutex_adapters.transports.udp import UdpTransport

from softmutex.core.messages import StatusReply
from softmutex.core.wire import Frame
from softmutex.ports import Datagram, Transport
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, TransportContract
from softmutex.urls import split_address

RING = KeyRing.of(bytes(range(32)))


class Sealed:
    """Carries datagrams of up to 1,024 bytes in sealed frames. `lives`: who is where, as greetings find out."""

    max_datagram = 1024

    def __init__(self, inner: Transport, lives: dict[str, int]) -> None:
        self._inner, self._lives = inner, lives
        self.me = len(lives) + 1000
        self.seal = Sealer(RING, "contract", self.me)
        self._sent = 0
        lives[f"not open yet: {self.me}"] = self.me

    @property
    def address(self) -> str:
        return self._inner.address

    async def open(self) -> None:
        await self._inner.open()
        self._lives[self.address] = self.me

    def send(self, address: str, payload: bytes) -> None:
        if len(payload) > self.max_datagram:
            raise ValueError(f"{len(payload)} bytes")
        self._sent += 1
        content = StatusReply(self._sent, 0, 1, payload)
        frame = Frame(self.me, self._lives.get(address.removesuffix("#visitor"), 1), "", content)
        self._inner.send(address, self.seal.seal(frame))

    async def receive(self) -> Sequence[Datagram]:
        while True:
            opened = [(each.source, self.seal.open(each.payload)) for each in await self._inner.receive()]
            told = [Datagram(source, one.message.content) for source, one in opened if isinstance(one, Frame)]
            if found := [each for each in told if each.payload]:
                return found

    async def aclose(self) -> None:
        await self._inner.aclose()

    def statistics(self) -> Mapping[str, int]:
        return {**self._inner.statistics(), **{why.value: count for why, count in self.seal.refusals.items()}}


class SealedContract(TransportContract):
    @pytest.fixture(autouse=True)
    def begin(self) -> None:
        self.lives: dict[str, int] = {}

    def make(self) -> Transport:
        return Sealed(self.inner(), self.lives)

    def inner(self) -> Transport:
        raise NotImplementedError


class TestUdpSealed(SealedContract):
    can_forge = True
    can_collide = True

    def inner(self) -> Transport:
        return UdpTransport("127.0.0.1")

    def make_at(self, address: str) -> Transport:
        return Sealed(UdpTransport(*split_address(address)), self.lives)

    async def forge(self, address: str, payload: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
            forger.sendto(payload, split_address(address))

    async def test_s2_a_datagram_that_is_sent_twice_arrives_once(self) -> None:
        """Not a promise of transports, but what sealing adds to theirs."""
        async with self.opened(2) as (here, there):
            assert isinstance(here, Sealed) and isinstance(there, Sealed)
            frame = Frame(here.me, there.me, "", StatusReply(1, 0, 1, b"once"))
            sealed = here.seal.seal(frame)
            for _ in range(10):
                await self.forge(there.address, sealed)
            here.send(there.address, b"the end")
            got: list[bytes] = []
            while b"the end" not in got:
                got += [each.payload for each in await there.receive()]
            assert got == [b"once", b"the end"]
            assert there.statistics()["replayed"] == 9


class TestMemorySealed(SealedContract):
    def inner(self) -> Transport:
        self.network = getattr(self, "network", None) or MemoryNetwork()
        return self.network.transport()


class TestHttpSealed(SealedContract):
    def inner(self) -> Transport:
        return HttpTransport("127.0.0.1")
