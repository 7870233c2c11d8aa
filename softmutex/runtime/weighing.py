"""A hold that takes several slots: `SoftMutex("link", slots=10, weight=3)`.

    ask --the gate--> [collecting: a slot, a slot, ...] --the last one--> HELD, and the gate is open for the next
     ^                          |                                          '--release--> all slots are given back
     '---- the gate or a slot is lost: all is given back, and the gate is asked for anew ----'

The naive way, to take what is free and wait for the rest, stops the group: of ten slots two takers have five each, and
each waits for a sixth for ever. To wait until so many are free at once starves the heavy ones: the light ones are
always quicker. So all who say a weight come in at a gate, a mutex of its own with one slot: only one at a time
collects, in the order in which they asked, and whoever comes later waits behind it however light it is.

What it decides: nothing that machines decide. A weighted hold is made of ordinary claims, of which the application has
the last one in hand; so it is composed outside of the algorithms, and works with each that has slots.

W1  Who waits for a slot and has some already has the gate: of those there is one. So they cannot wait for each other,
    and whoever holds needs nothing more, and ends.
W2  Never more slots in use than there are, as far as the mutex promises that of its slots.
W3  Who has asked at the gate is overtaken at collecting by nobody who asks there later. Who says no weight does not
    come by the gate, takes one slot like anybody, and may overtake.
W4  What is lost of a hold is lost of all of it. What is lost while it is collected is no loss: it is given back whole,
    for two that were let through the gate at once (a group that was cut) could each have what the other one lacks.
W6  A slot that is free is found, also by who stands in the queue of a token that it has itself, and keeps: it asks
    anew. As soon as the token's home says where; that took over a minute once in some 60 crowds, while slots lay idle
    (17 of 20 once). That is the home's to mend (`wandering/home.py`), and no deadlock of takers.
W5  However it ends, at the gate, while collecting or held: nothing of it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from softmutex.core.errors import AcquireTimeout, SoftMutexError
from softmutex.core.events import LostReason, from_seconds
from softmutex.runtime.claim import MutexClaim, Progress
from softmutex.runtime.terms import Plan, Policy

if TYPE_CHECKING:
    from softmutex.runtime.crossing import Crossing
    from softmutex.runtime.local import LocalMutex


RENEW_FIRST: Final = from_seconds(2.0)
RENEW_MOST: Final = from_seconds(60.0)


class Part(MutexClaim):
    """The gate, or one of the slots; all but the last, which is the claim itself."""

    _is_part = True

    def __init__(self, of: Weighing, crossing: Crossing, policy: Policy, timeout_s: float | None) -> None:
        super().__init__(crossing, timeout_s)
        self._of = of
        self._policy = policy
        self._purpose = of.claim._purpose

    def _on_settled(self) -> None:
        self._of.settled(self)

    def _on_lost(self) -> None:
        self._of.part_lost(self)

    def _on_overrun(self) -> None:
        """The claim itself has the max_hold."""

    def _whole(self) -> MutexClaim:
        return self._of.claim

    def _slots(self) -> int:
        return self._of.claim._slots() if self._progress is Progress.WAITING else 1

    def _is_shown_by_another(self) -> bool:
        return self._of.claim._progress is Progress.HELD


class Weighing:
    """One weighted claim, from asking to its end. It stands where a `LocalMutex` stands for the claim, until that one
    takes it."""

    def __init__(self, crossing: Crossing, local: LocalMutex, gate: LocalMutex, claim: MutexClaim) -> None:
        self.claim = claim
        self._crossing = crossing
        self._node = crossing.node
        self._local = local
        self._gate = gate
        self._policy = claim._policy._replace(max_hold=None, on_lost="continue", on_overrun="warn", weight=None)
        self._others = (claim._policy.weight or 1) - 1
        self._parts: list[Part] = []  # granted: the gate first
        self._asking: Part | None = None
        self._is_over = False
        self._patience = RENEW_FIRST

    def begin(self) -> None:
        claim, node = self.claim, self._node
        claim._weighing = claim._local = self
        claim._progress = Progress.WAITING
        claim._asked_at = node.now()
        if claim._timeout_s:
            node.timers.set((self, "limit"), claim._asked_at + from_seconds(claim._timeout_s), self._time_out, None)
        self._next(None)

    # --- one after the other -----------------------------------------------------------------------------------------

    def _next(self, _: None) -> None:
        if self._is_over:
            return
        self._patience = RENEW_FIRST
        if self._parts and not self._is_try():
            self._node.timers.set((self, "renew"), self._node.now() + self._patience, self._renew, None)
        if len(self._parts) <= self._others:
            self._asking = part = Part(self, self._crossing, self._policy, 0.0 if self._is_try() else None)
            (self._local if self._parts else self._gate).ask(part)
        else:
            self._local.ask(self.claim)

    def _renew(self, _: None) -> None:
        """W6. As a new request: it goes where a token is free by now, and not back to where the old one stands."""
        waits = self._asking if self._asking is not None else self.claim
        if self._is_over or waits._local is not self._local or waits._progress is not Progress.WAITING:
            return
        self._patience = min(2 * self._patience, RENEW_MOST)
        self._node.timers.set((self, "renew"), self._node.now() + self._patience, self._renew, None)
        self._local.take_back(waits)
        self._local.ask(waits)

    def _is_try(self) -> bool:
        return self.claim._timeout_s is not None and self.claim._timeout_s <= 0

    def settled(self, part: Part) -> None:
        self._asking = None
        if part._error is None:
            self._parts.append(part)
            self._next(None)
        elif isinstance(part._error, AcquireTimeout):
            self._time_out(None)
        else:
            self._fail(part._error)

    def part_lost(self, part: Part) -> None:
        """W4."""
        claim = self.claim
        if claim._progress is Progress.HELD:
            self._local.tell_lost(claim, part._lost_as or LostReason.CLOSED, part._lost_because)
        elif not self._is_over:
            self._node.timers.set((self, "again"), self._node.now(), self._again, None)

    def _again(self, _: None) -> None:
        if self._is_over or self.claim._progress is Progress.HELD:
            return
        if self.claim._local is self._local:
            self._local.take_back(self.claim)
            self.claim._local = self
        self._give_back()
        self._next(None)

    # --- what the claim's own mutex tells (local.py) -----------------------------------------------------------------

    def entered(self) -> None:
        """All is there: the next one may collect."""
        self._stop()
        if self._parts:
            self._gate.release(self._parts.pop(0), b"")
        if any(part._lost_as for part in self._parts):
            self.part_lost(next(part for part in self._parts if part._lost_as))

    def over(self) -> None:
        """W5. It may be called again."""
        if not self._is_over:
            self._is_over = True
            self._stop()
            self._give_back()

    def _stop(self) -> None:
        for timer in ("limit", "again", "renew"):
            self._node.timers.cancel((self, timer))

    # --- as a `LocalMutex` for the claim -----------------------------------------------------------------------------

    def withdraw(self, claim: MutexClaim) -> None:
        if claim._progress is Progress.WAITING:
            self._local.counts.cancelled += 1
            claim._progress = Progress.ENDED
            if self._local.diary is not None:
                self._local.diary.left += 1
        self.over()

    def release(self, claim: MutexClaim, baggage: bytes) -> None:
        """It is not held yet."""

    def tell_lost(self, claim: MutexClaim, reason: LostReason, detail: str = "") -> None:
        """It is not held yet."""

    def bind(self, claim: MutexClaim, policy: Policy) -> None:
        """It is not held yet."""

    # --- ends --------------------------------------------------------------------------------------------------------

    def _time_out(self, _: None) -> None:
        claim = self.claim
        if claim._local is self._local:
            self._local.time_out(claim)
        elif claim._progress is Progress.WAITING:
            self._local.give_up(claim)

    def _fail(self, error: SoftMutexError) -> None:
        self.over()
        self.claim._fail(error)

    def _give_back(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and asking._local is not None:
            asking._local.withdraw(asking)
        parts, self._parts = self._parts, []
        for part in reversed(parts):  # the gate last: whoever comes in finds what is free
            if part._local is not None:
                part._local.release(part, b"")


def ask(crossing: Crossing, local: LocalMutex, claim: MutexClaim, open_mutex: Callable[[Plan], LocalMutex]) -> None:
    gate = crossing.plan.gate
    assert gate is not None
    Weighing(crossing, local, open_mutex(gate), claim).begin()
