"""The registry's endpoints, as anybody finds them who has only HTTP."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from softmutex_adapters.registry import guard, wire
from softmutex_adapters.registry.sqlite_store import SqliteStore
from softmutex_adapters.registry.tokens import Tokens

from softmutex.core.errors import ConfigError
from tests.registry.inside import body, events, inside, lease, until

TOKEN, OTHER = "t" * 20, "o" * 20


# --- members ---------------------------------------------------------------------------------------------------------


async def test_who_joins_is_listed_until_it_leaves(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        first = await registry.join("g", 1)
        second = await registry.join("g", 2)
        assert second > first
        assert await registry.join("g", 1) == second, "renewing changes nothing"
        assert await registry.listed("g") == ["10.0.0.1:1", "10.0.0.1:2"]
        assert await registry.listed("other") == []
        for _ in range(2):  # leaving twice is leaving
            status, _, _ = await registry.call("DELETE", registry.path("g", 1))
            assert status == 200
        assert await registry.listed("g") == ["10.0.0.1:2"]


async def test_hundreds_that_join_at_once_are_a_few_commits(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        await asyncio.gather(*(registry.join("g", number) for number in range(1, 301)))
        assert len(await registry.listed("g")) == 300
        assert registry.hub.counts["commits"] < 150


async def test_a_join_that_meets_the_end_of_its_own_lease_stays_listed(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        await asyncio.gather(registry.hub.drop("g", lease(1)), registry.join("g", 1))
        assert await registry.listed("g") == ["10.0.0.1:1"]


async def test_a_silent_member_is_dropped_when_its_lease_is_over(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, hub={"ttl_s": 0.3}) as registry:
        await registry.join("g", 1)
        await until(lambda: registry.hub.counts["left"], "the lease ends")
        assert await registry.listed("g") == []


# --- watching --------------------------------------------------------------------------------------------------------


async def test_a_poll_waits_for_the_next_change_and_is_told_that_alone(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        version = await registry.join("g", 1)
        path = f"/v1/groups/g/members?after={version}"
        assert (await registry.call("GET", f"{path}&wait=0.05"))[0] == 204
        waiting = asyncio.ensure_future(registry.call("GET", f"{path}&wait=25"))
        await until(lambda: registry.hub.polls["g"], "it waits")
        await registry.join("g", 2)
        status, told, headers = await waiting
        assert (status, told["after"], [one[1] for one in told["joined"]]) == (200, version, ["10.0.0.1:2"])
        line = json.dumps(told, separators=(",", ":")).encode()
        assert wire.is_signed_by(headers[wire.KEY_HEADER], line, headers[wire.SIGNATURE_HEADER])


async def test_a_stream_tells_the_list_and_then_what_changes(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        async with registry.session.get(f"{registry.base}/v1/groups/g/events") as answer:
            stream = events(answer)
            whole = await anext(stream)
            await registry.join("g", 2)
            change = await anext(stream)
            await registry.call("DELETE", registry.path("g", 1))
            farewell = await anext(stream)
            await stream.aclose()
        assert (whole.after, len(whole.joined)) == (None, 1)
        assert (change.after, [one.address for _, one in change.joined]) == (whole.version, ["10.0.0.1:2"])
        assert farewell.left == [wire.key_of(lease(1))]


async def test_a_member_whose_stream_breaks_is_gone_in_seconds(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, hub={"ttl_s": 3600.0}) as registry, contextlib.AsyncExitStack() as streams:
        for number in (1, 2):
            await registry.join("g", number)
            url = f"{registry.base}/v1/groups/g/events?lease={lease(number)}"
            answer = await streams.enter_async_context(registry.session.get(url))
            await answer.content.readany()
        answer.close()
        await until(lambda: registry.hub.counts["left"], "the lease ends")
        assert await registry.listed("g") == ["10.0.0.1:1"]


async def test_a_whole_list_of_thousands_reaches_all_who_watch(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, rate_address=1e6, rate_group=1e6) as registry:
        members = {lease(n): n for n in range(1, 3001)}
        for start in range(1, 3001, 500):
            await asyncio.gather(*(registry.join("g", n) for n in list(members.values())[start - 1 : start + 499]))

        async def first() -> int:
            async with registry.session.get(f"{registry.base}/v1/groups/g/events") as answer:
                return len((await anext(events(answer))).joined)

        assert await asyncio.gather(*(first() for _ in range(100))) == [3000] * 100


async def test_u3_a_version_that_the_store_has_not_raises_the_version_and_the_list_settles_anew(
    no_leaks: None, tmp_path: Path
):
    async with inside(tmp_path) as registry:
        version = await registry.join("g", 1)
        registry.hub.groups["g"].settled_at = 0.0
        seen = version + 3_600_000
        _, told, _ = await registry.call("GET", f"/v1/groups/g/members?after={seen}")
        assert (told["after"], told["version"]) == (None, seen + 1)
        assert told["settling_s"] > 0
        again = seen + 7_200_000
        _, told, _ = await registry.call("GET", f"/v1/groups/g/members?after={again}")
        assert told["version"] == seen + 1, "who shows impossible versions again and again moves nothing more"
        nonsense = wire.VERSION_MAX - 1
        _, told, _ = await registry.call("GET", f"/v1/groups/h/members?after={nonsense}")
        assert told is None or told["version"] < nonsense


# --- who may come in -------------------------------------------------------------------------------------------------


async def test_a_token_opens_its_group_and_no_other(no_leaks: None, tmp_path: Path):
    tokens = Tokens(["# all groups", TOKEN, f"lab {OTHER}", ""])
    async with inside(tmp_path, tokens=tokens) as registry:
        for group, token, wanted in (
            *(("lab", TOKEN, 200), ("any", TOKEN, 200), ("lab", OTHER, 200), ("any", OTHER, 401)),
            *(("lab", "wrong-token-of-some-length", 401), ("lab", "", 401), ("lab", "ü" * 20, 401)),
        ):
            headers = {"Authorization": f"Bearer {token}"}
            status, told, _ = await registry.call("PUT", registry.path(group, 1), json=body(1), headers=headers)
            assert status == wanted, (group, token, told)
        status, told, headers = await registry.call("PUT", registry.path("lab", 1), json=body(1))
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer TOKEN" in told["error"]
        assert (await registry.call("GET", "/v1/groups", headers={"Authorization": f"Bearer {OTHER}"}))[0] == 401
        assert (await registry.call("GET", "/v1/groups", headers={"Authorization": f"bearer {TOKEN}"}))[0] == 200
        assert (await registry.call("GET", "/healthz"))[0] == 200
        assert registry.hub.counts["refused_tokens"] == 6


@pytest.mark.parametrize(
    ("line", "said"), [("a b c", "3 words"), ("short", "could be guessed"), ("lab read short", "could be guessed")]
)
def test_a_token_file_that_promises_less_than_it_seems_is_refused(line: str, said: str):
    with pytest.raises(ConfigError, match=said):
        Tokens([line])


async def test_each_limit_is_refused_with_what_to_do(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, hub={"members_max": 2, "groups_max": 2}) as registry:
        await registry.join("g", 1)
        await registry.join("g", 2)
        status, told, headers = await registry.call("PUT", registry.path("g", 3), json=body(3))
        assert (status, headers["Retry-After"]) == (503, "30")
        assert "has 2 members, which is the limit" in told["error"]
        assert await registry.join("g", 2), "who is in stays in"
        await registry.join("h", 1)
        status, told, _ = await registry.call("GET", "/v1/groups/i/members")
        assert (status, told["error"]) == (503, "there are 2 groups, which is the limit")
        large = json.dumps(body(1, name="x" * guard.BODY_MAX))
        assert (await registry.call("PUT", registry.path("g", 1), data=large))[0] == 413

        async def pieces():
            for _ in range(guard.BODY_MAX // 1024 + 1):
                yield b"x" * 1024

        assert (await registry.call("PUT", registry.path("g", 1), data=pieces()))[0] == 413


async def test_too_many_requests_of_one_address_or_for_one_group_are_slowed_down(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path, rate_address=2.0, rate_group=1.0) as registry:
        for group, what in (("g", "group"), ("h", "address")):
            refused = "", 0
            async with asyncio.timeout(100):
                while refused != (f"too many requests of this {what}", 1):
                    status, told, headers = await registry.call("GET", f"/v1/groups/{group}/members")
                    if status == 429:
                        refused = told["error"], int(headers["Retry-After"])
        assert registry.hub.counts["slowed_group"] and registry.hub.counts["slowed_address"]


async def test_of_connections_that_say_nothing_the_idlest_goes_for_one_too_many_and_all_in_time(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guard, "HEADER_S", 3600.0)
    monkeypatch.setattr(guard, "SWEEP_S", 0.1)
    async with inside(tmp_path, connections_max=3) as registry, asyncio.timeout(100):
        silent = [await asyncio.open_connection("127.0.0.1", registry.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", registry.port)
        with contextlib.suppress(ConnectionError):
            assert await silent[0][0].read() == b"", "before its time is over"
        monkeypatch.setattr(guard, "HEADER_S", 0.2)
        for one, other in [*silent, (reader, writer)]:
            with contextlib.suppress(ConnectionError):
                assert await one.read() == b""
            other.close()
        monkeypatch.setattr(guard, "HEADER_S", 3600.0)
        assert registry.hub.counts["connections_refused"] == 1
        assert registry.hub.counts["connections_closed"] == 3
        assert (await registry.call("GET", "/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "data", "wanted"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/v1/groups/g", None, 404),
        ("POST", "/v1/groups/g/members", None, 405),
        ("PUT", "/v1/groups/-bad-/members/" + lease(1), json.dumps(body(1)), 400),
        ("PUT", "/v1/groups/g/members/short", json.dumps(body(1)), 400),
        ("PUT", "/v1/groups/g/members/" + lease(1), "no JSON", 400),
        ("PUT", "/v1/groups/g/members/" + lease(1), "[" * 4000, 400),
        ("PUT", "/v1/groups/g/members/" + lease(1), json.dumps(body(1, address="a b:1")), 400),
        ("PUT", "/v1/groups/g/members/" + lease(1), json.dumps(body(1, id=17)), 400),
        ("PUT", "/v1/groups/g/members/" + lease(1), json.dumps(body(1, name="a\nb")), 400),
        ("PUT", "/v1/groups/g/members/" + lease(1), json.dumps(body(1, more="of it")), 400),
        ("GET", "/v1/groups/g/members?after=-1", None, 400),
        ("GET", "/v1/groups/g/members?after=99999999999999999", None, 400),
        ("GET", "/v1/groups/g/members?wait=nan", None, 400),
        ("GET", "/v1/groups/g/members?wait=31", None, 400),
        ("GET", "/v1/groups/g/events?lease=short", None, 400),
    ],
)
async def test_what_is_wrong_is_refused_in_words(no_leaks, tmp_path: Path, method, path, data, wanted):
    async with inside(tmp_path) as registry:
        status, told, headers = await registry.call(method, path, data=data)
        assert (status, headers["Content-Type"].partition(";")[0]) == (wanted, "application/json")
        assert len(told["error"]) > 15
        if wanted == 405:
            assert headers["Allow"] == "GET"


# --- the store fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["full", "read-only"])
async def test_with_a_full_or_read_only_disk_all_goes_on_from_memory_and_is_written_later(
    no_leaks: None, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, connections: list[sqlite3.Connection]
):
    store = SqliteStore(str(tmp_path / "registry.db"))
    async with inside(tmp_path, store=store) as registry:
        await registry.join("g", 1)
        [connection] = connections
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}" if how == "full" else "PRAGMA query_only = ON")
        await asyncio.gather(*(registry.join("g", number) for number in range(2, 202)))
        await registry.call("DELETE", registry.path("g", 1))
        assert len(await registry.listed("g")) == 200
        _, told, _ = await registry.call("GET", "/healthz")
        assert told["status"] == "degraded"
        assert {"full": "the disk is full", "read-only": "it cannot be written"}[how] in told["store"]
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(said) == 1 and told["store"] in said[0], "the operator is told once"
        connection.execute("PRAGMA max_page_count = 100000" if how == "full" else "PRAGMA query_only = OFF")

        async def is_well() -> bool:
            return bool((await registry.call("GET", "/healthz"))[1]["status"] == "ok")

        await until(is_well, "it writes what it owes")
    async with inside(tmp_path) as registry:
        assert len(await registry.listed("g")) == 200


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_stopping_answers_all_who_wait_and_closes_all(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        version = await registry.join("g", 1)
        poll = asyncio.ensure_future(registry.call("GET", f"/v1/groups/g/members?after={version}&wait=25"))
        async with registry.session.get(f"{registry.base}/v1/groups/g/events?after={version}") as answer:
            await answer.content.readany()
            await until(lambda: registry.hub.polls["g"] and registry.hub.streams["g"], "both wait")
            await registry.server.stop()
            assert (await poll)[0] == 204
            assert await answer.content.read() == b"", "the stream ends, and is not torn off"
