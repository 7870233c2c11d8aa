"""One node's question to its group: does anybody use this mutex? What was asked, answered, and is still open.

It decides nothing; `founding.py` does, and owns it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from softmutex.core.chance import Rng
from softmutex.core.events import NOBODY, SECOND, Duration, Instant, NodeId, Received
from softmutex.core.messages import Description

AGAIN_MOST: Final[Duration] = SECOND  # who does not answer is asked so often at the least
SUSPECT_AFTER: Final = 3  # questions without an answer


class Asked:
    __slots__ = ("at", "since", "tries")

    def __init__(self, since: Instant) -> None:
        self.since = since
        self.at = since
        self.tries = 0


class Inquiry:
    __slots__ = (
        "_answers",
        "_begun_at",
        "_fetched",
        "_fetching",
        "_first",
        "_is_compared",
        "_pointed_at",
        "_queue",
        "_strangers",
        "_waiting",
        "is_contested",
        "is_stale",
        "is_stalled",
        "kept",
        "known_by",
        "knows_others",
        "min_members",
        "mutex",
        "number",
        "others_terms",
        "own_digests",
        "replaces",
        "rivals",
        "stage",
        "stands_back",
        "takes_part",
        "terms",
        "their_digest",
        "when_isolated",
    )

    def __init__(
        self,
        mutex: str,
        terms: Description,
        when_isolated: str,
        min_members: int,
        number: int,
        stage: int,
        now: Instant,
    ) -> None:
        self.mutex = mutex
        self.terms = terms
        self.when_isolated = when_isolated
        self.min_members = min_members
        self.number = number  # what its timer is called
        self.kept: tuple[Received, ...] = ()
        self.known_by: NodeId = NOBODY  # who uses it
        self.knows_others: NodeId = NOBODY  # than we: the last one who answered so,
        self.their_digest = 0  # ... and what it knows
        self.rivals: dict[NodeId, None] = {}  # who asks as well, and may wait for our word
        self.own_digests: dict[int, None] = {}
        self.others_terms: dict[NodeId, None] = {}  # who takes part by other terms, and does not use it
        self.replaces = False  # they are asked to give it up
        self.is_contested = False  # somebody else asks, who may want other terms
        self.stands_back = False
        self.is_stalled = False
        self._is_compared = False  # the terms of who uses it are ours
        self._pointed_at: Instant = 0
        self._strangers: dict[NodeId, Instant] = {}  # rivals who are no members yet, and until when they are waited for
        self._begin(stage, now)

    def _begin(self, stage: int, now: Instant) -> None:
        self.stage = stage
        self.is_stale = True  # the members have changed since the queue was made
        self.takes_part: NodeId = NOBODY  # somebody who does not use it, by our terms
        self._begun_at = now
        self._queue: list[NodeId] = []
        self._waiting: dict[NodeId, Asked] = {}
        self._answers: dict[NodeId, int] = {}  # and what the answerer said of whom it knows
        self._first: list[NodeId] = []
        self._fetching: dict[NodeId, None] = {}  # whose rosters are on the way
        self._fetched: dict[int, None] = {}  # digests of rosters that were read

    def resume(self, stage: int, now: Instant) -> None:
        """Whoever stood back asks anew: what was answered before counts no longer."""
        self.stands_back = self.replaces = False
        self.others_terms.clear()
        self._begin(stage, now)

    def replace(self, stage: int, now: Instant) -> None:
        """Nobody uses it: all are asked anew, and are to give up what they have."""
        self.replaces = True
        self._begin(stage, now)

    # --- asking -----------------------------------------------------------------------------------------------------

    def line_up(self, members: Sequence[NodeId], peers: Container[NodeId], rng: Rng) -> None:
        """Whom to ask: who is said to know, then the others in random order."""
        if not self.is_stale:
            return
        self.is_stale = False
        for node in [node for node in self._waiting if node not in peers]:
            del self._waiting[node]
        asked, answered = self._waiting, self._answers
        self._queue = [node for node in members if node in peers and node not in asked and node not in answered]
        for last in range(len(self._queue) - 1, 0, -1):
            at = int(rng.random() * (last + 1))
            self._queue[at], self._queue[last] = self._queue[last], self._queue[at]
        if self.known_by in self._queue:
            self._queue.remove(self.known_by)
            self._queue.append(self.known_by)

    def whom_to_ask(self, first: int, most: int, wait: Duration, now: Instant) -> list[NodeId]:
        """Those whose time has come: `first` of them, and when these have answered, or `wait` is over, the others;
        `most` on the way. Who does not answer is asked again, ever more rarely."""
        due = []
        on_the_way = 0
        for node, asked in self._waiting.items():
            on_the_way += asked.tries < SUSPECT_AFTER
            if now >= asked.at + min(wait << (asked.tries - 1), max(AGAIN_MOST, wait)):
                due.append(node)
        is_first = now < self._begun_at + wait and not all(node in self._answers for node in self._first)
        most = first - len(self._first) if is_first or not self._first else most - on_the_way
        while self._queue and most > 0:
            node = self._queue.pop()
            self._waiting[node] = Asked(now)
            due.append(node)
            most -= 1
            if len(self._first) < first:
                self._first.append(node)
        for node in due:
            self._waiting[node].at = now
            self._waiting[node].tries += 1
        return due

    def is_overdue(self, node: NodeId) -> bool:
        """It was asked often enough to wonder."""
        asked = self._waiting.get(node)
        return asked is not None and asked.tries % SUSPECT_AFTER == 0

    # --- answers ----------------------------------------------------------------------------------------------------

    def answered(self, sender: NodeId, digest: int) -> None:
        """It does not use it."""
        if self._waiting.pop(sender, None) is not None:
            self._answers[sender] = digest
        self._strangers.pop(sender, None)
        if sender == self.known_by and not self._is_compared:
            self.known_by = NOBODY  # what others said of it is no longer so

    def rests(self, sender: NodeId, digest: int) -> None:
        """It takes part by other terms, and does not use it. Who was asked to give it up is asked once more."""
        self.others_terms[sender] = None
        self.kept = tuple(each for each in self.kept if each.sender != sender)  # of its machine, which is another one
        if not self.replaces:
            self.answered(sender, digest)

    def used(self, by: NodeId, *, is_compared: bool) -> None:
        """It uses it. `is_compared`: by the same terms."""
        if not self._is_compared:
            self.known_by, self._is_compared = by, is_compared

    def pointed(self, to: NodeId, now: Instant) -> None:
        """Another one says of it that it uses it: it is asked next."""
        if not self.known_by and to not in self._answers:
            self.known_by, self._pointed_at = to, now
            self.is_stale = True

    def rivalled(self, by: NodeId, until: Instant, peers: Container[NodeId]) -> None:
        """It asks as well, and may wait for our word. If it is no member yet, it has to be met first."""
        self.rivals[by] = None
        if by not in peers:
            self._strangers[by] = until

    # --- what is open -----------------------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[NodeId]:
        return [*self._waiting, *self._queue]

    def may_still_answer(self, now: Instant, patience: Duration) -> bool:
        """Somebody was not asked yet, or not long ago."""
        return bool(self._queue) or any(now < asked.since + patience for asked in self._waiting.values())

    def may_still_tell(self, peers: Container[NodeId], now: Instant, patience: Duration) -> bool:
        """Whether the one that is said to use it may yet say by which terms."""
        if self._is_compared or (self.known_by in self._first and self.known_by not in peers):
            return False
        return now < max(self._pointed_at, self._begun_at) + patience

    def is_open_ended(self, peers: Container[NodeId], now: Instant) -> bool:
        """Somebody of whom we heard may have to be met, and asked."""
        for node, until in list(self._strangers.items()):
            if node in peers or now >= until:
                del self._strangers[node]
        return bool(self._strangers or self._fetching)

    def whose_rosters(self, is_complete: bool, most: int) -> list[NodeId]:
        """Who knows others than this node, and was not asked for them yet."""
        if is_complete and not self._strangers:
            return []
        found = []
        for node, digest in self._answers.items():
            if digest not in self.own_digests and digest not in self._fetched and len(self._fetched) < most:
                self._fetched[digest] = None
                self._fetching[node] = None
                found.append(node)
        return found

    def roster_ended(self, node: NodeId) -> None:
        self._fetching.pop(node, None)

    def whom_to_tell(self, founder: bool) -> list[NodeId]:
        """The founder tells everybody whom it asked; who found it in use, only those that wait for its word."""
        return list({**self._answers, **self._waiting, **self.rivals} if founder else self.rivals)
