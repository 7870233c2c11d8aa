"""The replicas that one node has: whom each has voted for, who waits there, and until when that stands.

      nobody's --ask--> voted --ask of others--> they are queued, by (stamp, node)
                          |-- released, yielded, lease over, owner gone --> the first of the queue, or nobody
    got the key --> quiet: queues, and votes for nobody --HEIR, RENEW_VOTE (known), or a lease later--> one of the above

Who gets a key back from the newcomer that it went to, and hears that nobody voted there (UNTOUCHED), is not quiet: what
it knew is still so. Else a key would be quiet for a lease whenever a newcomer leaves before it was told anything.

Invariants
    R1  A quiet replica votes for nobody, but who had its vote.
    R2  At most QUEUE_MOST wait at a replica, each node once; of at most OVER_MOST nodes it is known what is over.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final, NamedTuple

from softmutex.core.algorithms.quorum.messages import NO_BID, Bid, Heir, Response
from softmutex.core.events import NOBODY, Duration, Effect, Instant, NodeId, SetTimer
from softmutex.core.messages import Message

LEASE: Final = "lease"  # timers are named (LEASE, number of the replica)
QUEUE_MOST: Final = 64
OVER_MOST: Final = 64


class Replica:
    __slots__ = ("new", "over", "owner", "queue", "quiet", "until")

    def __init__(self, until: Instant, new: bool) -> None:
        self.new = new  # its key was never here before
        self.owner = NO_BID
        self.until = until  # the end of the owner's lease, or of being quiet
        self.quiet = True
        self.queue: list[Bid] = []
        self.over: dict[NodeId, int] = {}  # up to which stamp the bids of a node are over

    def wait(self, bid: Bid) -> None:
        for other in [other for other in self.queue if other.node == bid.node]:
            self.queue.remove(other)
            bid = max(bid, other)
        insort(self.queue, bid)
        del self.queue[QUEUE_MOST:]

    def place(self, bid: Bid) -> int:
        return next((at for at, other in enumerate(self.queue) if other.name == bid.name), len(self.queue))

    def is_over(self, bid: Bid) -> bool:
        return bid.stamp <= self.over.get(bid.node, 0)

    def end(self, bid: Bid) -> None:
        self.over[bid.node] = max(bid.stamp, self.over.pop(bid.node, 0))
        if len(self.over) > OVER_MOST:
            del self.over[next(iter(self.over))]
        self.queue = [other for other in self.queue if not self.is_over(other)]


class EarlyHeir(NamedTuple):
    """An HEIR that came before the key."""

    owner: Bid
    until: Instant
    quiet: bool
    known_until: Instant  # it is forgotten: by then others may have voted
    new: bool = False


class Replicas:
    """`counts`: whose bids are worth a vote. `post`: sends a message, or hands it to this very node."""

    def __init__(
        self,
        lease: Duration,
        counts: Callable[[NodeId], bool],
        post: Callable[[NodeId, Message, list[Effect]], None],
        newer_ends_older: bool,
    ) -> None:
        self._lease = lease
        self._counts = counts
        self._post = post
        self._newer_ends_older = newer_ends_older
        self._mine: dict[int, Replica] = {}
        self._legacies: dict[int, EarlyHeir] = {}
        self._given: dict[int, tuple[NodeId, EarlyHeir]] = {}  # the last that got a key from here, and what was known

    def __contains__(self, number: int) -> bool:
        return number in self._mine

    def __getitem__(self, number: int) -> Replica:
        return self._mine[number]

    def numbers(self) -> list[int]:
        return list(self._mine)

    # --- keys come and go --------------------------------------------------------------------------------------------

    def get(self, number: int, now: Instant, out: list[Effect]) -> Replica:
        """Its key is nearest to this node from now on, if it was not before."""
        replica = self._mine.get(number)
        if replica is None:
            replica = self._mine[number] = Replica(now + self._lease, number not in self._given)
            out.append(SetTimer((LEASE, number), replica.until))
            legacy = self._legacies.pop(number, None)
            if legacy is not None and now < legacy.known_until:
                self._inherit(number, replica, legacy, now, out)
        return replica

    def heir(self, heir: Heir, now: Instant, out: list[Effect], untouched_by: NodeId = NOBODY) -> None:
        number, owner, left, quiet, _ = heir
        replica = self._mine.get(number)
        legacy = EarlyHeir(owner, now + min(left, self._lease), quiet, now + self._lease)
        to, known = self._given.get(number, (NOBODY, legacy))
        if to != NOBODY and to == untouched_by:
            legacy = known._replace(known_until=legacy.known_until)
        if replica is None:
            self._legacies[number] = legacy
        elif replica.quiet:
            self._inherit(number, replica, legacy, now, out)

    def _inherit(self, number: int, replica: Replica, legacy: EarlyHeir, now: Instant, out: list[Effect]) -> None:
        replica.owner, replica.quiet = legacy.owner, legacy.quiet
        if replica.quiet or replica.owner != NO_BID:
            replica.until = min(replica.until, legacy.until) if replica.quiet else legacy.until
            out.append(SetTimer((LEASE, number), max(now, replica.until)))
        else:
            self.next(number, now, out)

    def lose(self, number: int, heir: NodeId, now: Instant) -> EarlyHeir | None:
        """Another has the key now. What it should know; None where nothing is known here."""
        replica, legacy = self._mine.pop(number, None), self._legacies.pop(number, None)
        if replica is not None:
            known = EarlyHeir(replica.owner, replica.until, replica.quiet, now + self._lease, replica.new)
            self._given[number] = (heir, known)
            return known
        return legacy if legacy is not None and now < legacy.known_until else None

    # --- votes -------------------------------------------------------------------------------------------------------

    def ask(self, number: int, bid: Bid, now: Instant, out: list[Effect]) -> None:
        replica = self.get(number, now, out)
        owner = replica.owner
        if replica.is_over(bid) or not self._counts(bid.node) or (bid.stamp < owner.stamp and bid.node == owner.node):
            return
        if owner.node == bid.node and owner.stamp < bid.stamp and self._newer_ends_older:
            replica.end(owner)
            replica.owner = owner = NO_BID
        if owner.name == bid.name:
            self.keep(number, max(owner, bid), now, out)
            return
        replica.wait(bid)
        if owner == NO_BID and not replica.quiet:
            self.next(number, now, out)
        if not replica.quiet and replica.owner.name != bid.name:
            self._post(bid.node, Response(number, bid, replica.owner, replica.place(bid)), out)

    def keep(self, number: int, bid: Bid, now: Instant, out: list[Effect], by: NodeId = NOBODY) -> None:
        """It has this vote, for a lease more."""
        replica = self._mine[number]
        replica.owner, replica.quiet, replica.until = bid, False, now + self._lease
        out.append(SetTimer((LEASE, number), replica.until))
        self._post(by or bid.node, Response(number, bid, bid), out)

    def renew(self, number: int, bid: Bid, by: NodeId, known: bool, now: Instant, out: list[Effect]) -> None:
        """Whoever runs A by this bid says so: also to a replica that has forgotten it. `known`: it had this vote.

        To one that is quiet, who had other votes only can say nothing: this one may be yet another's, who counts on it.
        """
        replica = self.get(number, now, out)
        if not self._counts(by) or (replica.quiet and not known):
            return
        if replica.owner.name in (NO_BID.name, bid.name) and not replica.is_over(bid):
            replica.queue = [other for other in replica.queue if other.name != bid.name]
            self.keep(number, max(replica.owner, bid), now, out, by)
        else:
            self._post(by, Response(number, bid, replica.owner, replica.place(bid)), out)

    def give_back(self, number: int, bid: Bid, now: Instant, out: list[Effect]) -> None:
        """YIELD: all votes of lower rounds are void; it is another's turn, if another waits."""
        replica = self.get(number, now, out)
        if replica.owner.name != bid.name or replica.owner.round >= bid.round:
            self.ask(number, bid, now, out)
            return
        replica.wait(bid)
        self.next(number, now, out)
        if replica.owner.name != bid.name:
            self._post(bid.node, Response(number, bid, replica.owner, replica.place(bid)), out)

    def release(self, number: int, bid: Bid, now: Instant, out: list[Effect]) -> None:
        replica = self.get(number, now, out)
        replica.end(bid)
        if replica.owner.name == bid.name or (replica.owner == NO_BID and not replica.quiet):
            self.next(number, now, out)

    def next(self, number: int, now: Instant, out: list[Effect]) -> None:
        replica = self._mine[number]
        replica.owner = NO_BID
        while replica.queue:
            bid = replica.queue.pop(0)
            if self._counts(bid.node):
                self.keep(number, bid, now, out)
                return

    def lapse(self, number: int, now: Instant, out: list[Effect]) -> None:
        replica = self._mine.get(number)
        if replica is not None and now >= replica.until and (replica.quiet or replica.owner != NO_BID):
            replica.quiet = False
            self.next(number, now, out)

    def forget_gone(self, may: Callable[[int, Bid], bool], now: Instant, out: list[Effect]) -> None:
        """A vote for one who is no member is nobody's, where it `may` be."""
        for number, replica in list(self._mine.items()):
            owner = replica.owner
            if owner != NO_BID and not self._counts(owner.node) and may(number, owner):
                self.next(number, now, out)
