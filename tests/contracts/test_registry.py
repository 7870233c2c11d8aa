"""The membership of a registry keeps its promises over HTTP, and over TLS with a certificate authority of its own."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from softmutex_adapters.memberships.registry import RegistryMembership

from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract
from tests.registry.serving import Served, join_in_another_process


class TestRegistry(MembershipContract):
    scheme = "registry+http"
    can_kill = True
    can_break = True
    can_refuse = True
    tls = False

    @pytest.fixture(autouse=True)
    async def registry(self, tmp_path: Path) -> AsyncIterator[None]:
        self.token = secrets.token_urlsafe(24)
        self.token_file = tmp_path / "token"
        self.token_file.touch(0o600)
        self.token_file.write_text(f"{self.token}\n")
        self.folder = tmp_path
        self.served = Served(tmp_path, tokens=[self.token], tls=self.tls)
        await asyncio.to_thread(self.served.start)
        yield
        await asyncio.to_thread(self.served.stop)

    def url(self, **options: object) -> str:
        return self.served.url("contract", token_file=self.token_file, public_key=self.served.public_key, **options)

    def make(self) -> Membership:
        return RegistryMembership.from_url(self.url())

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        return await asyncio.to_thread(join_in_another_process, self.url(), me)

    async def break_it(self) -> None:
        await asyncio.to_thread(self.served.kill)

    async def mend_it(self) -> None:
        await asyncio.to_thread(self.served.start)

    def make_impossible(self) -> Membership:
        wrong = self.folder / "wrong"
        wrong.touch(0o600)
        wrong.write_text("not-the-token-of-anybody")
        return RegistryMembership.from_url(self.served.url("contract", token_file=wrong))


class TestRegistryOverTls(TestRegistry):
    scheme = "registry+https"
    tls = True


async def test_m7_who_finds_no_registry_is_not_told_that_it_is_alone(no_leaks: None):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        membership = RegistryMembership([f"http://127.0.0.1:{nobody.getsockname()[1]}"], "contract")
        assert await membership.watch() == ()
        assert not membership.complete
        assert membership.pending == (f"the list of 'contract' at http://127.0.0.1:{nobody.getsockname()[1]}",)
        await membership.aclose()
