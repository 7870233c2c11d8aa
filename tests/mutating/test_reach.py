"""Who is asked about a change, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

from tests.mutating.operators import Mutant
from tests.mutating.reach import Reach

MAP = {"tests": ["slow", "quick"], "seconds": [3.0, 0.1], "lines": {"door.py": {"4": [0, 1], "7": [0]}}}


def asked(folder: Path, file: str, line: int, known: object = MAP) -> list[str]:
    (folder / "tests-room.json").write_text(json.dumps(known))
    return Reach(folder, ["tests/room"]).of(Mutant(file, 0, line, line, "", "a", "b"))


def test_those_that_reach_the_line_are_asked_and_the_quickest_is_first(tmp_path: Path):
    assert asked(tmp_path, "door.py", 4) == ["quick", "slow"]
    assert asked(tmp_path, "door.py", 7) == ["slow"]


def test_each_function_is_asked_once_before_any_is_asked_with_other_parameters(tmp_path: Path):
    """A hundred copies of the quickest one used up the time, and none of the others was asked."""
    known = {
        "tests": ["one[a]", "one[b]", "one[c]", "two"],
        "seconds": [0.1, 0.3, 0.2, 3.0],
        "lines": {"door.py": {"4": [0, 1, 2, 3]}},
    }
    assert asked(tmp_path, "door.py", 4, known) == ["one[a]", "two", "one[c]", "one[b]"]


def test_of_what_runs_when_a_module_is_loaded_those_that_reach_the_module_are_asked_first(tmp_path: Path):
    assert asked(tmp_path, "door.py", 1) == ["quick", "slow"]
    other = {**MAP, "tests": ["slow", "quick", "quicker"], "seconds": [3.0, 0.1, 0.05]}
    assert asked(tmp_path, "door.py", 1, other) == ["quick", "slow", "quicker"]


def test_of_a_module_without_functions_all_are_asked(tmp_path: Path):
    """As of numbers of messages: a vector of the wire holds them."""
    assert asked(tmp_path, "numbers.py", 1) == ["quick", "slow"]


def test_of_a_line_that_no_test_reaches_those_of_its_module_can_be_asked(tmp_path: Path):
    """A function that is called while its module is loaded, as that which learns the numbers of messages."""
    (tmp_path / "tests-room.json").write_text(json.dumps({**MAP, "lines": {"door.py": {"4": [0, 1], "9": []}}}))
    reach, mutant = Reach(tmp_path, ["tests/room"]), Mutant("door.py", 0, 9, 9, "", "a", "b")
    assert reach.of(mutant) == []
    assert reach.of_module(mutant) == ["quick", "slow"]
