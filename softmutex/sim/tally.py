"""Totals what happened in a run, from outside the machines: how many held at once, how long who waited.

Everything is integers (nanoseconds, counts) until the result is printed, so two machines print the same. It
covers the first phase of a run, `duration_s`; `freeze` closes it and what comes later changes nothing.

Tokens are followed by what can be seen of them: a note that one was made or discarded, a message with the right
in it that the world destroyed, a node with one that was killed. A token that turns up again was not lost.
The grants of algorithms without tokens rest on no right.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from softmutex.core.events import NOBODY, FactKind, Instant, NodeId, Note, RequestId, Right, Token
from softmutex.core.handover import Passing
from softmutex.core.messages import Commit, Offer

if TYPE_CHECKING:
    from softmutex.sim.node import Running, SimNode

EPOCH: Instant = 10**18  # when a run begins: no machine may take 0 for "never", and the rest of the digits is the time


class PastRun(NamedTuple):
    """One run of A, as `Scenario.keep_holds` remembers it. Times are nanoseconds since the start of the run."""

    node: NodeId
    request: RequestId
    asked: Instant
    start: Instant
    end: Instant
    hop: int


class Gauge:
    """How long a level had each of its values."""

    __slots__ = ("level", "since", "spent")

    def __init__(self) -> None:
        self.level = 0
        self.since = EPOCH
        self.spent: dict[int, int] = {0: 0}

    def to(self, level: int, now: Instant) -> None:
        spent = self.spent
        spent[self.level] = spent.get(self.level, 0) + now - self.since
        self.level = level
        self.since = now

    def levels(self) -> dict[int, int]:
        """In order, without those that lasted no time; 0 is always there."""
        return {level: spent for level, spent in sorted(self.spent.items()) if spent or level == 0}


class Totals(NamedTuple):
    asked: int
    withdrawn: int
    generated: int
    discarded: int
    lost: int
    recoveries: tuple[int, ...]
    outages: tuple[int, ...]
    bereft: int  # how long the last loss had lasted at the end, if nobody was granted since


class Tally:
    def __init__(self, passing: Passing, keep_holds: bool) -> None:
        self.carrier: type[Offer] | type[Commit] = Offer if passing is Passing.DIRECT else Commit
        self.resent = passing is Passing.FOUR_WAY  # a lost COMMIT is said again
        self.running = Gauge()
        self.tokens = Gauge()
        self.alive: dict[int, Token | Right] = {}  # live tokens by id
        self.generated = 0
        self.discarded = 0
        self.lost = 0
        self.asked_for = 0
        self.withdrawn = 0
        self.waits = array("Q")
        self.intervals = array("Q")
        self.recoveries: list[int] = []
        self.outages: list[int] = []
        self.holds: list[PastRun] | None = [] if keep_holds else None
        self.demand = 0  # requests that wait or run
        self.idle_time = 0
        self.idle_messages = 0
        self._idle_since: Instant = EPOCH
        self._messages_then = 0
        self._bereft_since: Instant | None = None  # the last live token was lost then, and nobody was granted since
        self._missed_since: Instant | None = None  # the same, and since then somebody waits
        self._last_commit: dict[int, tuple[NodeId, NodeId]] = {}
        self.frozen = False

    # --- requests and runs of A --------------------------------------------------------------------------------------

    def asked(self, now: Instant, sent: Mapping[type, int]) -> None:
        self.asked_for += 1
        if not self.demand:
            self._end_idling(now, sent)
            if self._bereft_since is not None:
                self._missed_since = now
        self.demand += 1

    def settled(self, now: Instant, sent: Mapping[type, int]) -> None:
        """A request came to its end, whichever."""
        self.demand -= 1
        if not self.demand:
            self._idle_since = now
            self._messages_then = sum(sent.values())

    def withdrew(self, now: Instant, sent: Mapping[type, int]) -> None:
        self.withdrawn += 1
        self.settled(now, sent)

    def _end_idling(self, now: Instant, sent: Mapping[type, int]) -> None:
        if not self.frozen:
            self.idle_time += now - self._idle_since
            self.idle_messages += sum(sent.values()) - self._messages_then

    def granted(self, node: SimNode, running: Running) -> None:
        now = running.start
        self.running.to(self.running.level + 1, now)
        if self._bereft_since is not None:
            self.recoveries.append(now - self._bereft_since)
            self.outages.append(now - (self._missed_since or now))
            self._bereft_since = self._missed_since = None
        for right in running.rights:
            self._appeared(right, now)
        if not self.frozen:
            node.acquired += 1
            self.waits.append(now - running.asked)
            if node.last_start:
                self.intervals.append(now - node.last_start)
        node.last_start = now

    def ended(self, running: Running, now: Instant, sent: Mapping[type, int]) -> None:
        self.running.to(self.running.level - 1, now)
        if self.holds is not None and not self.frozen:
            asked, start = running.asked - EPOCH, running.start - EPOCH
            self.holds.append(PastRun(running.node, running.request, asked, start, now - EPOCH, running.hop))
        self.settled(now, sent)

    # --- tokens ------------------------------------------------------------------------------------------------------

    def noted(self, note: Note, now: Instant) -> None:
        token = note.token
        if token is None:
            return
        if note.kind is FactKind.GENERATED:
            self.generated += 1
            self._appeared(token, now)
        elif note.kind is FactKind.DISCARDED:
            self.discarded += 1
            self._vanished(token.id, now)
        elif note.kind is FactKind.TOKEN_LOST:
            self.gone([token.id], now)

    def committed(self, message: Any, sender: NodeId, to: NodeId) -> None:
        """A message with the right in it is on its way."""
        self._last_commit[message.token.id] = (sender, to)

    def committed_by_or_to(self, node: NodeId) -> set[int]:
        return {token_id for token_id, ends in self._last_commit.items() if node in ends}

    def passed_by(self, token_id: int) -> NodeId:
        """Who handed this token on last."""
        return self._last_commit.get(token_id, (NOBODY, NOBODY))[0]

    def passed_to(self, token_id: int) -> NodeId:
        return self._last_commit.get(token_id, (NOBODY, NOBODY))[1]

    def dropped(self, message: Any, now: Instant) -> None:
        """With the message that has the right in it the token is gone, unless its sender will say it again."""
        if not self.resent and type(message) is self.carrier:
            self.gone([message.token.id], now)

    def gone(self, token_ids: Iterable[int], now: Instant) -> None:
        """Lost, not discarded on purpose."""
        for token_id in token_ids:
            if token_id in self.alive:
                self.lost += 1
                self._vanished(token_id, now)
                if not self.alive:
                    self.bereft(now)

    def bereft(self, now: Instant) -> None:
        """The last live token is gone; or, where there are no tokens, a holder."""
        self._bereft_since = now
        self._missed_since = now if self.demand else None

    def _appeared(self, token: Token | Right, now: Instant) -> None:
        if token.id not in self.alive:
            self.alive[token.id] = token
            self.tokens.to(len(self.alive), now)
            if self._last_commit and len(self._last_commit) > 4096:
                self._last_commit = {key: ends for key, ends in self._last_commit.items() if key in self.alive}

    def _vanished(self, token_id: int, now: Instant) -> None:
        if self.alive.pop(token_id, None) is not None:
            self.tokens.to(len(self.alive), now)

    # --- the end of the measured phase -------------------------------------------------------------------------------

    def freeze(self, now: Instant, sent: Mapping[type, int]) -> None:
        self.running.to(self.running.level, now)
        self.tokens.to(self.tokens.level, now)
        if not self.demand:
            self._end_idling(now, sent)
        self.concurrency = self.running.levels()
        self.time_with = self.tokens.levels()
        self.counts = Totals(
            self.asked_for,
            self.withdrawn,
            self.generated,
            self.discarded,
            self.lost,
            tuple(self.recoveries),
            tuple(self.outages),
            0 if self._bereft_since is None else now - self._bereft_since,
        )
        self.frozen = True
