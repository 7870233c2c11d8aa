"""Who may come in to a registry, by which name, how many at once: what strangers, pages and other users do not get."""

import asyncio
import contextlib
import stat
import subprocess
from pathlib import Path

import aiohttp
import pytest
from softmutex_adapters.registry import guard
from softmutex_adapters.registry.command import names_in
from softmutex_adapters.registry.guard import Hosts, source_of
from softmutex_adapters.registry.tokens import Right, Tokens

from tests import prepared
from tests.adapters.certificates import make_certificates
from tests.registry.inside import Inside, body, inside, until
from tests.registry.serving import Served

READ, JOIN, ADMIN, ALL = ("r" * 20, "j" * 20, "a" * 20, "b" * 20)
LINES = [f"g read {READ}", f"g {JOIN}", f"g admin {ADMIN}", f"admin {ALL}"]
WHO = "0" * 16


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- rights ----------------------------------------------------------------------------------------------------------

ASKED = {  # what, and which right it takes
    ("GET", "/v1/groups/g/members"): Right.READ,
    ("GET", "/v1/groups/g/picture"): Right.READ,
    ("GET", "/v1/groups/g/events?wait=0"): Right.READ,
    ("PUT", "/v1/groups/g/members/lease-of-number-1"): Right.JOIN,
    ("DELETE", "/v1/groups/g/members/lease-of-number-1"): Right.JOIN,
    ("POST", "/v1/groups/g/members/lease-of-number-1/report"): Right.JOIN,
    ("POST", "/v1/groups/g/certificates"): Right.JOIN,
    ("GET", "/v1/groups/g/banned"): Right.ADMIN,
    ("PUT", f"/v1/groups/g/banned/{WHO}"): Right.ADMIN,
    ("DELETE", f"/v1/groups/g/banned/{WHO}"): Right.ADMIN,
}


async def test_who_may_look_does_not_join_and_who_may_join_does_not_ban(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, tokens=Tokens(LINES)) as registry:
        for (method, path), wanted in ASKED.items():
            for token, right in ((READ, Right.READ), (JOIN, Right.JOIN), (ADMIN, Right.ADMIN), (ALL, Right.ADMIN)):
                status, told, _ = await registry.call(method, path, headers=bearer(token))
                said = told.get("error", "") if isinstance(told, dict) else ""
                is_refused = status == 403 and "this token may" in said
                assert is_refused is (right < wanted), (method, path, right, status, told)
            assert (await registry.call(method, path))[0] == 401
            other = path.replace("/g/", "/other/")
            assert (await registry.call(method, other, headers=bearer(ADMIN)))[0] == 401


async def test_the_token_of_a_group_says_nothing_of_all_of_them(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, tokens=Tokens(LINES)) as registry:
        assert (await registry.call("GET", "/v1/groups", headers=bearer(ADMIN)))[0] == 401
        assert (await registry.call("GET", "/v1/groups", headers=bearer(ALL)))[0] == 200


def test_a_group_may_be_called_as_a_right_is():
    tokens = Tokens([f"read join {JOIN}", f"admin {ALL}"])
    assert tokens.right(f"Bearer {JOIN}", "read") is Right.JOIN
    assert tokens.right(f"Bearer {JOIN}", "join") is Right.NONE
    assert tokens.right(f"Bearer {ALL}", "any") is Right.ADMIN


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        ("127.0.0.1:9430", True),
        ("[::1]:9430", True),
        ("[fe80::1%eth0]:9430", True),
        ("10.1.2.3", True),
        ("localhost:9430", True),
        ("LocalHost", True),
        ("registry.lab:9430", True),
        ("registry.lab.", True),
        ("a.farm", True),
        ("a.b.farm", False),
        ("farm", False),
        ("evil.example:9430", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[", False),
    ],
)
def test_a_registry_answers_to_its_names_and_to_addresses(header: str, is_ours: bool):
    assert Hosts(["registry.lab", "*.farm"]).allow(header) is is_ours


async def test_a_page_that_was_brought_to_this_address_by_a_name_of_its_own_is_not_answered(
    no_leaks: None, tmp_path: Path
):
    async with inside(tmp_path) as registry:  # without tokens: the name is all that there is
        await registry.join("g", 1)
        for path in ("/v1/groups/g/members", "/v1/groups", "/", "/metrics", "/nothing"):
            status, told, _ = await registry.call("GET", path, headers={"Host": f"evil.example:{registry.port}"})
            assert status == 421, path
            assert "10.0.0.1" not in str(told)
        assert registry.hub.counts["refused_hosts"] == 5


