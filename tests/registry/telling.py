"""A node that tells its reporter of what happens, at times that the test says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from softmutex_adapters.registry.report import read
from softmutex_adapters.registry.reporter import Reporter

from softmutex.core.events import Note, Token, from_seconds
from softmutex.ports import Lately, Observation


class Written:
    """A diary with what the test writes into it."""

    algorithm = "wandering"

    def __init__(self, mutex: str, node: int) -> None:
        self.mutex, self.node, self.now = mutex, node, 100.0
        self.wishes: dict[int, tuple[float, int, int]] = {}  # claim -> since, slots, priority
        self.held: dict[int, tuple[float, float, int, int, int]] = {}  # claim -> since, waited, epoch, hop, slots
        self.seen: dict[int, tuple[int, int, int]] = {}

    def is_used(self) -> bool:
        return True

    def waiting(self) -> Sequence[tuple[int, int, int]]:
        return [(from_seconds(self.now - since), *wish) for since, *wish in self.wishes.values()]  # type: ignore[misc]

    def holding(self) -> Sequence[tuple[int, int, int, int, int]]:
        return [
            (from_seconds(self.now - since), from_seconds(waited), epoch, hop, slots)
            for since, waited, epoch, hop, slots in self.held.values()
        ]

    def tokens(self) -> Mapping[int, tuple[int, int, int]]:
        return self.seen

    def lately(
        self, waits: Sequence[float] = (), holds: Sequence[tuple[float, float]] = (), handed_over: int = 0
    ) -> Lately:
        spans = [(from_seconds(begin), from_seconds(end)) for begin, end in holds]
        return Lately([from_seconds(wait) for wait in waits], spans, handed_over, from_seconds(self.now))


class Teller:
    def __init__(self, node: int = 1) -> None:
        self.now, self.node, self.woken, self.claims = 100.0, node, 0, 0
        self.reporter = Reporter(self._wake, lambda: self.now)
        self._diaries: dict[str, Written] = {}

    def _wake(self) -> None:
        self.woken += 1

    def diary(self, mutex: str) -> Written:
        found = self._diaries.setdefault(mutex, Written(mutex, self.node))
        found.now = self.now
        return found

    def tell(self, mutex: str, **lately: Any) -> None:
        diary = self.diary(mutex)
        self.reporter.read(diary, diary.lately(**lately))

    def see(self, what: str, mutex: str = "m", note: Note | None = None, **values: float | str) -> None:
        self.reporter.notice(Observation(mutex, self.node, what, values, note))

    def wait(self, mutex: str = "m", slots: int = 1, priority: int = 0) -> int:
        self.claims += 1
        self.diary(mutex).wishes[self.claims] = (self.now, slots, priority)
        self.tell(mutex)
        return self.claims

    def give_up(self, claim: int, outcome: str, mutex: str = "m") -> None:
        del self.diary(mutex).wishes[claim]
        self.see("wait_ended", mutex, claim=claim, outcome=outcome, seconds=1.0)

    def get(
        self, claim: int, waited_s: float = 0.0, mutex: str = "m", epoch: int = 1, hop: int = 0, slots: int = 1
    ) -> None:
        diary = self.diary(mutex)
        del diary.wishes[claim]
        diary.held[claim] = (self.now, waited_s, epoch, hop, slots)
        diary.seen[0] = max(diary.seen.get(0, (0, 0, 0)), (epoch, hop, self.node))
        self.tell(mutex, waits=[waited_s])

    def hold(self, held_s: float, mutex: str = "m", hop: int = 0) -> None:
        claim = self.wait(mutex)
        self.get(claim, 0.0, mutex, hop=hop)
        began, self.now = self.now, self.now + held_s
        del self.diary(mutex).held[claim]
        self.tell(mutex, holds=[(began, self.now)])

    def hand_over(self, token: Token, peer: int, mutex: str = "m") -> None:
        self.diary(mutex).seen[token.slot] = (token.epoch, token.hop, peer)
        self.tell(mutex, handed_over=1)

    def draw(self, *, answered: bool = True, known: bool = True) -> Any:
        for diary in self._diaries.values():
            diary.now = self.now
        told = self.reporter.draw()
        if told is not None:
            assert read(json.dumps(told).encode()) == told, "what is told fits the form"
            self.reporter.settle(answered=answered, known=known)
        return told
