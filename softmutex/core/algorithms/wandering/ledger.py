"""What this node can say of its holds when it turns out, perhaps much later, that there were two tokens.

The naive evidence, a warning to whoever might not be alone, is given at a moment when nobody knows: it comes too often,
and not at all to those whose hold was over before anybody knew. So each node remembers its last visits of a token (when
it came, when it was used, from whom it came, to whom it went), and those that had rivals look back along both chains:

    token A   P ----> Q ----> X discards it: a better one was found
                              |  RECALL ->  <- ACCOUNT(spans, before, after, rivals)     (`reckoning.py`)
    token B       M made it ----> Y ----> Z

Nothing is written into the token and nothing is sent while there is one token: an honest run pays a few assignments a
visit. A hold that overlapped is told once: `Lose` while it runs, and a note in any case, on both sides.

E1  A span is noted at most once, however often it is found; a pair of them is told of again when it is longer.
A4  At most `VISITS` visits of `SPANS` spans and `RIVALS` rivals are remembered. What is older is forgotten, untold.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.desk import Desk, place_of, same_token
from softmutex.core.algorithms.wandering.messages import Account, Place, Presence, Recall, Span, Told
from softmutex.core.events import NOBODY, FactKind, Instant, LostReason, NodeId, Overlapped, RequestId, Token

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering

VISITS: Final = 32
SPANS: Final = 16
RIVALS: Final = 4


class Use:
    """A hold."""

    __slots__ = ("begun", "ended", "request", "said")

    def __init__(self, request: RequestId, begun: Instant) -> None:
        self.request = request
        self.begun = begun
        self.ended: Instant = 0  # 0: it runs
        self.said = False


class Visit:
    """One stay of a token here."""

    __slots__ = ("after", "before", "came", "place", "rivals", "token", "uses")

    def __init__(self, token: Token, place: Place, before: Place | None, came: Instant) -> None:
        self.token = token
        self.place = place  # as it came
        self.before = before
        self.after: Place | None = None
        self.came = came
        self.uses: deque[Use] = deque(maxlen=SPANS)
        self.rivals: tuple[Place, ...] = ()  # tokens that were discarded for this one

    @property
    def running(self) -> bool:
        return bool(self.uses) and not self.uses[-1].ended

    def begin(self, request: RequestId, now: Instant) -> None:
        self.uses.append(Use(request, now))

    def end(self, now: Instant) -> None:
        if self.running:
            self.uses[-1].ended = now


class Ledger:
    __slots__ = ("machine", "visits")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.visits: deque[Visit] = deque(maxlen=VISITS)

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    def open(self, token: Token, place: Place, sender: NodeId) -> Visit:
        """A token is here: from `sender`, or made here."""
        before = None if sender == NOBODY else place._replace(hop=max(0, place.hop - 1), holder=sender)
        visit = Visit(token, place, before, self.desk.now)
        self.visits.append(visit)
        return visit

    def renamed(self, visit: Visit, token: Token, place: Place) -> Visit:
        """The same token goes on under another name: the chain leads through this node."""
        new = self.open(token, place, NOBODY)
        new.before = visit.place
        visit.after = place
        if visit.running:  # the hold is the new visit's
            new.uses.append(visit.uses.pop())
        return new

    def last_seen(self) -> list[Place]:
        """Where the tokens went that were here: a home that believes them here would miss them when we leave."""
        places = {visit.place.slot: visit.after for visit in self.visits}
        return [place for place in places.values() if place is not None]

    # --- what others ask ---------------------------------------------------------------------------------------------

    def recalled(self, sender: NodeId, recall: Recall) -> None:
        visit = self.find(recall.place)
        if visit is None:
            self.desk.post(sender, Account(recall.number, None, 0, (), False, None, None, ()))
            return
        if recall.told is not None:
            self.tell(visit, recall.told, recall.rival.holder)
        elif not same_token(recall.rival, visit.place) and recall.rival not in visit.rivals:
            visit.rivals = (*visit.rivals, recall.rival)[-RIVALS:]
        now = self.desk.now
        spans = tuple(Span(use.request, now - use.begun, now - use.ended if use.ended else 0) for use in visit.uses)
        links = (visit.before, self._after(visit), visit.rivals)
        self.desk.post(sender, Account(recall.number, visit.place, now - visit.came, spans, visit.running, *links))

    def _after(self, visit: Visit) -> Place | None:
        """Where the token went, also while nobody has confirmed that it is there."""
        seat = self.machine.seats.by_slot.get(visit.place.slot)
        if seat is None or seat.visit is not visit:
            return visit.after
        if self.machine.seats.presence(visit.place.slot) is not Presence.PASSING:
            return None
        return place_of(seat.token._replace(hop=seat.token.hop + 1), seat.invited)

    def tell(self, visit: Visit, told: Told, peer: NodeId) -> None:
        """This use overlapped with one of `peer`."""
        for use in visit.uses:
            if use.request == told.request:
                self.desk.out.append(Overlapped(told.request, peer, told.other, told.length))
                if not use.said:
                    use.said = True
                    self.desk.note(FactKind.OVERLAP, visit.token, peer)
                    if not use.ended:
                        self.machine.seats.tell_visit(visit, LostReason.OVERLAP)

    def find(self, place: Place) -> Visit | None:
        """The last visit of that token that began no later than at that hop."""
        for visit in reversed(self.visits):
            if same_token(visit.place, place) and visit.place.hop <= place.hop:
                return visit
        return None
