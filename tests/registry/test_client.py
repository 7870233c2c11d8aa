"""The member's side: what a registry may do to it, and what it says to whom. No list is lost, and nothing is raised."""

import asyncio
import contextlib
import datetime
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from softmutex_adapters.memberships import registry as memberships
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.client import RegistryClient, Trouble, explain_certificate
from softmutex_adapters.registry.sqlite_store import SqliteStore
from softmutex_adapters.registry.tokens import Tokens

from softmutex import Node, plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Member
from tests.ports import kept_port
from tests.registry.inside import inside, later, until
from tests.sight import Sight

ME, YOU = Member("10.0.0.1:1", 1, "me"), Member("10.0.0.1:2", 2, "you")
SIGNER = wire.Signer(bytes(32))


@contextlib.asynccontextmanager
async def member(*bases: str, group: str = "g", **options: Any) -> AsyncIterator[RegistryMembership]:
    membership = RegistryMembership(bases, group, **options)
    try:
        yield membership
    finally:
        await membership.aclose()


async def shows(membership: RegistryMembership, *addresses: str) -> None:
    async with asyncio.timeout(60):
        while [one.address for one in await membership.watch()] != list(addresses):
            pass


# --- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("registry+http://reg:9430", "is no name of a group"),
        ("registry+http:///lab", "names no registry"),
        ("registry+http://reg:x/lab", "names no port"),
        ("registry+https://reg/lab?public_key=abc", "public_key: 'abc'"),
        ("registry+http://reg/lab?tokenfile=x", "Did you mean 'token_file'?"),
    ],
)
def test_a_url_that_cannot_be_followed_is_an_error_that_says_why(url: str, said: str):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        plugins.membership(url)


async def test_several_registries_default_ports_and_ipv6_are_understood(no_leaks: None, caplog: Any):
    membership = RegistryMembership.from_url("registry+https://reg1.test,reg2.test:99,[::1]:9/lab")
    assert await membership.watch() == ()
    await until(lambda: membership.statistics()["troubles"] >= 3, "all were asked")
    for base in ("https://reg1.test:9430", "https://reg2.test:99", "https://[::1]:9"):
        assert f"{base} " in caplog.text
    await membership.aclose()


# --- who is alone, and who only seems so -----------------------------------------------------------------------------


