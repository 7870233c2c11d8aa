"""Evidence: which holds of this slot overlapped, told to both sides. It reads what happened, and decides nothing.

Each node remembers its last holds. When a token is discarded, two of one slot have lived: whoever discards it asks all
members for theirs, compares those of different tokens, and tells both sides of each pair. Clocks are not compared: an
answer says how long ago things were, which is known to half a round trip.

    discarded --RECKON--> all --RECKONED--> compared --TOLD--> both holders: `Overlapped`, and `Lose` while it runs

E1  A pair is told of once, or again when it is longer.
A4  At most `CASES` cases, `SPANS` holds, `TRIES` tries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from softmutex.core.algorithms.keeper.desk import Desk
from softmutex.core.algorithms.keeper.messages import KeptSpan, Reckon, Reckoned, Told
from softmutex.core.events import SECOND, Duration, FactKind, Instant, NodeId, Overlapped, RequestId, Token

SPANS: Final = 64
IN_A_MESSAGE: Final = 24
CASES: Final = 4
TRIES: Final = 8
AGAIN: Final = 4 * SECOND  # while a hold goes on without its token
WORTH: Final = SECOND // 1000


class Use:
    """A hold of this node."""

    __slots__ = ("begun", "ended", "request", "said", "slot", "token")

    def __init__(self, token: Token, request: RequestId, begun: Instant) -> None:
        self.slot = token.slot
        self.token = token.id
        self.request = request
        self.begun = begun
        self.ended: Instant | None = None
        self.said: dict[tuple[NodeId, RequestId], Duration] = {}


class KnownHold:
    """A hold of anybody, in this node's time."""

    __slots__ = ("begun", "ended", "error", "node", "request", "token")

    def __init__(self, node: NodeId, span: KeptSpan, then: Instant, error: Duration) -> None:
        self.node = node
        self.token = span.token
        self.request = span.request
        self.begun = then - span.begun
        self.ended = then - span.ended
        self.error = error


class Case:
    __slots__ = ("asked", "awaited", "known", "number", "slot", "tries")

    def __init__(self, number: int, slot: int, awaited: list[NodeId]) -> None:
        self.number = number
        self.slot = slot
        self.awaited = dict.fromkeys(awaited)
        self.asked: dict[int, Instant] = {}  # by the number of the message: each copy has its own
        self.known: list[KnownHold] = []
        self.tries = 0


class Ledger:
    __slots__ = ("_cases", "_desk", "_lose", "_quickest", "_uses")

    def __init__(self, desk: Desk, lose: Callable[[RequestId], None]) -> None:
        self._desk = desk
        self._lose = lose
        self._uses: deque[Use] = deque(maxlen=SPANS)
        self._cases: dict[int, Case] = {}
        self._quickest: Duration = SECOND

    def begin(self, token: Token, request: RequestId) -> None:
        self._uses.append(Use(token, request, self._desk.now))

    def end(self, request: RequestId) -> None:
        for use in reversed(self._uses):
            if use.request == request:
                use.ended = self._desk.now
                return

    # --- asking ------------------------------------------------------------------------------------------------------

    def open(self, slot: int) -> None:
        """Two tokens of this slot have lived."""
        for number in [number for number, case in self._cases.items() if case.slot == slot]:
            self._close(number)
        if len(self._cases) >= CASES:
            self._close(next(iter(self._cases)))
        case = Case(self._desk.draw() & ~0xFFFF, slot, [node for node in self._desk.members if node != self._desk.me])
        self._cases[case.number] = case
        case.known = [KnownHold(self._desk.me, span, self._desk.now, 0) for span in self._spans(slot)]
        self._ask(case)

    def _ask(self, case: Case) -> None:
        desk = self._desk
        case.tries += 1
        case.asked[case.number + case.tries] = desk.now
        for node in case.awaited:
            desk.post(node, Reckon(case.number + case.tries, case.slot))
        desk.timer(("case", case.number), desk.now + max(desk.patience.wait(case.tries), SECOND // 4))

    def fired(self, number: int) -> None:
        case = self._cases.get(number)
        if case is None:
            return
        case.awaited = {node: None for node in case.awaited if node in self._desk.members}
        if case.awaited and case.tries < TRIES:
            self._ask(case)
        elif any(use.ended is None and use.slot == case.slot for use in self._uses):
            self.open(case.slot)
        else:
            self._close(number)

    def _close(self, number: int) -> None:
        del self._cases[number]
        self._desk.cancel(("case", number))

    def answered(self, sender: NodeId, account: Reckoned) -> None:
        case = self._cases.get(account.number & ~0xFFFF)
        if case is None or sender not in case.awaited or account.number not in case.asked:
            return
        sent = case.asked[account.number]
        took = self._desk.now - sent
        self._quickest = min(self._quickest, max(took, WORTH))
        if account.spans and took > 4 * self._quickest and case.tries < TRIES:
            return  # long on its way, and as vague: it is asked again
        del case.awaited[sender]
        then = sent + took // 2
        new = [KnownHold(sender, span, then, took - took // 2) for span in account.spans]
        for one in new:
            for two in case.known:
                self._compare(one, two)
        case.known += new
        if not case.awaited:
            self._desk.timer(("case", case.number), self._desk.now + AGAIN)

    def _compare(self, one: KnownHold, two: KnownHold) -> None:
        length = min(one.ended, two.ended) - max(one.begun, two.begun) - one.error - two.error  # at least
        if one.token != two.token and one.node != two.node and length > 0:
            self._desk.post(one.node, Told(one.request, two.node, two.request, length))
            self._desk.post(two.node, Told(two.request, one.node, one.request, length))

    # --- being asked -------------------------------------------------------------------------------------------------

    def _spans(self, slot: int) -> tuple[KeptSpan, ...]:
        now = self._desk.now
        spans = [
            KeptSpan(use.token, use.request, now - use.begun, 0 if use.ended is None else now - use.ended)
            for use in self._uses
            if use.slot == slot
        ]
        return tuple(spans[-IN_A_MESSAGE:])

    def recalled(self, sender: NodeId, recall: Reckon) -> None:
        self._desk.post(sender, Reckoned(recall.number, self._spans(recall.slot)))

    def told(self, told: Told) -> None:
        for use in self._uses:
            if use.request == told.request:
                before = use.said.get((told.other, told.their_request), 0)
                if told.length > before + WORTH or not before:
                    if not use.said:
                        self._desk.note(FactKind.OVERLAP, None, told.other)
                    use.said[told.other, told.their_request] = told.length
                    self._desk.out.append(Overlapped(told.request, told.other, told.their_request, told.length))
                    if use.ended is None:
                        self._lose(told.request)
                return
