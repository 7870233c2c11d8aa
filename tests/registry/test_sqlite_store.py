"""The embedded store: S1 to S8, one registry a file, and a clear word for each way in which a place can be wrong."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from softmutex_adapters.registry.sqlite_store import SqliteStore
from softmutex_adapters.registry.store import Entry, Store, StoreFailed, open_store

from softmutex.core.errors import ConfigError
from tests.registry.store_contract import ONE, StoreContract


class TestSqlite(StoreContract):
    shared = False

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, connections: list[sqlite3.Connection]) -> None:
        self.path, self.connections = tmp_path / "registry.db", connections

    def make(self) -> Store:
        return open_store(f"sqlite:{self.path}")

    async def fail(self, store: Store) -> None:
        self.connections[-1].execute("PRAGMA query_only = ON")

    async def mend(self, store: Store) -> None:
        self.connections[-1].execute("PRAGMA query_only = OFF")


async def test_a_full_disk_is_told_as_such_and_what_was_there_stays(
    no_leaks: None, tmp_path: Path, connections: list[sqlite3.Connection]
):
    store = SqliteStore(str(tmp_path / "registry.db"))
    await store.open()
    await store.commit("g", {"lease-a": ONE})
    [connection] = connections
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFailed, match="the disk is full"):
        await store.commit("g", {f"lease-{n}": ONE for n in range(1000)})
    connection.execute("PRAGMA max_page_count = 1000000")
    stored = await store.read("g")
    assert stored is not None
    assert list(stored.entries) == ["lease-a"]
    await store.aclose()


async def test_a_file_of_before_there_were_proofs_goes_on(no_leaks: None, tmp_path: Path):
    path = tmp_path / "registry.db"
    store = SqliteStore(str(path))
    await store.open()
    _, version = await store.commit("g", {"lease-a": ONE})
    await store.aclose()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("ALTER TABLE members DROP COLUMN proof; PRAGMA user_version = 1;")
    for _ in range(2):
        await store.open()
        stored = await store.read("g")
        assert stored == (version, {"lease-a": Entry(ONE.member, "")})
        await store.aclose()


async def test_a_second_registry_on_the_same_file_is_refused(no_leaks: None, tmp_path: Path):
    one, two = (SqliteStore(str(tmp_path / "registry.db")) for _ in range(2))
    await one.open()
    with pytest.raises(StoreFailed, match="another registry uses it"):
        await two.open()
    await two.aclose()
    await one.aclose()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no database at all" * 100, "it is no database"), (None, "it cannot be opened or made")],
)
async def test_a_place_that_cannot_be_used_is_named_with_the_remedy(
    no_leaks: None, tmp_path: Path, content: bytes | None, said: str
):
    path = tmp_path / "file.db" if content else tmp_path / "missing" / "file.db"
    if content:
        path.write_bytes(content)
    store = SqliteStore(str(path))
    with pytest.raises(StoreFailed, match=said) as failure:
        await store.open()
    assert str(path) in str(failure.value)
    await store.aclose()


async def test_a_file_of_a_later_version_is_left_alone(no_leaks: None, tmp_path: Path):
    path = tmp_path / "registry.db"
    with sqlite3.connect(path) as later:
        later.execute("PRAGMA user_version = 99")
    later.close()
    store = SqliteStore(str(path))
    with pytest.raises(StoreFailed, match="was written by another version"):
        await store.open()
    await store.aclose()


async def test_only_its_user_can_read_the_file_since_the_leases_of_members_are_in_it(no_leaks: None, tmp_path: Path):
    path = tmp_path / "registry.db"
    store = SqliteStore(str(path))
    await store.open()
    assert path.stat().st_mode & 0o077 == 0
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "said"), [("mysql://here", "there is no store 'mysql'"), ("sqlite:", "sqlite: wants a path")]
)
def test_a_store_that_is_not_there_is_an_error_that_names_those_that_are(url: str, said: str):
    with pytest.raises(ConfigError, match=said) as error:
        open_store(url)
    assert "sqlite:" in str(error.value)
