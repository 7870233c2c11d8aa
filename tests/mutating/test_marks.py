"""What `.ci/mutants` needs to be quick: marks that tell which lines ran, and code that is changed where it stands."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

from tests.mutating.marks import marks, with_marks
from tests.mutating.operators import mutants
from tests.mutating.plugin import changed_code, place_of

CORE = Path(__file__).parent.parent.parent / "softmutex/core"
SOURCE = '''
LIMIT = 3

def weigh(value: int) -> str:
    """A text."""
    if value > LIMIT:
        return "heavy"
    for _ in range(value):
        value += 1
    else:
        value = value
    try:
        return str([each for each in (value,) if each < 4][0])
    except IndexError:
        return "more"
'''


def lines_run(value: int) -> set[int]:
    tree, lines = with_marks(SOURCE, 7)
    assert min(lines.values()) == 7
    names: dict[str, Any] = {}
    seen = marks()
    seen[:] = bytes(len(seen))
    exec(compile(tree, "weigh.py", "exec"), names)
    names["weigh"](value)
    return {line for line, mark in lines.items() if seen[mark]}


def test_marks_tell_which_lines_of_a_function_were_run():
    assert lines_run(9) == {6, 7}
    assert lines_run(0) == {6, 8, 10, 11, 12, 13, 14}
    assert {9, 15} <= lines_run(2)


def test_what_runs_when_a_module_is_loaded_has_no_mark():
    _, lines = with_marks(SOURCE, 0)
    assert not {1, 2, 3, 4, 5} & lines.keys()


def test_each_module_of_the_core_can_be_marked():
    for file in CORE.rglob("*.py"):
        compile(with_marks(file.read_text(), 0)[0], str(file), "exec")


def test_a_change_is_put_in_place_of_the_code_that_is_there():
    names: dict[str, Any] = {}
    exec(compile(SOURCE, "weigh.py", "exec"), names)
    weigh = names["weigh"]
    assert isinstance(weigh, FunctionType) and weigh(3) == "more"
    change = next(each for each in mutants(SOURCE, "weigh.py") if "value >= LIMIT" in each.after)
    weigh.__code__ = changed_code(SOURCE, "weigh.py", change.number)[place_of(weigh.__code__)]
    assert weigh(3) == "heavy"


def test_a_constant_of_a_module_is_in_no_code_that_could_be_changed_in_place():
    change = next(each for each in mutants(SOURCE, "weigh.py") if each.before == "LIMIT = 3")
    assert changed_code(SOURCE, "weigh.py", change.number) == {}
