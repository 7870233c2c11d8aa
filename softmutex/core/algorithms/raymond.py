"""`raymond`: a wish goes up a tree of members to where the token is, and the token comes back the same way.

What it decides: whom to ask. Everybody points to a neighbour, beyond which the token is; to pass it on is to turn the
pointer round. A node asks its neighbour once for all who asked it, and serves them in the order in which they came. The
tree is that of a heap over the members, as they are known when a token is made (SOUGHT): so an entry costs at most
twice its depth, 2 log2 n, of WISH, PASS and TOOK each.

    wanted --WISH--> neighbour --WISH--> the one that has it --PASS--> neighbour --PASS--> wanted

The naive way, a tree that is mended when members come and go, has circles until all have mended it. Here nobody mends
it: a pointer names who had the token later than this node had, so that whoever follows pointers comes ever closer,
along edges of the tree or not. Who comes, or loses the one that it points to, and wants the token, looks for it (SEEK),
and points to whoever has it.

Survives what `token-ring` survives, in the same way; but where members do not agree on who is there, a wish may go in a
circle until somebody looks for the token.

Invariants, with those of `token_ring.py` and `on_demand.py`
    P1  Whoever has not got the token and has a queue has asked the one that it points to, or looks for one to point to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from softmutex.core.algorithms.on_demand import Noted, OnDemand, Wish
from softmutex.core.algorithms.token_ring import Looked, Sought
from softmutex.core.events import NOBODY, Effect, Event, Instant, NodeId, RequestId, Send, Started
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup
from softmutex.core.messages import Message


def step_towards(members: Sequence[NodeId], me: NodeId, goal: NodeId) -> NodeId:
    """The neighbour in the heap through which the way to the goal goes."""
    here, there = bisect_left(members, me) + 1, bisect_left(members, goal) + 1
    while there > here:
        if there >> 1 == here:
            return members[there - 1]
        there >>= 1
    return members[(here >> 1) - 1]


class Raymond(OnDemand):
    name: ClassVar[str] = "raymond"
    laws = OnDemand.laws | claim(Weather.ANY & ~Weather.SILENCE & ~Weather.VIEWS, Law.REQUESTS)

    __slots__ = ("_fulfilled", "_queue", "_towards")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._queue: dict[NodeId, int] = {}  # who is to have it, in this order: neighbours, and this node itself
        self._fulfilled: dict[NodeId, int] = {}  # up to which wish
        self._towards: NodeId = NOBODY

    def _want(self, now: Instant, out: list[Effect]) -> None:
        if self._token is None:
            self._queue[self._me] = 0
        super()._want(now, out)

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        self._queue.pop(self._me, None)
        if not self._queue:
            super()._unwant(request, now, out)

    def _told_of(self, event: Event, now: Instant, out: list[Effect]) -> None:
        if isinstance(event, Started) and not event.founder:
            self._towards = event.hint
        super()._told_of(event, now, out)

    def _say(self, wish: Wish, now: Instant, out: list[Effect]) -> None:
        if self._counts(self._towards):
            out.append(Send(self._towards, wish))
        elif self._epoch:
            self._search(now, out)

    def _wished(self, sender: NodeId, number: int, again: bool, now: Instant, out: list[Effect]) -> None:
        if number <= self._fulfilled.get(sender, 0):
            return  # an old copy
        self._queue[sender] = number
        if self._token is None:
            self._ask(now, out)
        elif self._running is None:
            self._pass_on(now, out)
        if again and sender in self._queue:
            out.append(Send(sender, Noted(number)))

    def _is_mine(self) -> bool:
        if not self._queue:
            return bool(self._waiting)
        if next(iter(self._queue)) != self._me:
            return False
        del self._queue[self._me]
        return True

    def _heir(self) -> NodeId:
        return next((node for node in self._queue if node != self._me), NOBODY)

    def _pass_on(self, now: Instant, out: list[Effect]) -> None:
        super()._pass_on(now, out)
        if self._passing is not None and self._token is None:
            self._towards = self._passing[0]
            if self._towards in self._queue:
                self._fulfilled[self._towards] = self._queue.pop(self._towards)
            if self._queue:
                self._ask(now, out)

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        known = self._epoch
        super()._received(sender, message, now, out)
        match message:
            case Sought(number, epoch) if epoch == self._epoch > known and self._token is None and self._counts(sender):
                self._points(step_towards(self._members, self._me, sender) if number else sender, now, out)
            case Looked(number, here, _) if number and here and self._token is None:
                self._points(sender, now, out)

    def _points(self, node: NodeId, now: Instant, out: list[Effect]) -> None:
        self._towards = node
        self._unask(out)
        if self._queue:
            self._ask(now, out)

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            self._queue.pop(node, None)
            self._fulfilled.pop(node, None)
        super()._changed(joined, left, now, out)
        if self._towards in left:
            self._towards = NOBODY
            if self._queue and self._token is None:
                self._unask(out)
                self._ask(now, out)
