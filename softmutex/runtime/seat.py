"""One mutex on one node: its machine, and the claims of the application that wait for it or hold it.

What it decides: when a claim ends for a reason that is none of the machine's: time limits, overruns, isolation, the
closing of the node. Who gets the token is the machine's business alone; this module only tells it what was asked.

The naive way, one lock for the tasks of a process in front of one request to the network, makes a fair queue of
processes and an unfair one of tasks: a process with a hundred waiting tasks gets as much as one with a single one. So
each claim is a request of its own to the machine, in the order in which they were asked.

A `Seat` exists too for a mutex that only others use: every member of a group takes part in every mutex of it, so that
the token is never further away than the group (`founding.py` tells how a node hears of a mutex).
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from softmutex.core.errors import AcquireTimeout, Isolated, SoftMutexError
from softmutex.core.events import (
    SECOND,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    LostReason,
    Note,
    Released,
    Requested,
    RequestId,
    TimerName,
    Withdrawn,
    from_seconds,
    to_seconds,
)
from softmutex.core.machine import Algorithm
from softmutex.runtime.claim import Claim, Stage
from softmutex.runtime.statistics import Counts, Durations, MutexStatistics
from softmutex.runtime.terms import Terms

if TYPE_CHECKING:
    from softmutex.runtime.node import Life

log = logging.getLogger("softmutex")

TRY_S = 1.0  # a claim that only tries waits so long for a token that nobody holds to come here
TRY = from_seconds(TRY_S)


class Seat:
    __slots__ = (
        "backlog",
        "busy",
        "counts",
        "departed",
        "heard_at",
        "held",
        "holding",
        "isolated",
        "life",
        "machine",
        "name",
        "requests",
        "started",
        "terms",
        "told",
        "waited",
        "waiting",
    )

    def __init__(self, life: Life, name: str, terms: Terms, machine: Algorithm) -> None:
        self.life = life
        self.name = name
        self.terms = terms
        self.machine = machine
        self.waiting: dict[RequestId, Claim] = {}  # in the order in which they were asked
        self.holding: dict[RequestId, Claim] = {}
        self.requests: RequestId = 0
        self.started = False  # until then events wait in the backlog
        self.busy = False  # effects are being performed: a further event waits in the backlog (D2)
        self.backlog: deque[Event] = deque()
        self.isolated = False
        self.departed = False
        self.heard_at: Instant = 0  # when another node last spoke of this mutex
        self.counts = Counts()
        self.waited = Durations()
        self.held = Durations()
        self.told: set[str] = set()  # what the user has been told once and need not hear again

    # --- what the application asks for ------------------------------------------------------------------------------

    def ask(self, claim: Claim) -> None:
        life = self.life
        claim.seat = self
        claim.asked_at = life.now()
        trying = claim.timeout_s is not None and claim.timeout_s <= 0
        if trying and (self.waiting or len(self.holding) >= self.terms.slots):
            self._give_up(claim)
            return
        if self.isolated and claim.policy.when_isolated == "raise":
            self._refuse_isolated(claim)
            return
        self.requests += 1
        request = claim.request = self.requests
        claim.stage = Stage.WAITING
        self.waiting[request] = claim
        life.handle(self, Requested(request))
        if claim.timeout_s is not None and claim.stage is Stage.WAITING:
            limit = TRY if trying else from_seconds(claim.timeout_s)
            life.timers.set((self, "limit", request), claim.asked_at + limit, self.time_out, claim)

    def withdraw(self, claim: Claim) -> None:
        """The caller gave up. A grant that came all the same is handed on at once (C2)."""
        if claim.stage is Stage.HELD:
            self.release(claim, b"")
        elif claim.stage is Stage.WAITING:
            self.counts.cancelled += 1
            claim.stage = Stage.ENDED
            self._forget(claim)

    def time_out(self, claim: Claim) -> None:
        if claim.stage is Stage.WAITING:
            self._forget(claim)
            self._give_up(claim)

    def release(self, claim: Claim, baggage: bytes) -> None:
        if claim.stage is not Stage.HELD:
            return
        claim.stage = Stage.ENDED
        del self.holding[claim.request]
        if claim.deadline is not None:
            self.life.timers.cancel((self, "overrun", claim.request))
        self.held.add(self.life.now() - claim.granted_at)
        self.life.handle(self, Released(claim.request, baggage or claim.grant.baggage))

    # --- what the machine answers -----------------------------------------------------------------------------------

    def grant(self, grant: Grant) -> None:
        request = grant.request
        claim = self.waiting.pop(request, None)
        if claim is None:  # never by a machine that keeps A2; the token must not stay here for nobody
            self.backlog.append(Released(request))
            return
        life = self.life
        if claim.timeout_s is not None:
            life.timers.cancel((self, "limit", request))
        claim.stage = Stage.HELD
        claim.grant = grant
        claim.peers = len(life.members) - 1
        claim.granted_at = now = life.now()
        self.holding[request] = claim
        self.counts.acquisitions += 1
        self.waited.add(now - claim.asked_at)
        if claim.policy.max_hold is not None:
            claim.deadline = now + claim.policy.max_hold
            life.timers.set((self, "overrun", request), claim.deadline, self.overrun, claim)
        claim.listener._settled()
        if not grant.alone:
            self.lose(request, LostReason.OVERLAP)

    def lose(self, request: RequestId, reason: LostReason) -> None:
        claim = self.holding.get(request)
        if claim is not None:
            self.counts.lost += 1
            self.life.tell_observers(self.name, "hold_lost", {"request": request, "reason": reason.value})
            claim.listener._lost(reason)

    def fired(self, timer: TimerName) -> None:
        self.life.handle(self, Fired(timer))

    def note(self, note: Note) -> None:
        self.counts.note(note.kind)
        match note.kind:
            case FactKind.ISOLATED:
                self.isolated = True
                for claim in list(self.waiting.values()):
                    if claim.policy.when_isolated == "raise":
                        self._forget(claim)
                        self._refuse_isolated(claim)
            case FactKind.REJOINED:
                self.isolated = False
            case FactKind.HANDOVER_FAILED | FactKind.TOKEN_LOST | FactKind.GENERATED if note.peer:
                self.life.peers.suspect(note.peer)
            case FactKind.MISMATCH:
                self.life.founding.explain_mismatch(self, note.peer, note.detail)
            case _:
                pass

    # --- ends that no machine decides -------------------------------------------------------------------------------

    def overrun(self, claim: Claim) -> None:
        """The timer of max_hold. A hold that was touched meanwhile has a later deadline by now."""
        if claim.stage is not Stage.HELD or claim.deadline is None:
            return
        now = self.life.now()
        if now < claim.deadline:
            self.life.timers.set((self, "overrun", claim.request), claim.deadline, self.overrun, claim)
            return
        self.counts.overruns += 1
        self.life.tell_observers(self.name, "overrun", {"request": claim.request})
        log.warning(
            "mutex %r is held for %.3f s without progress, longer than max_hold (%.3f s): %s",
            self.name,
            (now - claim.granted_at) / SECOND,
            (claim.policy.max_hold or 0) / SECOND,
            "it is released now, and the work that goes on is no longer protected"
            if claim.policy.on_overrun == "release"
            else "call hold.touch() where there is progress, or raise max_hold",
        )
        if claim.policy.on_overrun == "release":
            self.counts.lost += 1
            claim.listener._lost(LostReason.OVERRUN)
            self.release(claim, b"")
        else:
            claim.listener._overran()

    def fail(self, error: SoftMutexError) -> None:
        """Nobody waits any longer, and why. The machine, where there still is one, is told first."""
        for claim in list(self.waiting.values()):
            self._forget(claim)
            claim.fail(error)

    def abandon(self) -> None:
        """Nobody protects those any longer who still hold: they are told."""
        for claim in list(self.holding.values()):
            claim.listener._lost(LostReason.CLOSED)
            claim.stage = Stage.ENDED
        self.holding.clear()

    def statistics(self) -> MutexStatistics:
        counts = self.counts
        return MutexStatistics(
            name=self.name,
            holding=len(self.holding),
            waiting=len(self.waiting),
            acquisitions=counts.acquisitions,
            timeouts=counts.timeouts,
            cancelled=counts.cancelled,
            overruns=counts.overruns,
            lost=counts.lost,
            wait_total=to_seconds(self.waited.total_ns),
            wait_max=to_seconds(self.waited.max_ns),
            hold_total=to_seconds(self.held.total_ns),
            hold_max=to_seconds(self.held.max_ns),
            facts=dict(counts.facts),
            sent=dict(counts.sent),
            received=dict(counts.received),
        )

    def _forget(self, claim: Claim) -> None:
        """Takes a claim out of the queue, and tells the machine."""
        del self.waiting[claim.request]
        if claim.timeout_s is not None:
            self.life.timers.cancel((self, "limit", claim.request))
        self.life.handle(self, Withdrawn(claim.request))

    def _give_up(self, claim: Claim) -> None:
        self.counts.timeouts += 1
        if claim.timeout_s:
            said = f"the mutex {self.name!r} was not granted within {claim.timeout_s:g} s"
        else:
            said = f"the mutex {self.name!r} is in use"
        claim.fail(
            AcquireTimeout(
                f"{said} (on this node {len(self.holding)} hold it and {len(self.waiting)} wait for it; "
                f"{len(self.life.members) - 1} other nodes are known). Wait longer, or look: softmutex status."
            )
        )

    def _refuse_isolated(self, claim: Claim) -> None:
        claim.fail(
            Isolated(
                f"this node cannot reach enough of its group to be granted the mutex {self.name!r} "
                f"({len(self.life.members) - 1} other nodes answer). See `softmutex doctor`, or set when_isolated."
            )
        )
