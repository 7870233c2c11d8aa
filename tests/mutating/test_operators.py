"""The small changes that `.ci/mutants` makes: each is one, can be compiled, and is known again when lines move."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutating.operators import all_mutants, mutants, mutated

ROOT = Path(__file__).parent.parent.parent
SOURCE = '''
"""A text of 3 words."""
LIMIT: int = 600

class Door:
    __slots__ = ("open",)

    def knock(self, who: str, times: int = 1) -> bool:
        if who in self.known and times < 3:
            self.told.add(who)
            self.count += 1
            return True
        raise ValueError("knock < 3 times")

    def __repr__(self) -> str:
        return f"{self.count + 1}"
'''


def changes() -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for mutant in mutants(SOURCE, "door.py")}


def test_bounds_switches_conditions_numbers_and_effects_are_changed():
    found = changes()
    head = "if who in self.known and times < 3:"
    for after in (
        "if who not in self.known and times < 3:",
        "if who in self.known or times < 3:",
        "if who in self.known and times <= 3:",
        "if who in self.known and times < 4:",
        "if not (who in self.known and times < 3):",
    ):
        assert (head, after) in found
    assert ("self.told.add(who)", "pass") in found
    assert {("self.count += 1", "self.count -= 1"), ("self.count += 1", "self.count += 2")} <= found
    assert ("return True", "return False") in found
    assert ("raise ValueError('knock < 3 times')", "pass") in found
    assert ("LIMIT: int = 600", "LIMIT: int = 1200") in found


def test_texts_types_and_what_is_only_shown_are_left_alone():
    assert not any("__slots__" in before or "self.count + 1" in before for before, _ in changes())
    assert all("A text" not in before for before, _ in changes())


def test_each_change_is_one_that_compiles_and_no_two_are_the_same():
    plain = ast.unparse(ast.parse(SOURCE))
    made = [ast.unparse(mutated(SOURCE, mutant.number)) for mutant in mutants(SOURCE, "door.py")]
    assert len(made) == len(set(made)) > 10 and plain not in made
    for number in range(len(made)):
        compile(mutated(SOURCE, number), "door.py", "exec")


def test_a_mutant_is_known_again_when_lines_have_moved():
    before = [mutant.name for mutant in mutants(SOURCE, "door.py")]
    assert [mutant.name for mutant in mutants("# more\n\n" + SOURCE, "door.py")] == before


def test_in_the_real_core_there_are_thousands_in_the_lines_that_they_name():
    file = ROOT / "softmutex/core/handover.py"
    found = all_mutants(ROOT, [file])
    lines = file.read_text().splitlines()
    assert len(found) > 200
    assert all(1 <= mutant.first <= mutant.last <= len(lines) for mutant in found)
