"""`softmutex registry` as a process: killed, restarted, set back, lost; what it says and how it ends."""

import asyncio
import contextlib
import json
import shutil
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from softmutex_adapters.memberships.registry import RegistryMembership

from softmutex.ports import Member
from tests import prepared
from tests.registry.inside import body, lease, until
from tests.registry.serving import Served

SETTLES_S = 3  # a list, in half of a lease
MEMBERS = [Member(f"10.0.0.1:{number}", number, f"node-{number}") for number in range(1, 6)]


@contextlib.asynccontextmanager
async def served(folder: Path, *options: str, **more: Any) -> AsyncIterator[Served]:
    registry = Served(folder, *options, **more)
    await asyncio.to_thread(registry.start)
    try:
        yield registry
    finally:
        await asyncio.to_thread(registry.stop)


@contextlib.asynccontextmanager
async def joined(registry: Served, *members: Member) -> AsyncIterator[list[RegistryMembership]]:
    async with contextlib.AsyncExitStack() as stack:
        found = [RegistryMembership.from_url(registry.url("lab")) for _ in members]
        for membership, member in zip(found, members, strict=True):
            stack.push_async_callback(membership.aclose)
            await membership.join(member)
        yield found


def seen_by(membership: RegistryMembership) -> int:
    """How many members it is shown, itself included."""
    return membership.statistics()["members"]


async def again(registry: Served, membership: RegistryMembership) -> None:
    before = membership.statistics()["sessions"]
    await asyncio.to_thread(registry.start)
    await until(lambda: membership.statistics()["sessions"] > before, "it comes back by itself")


async def test_whoever_was_told_that_it_is_in_is_in_after_a_kill_9_in_the_middle(no_leaks: None, tmp_path: Path):
    told: list[str] = []
    async with served(tmp_path) as registry, aiohttp.ClientSession() as session:

        async def join(number: int) -> None:
            url = f"{registry.base}/v1/groups/lab/members/{lease(number)}"
            with contextlib.suppress(aiohttp.ClientError):
                async with session.put(url, json=body(number)) as answer:
                    if answer.status == 200:
                        told.append(f"10.0.0.1:{number}")

        joining = [asyncio.ensure_future(join(number)) for number in range(1, 2000)]
        await until(lambda: len(told) > 300, "some are in")
        registry.kill()  # here and now: in a thread it might come when all are in
        await asyncio.gather(*joining)
        assert len(told) < len(joining), "it was killed in the middle"
        await asyncio.to_thread(registry.start)
        found = registry.get("/v1/groups/lab/members")["joined"]
        assert {address for _, address, _, _ in found} >= set(told)


async def test_a_restart_keeps_the_leases_and_nobody_is_told_the_whole_list_again(no_leaks: None, tmp_path: Path):
    async with served(tmp_path) as registry, joined(registry, *MEMBERS[:3]) as members:
        await until(lambda: all(seen_by(one) == 3 for one in members), "all are told of all")
        lists = [one.statistics()["lists"] for one in members]
        assert await asyncio.to_thread(registry.stop) == 0
        await again(registry, members[0])
        assert registry.metric("members") == 3
        for one in members:
            await until(lambda one=one: one.statistics()["sessions"] >= 2, "all come back")
        assert [one.statistics()["lists"] for one in members] == lists
        assert registry.metric("set_back_total") == 0


@pytest.mark.parametrize("how", ["lost", "set back"])
async def test_after_the_store_is_lost_or_set_back_all_are_in_again_and_nobody_was_alone(
    no_leaks: None, tmp_path: Path, how: str
):
    """A newcomer to the old store must not believe that it is alone, and those who knew more keep asking."""
    async with served(tmp_path, "--ttl", str(2 * SETTLES_S)) as registry, joined(registry, MEMBERS[4]) as early:
        await asyncio.to_thread(registry.stop)
        shutil.copy(tmp_path / "registry.db", tmp_path / "backup")
        await again(registry, early[0])
        async with joined(registry, *MEMBERS[:4]) as members:
            await until(lambda: seen_by(members[0]) == 5, "all are in")
            await asyncio.to_thread(registry.kill)
            for leftover in tmp_path.glob("registry.db*"):
                leftover.unlink()
            if how == "set back":
                shutil.copy(tmp_path / "backup", tmp_path / "registry.db")
            started_at = time.monotonic()
            await again(registry, members[3])
            is_complete = members[3].complete
            too_soon = time.monotonic() < started_at + SETTLES_S
            assert not (too_soon and is_complete), "the list has to settle first"
            await until(lambda: all(seen_by(one) == 5 for one in members), "all are in again")
            await until(lambda: all(one.complete for one in members), "it has settled")


# --- what it says, and how it ends -----------------------------------------------------------------------------------


def ends(*options: str, cwd: Path) -> tuple[int, str]:
    command = [str(prepared.SOFTMUTEX), "registry"]
    run = prepared.run([*command, *options], cwd=cwd, capture_output=True, text=True, timeout=100)
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--listen", "nonsense:x"], 64, "Write host:port"),
        (["--store", "mysql://x"], 64, "there is no store 'mysql'"),
        (["--cert", "a.pem"], 64, "--cert and --key belong together"),
        (["--ttl", "0"], 64, "not between 1 and 3600"),
        (["--token-file", "missing"], 64, "cannot be read"),
        (["--listne", "x"], 64, "did you mean '--listen'"),
        (["--listen", "127.0.0.1:0", "--cert", "a.pem", "--key", "b.pem"], 69, "Name readable PEM files"),
        (
            ["--listen", "127.0.0.1:0", "--store", "sqlite:no/where.db"],
            69,
            "the directory no of the store is not there",
        ),
        (
            ["--listen", "127.0.0.1:0", "--insecure", "--store", "sqlite:/proc/x.db", "--signing-key", "k"],
            69,
            "it cannot",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_a_code(tmp_path: Path, options: list[str], code: int, said: str):
    found, complained = ends(*options, cwd=tmp_path)
    assert found == code, complained
    assert said in complained
    assert len(complained.splitlines()) == 1


def test_a_port_that_is_taken_is_said(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = ends("--listen", address, cwd=tmp_path)
    assert code == 69
    assert address in said


async def test_its_log_is_lines_of_json_and_its_metrics_are_prometheus_text(no_leaks: None, tmp_path: Path):
    async with served(tmp_path) as registry, joined(registry, *MEMBERS[:2]):
        assert registry.metric("members") == 2
        assert registry.metric("streams") == 2
        assert registry.metric("store_ok") == 1
        text = registry.get("/metrics")
        assert all(
            line.startswith(("# HELP softmutex_", "# TYPE softmutex_", "softmutex_")) for line in text.splitlines()
        )
        assert registry.get("/v1/key") == {"public_key": registry.public_key}
        assert [group["name"] for group in registry.get("/v1/groups")["groups"]] == ["lab"]
    lines = [json.loads(line) for line in registry.log.read_text().splitlines()]
    assert [line["message"] for line in (lines[0], lines[-1])] == ["listening", "stopping"]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert {"group": "lab", "joined": 1, "members": 2}.items() <= lines[3].items()
