"""The membership of a registry keeps its promises over HTTP, and over TLS with a certificate authority of its own."""

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from softmutex_adapters.memberships.registry import RegistryMembership

from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract
from tests.registry.inside import unhurried
from tests.registry.serving import Served, join_in_another_process


class TestRegistry(MembershipContract):
    scheme = "registry+http"
    patience_s = 100.0
    can_kill = True
    can_break = True
    can_refuse = True
    can_ban = True
    tls = False

    @pytest.fixture(autouse=True)
    async def registry(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        unhurried(monkeypatch)
        self.token, self.admin = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.token_file = tmp_path / "token"
        self.token_file.touch(0o600)
        self.token_file.write_text(f"{self.token}\n")
        self.folder = tmp_path
        self.served = Served(tmp_path, tokens=[self.token, f"admin {self.admin}"], tls=self.tls)
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

    async def ban(self, who: Member) -> None:
        where = f"{self.served.base}/v1/groups/contract/banned/{who.id:016x}"
        trusted = ssl.create_default_context(cafile=self.served.ca) if self.tls else None
        connector = aiohttp.TCPConnector(ssl=trusted) if trusted else None
        headers = {"Authorization": f"Bearer {self.admin}"}
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.put(where, json={"why": "the contract"}) as answer,
        ):
            assert answer.status < 300, await answer.text()

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
