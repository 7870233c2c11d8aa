"""docs/security.md promises nothing that no test shows."""

import ast
import re
from pathlib import Path

import pytest

from softmutex.runtime.sealing import Refusal

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
PROMISES = [line for line in PAGE.partition("## Five promises")[2].partition("\n## ")[0].splitlines() if "::" in line]


@pytest.mark.house
def test_there_are_five():
    assert len(PROMISES) == 5


@pytest.mark.house
@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: " ".join(line.split()[1:5]))
def test_each_promise_names_tests_that_are_there(promise: str):
    named = re.findall(r"`(tests/\S+?)::(\w+)`", promise)
    assert named
    for file, name in named:
        assert name in {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}


@pytest.mark.house
def test_every_reason_for_a_refusal_is_explained():
    told = PAGE.partition("## What was refused")[2].partition("\n## ")[0]
    assert [reason for reason in Refusal if f"`{reason.value}`" not in told] == []
