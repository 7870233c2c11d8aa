"""`sqlite:PATH`: one file beside one registry. Nothing to install, nothing to run, and a kill -9 loses nothing.

What it decides: the file belongs to one registry at a time, and a second one is told so. The naive way, two registries
on one file that believe themselves alone, has two truths about each group, and both are right every other second.

Write-ahead log, synchronous NORMAL: what was committed survives the death of the process at any moment. When the power
goes the last moments may be missing, which the next heartbeats of the members put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from softmutex.core.errors import ConfigError
from softmutex.ports import Member
from softmutex_adapters.registry.store import ALONE, Committed, Entry, Stored, StoreFailed, next_version

T = TypeVar("T")
FORM = 2
TABLES = """
CREATE TABLE IF NOT EXISTS groups (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    number INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, lease TEXT NOT NULL,
    address TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, proof TEXT NOT NULL DEFAULT '', UNIQUE (grp, lease)
);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
FROM_FORM_1 = "ALTER TABLE members ADD COLUMN proof TEXT NOT NULL DEFAULT '';"
REMEDIES = {
    "SQLITE_FULL": "the disk is full. Make room there.",
    "SQLITE_READONLY": "it cannot be written. Check the rights of file and directory, and how the disk is mounted.",
    "SQLITE_CANTOPEN": "it cannot be opened or made. Check that its directory is there, and may be written to.",
    "SQLITE_BUSY": "another registry uses it. Stop that one, or give this one a file of its own.",
    "SQLITE_NOTADB": "it is no database. Name another file, or move this one aside.",
    "SQLITE_CORRUPT": "it is damaged. Move it aside and start again: the members come back by themselves.",
    "SQLITE_IOERR": "the disk fails to read or write. Look at the system's log.",
}


class SqliteStore:
    shared = False

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str) -> Self:
        path = url.partition(":")[2].removeprefix("//")
        if not path:
            raise ConfigError(f"--store {url}: sqlite: wants a path, as in sqlite:/var/lib/softmutex/registry.db.")
        return cls(path)

    async def open(self) -> None:
        await self._do(self._open)

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # sqlite says it better
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # leases are in there
        connection = sqlite3.connect(self.path, timeout=0.5, isolation_level=None, check_same_thread=False)
        self._connection = connection
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            (form,) = connection.execute("PRAGMA user_version").fetchone()
            if form not in (0, 1, FORM):
                raise StoreFailed(f"{self.path} was written by another version ({form}, this one writes {FORM}).")
            tables = FROM_FORM_1 if form == 1 else TABLES
            connection.executescript(f"BEGIN IMMEDIATE; {tables} PRAGMA user_version = {FORM}; COMMIT;")
        except BaseException:
            connection.close()
            self._connection = None
            raise

    async def groups(self) -> list[str]:
        return await self._do(lambda: [name for (name,) in self._sql("SELECT name FROM groups ORDER BY name")])

    async def read(self, group: str) -> Stored | None:
        return await self._do(lambda: self._read(group))

    def _read(self, group: str) -> Stored | None:
        version = self._version(group)
        if version is None:
            return None
        rows = self._sql("SELECT lease, address, id, name, proof FROM members WHERE grp = ? ORDER BY number", group)
        entries = {
            lease: Entry(Member(address, int(id, 16), name), ALONE, proof) for lease, address, id, name, proof in rows
        }
        return Stored(version, entries)

    async def commit(self, group: str, changes: Mapping[str, Entry | None], at_least: int = 0) -> Committed:
        return await self._do(lambda: self._commit(group, changes, at_least))

    def _commit(self, group: str, changes: Mapping[str, Entry | None], at_least: int) -> Committed:
        self._sql("BEGIN IMMEDIATE")
        try:
            previous = self._version(group) or 0
            version = next_version(previous, at_least)
            self._sql("INSERT OR REPLACE INTO groups VALUES (?, ?)", group, version)
            for lease, entry in changes.items():
                self._sql("DELETE FROM members WHERE grp = ? AND lease = ?", group, lease)
                if entry is not None:
                    one = entry.member
                    self._sql(
                        "INSERT INTO members (grp, lease, address, id, name, proof) VALUES (?, ?, ?, ?, ?, ?)",
                        *(group, lease, one.address, f"{one.id:x}", one.name, entry.proof),
                    )
            self._sql("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                self._sql("ROLLBACK")
            raise
        return Committed(previous, version)

    async def forget(self, group: str) -> None:
        no_members = "NOT EXISTS (SELECT 1 FROM members WHERE grp = groups.name)"
        await self._do(lambda: self._sql(f"DELETE FROM groups WHERE name = ? AND {no_members}", group))

    async def offer(self, name: str, value: bytes) -> bytes:
        def offer() -> bytes:
            self._sql("INSERT OR IGNORE INTO secrets VALUES (?, ?)", name, value)
            return bytes(self._sql("SELECT value FROM secrets WHERE name = ?", name).fetchone()[0])

        return await self._do(offer)

    async def beat(self, instance: str) -> frozenset[str]:
        return frozenset({instance})

    async def changed(self) -> str | None:
        await asyncio.Event().wait()  # nobody else has the file
        return None

    async def aclose(self) -> None:
        async with self._turn:
            connection, self._connection = self._connection, None
            if connection is not None:
                await asyncio.to_thread(connection.close)

    # --- how --------------------------------------------------------------------------------------------------------

    def _sql(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self._connection is None:
            raise StoreFailed(f"{self.path} is not open.")
        return self._connection.execute(statement, values)

    def _version(self, group: str) -> int | None:
        row = self._sql("SELECT version FROM groups WHERE name = ?", group).fetchone()
        return None if row is None else int(row[0])

    async def _do(self, work: Callable[[], T]) -> T:
        """In a thread, one at a time; also when the caller is cancelled, so that nothing is half done."""

        def guarded() -> T:
            try:
                return work()
            except sqlite3.Error as error:
                raise StoreFailed(f"{self.path}: {explain(error)}") from error

        async def turn() -> T:
            async with self._turn:
                return await asyncio.to_thread(guarded)

        return await asyncio.shield(asyncio.ensure_future(turn()))


def explain(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorname", "")
    return next((remedy for prefix, remedy in REMEDIES.items() if code.startswith(prefix)), f"{error} ({code}).")
