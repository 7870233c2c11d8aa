"""Tells observers what happens, and lets none of them harm the node (O2).

An observer may be a courier, too: it is then asked for a few bytes when a hold ends (`baggage`), which travel with the
token and come out at the next hold, on whichever node that is: `values["baggage"]` of its `hold_started`, in
hexadecimal. That is how a trace context crosses the group. The first observer that has something to say is the one.

A membership may bring one, too (`observer`): the registry's page shows what members tell it. An observer that says
`messages = False` is not told of single messages, which are many.

`wait_started`, `wait_ended`, `hold_started` and `hold_ended` are told in the task (or thread) of the application, so
that an observer finds the caller's context there; everything else on the node's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from softmutex import plugins
from softmutex.core.events import Note
from softmutex.ports import Observation, Observer

if TYPE_CHECKING:
    from softmutex.runtime.node import Life

log = logging.getLogger("softmutex")

BAGGAGE_MAX = 64


class Observers:
    def __init__(self, wanted: Iterable[str | Observer] | None, life: Life) -> None:
        self._life = life
        names = plugins.installed(plugins.Role.OBSERVER) if wanted is None else wanted
        self._observers = plugins.observers(names)
        if (brought := getattr(life.membership, "observer", None)) is not None:
            self._observers.append(brought)
        self.of_messages = any(getattr(each, "messages", True) for each in self._observers)
        self._couriers = [each for each in self._observers if hasattr(each, "baggage")]
        self._complained: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._observers)

    def notice(self, observation: Observation) -> None:
        for observer in self._observers:
            try:
                observer.notice(observation)
            except Exception as error:
                self._complain(observer, error)

    def note(self, mutex: str, note: Note) -> None:
        if self._observers:
            self.notice(Observation(mutex, self._life.id, note.kind.value, {"detail": note.detail}, note))

    def baggage(self, observation: Observation) -> bytes:
        """What a courier wants to send along with the token that is let go."""
        for observer in self._couriers:
            try:
                packed = bytes(observer.baggage(observation))
            except Exception as error:
                self._complain(observer, error)
                continue
            if packed:
                return packed[:BAGGAGE_MAX]
        return b""

    def _complain(self, observer: Observer, error: Exception) -> None:
        self._life.told["observers"] += 1
        if id(observer) not in self._complained:
            self._complained.add(id(observer))
            log.warning("the observer %r raised %r; it is told further on", observer, error, exc_info=error)
