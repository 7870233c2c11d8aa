"""A name of the DNS as a membership: A, AAAA and SRV of a real name server on this host, and what may be amiss."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmutex_adapters.memberships import dns_resolver, dns_wire
from softmutex_adapters.memberships.dns import DnsMembership
from softmutex_adapters.memberships.dns_resolver import ask, ask_within, read_resolv_conf
from softmutex_adapters.memberships.dns_wire import AAAA, SRV, A, BadAnswer

from softmutex.core.errors import ConfigError
from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract
from tests.contracts.name_server import NameServer
from tests.registry.inside import until

NAME, SERVICE = "softmutex.test", "_softmutex._udp.test"


async def first_list(membership: Membership) -> list[str]:
    """Not the empty one, which a slow name server leaves room for."""
    async with asyncio.timeout(60):
        while not (shown := await membership.watch()):
            pass
    return [member.address for member in shown]


class ByDns(MembershipContract):
    announces = False
    can_break = True

    @pytest.fixture(autouse=True)
    async def server(self, no_leaks: None) -> AsyncIterator[None]:
        async with NameServer() as self.server:
            self.server.addresses[NAME] = [f"127.0.0.{number}" for number in (1, 2, 3)]
            self.server.services[SERVICE] = [(f"node-{number}.test", 9000 + number) for number in (1, 2, 3)]
            self.server.addresses.update({f"node-{number}.test": ["127.0.0.1"] for number in (1, 2, 3)})
            yield

    async def break_it(self) -> None:
        self.server.code = 2

    async def mend_it(self) -> None:
        self.server.code = 0


class TestAddresses(ByDns):
    scheme = "dns"

    def make(self) -> Membership:
        return DnsMembership.from_url(f"dns://{NAME}:9431?refresh=0.2&server=127.0.0.1:{self.server.port}")

    def member(self, number: int) -> Member:
        return Member(f"127.0.0.{number}:9431")

    async def test_who_is_new_and_who_is_gone_is_seen_one_refresh_later(self) -> None:
        async with self.made(1) as (one,):
            await self.until_shown(one, [1, 2, 3])
            self.server.addresses[NAME] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
            await self.until_shown(one, [2, 3, 4])

    async def test_an_empty_answer_and_no_answer_leave_the_last_list(self) -> None:
        async with self.made(1) as (one,):
            await self.until_shown(one, [1, 2, 3])
            for name, value in (("addresses", {NAME: []}), ("addresses", {}), ("works", False)):
                failed = one.statistics()["lookups_failed"]
                setattr(self.server, name, value)
                await until(lambda failed=failed: one.statistics()["lookups_failed"] > failed, name)
                assert one.statistics()["members"] == 3

    async def test_ipv6_addresses_are_members_too(self) -> None:
        self.server.addresses[NAME] = ["127.0.0.1", "fd00::1"]
        async with self.made(1) as (one,):
            async with asyncio.timeout(60):  # they are asked for apart: a slow answer comes with the next refresh
                while await first_list(one) != ["127.0.0.1:9431", "[fd00::1]:9431"]:
                    pass


class TestServices(ByDns):
    def make(self) -> Membership:
        return DnsMembership.from_url(f"dns://{SERVICE}?refresh=0.2&server=127.0.0.1:{self.server.port}")

    async def test_a_target_that_cannot_be_looked_up_keeps_its_address(self) -> None:
        async with self.made(1) as (one,):
            await self.until_shown(one, [1, 2, 3])
            del self.server.addresses["node-2.test"]
            lookups = one.statistics()["lookups"]
            await until(lambda: one.statistics()["lookups"] > lookups + 2, "it looked again", 100.0)
            assert one.statistics()["members"] == 3

    async def test_an_answer_that_was_cut_off_comes_by_tcp(self) -> None:
        self.server.services[SERVICE] = [(f"node-{1 + number % 3}.test", 10_000 + number) for number in range(200)]
        async with self.made(1) as (one,):
            assert len(await first_list(one)) == 200
        assert self.server.asked_by_tcp


async def test_without_a_server_the_resolver_of_the_system_is_asked(no_leaks: None, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def getaddrinfo(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (f"10.0.0.{number}", port)) for number in (2, 1)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    membership = DnsMembership.from_url("dns://softmutex.default.svc:9431")
    assert await first_list(membership) == ["10.0.0.1:9431", "10.0.0.2:9431"]
    await membership.aclose()
    assert asked == ["softmutex.default.svc"]


async def test_services_are_looked_for_in_the_domains_of_the_system(no_leaks: None, tmp_path: Path):
    conf = tmp_path / "resolv.conf"
    conf.write_text("# mine\nsearch default.svc.cluster.local cluster.local\nnameserver 10.0.0.10\noptions ndots:5\n")
    servers, domains = read_resolv_conf(conf)
    assert (servers, domains) == ([("10.0.0.10", 53)], ["", "default.svc.cluster.local", "cluster.local"])
    async with NameServer() as server:
        server.services["_s._udp.n.cluster.local"] = [("one.test", 1)]
        answer = await ask_within([("127.0.0.1", server.port)], "_s._udp.n", SRV, domains)
        assert [(one.text, one.port) for one in answer.records] == [("one.test", 1)]


async def test_a_name_server_that_is_silent_is_passed_over(no_leaks: None, monkeypatch: pytest.MonkeyPatch):
    async with NameServer() as silent, NameServer() as server:
        silent.works = False
        server.addresses["n.test"] = ["10.0.0.1"]
        for answer_s in (1.0, 30.0):  # a machine that stands still for longer is asked once more
            monkeypatch.setattr(dns_resolver, "ANSWER_S", answer_s)
            with contextlib.suppress(OSError):
                answer = await ask([("127.0.0.1", silent.port), ("127.0.0.1", server.port)], "n.test", A)
                break
        assert [one.text for one in answer.records] == ["10.0.0.1"]
        monkeypatch.setattr(dns_resolver, "ANSWER_S", 1.0)
        with pytest.raises(OSError, match="does not answer"):
            await ask([("127.0.0.1", silent.port)], "n.test", A)


async def test_m8_a_list_is_pending_until_somebody_knew_if_only_that_nobody_is_there(no_leaks: None):
    async with NameServer() as server:
        server.works = False
        membership = DnsMembership("n.test", 1, refresh=0.1, server=("127.0.0.1", server.port))
        assert await membership.watch() == ()
        assert membership.pending == ("dns://n.test",)
        server.works = True  # and says that there is no such name
        await until(lambda: not membership.pending, "somebody knew")
        await membership.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "dns://name",
        "dns://na..me:1",
        "dns://_s._udp.n:1",
        "dns://n:1?refresh=0",
        "dns://n:1?servr=h",
        f"dns://{'a' * 64}:1",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_in_words(url):
    with pytest.raises(ConfigError, match="dns://"):
        DnsMembership.from_url(url)


# --- the wire --------------------------------------------------------------------------------------------------------

QUESTION = dns_wire.question(7, NAME, A)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_an_answer_or_a_bad_one(junk, has_head):
    head = QUESTION[:2] + b"\x81\x80\0\1\0\2\0\0\0\0" + QUESTION[12:] if has_head else b""
    with contextlib.suppress(BadAnswer):
        dns_wire.read(head + junk, QUESTION)


def test_names_that_point_at_each_other_end():
    head = QUESTION[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + QUESTION[12:]
    for pointer in (len(head), len(head) + 2, 0x3FFF):
        with pytest.raises(BadAnswer):
            dns_wire.read(head + bytes([0xC0 | pointer >> 8, pointer & 255]) + bytes(14), QUESTION)


def test_the_answer_to_another_question_is_none():
    for answer in (
        dns_wire.question(8, NAME, A),
        dns_wire.question(7, NAME, AAAA),
        dns_wire.question(7, "else.test", A),
        QUESTION,  # not even an answer
    ):
        is_answer = answer is not QUESTION
        said = answer[:2] + (b"\x81\x80" if is_answer else b"\x01\x00") + answer[4:]
        with pytest.raises(BadAnswer, match="question"):
            dns_wire.read(said, QUESTION)
