"""Every transport that this package brings keeps T1 to T6; each way to run it is a class."""

import asyncio
import socket
from importlib.metadata import entry_points

import uvloop
from softmutex_adapters.transports.udp import UdpTransport

from softmutex.ports import Transport
from softmutex.testing import MemoryNetwork, TransportContract
from softmutex.urls import split_address


class TestUdp(TransportContract):
    schemes = ("udp",)
    host = "127.0.0.1"
    can_forge = True
    can_collide = True

    def make(self) -> Transport:
        return UdpTransport(self.host)

    def make_at(self, address: str) -> Transport:
        return UdpTransport(*split_address(address))

    async def forge(self, address: str, payload: bytes) -> None:
        host, port = split_address(address)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as forger:
            forger.sendto(payload, (host, port))


class TestUdpOverIPv6(TestUdp):
    host = "::1"


class TestUdpOnAllInterfaces(TestUdp):
    host = "0.0.0.0"
    can_collide = False


class TestUdpOnAllInterfacesOfBothKinds(TestUdp):
    host = "::"
    can_collide = False


class TestMemory(TransportContract):
    schemes = ("memory",)
    can_collide = True

    def make(self) -> Transport:
        self.network = getattr(self, "network", None) or MemoryNetwork()
        return self.network.transport()

    def make_at(self, address: str) -> Transport:
        return self.network.transport(address)


class TestMemoryWithFaults(TestMemory):
    keeps = 2048

    def make(self) -> Transport:
        self.network = getattr(self, "network", None) or MemoryNetwork(
            seed=3, loss=0.2, delay=0.002, jitter=0.002, duplicate=0.1
        )
        return self.network.transport()


def test_udp_keeps_its_promises_on_uvloop_too() -> None:
    contract = TestUdp()
    for name in dir(contract):
        if name.startswith("test_"):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(getattr(contract, name)())


def test_every_registered_transport_has_its_contract_test() -> None:
    registered = {entry.name for entry in entry_points(group="softmutex.transports") if "softmutex" in entry.value}
    tested = {
        scheme
        for case in globals().values()
        if isinstance(case, type) and issubclass(case, TransportContract)
        for scheme in getattr(case, "schemes", ())
    }
    assert registered == tested
