"""Between a member and its registry: who listens, plays back, holds back or steps in on the way, gets nowhere."""

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from softmutex_adapters.memberships import registry as memberships
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.pins import Pins

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Member
from softmutex.runtime.config import resolve, with_places
from tests.registry.inside import inside, until
from tests.sight import Sight

ME, YOU = Member("10.0.0.1:1", 1, "me"), Member("10.0.0.1:2", 2, "you")
PLAIN = "registry+http://registry.lab:9430/lab"
SIGNER, OTHER = wire.Signer(bytes(32)), wire.Signer(b"x" * 32)


@contextlib.asynccontextmanager
async def member(*bases: str, **options: Any) -> AsyncIterator[RegistryMembership]:
    membership = RegistryMembership(bases, "g", report=False, **options)
    try:
        yield membership
    finally:
        await membership.aclose()


# --- in plain text ---------------------------------------------------------------------------------------------------


def test_a_token_does_not_travel_in_plain_text_beyond_this_host_unless_it_is_said():
    for url in (PLAIN, "registry+http://127.0.0.1:9430,10.0.0.7:9430/lab"):
        with pytest.raises(ConfigError, match=r"in plain text.*registry\+https.*insecure=yes"):
            plugins.membership(url)
    for url in (f"{PLAIN}?insecure=yes", "registry+http://localhost/lab", "registry+http://[::1]:1/lab"):
        plugins.membership(url)
    plugins.membership(PLAIN.replace("http", "https"))


def test_what_the_node_was_told_holds_for_its_membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for said in ({"membership": f"{PLAIN}?insecure=yes"}, {"membership": PLAIN, "insecure": True}):
        settings = with_places(resolve(said, environ={}))
        assert settings["insecure"] is True
        plugins.membership(settings["membership"])
    with pytest.raises(ConfigError, match="in plain text"):
        plugins.membership(with_places(resolve({"membership": PLAIN}, environ={}))["membership"])


# --- played back, held back ------------------------------------------------------------------------------------------


