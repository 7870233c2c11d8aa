"""Counts what happened in a run, from outside the machines: how many held at once, how long who waited.

Everything is integers (nanoseconds, counts) until the result is printed, so two machines print the same. It
covers the first phase of a run, `duration_s`; `freeze` closes it and what comes later changes nothing.

Tokens are followed by what can be seen of them: a note that one was made or discarded, a message with the right
in it that the world destroyed, a node with one that was killed. A token that turns up again was not lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from softmutex.core.events import Instant, NodeId, RequestId, Token


class Hold(NamedTuple):
    """One run of A, as `Scenario.keep_holds` remembers it. Times are nanoseconds since the start of the run."""

    node: NodeId
    request: RequestId
    asked: Instant
    start: Instant
    end: Instant
    token: Token | None


class Gauge:
    """How long a level had each of its values."""

    __slots__ = ("level", "since", "spent")

    def __init__(self, now: Instant) -> None:
        self.level = 0
        self.since = now
        self.spent: dict[int, int] = {0: 0}

    def to(self, level: int, now: Instant) -> None:
        spent = self.spent
        spent[self.level] = spent.get(self.level, 0) + now - self.since
        self.level = level
        self.since = now


class Tally:
    def __init__(self, start: Instant, keep_holds: bool) -> None:
        self.start = start
        self.frozen = False
        self.running = Gauge(start)
        self.tokens = Gauge(start)
        self.alive: dict[int, Token] = {}  # live tokens by id
        self.generated = 0
        self.discarded = 0
        self.lost = 0
        self.acquisitions = 0
        self.withdrawn = 0
        self.waits = array("Q")
        self.intervals = array("Q")
        self.recoveries: list[int] = []
        self.bereft_since: Instant | None = None  # the last live token was lost then, and nobody was granted since
        self.holds: list[Hold] | None = [] if keep_holds else None
        self.demand = 0  # requests that wait or run
        self._idle_since: Instant | None = start
        self._idle_messages_before = 0
        self.idle_time = 0
        self.idle_messages = 0

    # --- requests and holds ---

    def asked(self, now: Instant, messages: int) -> None:
        if not self.demand and self._idle_since is not None:
            self.idle_time += now - self._idle_since
            self.idle_messages += messages - self._idle_messages_before
            self._idle_since = None
        self.demand += 1

    def settled(self, now: Instant, messages: int) -> None:
        """A request came to its end, whichever."""
        self.demand -= 1
        if not self.demand:
            self._idle_since = now
            self._idle_messages_before = messages

    def granted(self, asked: Instant, previous: Instant, now: Instant) -> None:
        gauge = self.running
        gauge.to(gauge.level + 1, now)
        if self.bereft_since is not None:
            self.recoveries.append(now - self.bereft_since)
            self.bereft_since = None
        if self.frozen:
            return
        self.acquisitions += 1
        self.waits.append(now - asked)
        if previous:
            self.intervals.append(now - previous)

    def ended(self, now: Instant) -> None:
        gauge = self.running
        gauge.to(gauge.level - 1, now)

    # --- tokens ---

    def made(self, token: Token, now: Instant) -> None:
        self.generated += 1
        self.appeared(token, now)

    def appeared(self, token: Token, now: Instant) -> None:
        if token.id not in self.alive:
            self.alive[token.id] = token
            self.tokens.to(len(self.alive), now)

    def removed(self, token: Token, now: Instant) -> None:
        self.discarded += 1
        self._vanished(token.id, now)

    def gone(self, token_ids: Iterable[int], now: Instant) -> None:
        """Lost, not discarded on purpose."""
        for token_id in token_ids:
            if token_id in self.alive:
                self.lost += 1
                self._vanished(token_id, now)
                if not self.alive and self.bereft_since is None:
                    self.bereft_since = now

    def _vanished(self, token_id: int, now: Instant) -> None:
        if self.alive.pop(token_id, None) is not None:
            self.tokens.to(len(self.alive), now)

    # --- the end of the measured phase ---

    def freeze(self, now: Instant, messages: int) -> None:
        self.running.to(self.running.level, now)
        self.tokens.to(self.tokens.level, now)
        if self._idle_since is not None:
            self.idle_time += now - self._idle_since
            self.idle_messages += messages - self._idle_messages_before
        self.concurrency = dict(sorted(self.running.spent.items()))
        self.time_with = dict(sorted(self.tokens.spent.items()))
        self.counts = (self.generated, self.discarded, self.lost)
        self.frozen = True
