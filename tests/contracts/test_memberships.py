"""Every membership that this package brings keeps M1 to M13; each way to run it is a class."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from softmutex_adapters.memberships.local import LocalMembership
from softmutex_adapters.memberships.static import StaticMembership

from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract, MemoryNetwork
from tests import prepared


class TestMemory(MembershipContract):
    scheme = "memory"
    can_kill = True

    def make(self) -> Membership:
        self.network = getattr(self, "network", None) or MemoryNetwork()
        return self.network.membership()

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        other = self.make()
        await other.join(me)
        return lambda: self.network.crash(me.address)


class TestLocal(MembershipContract):
    scheme = "local"
    can_kill = True
    can_break = True
    can_refuse = True

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.base = tmp_path / "base"

    def make(self) -> Membership:
        return LocalMembership("contract", directory=str(self.base))

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        return join_in_another_process(self.base, "contract", me)

    async def break_it(self) -> None:
        self.base.rename(self.base.with_name("aside"))
        self.base.write_text("in the way")

    async def mend_it(self) -> None:
        self.base.unlink()
        self.base.with_name("aside").rename(self.base)

    def make_impossible(self) -> Membership:
        return LocalMembership("contract", directory=str(self.base / "missing" / "deeper"))


JOIN_AND_WAIT = """
import asyncio, sys
from softmutex_adapters.memberships.local import LocalMembership
from softmutex.ports import Member

async def main():
    membership = LocalMembership(sys.argv[2], directory=sys.argv[1])
    await membership.join(Member(sys.argv[3], id=int(sys.argv[4])))
    print("joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def join_in_another_process(base: Path, group: str, me: Member) -> Callable[[], None]:
    command = [sys.executable, "-c", JOIN_AND_WAIT, str(base), group, me.address, str(me.id)]
    process = prepared.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as answers:
        assert answers.readline() == b"joined\n"

    def kill() -> None:
        process.kill()
        process.wait()

    return kill


class TestStatic(MembershipContract):
    scheme = "static"
    announces = False

    def make(self) -> Membership:
        return StaticMembership([self.member(1).address, self.member(2).address, self.member(3).address])

    def make_elsewhere(self) -> Membership:
        return StaticMembership([self.member(1).address, "192.0.2.7:9431"])


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
