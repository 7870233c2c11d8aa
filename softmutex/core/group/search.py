"""Looking for those that are missing: members that are silent, addresses at which nobody answered.

What it decides: one of them a second, at random, for as long as there is any. Of two halves of a group that can talk
again the first pair meets within a second or so, for every node of both looks; and who is missing for good costs each
node one message a second, however many they are. The naive ways, each of them ever more rarely, or all of them often,
are too slow for the first or too dear for the second.
"""

from __future__ import annotations

from typing import Final, Protocol

from softmutex.core.chance import Rng
from softmutex.core.events import SECOND, Instant, SetTimer
from softmutex.core.group.greeter import Greeter
from softmutex.core.group.suspicion import Suspicion

LOOK: Final = SECOND


class SearchOwner(Protocol):
    def put(self, effect: SetTimer) -> None: ...


class Search:
    def __init__(self, owner: SearchOwner, suspicion: Suspicion, greeter: Greeter, rng: Rng) -> None:
        self._owner = owner
        self._suspicion = suspicion
        self._greeter = greeter
        self._rng = rng
        self._is_on = False

    def later(self, now: Instant) -> None:
        """Somebody may be missing."""
        if not self._is_on:
            self._is_on = True
            self._owner.put(SetTimer("look", now + round(LOOK * (0.75 + 0.5 * self._rng.random()))))

    def fired(self, now: Instant) -> None:
        self._is_on = False
        silent, unmet = self._suspicion.silent(), self._greeter.unmet()
        if not silent and not unmet:
            return
        number = int(self._rng.random() * (len(silent) + len(unmet)))
        if number < len(silent):
            self._suspicion.look(silent[number], now)
        else:
            self._greeter.look(unmet[number - len(silent)])
        self.later(now)
