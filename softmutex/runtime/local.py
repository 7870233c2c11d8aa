"""One mutex on one node: its machine, and the claims of the application that wait for it or hold it.

What it decides: when a claim ends for a reason that is none of the machine's: time limits, overruns, isolation, the
closing of the node. Who gets the token is the machine's business alone; this module only tells it what was asked.

The naive way, one lock for the tasks of a process in front of one request to the network, makes a fair queue of
processes and an unfair one of tasks: a process with a hundred waiting tasks gets as much as one with a single one. So
each claim is a request of its own to the machine, in the order in which they were asked.

A `LocalMutex` exists too for a mutex that only others use: every member of a group takes part in every mutex of it, so
that the token is never further away than the group (`core/group/founding.py` tells how a node hears of a mutex).

H1  A hold is declared lost in one place (`tell_lost`), whatever the reason, and once: there it is counted, shown to
    observers, logged, and the application is woken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
    Overlapped,
    Released,
    Requested,
    RequestId,
    TimerName,
    Withdrawn,
    from_seconds,
    to_seconds,
)
from softmutex.core.machine import Algorithm, WhenIsolated
from softmutex.core.messages import PastHold, Remember
from softmutex.core.tuples import NamedTuple
from softmutex.runtime.claim import MutexClaim, Progress, no_longer_alone
from softmutex.runtime.counting import Durations, MutexCounts, Overlaps
from softmutex.runtime.terms import Policy, Terms
from softmutex.runtime.whom import cut, of_this_process
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.ports import Observer
    from softmutex.runtime.diary import MutexDiary
    from softmutex.runtime.lookout import Round
    from softmutex.runtime.node import RunningNode
    from softmutex.runtime.statistics import MutexStatistics

log = logger("hold")

TRY_S = 1.0  # a claim that only tries waits so long for a token that nobody holds to come here
TRY = from_seconds(TRY_S)
LEAD = from_seconds(0.3)  # before a time limit the others are asked what is in the way
LEAD_LEAST = from_seconds(0.02)  # for less time nobody is asked
PAST_KEPT = 64


class Past(NamedTuple):
    """A hold that is over, of this node or of one that left."""

    ended_at: Instant
    told: PastHold  # `ended` is nothing yet


class LocalMutex:
    __slots__ = (
        "backlog",
        "busy",
        "counts",
        "departed",
        "diary",
        "followers",
        "heard_at",
        "held",
        "holding",
        "is_own",
        "isolated",
        "log",
        "machine",
        "machine_waits",
        "name",
        "node",
        "overlaps",
        "own_at",
        "past",
        "requests",
        "stalled",
        "started",
        "terms",
        "used_at",
        "waited",
        "waiting",
        "warned_of",
    )

    def __init__(
        self, node: RunningNode, name: str, terms: Terms, machine: Algorithm, when_isolated: WhenIsolated
    ) -> None:
        self.node = node
        self.name = name
        self.terms = terms
        self.machine = machine
        self.machine_waits = when_isolated
        self.is_own = False  # an application of this node has opened it
        self.log = logger(terms.algorithm)
        self.waiting: dict[RequestId, MutexClaim] = {}  # in the order in which they were asked
        self.holding: dict[RequestId, MutexClaim] = {}
        self.requests: RequestId = 0
        self.started = False  # until then events wait in the backlog
        self.busy = False  # effects are being performed: a further event waits in the backlog (D2)
        self.backlog: deque[Event] = deque()
        self.isolated = False
        self.stalled = ""  # why the first token cannot be made yet
        self.departed = False
        self.heard_at: Instant = 0  # when another node last spoke of this mutex
        self.own_at: Instant = node.now()  # when an application of this node last did something with it,
        self.used_at = self.own_at  # ... and when anybody did
        self.counts = MutexCounts()
        self.waited = Durations()
        self.held = Durations()
        self.diary: MutexDiary | None = None  # once there is somebody who reads it
        self.followers: Sequence[Observer] = ()  # readers told of the last hold, until its token is handed over
        self.past: deque[Past] = deque(maxlen=PAST_KEPT)
        self.overlaps = Overlaps()
        self.warned_of: set[str] = set()  # what the user has read once and need not read again

    # --- what the application asks for ------------------------------------------------------------------------------

    def ask(self, claim: MutexClaim) -> None:
        node = self.node
        now = node.now()
        claim._local = self
        self.own_at = self.used_at = now
        claim._asked_at = claim._asked_at or now  # one that takes several slots has asked before, at the gate
        timeout_s = claim._timeout_s
        trying = timeout_s is not None and timeout_s <= 0
        if trying and (self.waiting or len(self.holding) >= self.terms.slots):
            self.give_up(claim)
            return
        if self.isolated and claim._policy.when_isolated == "raise":
            self._refuse_isolated(claim)
            return
        self.requests += 1
        request = claim._request = self.requests
        claim._progress = Progress.WAITING
        self.waiting[request] = claim
        node.handle(self, Requested(request, claim._policy.priority), now)
        if timeout_s is not None and claim._progress is Progress.WAITING:
            limit = TRY if trying else from_seconds(timeout_s)
            lead = 0 if trying else min(LEAD, limit // 2)
            if lead < LEAD_LEAST:
                node.timers.set((self, "limit", request), now + limit, self.time_out, claim)
            else:
                node.timers.set((self, "limit", request), now + limit - lead, self._ask_what_is_in_the_way, claim)
            if trying and len(node.members) > 1:
                node.lookout.look_for_try(self, lambda why: self.time_out(claim, why))

    def withdraw(self, claim: MutexClaim) -> None:
        """The caller gave up. A grant that came all the same is handed on at once (C2)."""
        if claim._progress is Progress.HELD:
            self.release(claim, b"")
        elif claim._progress is Progress.WAITING:
            self.counts.cancelled += 1
            claim._progress = Progress.ENDED
            self.take_back(claim)
            if self.diary is not None:
                self.diary.left += 1
            if claim._weighing is not None:
                claim._weighing.over()

    def _ask_what_is_in_the_way(self, claim: MutexClaim) -> None:
        """Its time is nearly over. Who holds it, and who is before this one? What is answered in time is said then."""
        if claim._progress is not Progress.WAITING:
            return
        node = self.node
        limit_at = claim._asked_at + from_seconds(claim._timeout_s or 0)
        left = max(0, limit_at - node.now())

        def over(asked: Round) -> None:
            if claim._progress is Progress.WAITING:
                seen = node.lookout.seen(self.name, asked)
                said = seen.words(seen.at - to_seconds(node.now() - claim._asked_at))
                node.timers.set((self, "limit", claim._request), limit_at, self._time_out_saying, (claim, said))

        node.timers.set((self, "limit", claim._request), limit_at, self.time_out, claim)
        node.lookout.ask(self.name, left, lambda _: None, over)

    def _time_out_saying(self, told: tuple[MutexClaim, str]) -> None:
        self.time_out(*told)

    def time_out(self, claim: MutexClaim, why: str = "") -> None:
        if claim._progress is Progress.WAITING:
            self.take_back(claim)
            self.give_up(claim, why)

    def release(self, claim: MutexClaim, baggage: bytes) -> None:
        if claim._progress is not Progress.HELD:
            return
        node = self.node
        now = node.now()
        claim._progress = Progress.ENDED
        self.own_at = self.used_at = now
        del self.holding[claim._request]
        if claim._overruns_at is not None:
            node.timers.cancel((self, "overrun", claim._request))
        self.held.add(now - claim._granted_at)
        if node.observers.readers:
            (self.diary or node.observers.diary_of(self)).held(claim, now)
        self._remember(claim, now)
        node.handle(self, Released(claim._request, baggage or claim._grant.baggage), now)
        if claim._weighing is not None:
            claim._weighing.over()
        if node.closing:
            node.something_changed()

    # --- what the machine answers -----------------------------------------------------------------------------------

    def grant(self, grant: Grant) -> None:
        request = grant.request
        claim = self.waiting.pop(request, None)
        node = self.node
        if claim is None:  # never by a machine that keeps A2; the token must not stay here for nobody
            node.handle(self, Released(request))
            return
        if claim._timeout_s is not None:
            node.timers.cancel((self, "limit", request))
        claim._progress = Progress.HELD
        claim._grant = grant
        claim.peers = len(node.members) - 1
        claim._granted_at = now = node.now()
        self.holding[request] = claim
        self.counts.acquisitions += 1
        self.waited.add(now - claim._asked_at)
        if self.diary is not None and not claim._is_part:
            self.diary.granted = grant
        if claim._policy.max_hold is not None:
            claim._overruns_at = now + claim._policy.max_hold
            node.timers.set((self, "overrun", request), claim._overruns_at, self.overrun, claim)
        if claim._weighing is not None:
            claim._weighing.entered()
        claim._on_settled()
        if not grant.alone:
            self.tell_lost(claim, LostReason.OVERLAP)

    def bind(self, claim: MutexClaim, policy: Policy) -> None:
        """Whose hold it becomes by now has terms of its own: its max_hold begins."""
        if claim._progress is not Progress.HELD:
            return
        claim._policy = policy
        claim._overruns_at = None if policy.max_hold is None else self.node.now() + policy.max_hold
        if claim._overruns_at is None:
            self.node.timers.cancel((self, "overrun", claim._request))
        else:
            self.node.timers.set((self, "overrun", claim._request), claim._overruns_at, self.overrun, claim)

    def lose(self, request: RequestId, reason: LostReason) -> None:
        claim = self.holding.get(request)
        if claim is not None:
            self.tell_lost(claim, reason)

    def _remember(self, claim: MutexClaim, now: Instant) -> None:
        lost = "" if claim._lost_as is None else f"{claim._lost_as.value}{': ' * bool(claim._lost_because)}"
        lost, grant, begun = cut(lost + claim._lost_because, 64), claim._grant, claim._granted_at
        waited = max(0, begun - claim._asked_at)
        name, user = cut(self.node.name, 64), of_this_process()["user"]
        told = PastHold(name, user, claim._purpose, lost, grant.epoch, grant.hop, 0, max(0, now - begun), waited)
        self.past.append(Past(now, told))

    def remember(self, message: Remember) -> None:
        """Of a member that leaves."""
        now = self.node.now()
        known = {(past.told.node, past.told.epoch, past.told.hop) for past in self.past}
        for told in message.past:
            if (told.node, told.epoch, told.hop) not in known:
                self.past.append(Past(max(0, now - told.ended), told))  # it is told on when we leave

    def tell_lost(self, claim: MutexClaim, reason: LostReason, detail: str = "") -> None:
        """The one door for a lost hold (H1)."""
        if claim._lost_as is not None:
            return
        claim._lost_as, claim._lost_because = reason, detail
        self.counts.lost += 1
        self.node.notice(self.name, "hold_lost", {"request": claim._request, "reason": reason.value})
        said = no_longer_alone(self.name, reason, detail)
        log.warning("%s", f"{said} The body goes on." if claim._policy.on_lost == "continue" else said)
        claim._on_lost()

    def fired(self, timer: TimerName) -> None:
        self.node.handle(self, Fired(timer))

    def note(self, note: Note) -> None:
        facts = self.counts.facts
        facts[note.kind] = facts.get(note.kind, 0) + 1
        if note.kind is FactKind.HANDED_OVER:  # of which there may be thousands a second
            return
        self.log.debug("%s on %s: %s %s", self.name, self.node.name, note.kind.value, note.detail)
        match note.kind:
            case FactKind.ISOLATED:
                self._be_isolated()
            case FactKind.REJOINED:
                self.isolated = False
                log.warning("%s: mutex %r goes on: enough of the group is heard again", self.node.name, self.name)
            case FactKind.HANDOVER_FAILED | FactKind.TOKEN_LOST | FactKind.GENERATED if note.peer:
                self.node.driver.suspect(note.peer)
            case FactKind.MISMATCH:
                self.node.driver.explain_mismatch(self, note.peer, note.detail)
            case _:
                pass

    def overlapped(self, told: Overlapped) -> None:
        length = to_seconds(told.length)
        if self.overlaps.add((told.request, told.other, told.their_request), told.length):
            log.warning(
                "mutex %r was held here and by %s at once, for %.3f s as far as is known",
                self.name,
                self.node.call(told.other),
                length,
            )
        values: dict[str, float | int | str] = {"request": told.request, "other": told.other, "seconds": length}
        self.node.notice(self.name, "overlapped", values)

    # --- isolation ----------------------------------------------------------------------------------------------------

    def stall(self, why: str) -> None:
        """No machine runs yet: the first token may not be made."""
        self.stalled = why
        self.note(Note(FactKind.ISOLATED, detail=why))
        self.node.observers.note(self, Note(FactKind.ISOLATED, detail=why))

    def unstall(self) -> None:
        if self.stalled:
            self.stalled = ""
            self.note(Note(FactKind.REJOINED))
            self.node.observers.note(self, Note(FactKind.REJOINED))

    def _be_isolated(self) -> None:
        self.isolated = True
        driver = self.node.driver
        why = self.stalled or f"too few of the group answer. Silent: {driver.who_is_silent() or 'nobody yet'}"
        said = f"mutex {self.name!r} is isolated here: {why}. {driver.what_comes_next(self)}"
        self.node.warn("isolated", said)
        for claim in list(self.waiting.values()):
            if claim._policy.when_isolated == "raise":
                self.take_back(claim)
                self._refuse_isolated(claim)

    # --- ends that no machine decides -------------------------------------------------------------------------------

    def overrun(self, claim: MutexClaim) -> None:
        """The timer of max_hold. A hold that was touched meanwhile has a later deadline by now."""
        if claim._progress is not Progress.HELD or claim._overruns_at is None:
            return
        now = self.node.now()
        if now < claim._overruns_at:
            self.node.timers.set((self, "overrun", claim._request), claim._overruns_at, self.overrun, claim)
            return
        self.counts.overruns += 1
        self.node.notice(self.name, "overrun", {"request": claim._request})
        log.warning(
            "mutex %r is held for %.3f s without progress, longer than max_hold (%.3f s): %s",
            self.name,
            (now - claim._granted_at) / SECOND,
            (claim._policy.max_hold or 0) / SECOND,
            "it is released now, and the work that goes on is no longer protected"
            if claim._policy.on_overrun == "release"
            else "call hold.touch() where there is progress, or raise max_hold",
        )
        if claim._policy.on_overrun == "release":
            self.tell_lost(claim, LostReason.OVERRUN)
            self.release(claim, b"")
        else:
            claim._on_overrun()

    def fail(self, error: SoftMutexError) -> None:
        """Nobody waits any longer, and why. The machine, where there still is one, is told first."""
        for claim in list(self.waiting.values()):
            if claim._request in self.waiting:  # the end of one may be that of another, of which it was a part
                self.take_back(claim)
                claim._fail(error)

    def abandon(self) -> None:
        """Nobody protects those any longer who still hold: they are told."""
        leave_s = self.node.settings["leave_timeout"]
        for claim in list(self.holding.values()):
            why = f"nobody released it in the {leave_s:g} s (leave_timeout) that the node waited for that"
            self.tell_lost(claim, LostReason.CLOSED, why if self.node.closing else "")
            now = self.node.now()
            claim._progress = Progress.ENDED
            if self.node.observers.readers:
                self.node.observers.diary_of(self).held(claim, now)
            self._remember(claim, now)
        self.holding.clear()
        if self.node.closing:
            self.node.lookout.bequeath(self)

    def statistics(self) -> MutexStatistics:
        from softmutex.runtime.statistics import MutexStatistics  # slow to make

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
            facts={kind.value: count for kind, count in counts.facts.items()},
            sent=dict(counts.sent),
            received=dict(counts.received),
            overlaps=self.overlaps.seen(),
        )

    def take_back(self, claim: MutexClaim) -> None:
        """Takes a claim out of the queue, and tells the machine."""
        del self.waiting[claim._request]
        if claim._timeout_s is not None:
            self.node.timers.cancel((self, "limit", claim._request))
        self.node.handle(self, Withdrawn(claim._request))

    def give_up(self, claim: MutexClaim, why: str = "") -> None:
        self.counts.timeouts += 1
        if claim._timeout_s:
            left_s = claim._timeout_s  # of what the caller allowed, once the node had joined
            within = f"{left_s:.2g}" if left_s < 1 else f"{round(left_s, 1):g}"
            said = f"the mutex {self.name!r} was not granted within {within} s"
        else:
            said = f"the mutex {self.name!r} is in use"
        here = (
            f" (on this node {len(self.holding)} hold it and {len(self.waiting)} wait for it; "
            f"{len(self.node.members) - 1} other nodes are known)"
        )
        found = f": {why}" if why else here
        claim._fail(AcquireTimeout(f"{said}{found}. Wait longer, or look: softmutex status."))

    def _refuse_isolated(self, claim: MutexClaim) -> None:
        claim._fail(
            Isolated(
                f"this node cannot reach enough of its group to be granted the mutex {self.name!r} "
                f"(silent: {self.node.driver.who_is_silent() or self.stalled or 'not known'}). "
                "See `softmutex doctor`, or set when_isolated."
            )
        )
