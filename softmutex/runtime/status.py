"""`softmutex status`: any process that has the group's key may ask a node what it knows, without becoming a member.

    visitor --STATUS_REQUEST(cookie 0)--> node --CHALLENGE(cookie)--> visitor --STATUS_REQUEST(cookie)--> node
    visitor <--STATUS_REPLY(page)-- node

The answer is one JSON document (`describe` below has its form), in pages that fit a frame each. A document is kept for
the pages that are still to be fetched, a few at most. Nothing is sent beyond the size of the question before the
visitor has proved that it is where it says.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from softmutex import plugins
from softmutex.core.events import Instant, NodeId
from softmutex.core.hint import read_hint
from softmutex.core.messages import (
    Challenge,
    Forget,
    Forgetting,
    Forgotten,
    Message,
    Ping,
    Pong,
    StatusReply,
    StatusRequest,
)
from softmutex.core.wire import Frame
from softmutex.ending import end
from softmutex.ports import Closed, Datagram, Explaining, Member, Transport
from softmutex.runtime import keys
from softmutex.runtime.clock import Clock
from softmutex.runtime.config import Settings
from softmutex.runtime.doorstep import explain
from softmutex.runtime.local import LocalMutex
from softmutex.runtime.whom import of_this_process

if TYPE_CHECKING:
    from softmutex.runtime.identity import Vouching
    from softmutex.runtime.sealing import Seal
    from softmutex.runtime.statistics import NodeStatistics, Peer

PAGE = 1024
PAGES_MAX = 256
DOCUMENTS_KEPT = 8
SILENT_SHOWN = 64
ASK_AGAIN_S = 0.2


# --- the node's side ------------------------------------------------------------------------------------------------


class GroupForStatus(Protocol):
    def cookie(self, source: str, sender: NodeId) -> int:
        """Proves that who repeats it can be reached at `source`."""
        ...

    def post(self, address: str, to: NodeId, mutex: str, message: Message) -> None: ...

    def shown(self) -> tuple[Peer, ...]: ...


class NodeForStatus(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    id: NodeId
    name: str
    settings: Settings
    transport: Transport
    seal: Seal
    vouching: Vouching | None
    now: Clock
    mutexes: dict[str, LocalMutex]

    @property
    def driver(self) -> GroupForStatus: ...

    def statistics(self) -> NodeStatistics: ...


class StatusDesk:
    def __init__(self, node: NodeForStatus) -> None:
        self._node = node
        self._documents: dict[tuple[NodeId, int], bytes] = {}

    def received(self, sender: NodeId, message: Message, source: str, to_me: bool) -> bool:
        if not isinstance(message, StatusRequest):
            return False
        nonce, cookie, page = message
        node = self._node
        if cookie != node.driver.cookie(source, sender) or not to_me:  # P5
            node.driver.post(source, sender, "", Challenge(nonce, node.driver.cookie(source, sender)))
            return True
        document = self._documents.get((sender, nonce))
        if document is None:
            document = json.dumps(describe(node), separators=(",", ":")).encode()[: PAGE * PAGES_MAX]
            self._documents[sender, nonce] = document
            if len(self._documents) > DOCUMENTS_KEPT:
                del self._documents[next(iter(self._documents))]
        pages = max(1, -(-len(document) // PAGE))
        if page < pages:
            content = document[page * PAGE : (page + 1) * PAGE]
            node.driver.post(source, sender, "", StatusReply(nonce, page, pages, content))
        return True


def describe(node: NodeForStatus) -> dict[str, Any]:
    """What a node knows, as plain data."""
    statistics = node.statistics()
    return {
        "id": f"{node.id:016x}",
        "name": node.name,
        **of_this_process(),
        "address": node.transport.address,
        "group": node.settings["group"],
        "version": own_version(),
        "keys": node.seal.key_ids,
        "identity": node.vouching.shown if node.vouching is not None else None,
        "clock": seconds(node.now()),  # since 1970, as its machines see it
        "peers": statistics.peers,
        "silent": [
            {"id": f"{peer.id:016x}", "name": peer.name, "address": peer.address}
            for peer in node.driver.shown()
            if peer.silent
        ][:SILENT_SHOWN],
        "dropped": dict(statistics.dropped),
        "told": dict(statistics.told),
        "loop_lag_max": round(statistics.loop_lag_max, 3),
        "mutexes": [describe_mutex(mutex, node.now()) for _, mutex in sorted(node.mutexes.items())],
    }


def describe_mutex(mutex: LocalMutex, now: Instant) -> dict[str, Any]:
    view = mutex.machine.view()
    return {
        "name": mutex.name,
        "algorithm": mutex.terms.algorithm,
        "slots": mutex.terms.slots,
        "terms": {**asdict(mutex.terms.timing), **mutex.terms.machine_options()},
        "state": view.state,
        "epoch": view.epoch,
        "has_token": mutex.machine.has_token,
        "tokens": len(view.tokens),
        "hop": max((token.hop for token in view.tokens), default=0),
        "holder": f"{view.holder:016x}" if view.holder else None,
        "queue": [f"{node:016x}" for node in view.queue[:32]],
        "holding": [
            {
                "for": seconds(now - claim._granted_at),
                "waited": seconds(claim._granted_at - claim._asked_at),
                "purpose": claim._purpose,
                "slots": claim._slots(),
            }
            for claim in [claim for claim in mutex.holding.values() if not claim._is_shown_by_another()][:8]
        ],
        "waiting": [seconds(now - claim._asked_at) for claim in list(mutex.waiting.values())[:32]],
        "purposes": [claim._purpose for claim in list(mutex.waiting.values())[:32]],
        "priorities": [claim._policy.priority for claim in list(mutex.waiting.values())[:32]],
        "weights": [claim._slots() for claim in list(mutex.waiting.values())[:32]],
        "waiting_count": len(mutex.waiting),
        "isolated": mutex.isolated,
        "acquisitions": mutex.counts.acquisitions,
        "timeouts": mutex.counts.timeouts,
        "overruns": mutex.counts.overruns,
        "lost": mutex.counts.lost,
        "facts": {kind.value: count for kind, count in mutex.counts.facts.items()},
    }


@cache
def own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("softmutex")
    except PackageNotFoundError:
        return "unknown"


def seconds(duration_ns: int) -> float:
    return round(duration_ns / 1e9, 3)


# --- the visitor's side ---------------------------------------------------------------------------------------------


class Visitor:
    """Asks the members of a group, and is none."""

    def __init__(self, transport: Transport, seal: Seal, me: NodeId, group: str = "") -> None:
        self._transport = transport
        self._seal = seal
        self._me = me
        self._waiting: dict[int, Question] = {}
        self._group = group
        self.refused: set[str] = set()  # addresses at which nobody listens (transport.T7)
        self.turned_away: dict[str, str] = {}  # addresses at which somebody refuses what we send, and why

    async def listen(self) -> None:
        try:
            while True:
                for datagram in await self._transport.receive():
                    self._take(datagram)
        except Closed:
            return

    def why_not(self, address: str) -> str:
        """Why somebody who is there does not answer; empty where that is not known."""
        troubles = self._transport.troubles() if isinstance(self._transport, Explaining) else {}
        told = {place.rpartition("://")[2]: why for place, why in {**troubles, **self.turned_away}.items()}
        return told.get(address.rpartition("://")[2], "")

    async def ask(self, member: Member) -> dict[str, Any] | None:
        """What the member knows. Asks again until it has answered in full; the caller sets the limit."""
        question = Question(member)
        await self.put(question)
        return question.document()

    async def put(self, question: Question) -> None:
        """Until it is answered in full."""
        self._waiting[question.nonce] = question
        try:
            while not question.is_answered():
                question.news.clear()
                if question.cookie and not question.sent_at:
                    question.sent_at = time.time()
                self._send(question, question.message())
                try:
                    async with asyncio.timeout(ASK_AGAIN_S):
                        await question.news.wait()
                except TimeoutError:
                    continue
        finally:
            del self._waiting[question.nonce]

    def _send(self, question: Question, message: Message) -> None:
        frame = Frame(self._me, question.asked, "", message)
        self._transport.send(question.member.address, self._seal.seal(frame))

    def _take(self, datagram: Datagram) -> None:
        if not datagram.payload:
            self.refused.add(datagram.source)
            return
        frame = self._seal.open(datagram.payload)
        if not isinstance(frame, Frame):
            hint = read_hint(datagram.payload)
            if hint is not None and hint.sender == self._me:
                self.turned_away[datagram.source] = explain(hint, self._seal.key_ids, self._group)
            return
        match frame.message:
            case Ping(nonce):  # it may have heard so many that it has to ask who is there (`replays.py`)
                pong = Frame(self._me, frame.sender, "", Pong(nonce))
                self._transport.send(datagram.source, self._seal.seal(pong))
            case Challenge(nonce, cookie) if nonce in self._waiting:
                self._waiting[nonce].asked, self._waiting[nonce].cookie = frame.sender, cookie
                self._waiting[nonce].news.set()
            case StatusReply(nonce, page, pages, content) if nonce in self._waiting and 0 < pages <= PAGES_MAX:
                question = self._waiting[nonce]
                question.heard_at = question.heard_at or time.time()
                question.pages, question.got[page] = pages, content
                question.news.set()
            case Forgotten(nonce, outcome) if isinstance(word := self._waiting.get(nonce), Word):
                word.outcome = outcome
                word.news.set()


class Question:
    def __init__(self, member: Member) -> None:
        self.member = member
        self.nonce = secrets.randbits(64)
        self.asked = member.id  # the life that is there; found out where the membership does not know
        self.cookie = 0
        self.pages = 1
        self.got: dict[int, bytes] = {}
        self.sent_at = self.heard_at = 0.0  # wall time; the document was written in between
        self.news = asyncio.Event()

    def is_answered(self) -> bool:
        return all(page in self.got for page in range(self.pages))

    def message(self) -> Message:
        return StatusRequest(self.nonce, self.cookie, next(page for page in range(self.pages) if page not in self.got))

    def document(self) -> dict[str, Any] | None:
        try:
            document = json.loads(b"".join(self.got[page] for page in range(self.pages)))
        except ValueError:  # cut off where it was too long
            return None
        return document if isinstance(document, dict) else None


class Word(Question):
    """An operator's: this silent member is gone for good."""

    def __init__(self, member: Member, gone: NodeId) -> None:
        super().__init__(member)
        self.gone = gone
        self.outcome: Forgetting | None = None

    def is_answered(self) -> bool:
        return self.outcome is not None

    def message(self) -> Message:
        return Forget(self.nonce, self.cookie, self.gone)


async def ask_all(settings: Settings, timeout_s: float = 1.0) -> Mapping[Member, dict[str, Any] | None]:
    """Everybody whom the membership shows, and what each says of itself; None for those who do not answer."""
    transport = plugins.transport(settings["transport"])
    membership = plugins.membership(settings["membership"])
    me = secrets.randbits(64) or 1
    listener: asyncio.Task[None] | None = None
    try:
        group_keys = keys.group_keys(settings, membership)
        await transport.open()
        keys.check_reach(settings, transport, group_keys)
        visitor = Visitor(transport, keys.seal_with(group_keys, settings["group"], me), me, settings["group"])
        listener = asyncio.create_task(visitor.listen(), name="softmutex visitor")
        members = await membership.watch()

        async def ask(member: Member) -> dict[str, Any] | None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await visitor.ask(member)
            except TimeoutError:
                return None

        return dict(zip(members, await asyncio.gather(*map(ask, members)), strict=True))
    finally:
        await end(listener)
        await membership.aclose()
        await transport.aclose()
