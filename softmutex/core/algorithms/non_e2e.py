"""`non-e2e`, seed 004: who waits is queued where its request first meets another's way to the same replica.

What it decides: where the queue is. Each node that passes a request on to a replica keeps it as an entry; a later
request for the same replica goes no further than there. It waits behind it, in a partial queue, and is told who
comes first. When that one is over, its RELEASE_VOTE goes the same way, takes the partial queues along and brings them
to the replica, which votes for the first of all. The naive way would hide a request that comes first behind one that
comes later, and two that wait for each other would wait for ever: so only what comes later is kept.

    third --REQUEST_VOTE--> node in between, with first's entry: third waits here --RESPONSE(first)--> third
    first --RELEASE_VOTE--> node in between --RELEASE_VOTE(third)--> replica --RESPONSE(third)--> third

A partial queue is soft: a node that dies, or routes otherwise, takes it along, and its members ask again. Entries are
leased: when whoever it is for has not passed by for a lease, the entry is replaced by the next request that comes, and
those that waited behind it go on to the replica.

Survives what `sigma` survives, in the same way.

Invariant
    Q1  Whoever waits here waits for one that comes first, by (stamp, node); at most 32 wait behind one entry.
"""

from __future__ import annotations

from bisect import insort
from typing import Any, ClassVar, Final

from softmutex.core.algorithms.quorum import Quorum
from softmutex.core.algorithms.quorum.messages import (
    OF_QUORUM,
    Bid,
    ReleaseVote,
    RequestVote,
    Response,
    Yield,
)
from softmutex.core.events import Effect, Instant, NodeId
from softmutex.core.machine import Setup

QUEUE_MOST: Final = 32


class Passage:
    """One request went by here on its way to a replica, and these wait behind it."""

    __slots__ = ("bid", "queue", "until")

    def __init__(self, bid: Bid, until: Instant) -> None:
        self.bid = bid
        self.until = until
        self.queue: list[Bid] = []


class NonE2E(Quorum):
    name: ClassVar[str] = "non-e2e"
    messages: ClassVar = OF_QUORUM

    __slots__ = ("_entries",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._entries: dict[int, Passage] = {}  # replica -> the last that went by

    def _on_the_way(self, sender: NodeId, message: Any, arrived: bool, now: Instant, out: list[Effect]) -> Any:
        number, bid = message.replica, message.bid
        entry = self._entries.get(number)
        match message:
            case RequestVote() if not arrived:
                if entry is None or not self._comes_later(entry, bid, now):
                    self._replace(number, entry, bid, now)
                    return message
                if not self._stays(entry, bid):
                    return message
                self._post(bid.node, Response(number, bid, entry.bid, 1 + entry.queue.index(bid)), out)
                return None
            case Yield() | ReleaseVote() if entry is not None:
                if entry.bid.name != bid.name:
                    entry.queue = [other for other in entry.queue if other.name != bid.name]
                    return message
                del self._entries[number]
                return message._replace(queue=tuple(sorted({*message.queue, *entry.queue})[:QUEUE_MOST]))
        return message

    def _comes_later(self, entry: Passage, bid: Bid, now: Instant) -> bool:
        """Than the entry's, which counts still."""
        return now < entry.until and bid.node != entry.bid.node and bid > entry.bid and self._counts(entry.bid.node)

    def _stays(self, entry: Passage, bid: Bid) -> bool:
        """Whether it waits here, behind the entry's; where too many do, it goes on, and they stay."""
        entry.queue = [other for other in entry.queue if other.node != bid.node]
        if len(entry.queue) >= QUEUE_MOST:
            return False
        insort(entry.queue, bid)
        return True

    def _replace(self, number: int, old: Passage | None, bid: Bid, now: Instant) -> None:
        new = self._entries[number] = Passage(bid, now + self._lease)
        if old is not None and old.bid.name == bid.name:
            new.queue = old.queue
        elif old is not None:
            waiting = [other for other in old.queue if other.node != bid.node]
            self._inbox += [RequestVote(number, other, 0, again=True) for other in waiting]
