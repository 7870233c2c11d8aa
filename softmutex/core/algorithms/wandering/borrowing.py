"""With several slots: who waits behind a long turn of one comes to another one that is free.

A ticket is put into the queue of one token, and the naive way leaves it there: while that turn takes a minute, other
tokens become free and stay so. So the home moves it to the one that is, when its holder says that it is parked.

L1  Each ticket moves but once: it cannot be sent round in a circle. Its old place stays, and is void when it is served.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from softmutex.core.algorithms.wandering.post import Post
from softmutex.core.events import NodeId, RequestId, Ticket

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering


class Borrowing:
    __slots__ = ("machine", "moved")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.moved: dict[NodeId, RequestId] = {}

    def once(self, ticket: Ticket) -> bool:
        if ticket.request <= self.moved.get(ticket.node, 0):  # they grow: an older one had its turn
            return False
        self.moved[ticket.node] = ticket.request
        return True

    def for_idle(self, idle: Post | None) -> tuple[Ticket, ...]:
        """One that waits behind a turn of another slot, of a token that is here or elsewhere."""
        for ticket in self._behind_a_turn_here():
            if self.once(ticket):
                return (ticket,)
        for post in self.machine.registrar.posts.values():
            for node, request in post.lent.items():
                if post is not idle and post.until and self.once(Ticket(node, request)):
                    del post.lent[node]
                    return (Ticket(node, request),)
        return ()

    def _behind_a_turn_here(self) -> Iterator[Ticket]:
        for seat in self.machine.seats.by_slot.values():
            if seat.using is not None:
                yield from seat.token.queue

    def relieve(self) -> None:
        """A free token was taken again by its holder just when somebody was sent to it: is another one free?"""
        machine = self.machine
        for slot, post in machine.registrar.posts.items():
            if post.until == 0 and slot not in machine.seats.by_slot:
                tickets = self.for_idle(post)
                if not tickets:
                    return
                machine.registrar.lend(post, tickets)

    def load(self, slot: int) -> tuple[int, int]:
        """The free ones first."""
        seat = self.machine.seats.by_slot.get(slot)
        if seat is not None:
            return (len(seat.token.queue) + (not seat.parked), slot)
        post = self.machine.registrar.posts.get(slot)
        return (1000, slot) if post is None else (len(post.lent) + (post.until != 0), slot)
