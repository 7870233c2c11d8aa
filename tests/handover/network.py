"""A token that walks at random over a network with delay, jitter, loss and repetition, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections import Counter

from softmutex.core.events import (
    CancelTimer,
    Duration,
    Effect,
    Instant,
    NodeId,
    Send,
    SetTimer,
    TimerName,
    Token,
    from_seconds,
    to_seconds,
)
from softmutex.core.handover import Failed, Gone, Handover, Outcome, Passed, Passing, Taken


class Walk:
    """Whoever has the token keeps it for `hold` and gives it to anybody. Ends after `hops`, or with the token lost."""

    def __init__(
        self,
        *,
        delay_s: float,
        loss: float = 0.0,
        repeat: float = 0.0,
        nodes: int = 5,
        hops: int = 1000,
        passing: Passing = Passing.FOUR_WAY,
        far: NodeId = 0,
        far_s: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.rng = random.Random(seed)
        self.delay: Duration = from_seconds(delay_s)
        self.far = far  # this node is further away from all others
        self.far_delay: Duration = from_seconds(far_s)
        self.loss = loss
        self.repeat = repeat
        self.hops = hops
        self.now: Instant = 0
        self.nodes = {node: Handover(node, self.rng, passing) for node in range(1, nodes + 1)}
        self.queue: list[tuple[Instant, int, NodeId, object]] = []
        self.number = 0
        self.timers: dict[tuple[NodeId, TimerName], int] = {}
        self.sent: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.took: list[Duration] = []  # from the giving to the taking
        self.given_at: Instant = 0
        self.holders: set[NodeId] = set()
        self.taken_hops: set[int] = set()
        self.visits: Counter[NodeId] = Counter()

    def run(self) -> Walk:
        self._have(1, Token(0, 1, 1, 0))
        while self.queue and len(self.took) < self.hops:
            self.now, number, node, event = heapq.heappop(self.queue)
            out: list[Effect] = []
            match event:
                case Token():
                    self._give(node, event, out)
                    outcome: Outcome | None = None
                case (int() as sender, message):
                    outcome = self.nodes[node].received(sender, message, self.now, out)
                case name:
                    if self.timers.get((node, name)) != number:
                        continue
                    del self.timers[node, name]
                    outcome = self.nodes[node].fired(name, self.now, out)
            self._perform(node, out)
            self._settle(node, outcome)
        return self

    def took_s(self, share: float) -> float:
        """So long took the hop that was slower than this share of all."""
        return to_seconds(sorted(self.took)[int(share * (len(self.took) - 1))])

    def messages_per_hop(self) -> float:
        return sum(self.sent.values()) / len(self.took)

    def _have(self, node: NodeId, token: Token) -> None:
        self.holders.add(node)
        assert len(self.holders) == 1, f"{self.holders} have the token at once"
        self._later(self.delay // 2, node, token)

    def _give(self, node: NodeId, token: Token, out: list[Effect]) -> None:
        self.holders.remove(node)
        others = [other for other in self.nodes if other != node]
        self.given_at = self.now
        self.nodes[node].give(token, others[int(self.rng.random() * len(others))], self.now, out)

    def _settle(self, node: NodeId, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        self.ends[type(outcome).__name__] += 1
        match outcome:
            case Taken(token, _):
                assert token.hop not in self.taken_hops
                self.taken_hops.add(token.hop)
                self.took.append(self.now - self.given_at)
                self.visits[node] += 1
                self._have(node, token)
            case Failed(token, _):
                self._have(node, token)
            case Passed() | Gone():
                pass

    def _perform(self, node: NodeId, out: list[Effect]) -> None:
        for effect in out:
            match effect:
                case Send(to, message):
                    self.sent[type(message).__name__] += 1
                    for _ in range(2 if self.rng.random() < self.repeat else 1):
                        if self.rng.random() >= self.loss:
                            delay = self.far_delay if self.far in (node, to) else self.delay
                            self._later(int(delay * (0.5 + self.rng.random())), to, (node, message))
                case SetTimer(name, at):
                    self.timers[node, name] = self._later(at - self.now, node, name)
                case CancelTimer(name):
                    self.timers.pop((node, name), None)

    def _later(self, wait: Duration, node: NodeId, event: object) -> int:
        self.number += 1
        heapq.heappush(self.queue, (self.now + wait, self.number, node, event))
        return self.number