class Between:
    """Answers as it was told, or as a registry with `signer` would; has seen what came by."""

    def __init__(self, *, signer: wire.Signer | None = SIGNER, line: tuple[bytes, str] | None = None) -> None:
        self.signer, self.line = signer, line
        self.version = 9  # of the list that it shows
        self.newest = 9  # what it signs as the newest
        self.base = ""

    def fresh(self, request: web.BaseRequest, version: int) -> dict[str, str]:
        nonce = request.headers.get(wire.NONCE_HEADER, "")
        public = self.signer.public if self.signer else SIGNER.public
        told = (
            self.signer.fresh("g", nonce, version) if self.signer else SIGNER.fresh("g", "an-old-nonce-of-a-request", 9)
        )
        return {wire.KEY_HEADER: public, wire.FRESH_HEADER: told}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "PUT":
            told = {"version": min(self.version, self.newest), "ttl_s": 2}
            return web.json_response(told, headers=self.fresh(request, self.newest))
        if request.method == "DELETE":
            return web.json_response({"version": 1})
        headers = self.fresh(request, self.version) | {"Content-Type": "text/event-stream"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        signer = self.signer or SIGNER
        line = wire.write("g", self.version, None, 0.0, [wire.entry("a-lease-of-number-2", YOU)], [])
        line, signature = self.line or (line, signer.sign(line))
        await response.write(wire.event(self.version, line, signature))
        await asyncio.Event().wait()
        return response


@contextlib.asynccontextmanager
async def between(**options: Any) -> AsyncIterator[Between]:
    it = Between(**options)
    runner = web.ServerRunner(web.Server(it.answer, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield it
    finally:
        await runner.cleanup()


async def test_an_old_signed_list_that_is_played_back_is_not_taken(
    no_leaks: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        path = f"{registry.base}/v1/groups/g/members"
        async with registry.session.get(path) as answer:
            line, signature = await answer.read(), answer.headers[wire.SIGNATURE_HEADER]
        public = registry.hub.signer.public
    assert wire.is_signed_by(public, line, signature)
    async with between(signer=None, line=(line, signature)) as it, member(it.base) as one, Sight(one) as sight:
        await until(lambda: one.statistics()["troubles"] >= 2, "it is refused")
        assert not one.complete
        assert sight.others == ()
    assert "an answer to another request" in caplog.text


async def test_the_real_one_signs_what_this_very_request_asked_with(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry, member(registry.base, public_key=registry.hub.signer.public) as one:
        await one.join(ME)
        assert one.complete
        nonce = "n" * 22
        for path in ("members", "events?wait=0.01"):
            url = f"{registry.base}/v1/groups/g/{path}"
            async with registry.session.get(url, headers={wire.NONCE_HEADER: nonce}) as answer:
                told = answer.headers[wire.FRESH_HEADER]
                assert wire.read_fresh(registry.hub.signer.public, "g", nonce, told) == registry.hub.groups["g"].version
                with pytest.raises(wire.Nonsense):
                    wire.read_fresh(registry.hub.signer.public, "g", "m" * 22, told)
                with pytest.raises(wire.Nonsense):
                    wire.read_fresh(registry.hub.signer.public, "h", nonce, told)


async def test_a_list_that_is_held_back_is_not_called_whole(no_leaks: None):
    async with between() as it, member(it.base) as one:
        await one.join(ME)
        await until(lambda: one.complete, "it is fresh")
        it.newest = 12  # the registry tells so with the next renewal; the stream is silent
        await until(lambda: not one.complete, "changes are held back")


# --- steps in --------------------------------------------------------------------------------------------------------


async def test_the_first_key_stands_for_the_life_of_a_member(no_leaks: None):
    async with between() as it, member(it.base) as one, Sight(one) as sight:
        await until(lambda: one.complete and sight.others == (YOU,), "it is fresh")
        it.signer = OTHER  # whoever took the address
        with pytest.raises(CannotOpen, match="the first time"):
            await one.join(ME)
        assert sight.others == (YOU,), "the last list stands"


async def test_beyond_this_host_the_first_key_is_kept_and_another_one_refused(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(memberships, "is_loopback", lambda host: False)
    async with between() as it:
        async with member(it.base, insecure=True) as one:
            await one.join(ME)
            await until(lambda: one.complete, "it is fresh")
        kept = tmp_path / ".config" / "softmutex" / "known-registries"
        assert kept.read_text() == f"{it.base.removeprefix('http://')} {SIGNER.public}\n"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        it.signer = OTHER
        async with member(it.base, insecure=True) as one:
            with pytest.raises(CannotOpen, match=rf"signs with the key {OTHER.public}.*{kept}"):
                await one.join(ME)
        kept.write_text("")
        async with member(it.base, insecure=True) as one:
            await one.join(ME)
        assert OTHER.public in kept.read_text()


async def test_what_is_given_goes_before_what_is_kept(no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(memberships, "is_loopback", lambda host: False)
    async with between() as it:
        Pins.of_user().learn(it.base, OTHER.public)
        async with member(it.base, insecure=True, public_key=SIGNER.public) as one:
            await one.join(ME)


def test_keys_are_kept_by_address_and_garbage_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    pins = Pins.of_user()
    assert pins.known(["http://one:9430"]) is None
    pins.learn("http://one:9430", SIGNER.public)
    pins.learn("http://two:9430", OTHER.public)
    assert pins.path is not None
    with pins.path.open("a") as file:
        file.write("garbage\n\nthree:1 short\n")
    assert pins.known(["https://none:1", "http://two:9430"]) == OTHER.public, "one key for all registries of a URL"
    assert pins.known(["http://three:1"]) is None


def test_where_nothing_can_be_kept_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    pins = Pins.of_user()
    pins.learn("http://one:9430", SIGNER.public)
    assert pins.known(["http://one:9430"]) is None
