import sqlite3
from typing import Any

import pytest


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Those that are made from now on: SQLite's own switches let it fail as a full or a read-only disk does."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def making(*where: Any, **how: Any) -> sqlite3.Connection:
        made.append(connect(*where, **how))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", making)
    return made
