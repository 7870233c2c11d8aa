"""Who holds a mutex, who waits, and how it is taken from a holder that hangs: asked by one member, of the others.

    look   me --LOOK--> each member     member --STATUS_REPLY, all pages at once--> me      one round trip
    evict  me --EVICT(request)--> the holder's node: that hold is lost, the next one enters  --EVICTED--> me

What it decides: each node tells of its own holds and waiters, and of nobody else's, so that nothing is told that
somebody only heard. Whoever does not answer is named in the picture instead of being left out of it in silence.

The naive eviction, "let go of this mutex", hits the next holder when it comes twice. It names the hold that was seen.

V1  Members are answered, at the addresses that are known of them, and nobody else.
V2  A round of questions ends by its limit, whatever comes of it, and leaves no timer.
V3  An eviction ends one hold at most, however often it comes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from softmutex.core.events import SECOND, Duration, Instant, LostReason, NodeId
from softmutex.core.messages import Evict, Evicted, Look, Message, ReadNote, Remember, StatusReply
from softmutex.runtime.clock import Clock
from softmutex.runtime.config import Settings
from softmutex.runtime.local import LocalMutex
from softmutex.runtime.notes import Notes
from softmutex.runtime.timers import Timers
from softmutex.runtime.whom import cut, of_this_process, shown_past, shown_uses
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.runtime.identity import Vouching
    from softmutex.runtime.statistics import Peer
    from softmutex.seen import MutexSeen, PastSeen

log = logger("hold")

ASKED_MOST: Final = 256  # members that one look asks: of more, those who are known to have to do with the mutex first
AGAIN: Final = SECOND // 5
PATIENCE_S: Final = 1.0
PAGE: Final = 1024
PAGES_MAX: Final = 16
HEIRS: Final = 2  # members that are told what a leaver remembers,
BEQUEATHED: Final = 12  # ... so many holds,
AT_ONCE: Final = 3  # ... and so many in a message

Answers: TypeAlias = dict[NodeId, Any]


class Hearing(Protocol):
    def heard(self, sender: NodeId, source: str, now: Instant) -> bool:
        """False where its frames are not to be believed."""
        ...

    def shown(self) -> tuple[Peer, ...]: ...

    def suspect(self, node: NodeId) -> None: ...


class NodeForLookout(Protocol):
    """What is asked of the node."""

    id: NodeId
    name: str
    members: list[NodeId]
    settings: Settings
    vouching: Vouching | None
    now: Clock
    timers: Timers
    mutexes: dict[str, LocalMutex]

    @property
    def driver(self) -> Hearing: ...

    def send(self, to: NodeId, mutex: str, message: Message) -> None: ...

    def call(self, id: NodeId) -> str: ...


class Round:
    """One question to several members. `on_answer` is called with each, and `on_end` once: it may be called early."""

    def __init__(
        self,
        lookout: Lookout,
        mutex: str,
        ask: Callable[[NodeId, int], Message],
        whom: Sequence[NodeId],
        on_answer: Callable[[Round], object],
        on_end: Callable[[Round], object],
    ) -> None:
        self.nonce = secrets.randbits(63) + 1
        self.mutex = mutex
        self.missing = dict.fromkeys(whom)
        self.answers: Answers = {}
        self._lookout = lookout
        self._ask = ask
        self._on_answer = on_answer
        self._on_end = on_end
        self._pages: dict[NodeId, dict[int, bytes]] = {}
        self._until = 0

    def begin(self, limit: Duration) -> None:
        self._until = self._lookout.node.now() + limit
        self._lookout.rounds[self.nonce] = self
        self._again(None)

    def _again(self, _: None) -> None:
        node = self._lookout.node
        now = node.now()
        if not self.missing or now >= self._until:
            self.end()
            return
        for id in self.missing:
            node.send(id, self.mutex, self._ask(id, self.nonce))
        node.timers.set((self, "again"), min(now + AGAIN, self._until), self._again, None)

    def end(self) -> None:
        if self._lookout.rounds.pop(self.nonce, None) is not None:  # V2
            self._lookout.node.timers.cancel((self, "again"))
            self._on_end(self)

    def page(self, sender: NodeId, page: int, pages: int, content: bytes) -> None:
        if sender not in self.missing or not 0 < pages <= PAGES_MAX or page >= pages:
            return
        got = self._pages.setdefault(sender, {})
        got[page] = content
        if len(got) >= pages:
            try:
                document = json.loads(b"".join(got.get(each, b"") for each in range(pages)))
            except ValueError:
                document = None
            self.answered(sender, document)

    def answered(self, sender: NodeId, document: Any) -> None:
        if sender in self.missing:
            del self.missing[sender]
            self.answers[sender] = document
            self._on_answer(self)
            if not self.missing:
                self.end()


class Lookout:
    def __init__(self, node: NodeForLookout) -> None:
        self.node = node
        self.rounds: dict[int, Round] = {}
        self.notes = Notes(self)

    # --- what others ask --------------------------------------------------------------------------------------------

    def received(self, sender: NodeId, message: Message, source: str, to_me: bool, mutex: str) -> bool:
        if isinstance(message, Remember) and to_me:  # its farewell may be here already
            local = self.node.mutexes.get(mutex)
            if local is not None and self.node.driver.heard(sender, source, self.node.now()):
                local.remember(message)
            return True
        if not to_me or not self._is_member(sender):
            return False
        match message:
            case Look(nonce, past):
                self._tell(sender, nonce, self.past(mutex) if past else self.uses(mutex))
            case ReadNote(nonce):
                self._tell(sender, nonce, self.notes.shown(mutex))
            case StatusReply(nonce, page, pages, content) if nonce in self.rounds:
                self.rounds[nonce].page(sender, page, pages, content)
            case Evict(nonce, request, reason):
                ended = self._may_evict(sender) and self.end_hold(mutex, request, reason, self.node.call(sender))
                self.node.send(sender, mutex, Evicted(nonce, ended))
            case Evicted(nonce, ended) if nonce in self.rounds:
                self.rounds[nonce].answered(sender, ended)
            case _:
                return False
        return True

    def _is_member(self, id: NodeId) -> bool:
        members = self.node.members
        at = bisect_left(members, id)
        return at < len(members) and members[at] == id and id != self.node.id

    def _tell(self, to: NodeId, nonce: int, document: Mapping[str, Any]) -> None:
        written = json.dumps(document, separators=(",", ":")).encode()[: PAGE * PAGES_MAX]
        pages = max(1, -(-len(written) // PAGE))
        for page in range(pages):
            content = written[page * PAGE : (page + 1) * PAGE]
            self.node.send(to, "", StatusReply(nonce, page, pages, content))

    def _may_evict(self, sender: NodeId) -> bool:
        """Any member where there are no identities; where there are, those whom this node's settings name."""
        vouching = self.node.vouching
        if vouching is None or not vouching.required:
            return True
        vouched = vouching.senders.get(sender)
        return vouched is not None and vouched.name in (self.node.settings["evictors"] or ())

    # --- what is known here -----------------------------------------------------------------------------------------

    def uses(self, mutex: str) -> dict[str, Any]:
        """The holds of this node, and who waits here."""
        local = self.node.mutexes.get(mutex)
        who = {"name": self.node.name, **of_this_process()}
        return {**who, **({} if local is None else shown_uses(local, self.node.now()))}

    def past(self, mutex: str) -> dict[str, Any]:
        local = self.node.mutexes.get(mutex)
        return {"name": self.node.name, "past": [] if local is None else shown_past(local, self.node.now())}

    def end_hold(self, mutex: str, request: int, reason: str, by: str) -> bool:
        local = self.node.mutexes.get(mutex)
        claim = None if local is None else local.holding.get(request)
        if local is None or claim is None:
            return False
        log.warning("the hold of the mutex %r is ended by %s: %s", mutex, by, reason)
        local.tell_lost(claim, LostReason.EVICTED, reason)
        local.release(claim, b"")
        return True

    def bequeath(self, local: LocalMutex) -> None:
        """This node leaves: two others are told of the last holds."""
        node = self.node
        at = bisect_left(node.members, node.id)
        heirs = [id for id in (*node.members[at:], *node.members[:at]) if id != node.id][:HEIRS]
        kept = sorted(local.past)[-BEQUEATHED:]
        last = [past.told._replace(ended=max(0, node.now() - past.ended_at)) for past in kept]
        for first in range(0, len(last), AT_ONCE):
            for heir in heirs:
                node.send(heir, local.name, Remember(tuple(last[first : first + AT_ONCE])))

    # --- what this node asks ----------------------------------------------------------------------------------------

    def whom(self, mutex: str) -> list[NodeId]:
        """Whom to ask, those first who are known to have to do with it."""
        node = self.node
        local = node.mutexes.get(mutex)
        if len(node.members) <= ASKED_MOST or local is None:
            return [id for id in node.members if id != node.id][:ASKED_MOST]
        view = local.machine.view()
        known = dict.fromkeys(id for id in (view.holder, *view.queue) if self._is_member(id))
        start = bisect_left(node.members, node.id)  # not everybody is to ask the same ones
        others = (*node.members[start:], *node.members[:start])
        return list(dict.fromkeys((*known, *(id for id in others if id != node.id))))[:ASKED_MOST]

    def ask(
        self, mutex: str, limit: Duration, on_answer: Callable[[Round], object], on_end: Callable[[Round], object]
    ) -> Round:
        asked = Round(self, mutex, lambda _, nonce: Look(nonce), self.whom(mutex), on_answer, on_end)
        asked.begin(limit)
        return asked

    async def ask_each(
        self, mutex: str, ask: Callable[[NodeId, int], Message], whom: Sequence[NodeId], limit_s: float = PATIENCE_S
    ) -> Round:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = Round(
            self, mutex, ask, whom, lambda _: None, lambda _: None if ended.done() else ended.set_result(None)
        )
        asked.begin(round(limit_s * SECOND))
        try:
            await ended
        finally:
            asked.end()
        return asked

    async def look(self, mutex: str, limit_s: float = PATIENCE_S) -> MutexSeen:
        """Who holds it and who waits, in the whole group, as of now."""
        asked = await self.ask_each(mutex, lambda _, nonce: Look(nonce), self.whom(mutex), limit_s)
        return self.seen(mutex, asked)

    def seen(self, mutex: str, asked: Round) -> MutexSeen:
        from softmutex.seen import picture  # who only holds does without

        answers = {self.node.id: self.uses(mutex), **asked.answers}
        return picture(mutex, answers, [self.node.call(id) for id in asked.missing], time.time())

    async def history(self, mutex: str, limit_s: float = PATIENCE_S) -> tuple[PastSeen, ...]:
        """The last holds that members remember, the oldest first."""
        from softmutex.seen import dictionaries, past_of

        asked = await self.ask_each(mutex, lambda _, nonce: Look(nonce, True), self.whom(mutex), limit_s)
        told = [self.past(mutex), *(each for each in asked.answers.values() if isinstance(each, dict))]
        found = [past_of(one, time.time()) for each in told for one in dictionaries(each.get("past"))]
        once = {(past.node, past.epoch, past.hop): past for past in found}
        return tuple(sorted(once.values(), key=lambda past: past.ended))

    async def evict(self, mutex: str, reason: str, limit_s: float = PATIENCE_S) -> int:
        """Ends the holds that are seen, and tells how many there were."""
        seen = await self.look(mutex, limit_s)
        mine = [holder for holder in seen.holders if holder.id == self.node.id]
        ended = sum(self.end_hold(mutex, holder.request, reason, self.node.name) for holder in mine)
        for holder in seen.holders:
            if holder.id != self.node.id:
                ask = evicting(holder.request, reason)
                asked = await self.ask_each(mutex, ask, [holder.id], limit_s)
                ended += sum(bool(answer) for answer in asked.answers.values())
        return ended

    # --- waits that end ---------------------------------------------------------------------------------------------

    def look_for_try(self, local: LocalMutex, refuse: Callable[[str], object]) -> Round:
        """Who only tries is told as soon as somebody says that it is in use, or waits for it."""

        def heard(asked: Round) -> None:
            told = [each for each in asked.answers.values() if isinstance(each, dict)]
            in_use = len(local.holding) + sum(len(each.get("holding", ())) for each in told)
            if in_use >= local.terms.slots or any(each.get("waiting_count") for each in told):
                asked.end()
                refuse(self.seen(local.name, asked).words())

        return self.ask(local.name, SECOND, heard, lambda _: None)


def evicting(request: int, reason: str) -> Callable[[NodeId, int], Message]:
    said = cut(reason, 128)
    return lambda _, nonce: Evict(nonce, request, said)
