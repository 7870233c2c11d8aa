"""Real servers to be measured against: started on a free port in a directory of their own, and stopped again."""

from __future__ import annotations

import asyncio
import glob
import os
import pwd
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

START_PATIENCE_S = 30.0


class NotInstalled(Exception):
    """Names what is missing and what installs it."""


@asynccontextmanager
async def redis() -> AsyncIterator[tuple[str, int]]:
    """URL and process id."""
    _need_module("redis", "redis")
    program = shutil.which("redis-server")
    if program is None:
        raise NotInstalled("redis-server is not installed: apt-get install redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="softmutex-bench-") as home:
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", home]
        async with _running(program, *arguments, port=port) as process:
            yield f"redis://127.0.0.1:{port}/0", process.pid


@asynccontextmanager
async def postgresql() -> AsyncIterator[tuple[str, int]]:
    _need_module("psycopg", "psycopg[binary]")
    binaries = _postgresql_binaries()
    user = None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="softmutex-bench-") as home:
        if os.getuid() == 0:  # it refuses to run as root
            user = "postgres"
            os.chown(home, pwd.getpwnam(user).pw_uid, -1)
        data = os.path.join(home, "data")
        initdb = await asyncio.create_subprocess_exec(
            f"{binaries}/initdb", "-D", data, "-A", "trust", "-U", "bench", "--no-sync",
            user=user, cwd=home, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        if await initdb.wait():
            raise NotInstalled("PostgreSQL's initdb failed: see its message above")
        settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={home}",
                    "max_connections=300", "fsync=off", "logging_collector=off", "log_min_messages=fatal"]  # fmt: skip
        arguments = [word for setting in settings for word in ("-c", setting)]
        async with _running(f"{binaries}/postgres", "-D", data, *arguments, port=port, user=user) as process:
            yield f"host=127.0.0.1 port={port} user=bench dbname=postgres", process.pid


def _postgresql_binaries() -> str:
    """Debian keeps the server's programs off the PATH, in one directory a version."""
    for initdb in [*sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True), shutil.which("initdb")]:
        if initdb is not None:
            return os.path.dirname(initdb)
    raise NotInstalled("PostgreSQL's server is not installed: apt-get install postgresql")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_of_tree_s(pid: int) -> float:
    """User and system time of a server and of its children, living and waited for."""
    fields: dict[int, list[str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    fields[int(entry)] = stat.read().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
    ticks = 0
    for each, values in fields.items():
        if each == pid or int(values[1]) == pid:
            ticks += sum(int(value) for value in values[11 : 15 if each == pid else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _need_module(module: str, package: str) -> None:
    if find_spec(module) is None:
        raise NotInstalled(f"the Python package {module} is not installed: pip install '{package}'")


@asynccontextmanager
async def _running(
    program: str, *arguments: str, port: int, user: str | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        program, *arguments, user=user, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_PATIENCE_S):
            while not await _listens(port):
                if process.returncode is not None:
                    raise NotInstalled(f"{program} ended with code {process.returncode} instead of serving")
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