async def test_a_page_of_elsewhere_does_not_ask_here(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        path = registry.path("g", 1)
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            headers = {"Origin": origin, "Content-Type": "text/plain"}
            assert (await registry.call("PUT", path, json=body(1), headers=headers))[0] == 421, origin
        assert (await registry.call("PUT", path, json=body(1), headers={"Origin": registry.base}))[0] == 200


def test_the_names_in_its_certificate_are_its_own(tmp_path: Path):
    cert, _, _ = make_certificates(tmp_path, "registry.lab", "*.farm")
    assert list(names_in(cert)) == ["registry.lab", "*.farm"]
    assert list(names_in(tmp_path / "missing.pem")) == []


# --- how often, how many ---------------------------------------------------------------------------------------------


async def test_who_asks_for_what_is_not_there_is_slowed_down_too(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, rate_address=1.0) as registry:
        answers: list[int] = []
        async with asyncio.timeout(100):
            while 429 not in answers:
                answers.append((await registry.call("GET", "/guess"))[0])
        assert answers[:10] == [404] * 10


def test_a_network_of_ipv6_counts_as_one_address():
    assert source_of("2001:db8:0:1::5") == source_of("2001:db8:0:1:ffff::9")
    assert source_of("2001:db8:0:1::5") != source_of("2001:db8:0:2::5")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1") == "10.0.0.1"


async def test_one_address_without_a_token_does_not_hold_all_connections(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guard, "STRANGERS_EACH_MAX", 5)
    async with inside(tmp_path, tokens=Tokens(LINES), connections_max=100) as registry:
        async with stream(registry) as member:
            held = [await asyncio.open_connection("127.0.0.1", registry.port) for _ in range(50)]
            for _, writer in held:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")  # it keeps them busy, too
            await until(lambda: registry.server.connections <= 6, "the idlest go")
            assert registry.hub.counts["connections_refused"] >= 45
            assert (await registry.call("GET", "/v1/groups/g/members", headers=bearer(READ)))[0] == 204
            assert not member.content.at_eof(), "who has shown a token is not crowded out"
        for _, writer in held:
            writer.close()


async def test_strangers_of_many_addresses_crowd_out_each_other_and_no_member(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guard, "source_of", lambda address: object())  # each connection from an address of its own
    async with inside(tmp_path, tokens=Tokens(LINES), connections_max=5) as registry, stream(registry) as member:
        held = [await asyncio.open_connection("127.0.0.1", registry.port) for _ in range(50)]
        await until(lambda: registry.server.connections <= 5, "the idlest go")
        assert (await registry.call("GET", "/v1/groups/g/members", headers=bearer(READ)))[0] == 204
        assert not member.content.at_eof()
        for _, writer in held:
            writer.close()


async def test_where_all_have_shown_tokens_the_one_that_rests_longest_goes_and_no_stream(
    no_leaks: None, tmp_path: Path
):
    async with inside(tmp_path, tokens=Tokens(LINES), connections_max=4) as registry, stream(registry) as member:
        for _ in range(10):
            async with aiohttp.ClientSession() as session:
                url = f"{registry.base}/v1/groups/g/members"
                async with session.get(url, headers=bearer(READ)) as answer:
                    assert answer.status == 204
                assert registry.server.connections <= 4
        assert not member.content.at_eof()


@contextlib.asynccontextmanager
async def stream(registry: Inside):
    async with aiohttp.ClientSession() as session:
        url = f"{registry.base}/v1/groups/g/events"
        async with session.get(url, headers=bearer(JOIN)) as answer:
            await answer.content.readany()
            yield answer


# --- the first start -------------------------------------------------------------------------------------------------


def first_lines(folder: Path, *options: str) -> list[str]:
    command = [str(prepared.SOFTMUTEX), "registry"]
    command += ["--listen", "127.0.0.1:0", "--store", f"sqlite:{folder}/registry.db", *options]
    with prepared.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd="/") as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "public_key=" in line:
                break
        process.terminate()
    return said


