"""Every transport that this package brings keeps T1 to T8; each way to run it is a class."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import uvloop
from softmutex_adapters.transports.http import HttpTransport
from softmutex_adapters.transports.udp import UdpTransport

from softmutex.ports import Transport
from softmutex.testing import MemoryNetwork, TransportContract
from softmutex.urls import split_address
from tests.adapters.certificates import make_certificates
from tests.adapters.reverse_proxy import ReverseProxy


class TestUdp(TransportContract):
    scheme = "udp"
    can_refuse = True
    host = "127.0.0.1"
    can_forge = True
    can_collide = True

    def make(self) -> Transport:
        return UdpTransport(self.host)

    def make_at(self, address: str) -> Transport:
        return UdpTransport(*split_address(address))

    def make_public(self) -> Transport:
        return UdpTransport(self.host, advertise="ftp1.example:9431")

    async def forge(self, address: str, payload: bytes) -> None:
        host, port = split_address(address)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as forger:
            forger.sendto(payload, (host, port))


class TestUdpOverIPv6(TestUdp):
    host = "::1"


class TestUdpOnAllInterfaces(TestUdp):
    host = "0.0.0.0"
    can_collide = False
    is_private = False


class TestUdpOnAllInterfacesOfBothKinds(TestUdp):
    host = "::"
    can_collide = False
    is_private = False


class TestMemory(TransportContract):
    scheme = "memory"
    can_refuse = True
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


class TestHttp(TransportContract):
    scheme = "http"
    can_refuse = True
    can_forge = True
    can_collide = True

    def make(self) -> Transport:
        return HttpTransport(prefix="deep/inside")

    def make_at(self, address: str) -> Transport:
        return HttpTransport.from_url(address)

    def make_public(self) -> Transport:
        return HttpTransport(advertise="https://ftp1.example/softmutex")

    async def forge(self, address: str, payload: bytes) -> None:
        body = len(payload).to_bytes(2, "big") + payload
        async with aiohttp.ClientSession() as session, session.post(address + "/softmutex", data=body) as answer:
            assert answer.status == 413


class TestHttps(TransportContract):
    scheme = "https"
    mutual = False

    @pytest.fixture(autouse=True)
    def certificates(self, tmp_path: Path) -> None:
        self.files = make_certificates(tmp_path)

    def make(self) -> Transport:
        cert, key, ca = self.files
        return HttpTransport.from_url(f"https://127.0.0.1:0?cert={cert}&key={key}&ca={ca}&mutual={self.mutual}")


class TestHttpsWithCertificatesOnBothSides(TestHttps):
    mutual = True


class TestHttpBehindAReverseProxy(TransportContract):
    @pytest.fixture(autouse=True)
    async def reverse_proxy(self) -> AsyncIterator[None]:
        async with ReverseProxy() as self.proxy:
            yield

    def make(self) -> Transport:
        port, public = self.proxy.new_backend()
        return HttpTransport("127.0.0.1", port, advertise=public)


@pytest.mark.parametrize("kind", [TestUdp, TestUdpOverIPv6, TestHttp, TestMemory])
def test_promises_are_kept_on_uvloop_too(kind: type[TransportContract]) -> None:
    contract = kind()
    for name in dir(contract):
        if name.startswith("test_"):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(getattr(contract, name)())
