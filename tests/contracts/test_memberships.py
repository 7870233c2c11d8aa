"""Every membership that this package brings keeps M1 to M6; each way to run it is a class."""

import socket
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import pytest
from softmutex_adapters.memberships.static import StaticMembership

from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract, MemoryNetwork


class TestMemory(MembershipContract):
    schemes = ("memory",)
    can_kill = True

    def make(self) -> Membership:
        self.network = getattr(self, "network", None) or MemoryNetwork()
        return self.network.membership()

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        other = self.make()
        await other.join(me)
        return lambda: self.network.crash(me.address)


class TestStatic(MembershipContract):
    schemes = ("static",)
    announces = False

    def make(self) -> Membership:
        return StaticMembership([self.member(1).address, self.member(2).address, self.member(3).address])


class TestStaticWithNames(MembershipContract):
    announces = False
    can_break = True

    @pytest.fixture(autouse=True)
    def name_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works = True

        def getaddrinfo(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
            if not self.works:
                raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
            return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def make(self) -> Membership:
        return StaticMembership(["one.test:9001", "two.test:9002", "three.test:9003"], refresh=0.1)

    async def break_it(self) -> None:
        self.works = False

    async def mend_it(self) -> None:
        self.works = True


def test_every_registered_membership_has_its_contract_test() -> None:
    registered = {entry.name for entry in entry_points(group="softmutex.memberships") if "softmutex" in entry.value}
    tested = {
        scheme
        for case in globals().values()
        if isinstance(case, type) and issubclass(case, MembershipContract)
        for scheme in getattr(case, "schemes", ())
    }
    assert registered == tested