async def test_a_registry_without_a_token_file_makes_one_and_tells_the_tokens_once(no_leaks: None, tmp_path: Path):
    said = await asyncio.to_thread(first_lines, tmp_path)
    path = tmp_path / "softmutex-registry.tokens"
    told = dict(line.split()[:2] for line in said[1:4])
    assert told.keys() == {"join", "read", "admin"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert dict(line.split() for line in path.read_text().splitlines()) == told
    again = await asyncio.to_thread(first_lines, tmp_path)
    assert len(again) == 1, "once"
    assert again[0].rpartition("=")[2] == said[-1].rpartition("=")[2], "and it signs with the same key"


async def test_other_users_of_this_host_need_a_token_too(no_leaks: None, tmp_path: Path):
    served = Served(tmp_path, tokens=[f"lab {JOIN}"])
    await asyncio.to_thread(served.start)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{served.base}/v1/groups/lab/members") as answer:
            assert answer.status == 401
    finally:
        await asyncio.to_thread(served.stop)


def test_the_key_that_signs_is_in_a_file_of_its_owner_and_not_in_the_store(tmp_path: Path):
    first_lines(tmp_path)
    key = tmp_path / "softmutex-registry.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    written = key.read_text().strip().encode()
    for file in tmp_path.glob("registry.db*"):
        assert written not in file.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "mode", "said"),
    [
        ("softmutex-registry.tokens", "t" * 20, 0o644, "token file"),
        ("softmutex-registry.key", "A" * 43, 0o640, "signing key"),
        ("softmutex-registry.key", "short", 0o600, "is not 32 bytes"),
    ],
)
def test_files_that_others_can_read_or_that_hold_nothing_are_refused(
    tmp_path: Path, name: str, content: str, mode: int, said: str
):
    (tmp_path / name).touch(0o600)
    (tmp_path / name).write_text(content)
    (tmp_path / name).chmod(mode)
    command = [str(prepared.SOFTMUTEX), "registry"]
    command += ["--listen", "127.0.0.1:0"]
    run = prepared.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert run.returncode == 64
    assert said in run.stderr and str(name) in run.stderr


def test_two_registries_of_one_store_sign_with_one_key_or_the_second_does_not_start(tmp_path: Path):
    first_lines(tmp_path)
    (tmp_path / "softmutex-registry.key").unlink()
    command = [str(prepared.SOFTMUTEX), "registry"]
    command += ["--listen", "127.0.0.1:0", "--store", f"sqlite:{tmp_path}/registry.db"]
    run = prepared.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == 69
    assert "--signing-key FILE" in run.stderr


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://]", "//", "http://\u2100", "x" * 4000])
async def test_an_odd_origin_is_one_of_elsewhere_and_no_mistake_of_the_registry(
    no_leaks: None, tmp_path: Path, origin: str
):
    async with inside(tmp_path) as registry:
        assert (await registry.call("GET", "/healthz", headers={"Origin": origin}))[0] == 421
        assert registry.hub.counts["breakdowns"] == 0


# --- floods ----------------------------------------------------------------------------------------------------------


async def flood(registry: Inside, path: str, token: str = "") -> None:
    """Until it is slowed down itself."""
    headers = bearer(token) if token else {}
    async with asyncio.timeout(100):
        while (await registry.call("GET", path, headers=headers))[0] != 429:
            pass


@pytest.mark.parametrize(
    ("path", "token", "rates"),
    [
        pytest.param("/nothing", "", {"rate_address": 2.0}, id="a stranger on the same host, or behind the same proxy"),
        pytest.param("/v1/groups/g/members", READ, {"rate_address": 2.0}, id="a reader on the same host"),
        pytest.param("/v1/groups/g/members", READ, {"rate_group": 2.0}, id="readers from many addresses"),
    ],
)
async def test_who_may_not_join_keeps_nobody_from_joining_and_renewing_by_many_requests(
    no_leaks: None, tmp_path: Path, path: str, token: str, rates: dict[str, float]
):
    async with inside(tmp_path, tokens=Tokens(LINES), **rates) as registry:
        await registry.join("g", 1, headers=bearer(JOIN))
        await flood(registry, path, token)
        await registry.join("g", 1, headers=bearer(JOIN))
        await registry.join("g", 2, headers=bearer(JOIN))


async def test_who_may_join_keeps_no_listed_member_from_renewing_by_many_requests(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, tokens=Tokens(LINES), rate_group=2.0) as registry:
        await registry.join("g", 1, headers=bearer(JOIN))
        await flood(registry, "/v1/groups/g/members", JOIN)
        await registry.join("g", 1, headers=bearer(JOIN))
