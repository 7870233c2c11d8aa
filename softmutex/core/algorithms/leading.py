"""`bully` and `ring`: the elections of seed 002, usable alone. To hold such a mutex is to lead.

    async with node.lead("indexer") as lease:        lease.lost: this node leads no longer
    softmutex lead -n indexer -- COMMAND             runs COMMAND on whoever leads

What it decides: who leads among those that want to. The naive leader leads as soon as it was elected, and another one
may have been elected by others. Here a request makes a node a candidate, and it is granted when every member follows
it (`elections.py`); while it lasts, its node follows nobody else. So there are two leaders only where two members do
not know of each other, or take a living one for dead; when they meet, both leases are lost.

    wanted --election--> chosen --FOLLOW of all--> granted: it leads --released--> told to all

Who leads stays in office, whoever comes. When it goes, the highest id that is willing follows, not the one that waited
longest: an election is no queue, and does not claim the law of requests; for turns take a mutex. A candidate that waits
looks now and then whether whom it follows is there and leads still: the word may be lost, and of a death nobody hears
who does not ask.

A leader that is cut off does not hear of the one that the others elect once it was silent for `isolated_timeout`. So
it asks a random member each two seconds (`core/group/roll_call.py`: two messages, however large the group is), all or
many where that one is silent, and those once more: whoever does not reach more than half is told, ISOLATED, some
seconds after the cut. With the larger side it leads on, and the smaller one may elect another after `isolated_timeout`.

Survives: what `elections.py` says. A death of the leader is noticed when the group notices it: at once where a port
refuses or the membership tells, else when a candidate asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from softmutex.core.algorithms.elections import OF_ELECTIONS, Follow, Method, WithLeader
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CallRoll,
    CancelTimer,
    Effect,
    Event,
    Instant,
    Level,
    Lose,
    LostReason,
    NodeId,
    Reach,
    RequestId,
    Send,
    SetTimer,
    TimerName,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup, View
from softmutex.core.messages import Message

LOOK, REACH = "look", "reach"
EVERY: Final = 2 * SECOND  # a candidate looks after the leader, and the leader after the others


class Leading(WithLeader):
    """Who holds it leads."""

    messages: ClassVar = OF_ELECTIONS
    laws = claim(Weather.ANY, Law.EFFECTS) | claim(
        Weather.ANY & ~Weather.VIEWS, Law.OVERLAP, Law.EXCLUSION, Law.EVIDENCE, Law.ISOLATION
    )
    needs_every_member = True
    elects = True
    method: ClassVar[Method]

    __slots__ = ("_reaches_few",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, self.method)
        self._reaches_few = False  # by the last roll call

    # --- a candidate -------------------------------------------------------------------------------------------------

    def _willing(self) -> bool:
        return self._running is not None or (bool(self._waiting) and not self._leaving)

    def _want(self, now: Instant, out: list[Effect]) -> None:
        self._call_election(now, out)
        if self._running is None:
            out.append(SetTimer(LOOK, now + EVERY))

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer == REACH:
            if self._running is not None:
                if self._others() and not self._proceed:
                    out.append(CallRoll(wide=False))
                out.append(SetTimer(REACH, now + EVERY))
        elif timer != LOOK:
            super()._fired(timer, now, out)
        elif self._waiting and self._running is None and not self._leaving:
            if self._leader == NOBODY:
                self._call_election(now, out)
            elif self._leader != self._me:
                out.append(Send(self._leader, Follow(self._term, 0)))
                self._look_after(self._leader, now, out)
            out.append(SetTimer(LOOK, now + EVERY))

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        if len(self._waiting) == 1 or self._leaving or request not in self._waiting:
            self._calling = False
            self._resign(now, out)
            out.append(CancelTimer(LOOK))

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(REACH))
        self._resign(now, out)

    # --- the leader --------------------------------------------------------------------------------------------------

    def _led(self, now: Instant, out: list[Effect]) -> None:
        if self._running is None and self._waiting and not self._leaving:
            self._reaches_few = False
            out += [CancelTimer(LOOK), SetTimer(REACH, now + EVERY)]
            self._enter(out, epoch=self._term)

    def _heard_of_group(self, event: Event, now: Instant, out: list[Effect]) -> None:
        if isinstance(event, Reach) and self._running is not None and not self._proceed:
            was_few, self._reaches_few = self._reaches_few, event.level is not Level.MORE
            if self._reaches_few and was_few:
                out += [CancelTimer(REACH), Lose(self._running, LostReason.ISOLATED)]
            elif self._reaches_few:
                out.append(CallRoll(wide=True))

    def _may_follow(self) -> bool:
        return self._running is None

    def _state(self) -> int:
        return 0

    def _followed(self, node: NodeId, state: int, now: Instant, out: list[Effect]) -> None: ...

    def _chosen(self, now: Instant, out: list[Effect]) -> None: ...

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        self._of_elections(sender, message, now, out)

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        super()._changed(joined, left, now, out)
        if self._waiting and self._running is None and self._leader == NOBODY and not self._leaving:
            out.append(SetTimer(LOOK, now + EVERY))

    # --- what is shown -----------------------------------------------------------------------------------------------

    def view(self) -> View:
        shown = super().view()
        state = {"holding": "leading", "asking": "candidate", "idle": "following"}[shown.state]
        if self._leader == NOBODY and state == "following":
            state = "idle"
        holder = self._leader if self._leads or self._leader != self._me else NOBODY
        return shown._replace(holder=holder, epoch=self._term, state=state)


class Bully(Leading):
    name: ClassVar[str] = "bully"
    method = Method.BULLY
    __slots__ = ()


class Ring(Leading):
    name: ClassVar[str] = "ring"
    method = Method.RING
    __slots__ = ()
