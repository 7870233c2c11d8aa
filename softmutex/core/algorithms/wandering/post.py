"""What a home knows of one token. `registrar.py` decides what follows from it."""

from __future__ import annotations

from softmutex.core.algorithms.wandering.desk import same_token
from softmutex.core.algorithms.wandering.messages import Place
from softmutex.core.events import Instant, NodeId, RequestId, Ticket


class Post:
    """What a home knows of one slot's token."""

    __slots__ = (
        "again",
        "heard_at",
        "idle",
        "lent",
        "more",
        "place",
        "relayed",
        "second",
        "turned_at",
        "unsure",
        "until",
    )

    def __init__(self, place: Place) -> None:
        self.place = place
        self.until: Instant = 0  # when to look for it; 0: it is parked
        self.lent: dict[NodeId, RequestId] = {}  # tickets that are, or should be, in its queue
        self.more = False  # the holder asks for more when its queue is short
        self.relayed = 0  # times that it was seen
        self.turned_at: Instant = 0  # when it was first seen in this turn
        self.unsure: dict[NodeId, None] = {}  # fed since it was last seen
        self.idle = False  # it was parked when it was fed last: the fed should have come at once
        self.heard_at: Instant = 0  # from the holder itself, for this place; 0: from others, or it passed it on
        self.second = False  # we only hear of it from its first watcher
        self.again = 0  # waiters that asked again since it was last seen

    def fed(self) -> dict[NodeId, RequestId]:
        """Who was fed to the holder since it was last seen."""
        return {node: self.lent[node] for node in self.unsure if node in self.lent}

    def follow(self, place: Place, has: tuple[Ticket, ...], all_of_them: bool) -> dict[NodeId, RequestId]:
        """The token is there, with these in its queue. Who was lent to another one, which is lost or discarded, waits
        again: all of them as far as a home knows, else those whom this node fed itself."""
        lost: dict[NodeId, RequestId] = {}
        if not same_token(self.place, place):
            lost = self.lent if all_of_them else self.fed()
            self.turned_at = 0
        self.place = place
        self.lent = dict(has)
        return lost
