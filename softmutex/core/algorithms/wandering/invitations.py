"""The early offer: the next holder is asked while A still runs here, so that the release costs one message.

    in use --invite--> offered --ACCEPT--> promised ---release---> COMMIT     one message, one delay after the release
              |           '-- silence, REFUSE --> the next in the queue
              '-- spoke a moment ago --> nothing: the token is committed to it at once when A ends

The naive way asks at the release, and the resource idles for three delays. To ask whoever spoke just now is naive too:
a message for nothing, where one commits at once. It is looked at again, for A may last, and it may have died by then.

S1  An invitation is no right: it is withdrawn freely until the release, and nothing is committed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from softmutex.core.algorithms.wandering.settings import FRESH
from softmutex.core.events import NOBODY, Duration, NodeId

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.desk import Desk
    from softmutex.core.algorithms.wandering.machine import Wandering
    from softmutex.core.algorithms.wandering.seat import Seat


class Invitations:
    __slots__ = ("machine",)

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    def invite(self, seat: Seat) -> None:
        """The early offer: while A runs, the next holder says yes already; the release then costs one message."""
        if not self.desk.options.early or seat.invited != NOBODY or seat.doubt:
            return
        ticket = next(iter(self.machine.seats.known_first(seat)), None)
        if ticket is None or ticket.node == self.desk.me:
            return
        if self.is_there(ticket.node, FRESH // 2) and seat.plain != ticket.node:
            if not seat.invite_set:
                seat.invite_set = True
                self.desk.timer(("invite", seat.token.slot), self.desk.now + FRESH // 2)
            return
        seat.invited = ticket.node
        self.machine.handover.offer_early(seat.token, ticket.node, self.desk.now, self.desk.out)

    def fired(self, slot: int) -> None:
        seat = self.machine.seats.by_slot.get(slot)
        if seat is not None:
            seat.invite_set = False
            if seat.using is not None:
                self.invite(seat)

    def is_there(self, node: NodeId, span: Duration) -> bool:
        return self.desk.options.early and self.desk.now - self.desk.heard.get(node, 0) < span

    def withdraw(self, seat: Seat) -> None:
        if seat.invited != NOBODY:
            self.machine.handover.withdraw(seat.token, self.desk.out)
            seat.invited = NOBODY
