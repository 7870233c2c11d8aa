"""Who is certified was let in once, by a token that is good once; who is banned does not come back with another key."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from softmutex_adapters.registry import enrolment, wire
from softmutex_adapters.registry.identity_command import can_be_given_to_a_command
from softmutex_adapters.registry.store import INVITED
from softmutex_adapters.registry.tokens import Tokens, new_token

from softmutex import Node
from softmutex.runtime import keyfile
from softmutex.runtime.identity import proof_text, read_certificate
from softmutex.runtime.sealing import read_keys
from tests import prepared
from tests.registry.inside import Inside, inside, until
from tests.registry.serving import Served

KEY = bytes(range(32))
JOIN, ADMIN = "j" * 20, "a" * 20
AS_MEMBER, AS_ADMIN = ({"Authorization": f"Bearer {token}"} for token in (JOIN, ADMIN))
Told = dict[str, Any]


@pytest.fixture
async def registry(no_leaks: None, tmp_path: Path) -> AsyncIterator[Inside]:
    async with inside(tmp_path, tokens=Tokens([f"lab {JOIN}", f"admin {ADMIN}"])) as served:
        yield served


class Host:
    """That has the group's token, and makes itself keys as it likes."""

    def __init__(self, registry: Inside, name: str = "ftp1") -> None:
        self.registry, self.name = registry, name
        self.new_key()

    def new_key(self) -> None:
        self.secret = Ed25519PrivateKey.generate()
        self.public = wire.to_text(self.secret.public_key().public_bytes_raw())

    async def asks(self, invitation: str = "") -> tuple[int, Told]:
        raw = wire.from_text(self.public, 32)
        proof = wire.to_text(self.secret.sign(proof_text("lab", self.name, raw)))
        body = {"name": self.name, "public_key": self.public, "proof": proof}
        body |= {"invitation": invitation} if invitation else {}
        path = "/v1/groups/lab/certificates"
        status, told, _ = await self.registry.call("POST", path, json=body, headers=AS_MEMBER)
        return status, told


async def operator(registry: Inside, method: str, what: str, body: object = None) -> Told:
    status, told, _ = await registry.call(method, f"/v1/groups/lab/{what}", json=body, headers=AS_ADMIN)
    assert status == 200, told
    return dict(told)


async def invite(registry: Inside, name: str = "ftp1", **more: Any) -> str:
    return str((await operator(registry, "POST", "invitations", {"name": name, **more}))["invitation"])


# --- one-time tokens -------------------------------------------------------------------------------------------------


async def test_a_banned_host_that_makes_another_key_is_not_certified_again(registry: Inside):
    host = Host(registry)
    assert (await host.asks(await invite(registry)))[0] == 200
    assert (await host.asks())[0] == 200, "once is enough"
    await operator(registry, "PUT", f"banned/{host.public}")
    assert (await host.asks())[0] == 403
    host.new_key()
    status, told = await host.asks()
    assert status == 403
    assert (
        f"the identity {host.public} is not enrolled" in told["error"] and "softmutex identity invite" in told["error"]
    )
    assert (await host.asks(await invite(registry)))[0] == 200, "whom the operator invites again is in again"


async def test_a_pardoned_identity_has_to_be_enrolled_again(registry: Inside):
    host = Host(registry)
    await host.asks(await invite(registry))
    await operator(registry, "PUT", f"banned/{host.public}")
    await operator(registry, "DELETE", f"banned/{host.public}")
    assert (await host.asks())[0] == 403
    await operator(registry, "PUT", f"identities/{host.public}", {"name": "ftp1"})
    assert (await host.asks())[0] == 200


async def test_an_invitation_is_good_for_one_key_and_once(registry: Inside):
    invitation, hosts = await invite(registry), [Host(registry) for _ in range(8)]
    answers = await asyncio.gather(*(host.asks(invitation) for host in hosts))
    assert sorted(status for status, _ in answers) == [200] + [403] * 7
    [winner] = [host for host, (status, _) in zip(hosts, answers, strict=True) if status == 200]
    assert (await winner.asks(invitation))[0] == 200, "whose answer was lost asks again"
    assert (await Host(registry).asks(invitation))[0] == 403


async def test_two_registries_of_one_store_let_in_one_with_one_invitation(no_leaks: None, tmp_path: Path):
    """Both have read the invitation; which of two keys has it the store decides."""
    async with inside(tmp_path) as one:
        invitation = await invite(one)
        first, second = Host(one), Host(one)
        note = one.hub.groups["lab"].notes[INVITED + enrolment.mark_of(invitation)]
        assert (await first.asks(invitation))[0] == 200
        one.hub.groups["lab"].notes[INVITED + enrolment.mark_of(invitation)] = note  # as the other one still has it
        assert (await second.asks(invitation))[0] == 403


