"""What is sent ahead of a token that moves faster than anything can follow it.

    A passes the token on, with T waiting in its queue        T keeps what comes for the token, until it comes by
    A gets a ticket for it, too late  ----- WANT, FEED ---->  and puts it behind those in the queue

The naive way, to send the ticket after the token, from holder to holder, is as fast as the token at best: with turns of
a millisecond those near its trail got in again and again, and others waited for a hundred rounds. So it goes to the
last one of whom the sender knows that the token will still come there; and who gets it before the token keeps it.

L1  Who keeps tickets waits for the token itself: it was in the queue at a later hop than it last had the token, or
    refused it. When it waits no more, it gives them back to the home.
A4  At most twice as many as a token has room for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from softmutex.core.algorithms.wandering.messages import Queued
from softmutex.core.algorithms.wandering.settings import PATIENCE, QUEUE
from softmutex.core.events import NOBODY, SECOND, Duration, Instant, NodeId, RequestId, Ticket, Token, escorted

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering
    from softmutex.core.algorithms.wandering.seat import Seat


class Trail(NamedTuple):
    """A token that was here."""

    left_at: Instant
    stay: Duration  # how long it was here
    to: NodeId
    queue: tuple[Ticket, ...]  # behind that one
    hop: int
    more: bool  # others wait that are not in the queue


class Ahead:
    __slots__ = ("kept", "machine", "more", "past", "trail")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.trail = Trail(-SECOND, 0, NOBODY, (), 0, False)  # of the token that was here last
        self.past = 0  # the hop until which what others know of this node's place in the queue is no longer so
        self.kept: dict[NodeId, RequestId] = {}  # tickets that the token takes along when it comes here
        self.more = False  # ... and others wait

    def leaves(self, token: Token, came_at: Instant, to: NodeId) -> None:
        now = self.machine.desk.now
        self.trail = Trail(now, now - came_at, to, token.queue, token.hop, token.escort.more)
        self.past = token.hop

    def refused(self, token: Token) -> None:
        """It was this node's turn, and it did not want it any more."""
        self.past = max(self.past, token.hop)

    def hop_to(self, node: NodeId) -> int:
        """For what is sent after the token: where it overtakes it, it is kept. 0: it did not go there from here."""
        return self.trail.hop if node == self.trail.to else 0

    def waits_there(self, but: NodeId, new: bool) -> NodeId:
        """Somebody whom the token that left has not reached yet: the last one of its queue. NOBODY: what is sent after
        it will reach it, or what is `new` has to wait behind those in the register."""
        desk, trail = self.machine.desk, self.trail
        gone_for = desk.now - trail.left_at
        slow = trail.stay > desk.round_trip // 2 or gone_for < trail.stay // 2
        if slow or desk.options.by_home or (new and trail.more):
            return NOBODY
        for ticket in reversed(trail.queue):
            if ticket.node not in (but, desk.me) and desk.is_member(ticket.node):
                return ticket.node
        return NOBODY

    def keep(self, tickets: tuple[Ticket, ...], more: bool, hop: int) -> bool:
        """Until the token comes by, in whose queue this node was at that hop. False: it does not."""
        desk = self.machine.desk
        waits = self.machine.waiter.asked is not None and hop > self.past
        if not waits or len(self.kept) + len(tickets) > 2 * QUEUE:
            return False
        for node, request in desk.living(tickets):
            if node != desk.me and self.kept.get(node, 0) < request:
                self.kept[node] = request
        self.more = self.more or more
        return True

    def tell(self) -> None:
        """They need not ask again soon."""
        for node, request in self.kept.items():
            self.machine.desk.post(node, Queued(request, PATIENCE))

    def arrives(self, seat: Seat) -> None:
        """The token is here, and takes them along."""
        kept = self._take()
        if self.more:
            self.more = False
            seat.token = escorted(seat.token, more=True)
        if kept:
            self.machine.registrar.give_back(self.machine.seats.add(seat, kept))

    def rest(self) -> None:
        """This node waits no longer, and no token came."""
        kept = self._take()
        for start in range(0, len(kept), QUEUE):
            self.machine.registrar.give_back(kept[start : start + QUEUE])

    def _take(self) -> tuple[Ticket, ...]:
        kept = tuple(Ticket(*item) for item in self.kept.items())
        self.kept.clear()
        return kept
