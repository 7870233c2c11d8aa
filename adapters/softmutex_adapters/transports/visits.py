"""What an HTTP transport owes to callers whose address nobody knows yet: the answer to their request, and no more.

    POST, Softmutex-From: X, X unknown --> Visit --> mailbox: source "X#visitor" --> the node --> send("X#visitor", ...)
                                             ^                                                       |
         200, frames in the body <-----------'--- the node has come back for more datagrams <--------'

What it decides: a header says where to reply, and proves nothing. The naive way posts to it: one recorded greeting with
other addresses in the header makes a member post anywhere, and its own posts queue up behind those. Here the reply is
read by whoever has asked, on the connection on which it asked.

V1  A visit is answered when the node has dealt with what came in it, at once where nobody receives, after ANSWER_S at
    the latest. Until then a caller that hangs up changes nothing: what was meant for it is dropped.
V2  The answer has no more bytes than the request. There are VISITS_MAX of them at once.
V3  Only what is sent to the visitor's mark is an answer; what is sent to X itself never is, or a stranger who names a
    member's address would get what is meant for that.
"""

from __future__ import annotations

import asyncio
from collections import deque

from softmutex_adapters.transports.frames import LENGTH_BYTES

VISITS_MAX = 256
ANSWER_S = 1.0


class Visit:
    def __init__(self, base: str, room: int) -> None:
        self.base = base
        self.frames: deque[bytes] = deque()
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room = room

    def take(self, frame: bytes) -> bool:
        size = LENGTH_BYTES + len(frame)
        if size > self._room:
            return False
        self._room -= size
        self.frames.append(frame)
        return True

    def end(self) -> None:
        if not self.is_over.done():
            self.is_over.set_result(None)


class Visits:
    """`is_receiving`: somebody waits for datagrams, or has just been given some."""

    def __init__(self) -> None:
        self._open: dict[str, list[Visit]] = {}  # by the address in the header
        self._count = 0
        self._new: list[Visit] = []  # what came in them lies in the mailbox
        self._given: list[Visit] = []  # the node has it in hand
        self.is_receiving = False

    def begin(self, base: str, size: int) -> Visit | None:
        """Before the frames go into the mailbox. None where there are too many."""
        if self._count >= VISITS_MAX:
            return None
        self._count += 1
        visit = Visit(base, size)
        self._open.setdefault(base, []).append(visit)
        self._new.append(visit)
        return visit

    async def answer(self, visit: Visit) -> deque[bytes]:
        if self.is_receiving:
            await asyncio.wait([visit.is_over], timeout=ANSWER_S)
        self._count -= 1
        others = self._open[visit.base]
        others.remove(visit)
        if not others:
            del self._open[visit.base]
        visit.end()
        return visit.frames

    def offer(self, base: str, frame: bytes) -> bool:
        """Whether somebody asks under this address just now. Of several nobody knows who is who: all are answered."""
        took = [visit.take(frame) for visit in self._open.get(base, ())]
        return any(took)

    def node_asks(self) -> None:
        """It wants datagrams, so it has dealt with those that it was given."""
        for visit in self._given:
            visit.end()
        self._given = []
        self.is_receiving = True

    def node_has(self) -> None:
        self._given, self._new = self._new, []

    def close(self) -> None:
        self.is_receiving = False
        for visit in [*self._given, *self._new]:
            visit.end()
        self._given, self._new = [], []
