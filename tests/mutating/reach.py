"""Which test reaches which line, read from the maps that `plugin.py` has written, one a room."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutating.operators import Mutant


class Reach:
    def __init__(self, folder: Path, rooms: Iterable[str]) -> None:
        self.tests: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = {}
        for room in rooms:
            found = json.loads((folder / (room.replace("/", "-") + ".json")).read_text())
            self.tests.update(zip(found["tests"], found["seconds"], strict=True))
            for file, lines in found["lines"].items():
                mine = self.lines.setdefault(file, {})
                for line, tests in lines.items():
                    mine.setdefault(int(line), set()).update(found["tests"][number] for number in tests)

    def of(self, mutant: Mutant) -> list[str]:
        """The quickest first. What has no mark is run when the module is loaded: those that reach anything of it, and
        then all others, for nobody knows who reads a number, or a class without functions."""
        lines = self.lines.get(mutant.file, {})
        if not lines:
            return self._quickest_first(self.tests)
        found = {test for line in range(mutant.first, mutant.last + 1) for test in lines.get(line, ())}
        if not any(line in lines for line in range(mutant.first, mutant.last + 1)):
            first = self.of_module(mutant)
            return [*first, *self._quickest_first(self.tests.keys() - first)]
        return self._quickest_first(found)

    def of_module(self, mutant: Mutant) -> list[str]:
        """All that reach anything of it: of a line that runs when the module is loaded no test says that it does."""
        return self._quickest_first({test for tests in self.lines[mutant.file].values() for test in tests})

    def _quickest_first(self, tests: Iterable[str]) -> list[str]:
        """But of each function one before any of its others: what one with these parameters misses, the next one will
        hardly see, and another function may."""
        of_function = Counter[str]()
        order = []
        for test in sorted(tests, key=lambda test: (self.tests[test], test)):
            function, _, _ = test.partition("[")
            order.append((of_function[function], self.tests[test], test))
            of_function[function] += 1
        return [test for *_, test in sorted(order)]

    def within(self, tests: Sequence[str], budget_s: float) -> list[str]:
        """As many as that much time is enough for, and one at least."""
        chosen, cost = list[str](), 0.0
        for test in tests:
            cost += self.tests[test]
            if cost > budget_s and chosen:
                break
            chosen.append(test)
        return chosen
