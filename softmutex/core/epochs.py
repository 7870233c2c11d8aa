"""Which epochs can be meant. They count seconds since 1970 (`Context.next_epoch`), one more where two come in a second.

The naive way, to believe any number: one message with 2**64 - 1 in it, and the next token that is made anew has an
epoch that no frame can carry; every machine that heard it breaks.

The slack is wide: clocks may be wrong by years, and where an epoch is ahead of them all, the next ones still are above
it, one by one. It only keeps room above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, get_args, get_origin, get_type_hints

from softmutex.core.events import SECOND, Instant
from softmutex.core.messages import Message

SLACK_S: Final = 1 << 36  # two thousand years
EPOCHS: Final = frozenset({"epoch", "ballot"})  # what such fields are called, in any message

_Find = Callable[[Any], int]  # the highest epoch in such a value; 0 where there is none


def is_possible(message: Message, now: Instant) -> bool:
    find = _FINDERS[type(message)]
    return find is None or find(message) <= now // SECOND + SLACK_S


class _Finders(dict[Any, "_Find | None"]):
    """By type, what finds the epochs in such a value. None: it has none."""

    def __missing__(self, kind: Any) -> _Find | None:
        self[kind] = None  # no message contains itself
        self[kind] = found = _finder(kind)
        return found


_FINDERS: Final = _Finders()


def _finder(kind: Any) -> _Find | None:
    if get_origin(kind) is tuple:
        return _each(_FINDERS[get_args(kind)[0]])
    options = [option for option in get_args(kind) if option is not type(None)]
    if options:
        return _if_any(_FINDERS[options[0]])
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return None
    hints = get_type_hints(kind)
    own: list[_Find] = [itemgetter(at) for at, name in enumerate(kind._fields) if name in EPOCHS and hints[name] is int]
    inside = [(at, find) for at, name in enumerate(kind._fields) if (find := _FINDERS[hints[name]]) is not None]
    return _highest([*own, *(_inside(at, find) for at, find in inside)])


def _each(inner: _Find | None) -> _Find | None:
    return None if inner is None else lambda items: max(map(inner, items), default=0)


def _if_any(inner: _Find | None) -> _Find | None:
    return None if inner is None else lambda value: 0 if value is None else inner(value)


def _inside(at: int, inner: _Find) -> _Find:
    return lambda record: inner(record[at])


def _highest(finders: Sequence[_Find]) -> _Find | None:
    if len(finders) < 2:
        return finders[0] if finders else None
    return lambda record: max(find(record) for find in finders)