async def test_it_is_complete_once_it_is_listed_and_the_list_has_settled(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with inside(tmp_path) as registry, member(registry.base) as one:
        await one.join(ME)
        assert one.complete, "nobody has spoken of this group before"
    async with inside(tmp_path) as registry:
        async with member(registry.base) as one:
            await one.join(ME)
            assert not one.complete, "the store may be older than what members have seen"
            later(monkeypatch, registry.hub.settle_s, registry.hub)
            await until(lambda: one.complete, "after half a lease it has settled")
        async with member(registry.base) as one:
            await one.join(ME)
            assert one.complete


async def test_it_is_not_complete_when_the_registry_has_been_gone_for_a_lease(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with contextlib.AsyncExitStack() as stack:
        async with inside(tmp_path) as registry:
            one = await stack.enter_async_context(member(registry.base))
            await one.join(ME)
            await until(lambda: one.complete, "it has settled")
        assert one.complete, "a restart is no reason to doubt"
        later(monkeypatch, registry.hub.ttl_s, registry.hub)
        await until(lambda: not one.complete, "nobody knows who has joined elsewhere meanwhile")


async def test_who_is_dropped_from_the_list_comes_back_at_once(no_leaks: None, tmp_path: Path, caplog: Any):
    store = SqliteStore(str(tmp_path / "registry.db"))
    async with (
        inside(tmp_path, store=store) as registry,
        member(registry.base) as one,
        member(registry.base) as onlooker,
    ):
        await one.join(ME)
        await shows(onlooker, ME.address)
        stored = await store.read("g")
        assert stored is not None
        [its] = stored.entries
        await registry.hub.drop("g", its)
        await shows(onlooker)
        await shows(onlooker, ME.address)
        await until(lambda: "had dropped this node from the list; it is back" in caplog.text, "it says so")


# --- registries come and go ------------------------------------------------------------------------------------------


async def test_when_its_registry_dies_it_goes_to_another_one(no_leaks: None, tmp_path: Path, monkeypatch: Any):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    monkeypatch.setattr(memberships.random, "sample", lambda bases, count: list(bases))
    async with contextlib.AsyncExitStack() as stack:
        async with inside(tmp_path / "a") as first:
            second = await stack.enter_async_context(inside(tmp_path / "b", signer=first.hub.signer))
            one = await stack.enter_async_context(member(first.base, second.base))
            await one.join(ME)
            assert await second.listed("g") == []
        await until(lambda: "g" in second.hub.groups and second.hub.groups["g"].entries, "it joins there")


async def test_without_any_registry_join_returns_says_so_and_joins_when_one_comes(
    no_leaks: None, tmp_path: Path, monkeypatch: Any, caplog: Any
):
    monkeypatch.setattr(memberships, "JOIN_S", 0.3)
    with kept_port() as port:
        async with member(f"http://127.0.0.1:{port}") as one:
            await one.join(ME)
            assert "They are asked again; without a list nothing begins here" in caplog.text
            await until(lambda: "Does `softmutex registry` run there" in caplog.text, "it says what to do")
            assert await one.watch() == ()
            assert not one.complete
            told = len(caplog.records)
            await until(lambda: one.statistics()["troubles"] >= 5, "it tries again and again")
            assert len(caplog.records) == told, "and says so once"
            async with inside(tmp_path, port=port) as registry, member(registry.base) as onlooker:
                await shows(onlooker, ME.address)


# --- registries that are wrong ---------------------------------------------------------------------------------------

Answer = Callable[[web.BaseRequest], Any]


@contextlib.asynccontextmanager
async def impostor(answer: Answer) -> AsyncIterator[str]:
    """Answers events as it is told to, and takes every member in."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "PUT":
            return web.json_response({"version": 1, "ttl_s": 60}, headers=signed(request))
        if request.method == "DELETE":
            return web.json_response({"version": 1})
        response: web.StreamResponse = await answer(request)
        return response

    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def signed(request: web.BaseRequest) -> dict[str, str]:
    told = SIGNER.fresh("g", request.headers[wire.NONCE_HEADER], 1)
    return {wire.KEY_HEADER: SIGNER.public, wire.FRESH_HEADER: told}


def stream(*events: bytes, stays: bool = True, **headers: str) -> Answer:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        told = {**signed(request), "Content-Type": "text/event-stream"} | headers
        response = web.StreamResponse(headers=told)
        await response.prepare(request)
        for event in events:
            await response.write(event)
        if stays:
            await asyncio.Event().wait()
        return response

    return answer


def page(text: str, status: int = 200, **headers: str) -> Answer:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=text, status=status, headers=headers)

    return answer


def event(version: int, *members: Member, group: str = "g", signer: wire.Signer = SIGNER) -> bytes:
    entries = [wire.entry(f"a-lease-of-number-{one.id}", one) for one in members]
    line = wire.write(group, version, None, 0.0, entries, [])
    return wire.event(version, line, signer.sign(line))


SET_BACK = stream(event(9, YOU), event(8))
WRONG = {
    "a page": (page("<html>hello"), "answers, but not as a registry of softmutex does"),
    "nothing there": (page("no", 404), "answers, but not as a registry of softmutex does"),
    "nonsense": (stream(b"event: members\ndata: 1\n\n"), "answers, but not as a registry of softmutex does"),
    "no list": (stream(wire.event(1, b"{}", SIGNER.sign(b"{}"))), "no member list"),
    "another group": (stream(event(9, YOU, group="h")), "sent the list of 'h' instead of 'g'"),
    "wrong signature": (stream(event(9, YOU, signer=wire.Signer(b"x" * 32))), "whose signature is wrong"),
    "failing": (page("oh", 500), "fails (HTTP 500: 'oh'). Its log says why"),
    "busy": (page("full", 503, **{"Retry-After": "0"}), "asks to come again later: full"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_a_registry_does_wrong_is_told_once_and_tried_again(no_leaks: None, what: str, caplog: Any):
    answer, said = WRONG[what]
    async with impostor(answer) as base, member(base) as onlooker:
        assert await onlooker.watch() == ()
        await until(lambda: onlooker.statistics()["troubles"] >= 3, "it tries again")
        told = [record.getMessage() for record in caplog.records if record.name == "softmutex.membership"]
        assert len(told) == 1 and said in told[0] and base in told[0]


async def test_a_list_that_goes_back_is_refused_and_the_last_one_stands(no_leaks: None, caplog: Any):
    async with impostor(SET_BACK) as base, member(base) as onlooker:
        async with Sight(onlooker) as sight:
            await until(lambda: sight.addresses() == {YOU.address}, "the first one is taken")
            await until(lambda: onlooker.statistics()["lists_refused"], "the older one is refused")
            assert sight.addresses() == {YOU.address}
        assert onlooker.statistics()["members"] == 1
        assert (
            "shows version 8 of the list, and this node has seen 9: its store or its clock was set back" in caplog.text
        )


async def test_a_registry_with_another_key_than_the_pinned_one_is_no_registry(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        async with member(registry.base, public_key=SIGNER.public) as one:
            with pytest.raises(CannotOpen, match="another registry, or it was set up anew"):
                await one.join(ME)
        async with member(registry.base, public_key=registry.hub.signer.public) as one:
            await one.join(ME)


async def test_clocks_that_differ_by_a_day_are_told_and_harm_nothing(no_leaks: None, caplog: Any):
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    answer = stream(event(9, YOU), Date=format_datetime(yesterday, usegmt=True))
    async with impostor(answer) as base, member(base) as onlooker:
        await shows(onlooker, YOU.address)
        await until(lambda: "differ by 24.0 hours" in caplog.text, "it says so")
        assert onlooker.complete


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("certificate has expired", "renew it"),
        ("certificate is not yet valid", "one of the two clocks is wrong"),
        ("self-signed certificate", "?ca=FILE"),
    ],
)
def test_a_certificate_that_is_not_trusted_has_a_remedy(said: str, remedy: str):
    error = ssl.SSLCertVerificationError(said)
    error.verify_message = said
    trouble = explain_certificate("https://reg", error)
    assert remedy in str(trouble) and said in str(trouble) and trouble.is_final


# --- tokens ----------------------------------------------------------------------------------------------------------


def token_file(folder: Path, token: str, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(token)
    path.chmod(mode)
    return str(path)


async def test_a_wrong_token_is_told_at_join_and_a_right_one_taken_from_the_file_without_a_restart(
    no_leaks: None, tmp_path: Path, caplog: Any
):
    right, wrong = "r" * 20, "w" * 20
    path = token_file(tmp_path, wrong)
    async with inside(tmp_path, tokens=Tokens([right])) as registry, member(registry.base, token_file=path) as one:
        with pytest.raises(CannotOpen, match="the token is missing or wrong"):
            await one.join(ME)
        assert await one.watch() == ()
        token_file(tmp_path, right)
        await one.join(ME)
        assert [entry.member for entry in registry.hub.groups["g"].entries.values()] == [ME]


@pytest.mark.parametrize(
    ("mode", "content", "said"), [(0o644, "t" * 20, "chmod 600"), (0o600, "", "holds no token"), (0, None, "No such")]
)
async def test_a_token_file_that_others_can_read_or_nobody_is_refused(
    no_leaks: None, tmp_path: Path, mode: int, content: str | None, said: str
):
    path = token_file(tmp_path, content, mode) if content is not None else str(tmp_path / "missing")
    async with member("http://127.0.0.1:9", token_file=path) as one:
        with pytest.raises(CannotOpen, match=said):
            await one.join(ME)


async def test_an_authority_file_that_is_none_is_refused(no_leaks: None, tmp_path: Path):
    with pytest.raises(Trouble, match="Name a PEM file"):
        RegistryClient("g", token_file=None, public_key=None, ca=str(tmp_path / "missing.pem"))


# --- nodes -----------------------------------------------------------------------------------------------------------


async def test_two_nodes_meet_at_a_registry_and_the_token_wanders_on_while_it_is_gone(
    no_leaks: None, tmp_path: Path, caplog: Any
):
    async with contextlib.AsyncExitStack() as stack:
        async with inside(tmp_path) as registry:
            options = {"transport": "udp://127.0.0.1:0", "key": b"k" * 32}
            options["membership"] = f"registry+http://127.0.0.1:{registry.port}/lab"
            nodes = [await stack.enter_async_context(Node(**options)) for _ in range(2)]
            mutexes = [node.mutex("it") for node in nodes]
            for mutex in mutexes:
                async with mutex.hold(timeout=60):
                    pass
        caplog.set_level(logging.WARNING, "softmutex")
        for _ in range(10):
            for mutex in mutexes:
                async with mutex.hold(timeout=60) as hold:
                    assert hold.peers == 1
        assert all(len(node.peers()) == 1 for node in nodes)
