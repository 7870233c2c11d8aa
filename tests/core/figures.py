"""What was chosen: times, bounds, the switches of each algorithm and what it declares, written down in `figures.txt`.

No law misses a bound that is twice as large, or a wait of six seconds in place of five: nothing breaks, and people wait
longer, or a stranger fills more memory. So a slip of the pen there would be found by nobody. Whoever changes a figure
on purpose writes the file anew, and the difference is read in review:

    python -m tests.core.figures > tests/core/figures.txt
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import softmutex.core
from softmutex import plugins
from softmutex.core.events import SECOND
from softmutex.core.machine import Algorithm
from softmutex.core.messages import Message
from tests.sim.days import algorithms

FIGURES = Path(__file__).with_suffix(".txt")
MILLISECOND = SECOND // 1000
DECLARED = ("slots_most", "has_token", "needs_every_member", "ticket_s", "may_be_forgotten", "elects", "listens")


def shown(value: object) -> str:
    if type(value) is int and value >= MILLISECOND and value % MILLISECOND == 0:
        return f"{value / SECOND:g} s"
    return f"{value:g}" if isinstance(value, float) else str(value)


def modules() -> Iterator[ModuleType]:
    """Of the core, in order."""
    for found in pkgutil.walk_packages(softmutex.core.__path__, "softmutex.core."):
        yield importlib.import_module(found.name)


def is_number(value: object) -> bool:
    """Or some of them."""
    return isinstance(value, int | float) or (isinstance(value, tuple) and all(type(each) is int for each in value))


def constants(module: ModuleType) -> list[str]:
    """Numbers with a name that are at home there: the name stands at the beginning of a line."""
    assert module.__file__ is not None
    found = []
    for node in ast.parse(Path(module.__file__).read_text()).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
        found += [name for name in names if name.isupper() and is_number(getattr(module, name))]
    return found


def of_module(module: ModuleType, names: Iterable[str]) -> str:
    return "; ".join([module.__name__, *(f"{name} {shown(getattr(module, name))}" for name in names)])


def message(number: int, kind: type[Message]) -> str:
    fields = inspect.signature(kind).parameters.values()
    simple = [f"{each.name}={each.default:d}" for each in fields if isinstance(each.default, int)]
    return " ".join([f"{number} {kind.__name__}", *simple])


def switch(each: Any) -> str:
    default = each.default if not isinstance(each.default, bool) else "yes" if each.default else "no"
    low, high = (each.metadata.get(end, off) for end, off in (("low", -math.inf), ("high", math.inf)))
    within = "" if low == -math.inf else f" ({low:g} to {high:g})"
    return f"{each.name} {default:g}{within}" if isinstance(default, float) else f"{each.name} {default}{within}"


def of_algorithm(machine: type[Algorithm]) -> Iterator[str]:
    name, pace = machine.name, machine.pace._asdict().items()
    declared = [f"{each} {shown(getattr(machine, each, None))}" for each in DECLARED]
    yield "; ".join([name, *declared, *(f"{each} {shown(value)}" for each, value in pace)])
    yield "; ".join([f"{name} switches", *map(switch, fields(machine.Options))])
    yield "; ".join([f"{name} messages", *(message(*each) for each in sorted(machine.messages.items()))])


def of_algorithms() -> list[str]:
    return [line for name in algorithms() for line in of_algorithm(plugins.algorithm(name))]


def everything() -> Iterator[str]:
    for module in modules():
        if names := constants(module):
            yield of_module(module, names)
    yield from of_algorithms()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in everything())