@pytest.mark.parametrize("how", ["its time is over", "it was withdrawn", "nobody made it"])
async def test_an_invitation_that_is_none_any_more_lets_nobody_in(registry: Inside, how: str):
    invitation = await invite(registry)
    if how == "its time is over":
        note = registry.hub.groups["lab"].notes.pop(INVITED + enrolment.mark_of(invitation))
        past = note.member.__class__("invited", 1, note.member.name)
        registry.hub.groups["lab"].notes[INVITED + enrolment.mark_of(invitation)] = note.__class__(past, note.owner)
    elif how == "it was withdrawn":
        await operator(registry, "DELETE", f"invitations/{enrolment.mark_of(invitation)}")
    else:
        invitation = "n" * 32
    status, told = await Host(registry).asks(invitation)
    assert (status, "is not known, was used, or its time is over" in told["error"]) == (403, True)


async def test_the_name_in_a_certificate_is_the_one_that_the_operator_gave(registry: Inside):
    host = Host(registry, name="root-of-everything")
    _, told = await host.asks(await invite(registry, "ftp1"))
    written = str(told["certificate"])
    assert read_certificate(wire.from_text(written, len(written) * 3 // 4)).name == "ftp1"


async def test_members_neither_invite_nor_look_who_is_enrolled(registry: Inside):
    for method, what in (("POST", "invitations"), ("GET", "identities"), ("PUT", f"identities/{'k' * 43}")):
        path = f"/v1/groups/lab/{what}"
        assert (await registry.call(method, path, json={"name": "me"}, headers=AS_MEMBER))[0] == 403


async def test_enrolments_outlive_the_registry_and_only_marks_of_invitations_are_kept(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        host, invitation = Host(registry), await invite(registry)
        await host.asks(await invite(registry))
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("registry.db*"))
    assert invitation.encode() not in kept and enrolment.mark_of(invitation).encode() in kept
    async with inside(tmp_path) as registry:
        host.registry = registry
        assert (await host.asks())[0] == 200
        assert (await Host(registry).asks(invitation))[0] == 200


async def test_invitations_and_identities_are_bounded(registry: Inside, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(enrolment, "INVITATIONS_MAX", 2)
    monkeypatch.setattr(enrolment, "IDENTITIES_MAX", 2)
    for _ in range(2):
        await invite(registry)
        await operator(registry, "PUT", f"identities/{Host(registry).public}", {"name": "x"})
    for method, what in (("POST", "invitations"), ("PUT", f"identities/{Host(registry).public}")):
        path = f"/v1/groups/lab/{what}"
        assert (await registry.call(method, path, json={"name": "x"}, headers=AS_ADMIN))[0] == 503


# --- the authority's bans, wherever the members come from ------------------------------------------------------------


async def test_a_ban_holds_also_where_the_members_come_from_elsewhere(no_leaks: None, tmp_path: Path):
    """The list is a fixed one; the registry only certifies. A banned member that keeps all its secrets is out."""
    async with inside(tmp_path) as registry:
        authority = f"registry+{registry.base}/lab?public_key={registry.hub.signer.public}"
        nodes: list[Node] = []
        for name, listed in (("a", "127.0.0.1:1"), ("bad", None)):
            file = tmp_path / f"{name}.identity"
            keyfile.make(file)
            secret = Ed25519PrivateKey.from_private_bytes(read_keys(file)[0])
            public = wire.to_text(secret.public_key().public_bytes_raw())
            await operator(registry, "PUT", f"identities/{public}", {"name": name})
            where = f"static://{listed or nodes[0].address}"
            options = {"transport": "udp://127.0.0.1:0", "key": KEY, "identity": file, "require_identity": True}
            nodes.append(Node(name=name, membership=where, authority=authority, **options))
            await nodes[-1].open()
        a, bad = nodes
        try:
            await until(lambda: a.peers() and bad.peers(), "they meet")
            await operator(registry, "PUT", f"banned/{public}", {"why": "it lies"})
            await until(lambda: not a.peers() and bad.statistics().told.get("banned"), "it is out")
            await operator(registry, "DELETE", f"banned/{public}")
            await operator(registry, "PUT", f"identities/{public}", {"name": "bad"})
            async with a.mutex("x").hold(timeout=60):
                pass
        finally:
            for node in nodes:
                await node.close()


# --- commands --------------------------------------------------------------------------------------------------------


class Site:
    """A registry of its own, and what its operator and a host type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.served = Served(folder, tokens=[f"lab {JOIN}", f"lab admin {ADMIN}"])
        for name, token in (("join", JOIN), ("admin", ADMIN)):
            (folder / name).touch(0o600)
            (folder / name).write_text(token)

    def run(self, *words: str, as_admin: bool = True, code: int = 0, given: str = "") -> str:
        url = self.served.url("lab", token_file=self.folder / "join", public_key=self.served.public_key)
        environ = {**os.environ, "HOME": str(self.folder), "SOFTMUTEX_AUTHORITY": url}
        flags = ["--token-file", str(self.folder / "admin")] if as_admin else []
        command = [str(prepared.SOFTMUTEX), *words, *flags]
        run = prepared.run(
            command, env=environ, cwd=self.folder, capture_output=True, text=True, timeout=100, input=given
        )
        assert run.returncode == code, run.stdout + run.stderr
        return run.stdout + (run.stderr if code else "")


def test_an_operator_invites_a_host_enrols_and_is_banned_by_commands(tmp_path: Path):
    site = Site(tmp_path)
    site.served.start()
    try:
        assert "nobody is enrolled or invited" in site.run("identity", "list")
        token = site.run("identity", "invite", "ftp1", "--for", "1h").strip()
        assert "ftp1" in site.run("identity", "list") and "invited until" in site.run("identity", "list")
        said = site.run("identity", "enrol", "-", "--identity", "me", as_admin=False, given=f"{token}\n")
        assert said.startswith("ftp1 is enrolled in lab")
        assert (tmp_path / "me").stat().st_mode & 0o777 == 0o600
        public = site.run("identity", "show", "--identity", "me", as_admin=False).strip()
        assert public in said and f"{public}  enrolled" in site.run("identity", "list")
        assert "is banned" in site.run("ban", "ftp1", "--why", "it floods us")
        assert site.run("ban", "--list").split() == [public, "it", "floods", "us"]
        assert "nobody is enrolled" in site.run("identity", "list")
        again = site.run("identity", "enrol", token, "--identity", "me", as_admin=False, code=69)
        assert "banned" in again
        assert "pardoned" in site.run("ban", "--lift", public)
        site.run("identity", "allow", public, "ftp1")
        assert "struck off" in site.run("identity", "strike", "ftp1")
    finally:
        site.served.stop()


def test_what_cannot_work_says_why(tmp_path: Path):
    site = Site(tmp_path)
    site.served.start()
    try:
        assert "this token may join" in site.run("ban", "0" * 16, as_admin=False, code=69)
        assert "is called 'who'" in site.run("ban", "who", code=64)
        assert "say whom" in site.run("ban", code=64)
        assert "no public key" in site.run("identity", "allow", "short", "ftp1", code=64)
        assert "no one-time token" in site.run("identity", "enrol", "!", as_admin=False, code=64)
        assert "which file?" in site.run("identity", "show", as_admin=False, code=64)
        assert "between one second and 30 days" in site.run("identity", "invite", "x", "--for", "99d", code=64)
    finally:
        site.served.stop()
    command = [prepared.SOFTMUTEX, "ban", "--list"]
    environ = {**os.environ, "HOME": str(tmp_path)}
    run = prepared.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (run.returncode, "which registry?" in run.stderr) == (64, True)


def test_no_token_looks_like_a_flag(monkeypatch: pytest.MonkeyPatch):
    """One of 64 would, and `softmutex identity enrol TOKEN` did not take it."""
    drawn = iter(["-first", "--second", "third"])
    monkeypatch.setattr("secrets.token_urlsafe", lambda _size: next(drawn))
    assert new_token() == "third"


def test_no_public_key_of_a_host_looks_like_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One of 64 did, and `softmutex ban --lift KEY` did not take it."""
    begins_as_a_flag, other = (bytes([number]) * 32 for number in (41, 42))
    assert not can_be_given_to_a_command(begins_as_a_flag)
    drawn = iter([begins_as_a_flag, other])
    monkeypatch.setattr("secrets.token_bytes", lambda size: next(drawn) if size == len(other) else bytes(size))
    keyfile.make(tmp_path / "me", fits=can_be_given_to_a_command)
    assert list(read_keys(tmp_path / "me")) == [other]
