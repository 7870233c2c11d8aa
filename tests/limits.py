"""The rows of docs/limits.md: the tests find a limit by what it bounds, not by the module that happens to hold it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"


class Row(NamedTuple):
    what: str
    most: str
    beyond: str
    constant: str
    shown_by: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][2:]
    return [Row(*(cell.strip().strip("`") for cell in line.strip("| ").split(" | "))) for line in lines]


def limit(what: str) -> int:
    """How many at most."""
    return int(_row(what).most.replace(",", ""))


def lower(what: str, to: int, patch: pytest.MonkeyPatch) -> None:
    """A smaller limit for one test: what is beyond it is reached sooner."""
    module, _, name = _row(what).constant.rpartition(".")
    patch.setattr(importlib.import_module(module), name, to)


def _row(what: str) -> Row:
    [row] = [row for row in rows() if row.what == what]
    return row
