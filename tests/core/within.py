"""A machine with all its parts, and what these have, whatever they are."""

from __future__ import annotations

from collections.abc import Iterable


def within(thing: object) -> Iterable[object]:
    """Whatever it has, and that has."""
    seen = set[int]()
    todo = [thing]
    while todo:
        each = todo.pop()
        yield each
        if id(each) in seen or isinstance(each, type) or callable(each):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            todo += [*each.keys(), *each.values()]
        elif hasattr(each, "__iter__") and not isinstance(each, str | bytes):
            todo += each
        else:
            todo += getattr(each, "__dict__", {}).values()
            for kind in type(each).__mro__:
                slots = getattr(kind, "__slots__", ())
                todo += [getattr(each, slot) for slot in slots if hasattr(each, slot)]
