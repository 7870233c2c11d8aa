"""`central`, seed 002: one member, the coordinator, says whose turn it is. Three messages: ASK_FOR, ALLOW, FREE.

What it decides: who may run A after a coordinator has died. The naive successor begins with an empty queue, and lets
somebody in beside who runs A already. Here the coordinator is elected (`elections.py`, option `election`: bully or
ring) and acts only when every member follows it, and has said with it whether it waits or runs A: so the queue is
rebuilt from the waiters and the holder, and an ALLOW of a former coordinator is not obeyed any more.

    wanted --ASK_FOR--> coordinator: queue --ALLOW--> A runs --FREE--> the next one          the coordinator's own: none

Which silence is a lost message? A waiter learns from each ALLOW how many waited, so it knows about how long its turn
takes and asks again only after that; IN_LINE answers. The coordinator says ALLOW again to a holder that takes longer
than A should while others wait: KEPT, FREE, or silence; or it takes the ALLOW that was lost. Where A takes a minute,
none of them waits for two to find out: five seconds are enough, and cost two messages.

Survives: loss, repetition, delay, reordering, pauses, wrong clocks; comings and goings; deaths of waiters, of holders
and of coordinators, as soon as they are known. A member that is silent stops others only while it runs A, coordinates,
or is waited for by a new coordinator. Two may overlap where two members do not know of each other.

Invariants
    C1  The coordinator allows one at a time, and none before all follow it (`elections.E1`).
    C2  A runs only when allowed by whom this node follows, in this very term.
    L1  Whoever asked is in the queue of the coordinator, or asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, NamedTuple

from softmutex.core.algorithms.elections import OF_ELECTIONS, TRIES, ElectionOptions, WithLeader
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Count,
    Duration,
    Effect,
    Grant,
    Instant,
    NodeId,
    RequestId,
    Send,
    SetTimer,
    Suspect,
    TimerName,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup, View
from softmutex.core.messages import Flag, Message

AGAIN: Final = "again"
CHECK: Final = "check"
SELDOM: Final = 5 * SECOND  # how often at the least somebody is asked who is expected to be silent


class AskFor(NamedTuple):
    """I want to run A. `again`: I asked before; say IN_LINE if that is all there is to say."""

    request: RequestId
    again: Flag = False


class Allow(NamedTuple):
    """Run A. `waiting`: so many others want to. Said again: do you still?"""

    term: Count
    request: RequestId
    hop: Count  # how many were allowed in this term
    waiting: Count
    baggage: Annotated[bytes, "<=64"] = b""


class Free(NamedTuple):
    """I do not run A for this request, and do not want to any more."""

    request: RequestId
    baggage: Annotated[bytes, "<=64"] = b""


class InLine(NamedTuple):
    """I know that you wait."""

    request: RequestId
    waiting: Count


class Kept(NamedTuple):
    """I still run A."""

    request: RequestId


class Central(WithLeader):
    name: ClassVar[str] = "central"
    Options = ElectionOptions
    messages: ClassVar = {64: AskFor, 65: Allow, 66: Free, 67: InLine, 68: Kept, **OF_ELECTIONS}
    laws = (
        claim(Weather.ANY, Law.EFFECTS)
        | claim(Weather.ANY & ~Weather.SILENCE, Law.REQUESTS)
        | claim(Weather.ANY & ~Weather.VIEWS, Law.OVERLAP, Law.EXCLUSION, Law.EVIDENCE)
    )
    needs_every_member = True
    listens = 6  # whoever founds it says so, and again if that was lost

    __slots__ = ("_asks", "_baggage", "_check_tries", "_depth", "_granted_at", "_holder", "_hop", "_queue")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, ElectionOptions.read(setup.options, self.name).election)
        self._asks = 0  # how often the request that waits was asked for without an answer
        self._depth = 0  # how many waited when this node was last told
        # the coordinator's:
        self._queue: dict[NodeId, RequestId] = {}
        self._holder: tuple[NodeId, RequestId] | None = None
        self._hop = 0
        self._baggage = b""
        self._granted_at: Instant = 0
        self._check_tries = 0

    # --- as one that wants to run A ----------------------------------------------------------------------------------

    def _want(self, now: Instant, out: list[Effect]) -> None:
        self._asks = 0
        self._ask(False, now, out)

    def _ask(self, again: bool, now: Instant, out: list[Effect]) -> None:
        request = self._waiting[0]
        if self._leader == self._me:
            self._queue[self._me] = request
            self._serve(now, out)
            return
        if self._leader == NOBODY:
            self._call_election(now, out)
            if self._leader == self._me:
                return
        else:
            out.append(Send(self._leader, AskFor(request, again)))
        wait = self._patience.wait(self._asks)
        out.append(SetTimer(AGAIN, now + (wait if again else max(wait, self._turn()))))

    def _turn(self) -> Duration:
        """How long it may take until it is this node's turn."""
        return min(2 * self._op + 5 * self._depth * self._op // 4, SELDOM * (1 + self._depth))

    def _late(self) -> Duration:
        """When somebody who runs A is asked whether it does."""
        return min(2 * self._op, SELDOM)

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer == AGAIN:
            if self._waiting and self._running is None and not self._leaving:
                self._asks += 1
                if self._asks % TRIES == 0 and self._leader not in (NOBODY, self._me):
                    out.append(Suspect(self._leader))
                self._ask(True, now, out)
        elif timer == CHECK:
            self._check(now, out)
        else:
            super()._fired(timer, now, out)

    def _allowed(self, sender: NodeId, allow: Allow, now: Instant, out: list[Effect]) -> None:
        term, request, hop, waiting, baggage = allow
        if sender != self._leader or term != self._term:  # C2
            if sender != self._leader:
                self._tell_who_leads(sender, out)
            return
        self._depth = waiting
        if request == self._running:
            out.append(Send(sender, Kept(request)))
        elif self._waiting[:1] == [request] and self._running is None and not self._leaving:
            out.append(CancelTimer(AGAIN))
            self._grant(Grant(request, term, hop, baggage), out)
        else:
            out.append(Send(sender, Free(request)))

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(AGAIN))
        self._free(request, b"", now, out)

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        self._free(self._last, baggage, now, out)

    def _free(self, request: RequestId, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        if self._leader == self._me:
            self._freed(self._me, request, baggage, now, out)
        elif self._leader != NOBODY:
            out.append(Send(self._leader, Free(request, baggage)))

    # --- as the coordinator ------------------------------------------------------------------------------------------

    def _serve(self, now: Instant, out: list[Effect]) -> None:
        if not self._leads or not self._queue:
            return
        if self._holder is not None:
            if self._holder[0] != self._me and len(self._queue) == 1:
                self._check_tries = 0
                out.append(SetTimer(CHECK, now + self._late()))
            return
        if self._missing:
            raise InvariantBreach(f"C1: node {self._me} coordinates without {list(self._missing)}")
        node = next(iter(self._queue))
        request = self._queue.pop(node)
        self._holder = (node, request)
        self._hop += 1
        self._granted_at, self._check_tries = now, 0
        if node == self._me:
            out.append(CancelTimer(CHECK))
            self._grant(Grant(request, self._term, self._hop, self._baggage), out)
        else:
            out.append(Send(node, Allow(self._term, request, self._hop, len(self._queue), self._baggage)))
            out.append(SetTimer(CHECK, now + self._late()) if self._queue else CancelTimer(CHECK))

    def _check(self, now: Instant, out: list[Effect]) -> None:
        """Others wait, and A takes long: was an ALLOW lost, or a FREE?"""
        if not self._leads or self._holder is None or not self._queue or self._holder[0] == self._me:
            return
        node, request = self._holder
        self._check_tries += 1
        if self._check_tries % TRIES == 0:
            out.append(Suspect(node))
        out.append(Send(node, Allow(self._term, request, self._hop, len(self._queue), self._baggage)))
        out.append(SetTimer(CHECK, now + self._patience.wait(self._check_tries)))

    def _asked(self, sender: NodeId, request: RequestId, again: bool, now: Instant, out: list[Effect]) -> None:
        if self._holder is not None and self._holder[0] == sender:
            if self._holder[1] == request and self._leads:
                out.append(Send(sender, Allow(self._term, request, self._hop, len(self._queue), self._baggage)))
            if self._holder[1] >= request:
                return
            self._holder = None  # it would not ask if it ran A still
        self._queue[sender] = max(request, self._queue.get(sender, 0))
        if again:
            out.append(Send(sender, InLine(request, len(self._queue))))
        self._serve(now, out)

    def _freed(self, sender: NodeId, request: RequestId, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        if self._holder == (sender, request):
            self._holder, self._baggage = None, baggage
            self._serve(now, out)
        elif self._queue.get(sender) == request:
            del self._queue[sender]

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        match message:
            case AskFor(request, again):
                if self._leader == self._me:
                    if self._counts(sender):
                        self._asked(sender, request, again, now, out)
                else:
                    self._tell_who_leads(sender, out)
            case Allow():
                self._allowed(sender, message, now, out)
            case Free(request, baggage):
                if self._leader == self._me:
                    self._freed(sender, request, baggage, now, out)
            case InLine(request, waiting):
                if sender == self._leader and self._waiting[:1] == [request] and self._running is None:
                    self._asks, self._depth = 0, waiting
                    out.append(SetTimer(AGAIN, now + max(SELDOM, self._turn())))
            case Kept(request):
                if self._holder == (sender, request) and self._leader == self._me:
                    self._check_tries = 0
                    wait = min(SELDOM, max(self._late(), (now - self._granted_at) // 2))
                    out.append(SetTimer(CHECK, now + wait))
            case _:
                self._of_elections(sender, message, now, out)

    # --- when the coordinator changes --------------------------------------------------------------------------------

    def _willing(self) -> bool:
        return not self._leaving

    def _state(self) -> int:
        """0: neither; odd: it runs A for this request; even: it waits."""
        if self._running is not None:
            return 2 * self._running + 1
        return 2 * self._waiting[0] if self._waiting and not self._leaving else 0

    def _chosen(self, now: Instant, out: list[Effect]) -> None:
        self._queue, self._holder, self._hop, self._baggage = {}, None, 0, b""
        self._followed(self._me, self._state(), now, out)

    def _followed(self, node: NodeId, state: int, now: Instant, out: list[Effect]) -> None:
        if state % 2:
            self._holder, self._granted_at = (node, state // 2), now
        elif state:
            self._queue[node] = state // 2

    def _follows_late(self, node: NodeId, state: int, now: Instant, out: list[Effect]) -> None:
        if state and not state % 2:
            self._asked(node, state // 2, False, now, out)

    def _led(self, now: Instant, out: list[Effect]) -> None:
        self._serve(now, out)
        if self._holder is not None and self._queue and self._holder[0] != self._me:
            out.append(SetTimer(CHECK, now + self._late()))

    def _follows_another(self, now: Instant, out: list[Effect]) -> None:
        self._queue, self._holder = {}, None
        out.append(CancelTimer(CHECK))
        if self._waiting and self._running is None:
            self._asks = 0  # who is followed was told that this node waits
            out.append(SetTimer(AGAIN, now + max(self._patience.wait(), self._turn())))

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            self._queue.pop(node, None)
            if self._holder is not None and self._holder[0] == node:
                self._holder = None
        super()._changed(joined, left, now, out)
        if self._leader == self._me:
            self._serve(now, out)
        if self._leader == NOBODY and self._waiting and self._running is None:
            out.append(SetTimer(AGAIN, now + 2 * self._span()))

    def _started(self, founder: bool, now: Instant, out: list[Effect]) -> None:
        if founder:
            self._announce(now, out)

    # --- what is shown -----------------------------------------------------------------------------------------------

    def view(self) -> View:
        shown = super().view()
        if self._leader != self._me:
            return shown._replace(epoch=self._term)
        holder = NOBODY if self._holder is None else self._holder[0]
        state = "coordinating" if shown.state == "idle" else shown.state
        return shown._replace(holder=holder, queue=tuple(self._queue), epoch=self._term, state=state)
