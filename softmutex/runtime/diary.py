"""What becomes of one mutex on one node, written down in passing and read some at a time (`softmutex.ports.Reader`).

    heard of a grant, let go, handed over --an append--> diary --each 16th hold, each tick, `settle`--> readers

What it decides: who pays for telemetry, and when. The naive way, to tell observers of each wait, hold and hand-over as
it happens, makes six observations for each acquisition while somebody else waits for the token. A reader gets bare
numbers, in a turn of the loop after the one in which the token was let go: this process would only wait then.

There is one for a mutex that somebody used or passed on here while there was a reader. It lives as long as the
`LocalMutex`; what is left in it after that is read once more. Slots that are parts of a weighted hold are not written
down, nor are waits at its gate: it is one wait and one hold (`weighing.py`).

Whether a wait was granted is what the application hears of it: of one that is cancelled just as it is granted that is
"cancelled", and nothing of it is written down. The naive way, to write down what the node grants, has that one twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from softmutex.core.events import Duration, Grant, Instant, NodeId, Note
from softmutex.ports import Lately
from softmutex.runtime.claim import NOT_YET, MutexClaim
from softmutex.runtime.terms import gate_name

if TYPE_CHECKING:
    from softmutex.runtime.local import LocalMutex

AT_ONCE: Final = 16  # holds


class MutexDiary:
    """`ports.Diary`. The node's loop writes, and whoever waited its wait; any thread reads."""

    __slots__ = (
        "_local",
        "_passed",
        "_settle",
        "_told",
        "algorithm",
        "asked",
        "granted",
        "handed_over",
        "holds",
        "left",
        "mutex",
        "node",
        "waits",
    )

    def __init__(self, local: LocalMutex, settle: Callable[[MutexDiary], None]) -> None:
        self._local, self._settle = local, settle
        self.mutex = local.name
        self.node: NodeId = local.node.id
        self.algorithm = local.terms.algorithm
        self.asked = self.left = self.handed_over = 0  # `left`: who waited, and heard of no grant
        self.waits: deque[Duration] = deque()
        self.holds: deque[tuple[Instant, Instant]] = deque()
        self.granted: Grant = NOT_YET  # the last one
        self._passed: dict[int, tuple[int, int, NodeId]] = {}
        self._told = (0, 0, 0)

    # --- written ------------------------------------------------------------------------------------------------------

    def held(self, claim: MutexClaim, end: Instant) -> None:
        """Once, of a hold that the application came to know."""
        if claim._is_part or claim._is_written:
            return
        if not claim._is_known:
            self.left += 1
            return
        claim._is_written = True
        self.holds.append((claim._granted_at, end))
        if len(self.holds) == AT_ONCE:
            self._local.node.loop.call_soon(self._settle, self)

    def passed_on(self, note: Note) -> None:
        self.handed_over += 1
        token = note.token
        if token is not None and note.peer:
            self._passed[token.slot] = token.epoch, token.hop, note.peer

    # --- read ---------------------------------------------------------------------------------------------------------

    def lately(self) -> Lately | None:
        """By one at a time. None where nothing happened."""
        now = (self.asked, self.left, self.handed_over)
        if not self.waits and not self.holds and now == self._told:
            return None
        before, self._told = self._told, now
        waits = tuple([self.waits.popleft() for _ in range(len(self.waits))])
        holds = tuple([self.holds.popleft() for _ in range(len(self.holds))])
        return Lately(waits, holds, now[2] - before[2], self._local.node.now())

    def is_over(self) -> bool:
        return self._local.node.mutexes.get(self.mutex) is not self._local

    def is_used(self) -> bool:
        return self.asked > 0

    def waiting(self) -> list[tuple[Duration, int, int]]:
        local, now = self._local, self._local.node.now()
        gate = local.node.mutexes.get(gate_name(self.mutex))
        found = list(local.waiting.values()) + (list(gate.waiting.values()) if gate is not None else [])
        claims = {id(claim): claim for claim in (each._whole() for each in found)}
        return [
            (now - claim._asked_at, claim._slots(), claim._policy.priority)
            for claim in claims.values()
            if claim.name == self.mutex
        ]

    def holding(self) -> list[tuple[Duration, Duration, int, int, int]]:
        now = self._local.node.now()
        return [
            (
                now - claim._granted_at,
                claim._granted_at - claim._asked_at,
                claim._grant.epoch,
                claim._grant.hop,
                claim._slots(),
            )
            for claim in list(self._local.holding.values())
            if not claim._is_part
        ]

    def tokens(self) -> dict[int, tuple[int, int, NodeId]]:
        found, grant = dict(self._passed), self.granted
        at = (grant.epoch, grant.hop)
        if grant.rights and at > found.get(0, NEVER)[:2]:  # permissions are nowhere
            found[0] = (*at, self.node)
        return found


NEVER: Final = (-1, -1, 0)
