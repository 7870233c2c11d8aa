"""What was chosen, written down in `figures.txt`: times, bounds, the switches of each algorithm, what it declares, and
with what its machine and each part of that begins: of the numbers there those that are not 0.

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
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import softmutex.core
from softmutex import plugins
from softmutex.core.events import SECOND
from softmutex.core.group import Ego, Group
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Message
from tests.core.within import within
from tests.sim.days import algorithms

FIGURES = Path(__file__).with_suffix(".txt")
MILLISECOND = SECOND // 1000
MISSING = object()
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


def assigned(module: ModuleType) -> Iterator[tuple[type, tuple[str, ...]]]:
    """The classes that are at home there, and which of their fields any method of theirs ever assigns."""
    assert module.__file__ is not None
    for node in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(node, ast.ClassDef):
            leaves = [
                leaf for leaf in ast.walk(node) if isinstance(leaf, ast.Attribute) and isinstance(leaf.ctx, ast.Store)
            ]
            own = {leaf.attr for leaf in leaves if isinstance(leaf.value, ast.Name) and leaf.value.id == "self"}
            yield getattr(module, node.name), tuple(sorted(own))


ASSIGNED = {kind: names for module in modules() for kind, names in assigned(module)}  # once, for it takes a while


def machine(algorithm: str) -> Algorithm:
    return plugins.algorithm(algorithm)(Setup(7, [2, 7, 9], random.Random(1)))


def group() -> Group:
    return Group(Ego(7, "here", "one", 1, b"secret", random.Random(1)))


def fields_of(thing: object) -> Iterator[tuple[str, Any]]:
    for kind in type(thing).__mro__:
        yield from ((f"{kind.__name__}.{name}", getattr(thing, name, MISSING)) for name in ASSIGNED.get(kind, ()))


def first(whole: Algorithm | Group) -> list[tuple[str, Any]]:
    """What it and its parts begin with."""
    return [each for part in within(whole) for each in fields_of(part)]


def begins(name: str, found: Iterable[tuple[str, Any]]) -> str:
    numbers = {(field, shown(value)) for field, value in found if is_number(value) and value and any(many(value))}
    return "; ".join([f"{name} begins", *(f"{field} {value}" for field, value in sorted(numbers))])


def many(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def parts() -> list[type]:
    """What no machine begins with, and makes when it has a token, a question, a doubt."""
    wholes = [*map(machine, algorithms()), group()]
    there = {kind for whole in wholes for part in within(whole) for kind in type(part).__mro__}
    homes = ("softmutex.core.algorithms.", "softmutex.core.group.", "softmutex.core.attempts")
    return [
        kind for kind, names in ASSIGNED.items() if names and kind not in there and kind.__module__.startswith(homes)
    ]


def part(kind: type) -> object:
    """Of anything: what it is given is not looked at."""
    given = [each for each in inspect.signature(kind).parameters.values() if each.default is each.empty]
    return kind(*(MagicMock() for _ in given))


def of_module(module: ModuleType, names: Iterable[str]) -> str:
    return "; ".join([module.__name__, *(f"{name} {shown(getattr(module, name, 'is gone'))}" for name in names)])


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


def everything() -> Iterator[str]:
    for module in modules():
        if names := constants(module):
            yield of_module(module, names)
    for name in algorithms():
        yield from of_algorithm(plugins.algorithm(name))
        yield begins(name, first(machine(name)))
    yield begins("group", first(group()))
    yield from (begins(kind.__name__, fields_of(part(kind))) for kind in parts())


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in everything())
