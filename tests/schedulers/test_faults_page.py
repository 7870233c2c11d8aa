"""docs/howto/schedulers/faults.md names no test that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "howto" / "schedulers" / "faults.md").read_text("utf-8")


@pytest.mark.house
def test_the_tests_that_it_names_are_there():
    named = re.findall(r"`(tests/\S+?)::(\w+)`", PAGE)
    assert len(named) > 10
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text("utf-8")] == []


@pytest.mark.house
def test_the_one_table_has_no_figure_that_no_table_below_it_has():
    summary, _, tables = PAGE.partition("## All in one")[2].partition("\n## ")
    figures = re.findall(r"\d+\.\d\d", summary)
    assert len(figures) > 90
    assert [figure for figure in figures if f"{figure} s" not in tables] == []


@pytest.mark.house
def test_the_commands_that_it_names_are_there():
    commands = set(re.findall(r"`python (benchmarks/\w+\.py)", PAGE))
    names = ("scheduler_faults", "command_faults", "worker_faults", "worker_hosts", "condor_faults", "schedulers")
    assert commands == {f"benchmarks/{name}.py" for name in names}
    assert all((ROOT / command).exists() for command in commands)
