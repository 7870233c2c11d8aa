"""Redis and etcd that let in by TLS, client certificates and users only: as memberships and as stores of a registry."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from softmutex_adapters.registry.store import Entry, StoreFailed, open_store

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Member
from tests.adapters.certificates import make_certificates, make_nameless
from tests.registry.inside import until
from tests.registry.store_process import Process

PASSWORD = "the password's/ of@ somebody"
ONE, TWO = Member("10.0.0.1:1", 1, "one"), Member("10.0.0.1:2", 2, "two")


class Locked(Process):
    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind, folder)
        self.cert, self.key, self.ca = map(str, (make_nameless if kind == "etcd" else make_certificates)(folder))
        self.password_file = folder / "password"
        self.password_file.touch(0o600)
        self.password_file.write_text(PASSWORD + "\n")
        self.context = ssl.create_default_context(cafile=self.ca)
        self.context.load_cert_chain(self.cert, self.key)

    def options(self) -> dict[str, str]:
        return {"ca": self.ca, "cert": self.cert, "key": self.key, "password_file": str(self.password_file)}

    def command(self) -> list[str]:
        data = self.folder / self.kind
        if self.kind == "redis":
            acl = self.folder / "users.acl"
            acl.write_text(f"user default off\nuser lab on >{PASSWORD.replace(' ', '_')} ~* &* +@all\n")
            self.password_file.write_text(PASSWORD.replace(" ", "_"))  # its file of users is parted by spaces
            command = ["redis-server", "--port", "0", "--tls-port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
            command += ["--dir", str(data), "--aclfile", str(acl), "--tls-auth-clients", "yes"]
            return [*command, "--tls-cert-file", self.cert, "--tls-key-file", self.key, "--tls-ca-cert-file", self.ca]
        here, peers = f"https://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.other_port}"
        command = ["etcd", "--data-dir", str(data), "--listen-client-urls", here, "--advertise-client-urls", here]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"default={peers}", "--client-cert-auth", "--auth-token", "simple"]
        return [*command, "--cert-file", self.cert, "--key-file", self.key, "--trusted-ca-file", self.ca]

    def begin(self) -> None:
        with (self.folder / "store.log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            if self.kind == "redis":
                with self.connect() as call:
                    call.sendall(b"PING\r\n")
                    return b"NOAUTH" in call.recv(1000)
            return bool(self.ask("cluster/member/list", {}).get("members"))
        return False

    def connect(self) -> ssl.SSLSocket:
        import socket

        return self.context.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), 30.0), server_hostname="127.0.0.1"
        )

    def ask(self, what: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/v3/{what}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, context=self.context, timeout=60) as answer:
            return json.loads(answer.read())

    def add_users(self) -> None:
        if self.kind == "redis":
            return
        self.ask("auth/user/add", {"name": "root", "password": "of-the-root"})
        self.ask("auth/user/grant", {"user": "root", "role": "root"})
        self.ask("auth/user/add", {"name": "lab", "password": PASSWORD})
        self.ask("auth/role/add", {"name": "lab"})
        reach = {"key": "c29mdG11dGV4Lw==", "range_end": "c29mdG11dGV4MA==", "permType": "READWRITE"}  # softmutex/ to 0
        self.ask("auth/role/grant", {"name": "lab", "perm": reach})
        self.ask("auth/user/grant", {"user": "lab", "role": "lab"})
        self.ask("auth/enable", {})


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.needs(need))
        for kind, need in (("redis", "redis-server"), ("etcd", "etcd"))
    ]
)
async def locked(no_leaks: None, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Locked]:
    process = Locked(request.param, tmp_path)
    (tmp_path / request.param).mkdir()
    try:
        process.begin()
        await until(lambda: asyncio.to_thread(process.answers), "it does not start")
        await asyncio.to_thread(process.add_users)
        yield process
    finally:
        await asyncio.to_thread(process.stop)


def url(locked: Locked, tail: str, **other: str) -> str:
    """`other`: options that are different; None leaves one out."""
    options = {name: value for name, value in (locked.options() | other).items() if value}
    if locked.kind == "redis":
        return f"rediss://lab@127.0.0.1:{locked.port}/{tail}?{urlencode(options)}"
    user = {"user": "lab"} if "password_file" in options else {}
    place = f"127.0.0.1:{locked.port}" + (f"/{tail}" if tail else "")
    return f"etcd://{place}?{urlencode({**options, **user, 'tls': 'yes'})}"


async def test_members_meet_there(locked: Locked):
    one, two = (plugins.membership(url(locked, "lab")) for _ in range(2))
    await one.join(ONE)
    await two.join(TWO)
    try:
        async with asyncio.timeout(60):
            while list(await one.watch()) != [TWO]:
                pass
        assert one.statistics()["troubles"] == 0
    finally:
        await one.aclose()
        await two.aclose()


async def test_a_registry_keeps_its_lists_there(locked: Locked):
    store = open_store(url(locked, "0" if locked.kind == "redis" else ""))
    await store.open()
    try:
        changing = asyncio.ensure_future(store.changed())
        assert await changing is None
        _, version = await store.commit("g", {"lease-a": Entry(ONE, "me")})
        stored = await store.read("g")
        assert stored is not None and (stored.version, stored.entries["lease-a"].member) == (version, ONE)
    finally:
        await store.aclose()


@pytest.mark.parametrize("without", ["cert", "ca", "password_file"])
async def test_who_shows_no_certificate_knows_no_authority_or_no_password_is_told_so(locked: Locked, without: str):
    other = {"cert": "", "key": ""} if without == "cert" else {without: ""}
    membership = plugins.membership(url(locked, "lab", **other))
    try:
        if without == "cert":  # nothing but a broken connection tells of it: this is tried again
            await membership.join(ONE)
            assert not membership.complete and membership.statistics()["troubles"]
        else:
            with pytest.raises(CannotOpen):
                await membership.join(ONE)
    finally:
        await membership.aclose()


@pytest.mark.needs("etcd")
async def test_an_etcd_that_has_forgotten_the_token_is_asked_for_another(no_leaks: None, tmp_path: Path):
    locked = Locked("etcd", tmp_path)
    (tmp_path / "etcd").mkdir()
    locked.begin()
    store = open_store(url(locked, ""))
    try:
        await until(lambda: asyncio.to_thread(locked.answers), "it does not start")
        await asyncio.to_thread(locked.add_users)
        await store.open()
        await asyncio.to_thread(locked.stop)
        with pytest.raises(StoreFailed):
            await store.groups()
        locked.begin()

        async def works() -> bool:
            with contextlib.suppress(StoreFailed):
                await store.commit("g", {"lease-a": Entry(ONE, "me")})
                return True
            return False

        await until(works, "it is let in again")
    finally:
        await store.aclose()
        await asyncio.to_thread(locked.stop)


@pytest.mark.parametrize(
    ("scheme", "query", "said"),
    [
        ("redis", "ca=x", "are for TLS"),
        ("etcd", "cert=x&key=y", "are for TLS"),
        ("etcd", "tls=yes&cert=x", "belong together"),
        ("etcd", "user=x", "belong together"),
    ],
)
def test_half_of_what_is_needed_is_refused_in_words(scheme: str, query: str, said: str):
    with pytest.raises(ConfigError, match=said):
        plugins.membership(f"{scheme}://h/lab?{query}")


@pytest.mark.parametrize("make", [plugins.membership, open_store])
def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path, make: Callable[[str], object]):
    (tmp_path / "password").write_text("secret")
    with pytest.raises(ConfigError, match="chmod 600"):
        make(f"redis://somebody@h/0?password_file={tmp_path / 'password'}")
