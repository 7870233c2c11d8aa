"""How a node comes by its machine for a mutex, and who makes the first token of a group.

Every member takes part in every mutex of its group. So a node needs a machine in two cases:

    the application opens "x"                         a peer's message is about "x", which nobody opened here
            |                                                        |
    alone: FOUNDER, at once                             DESCRIBE --> its sender --DESCRIPTION(terms)--> a machine
    a few others, all known: ask them all                (messages that come meanwhile are kept, a few)
       nobody has heard of it --> FOUNDER
       somebody of a lower id asks as well --> wait for its word, then listen
       somebody has, is silent, or dies before it answers --> listen first
    many, or perhaps not all known --> listen first

The naive way, a newcomer that hears nothing for a while and makes a token, makes the second one whenever the network is
slow at that moment. The naive remedy, always to listen long, makes the first use of every mutex slow.

F1  Of two nodes that open a mutex at once and know each other at most one founds: before it asks, each is marked as
    asking; of two that meet so, the one of the higher id stands back. (The membership says whether it shows everybody
    who joined before: `complete`.) Nor does anybody found to whom a machine has spoken of that mutex.
F3  Who stood back starts when the other has decided: a listener that looks for a token meanwhile would find none, and
    make one beside the founder's.
F2  What is kept for a mutex that is not described yet is bounded, and forgotten after INTRODUCTION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.events import Event, Instant, NodeId, Received, from_seconds
from softmutex.core.messages import Describe, Description, Message, Standing
from softmutex.runtime.clock import Clock
from softmutex.runtime.local import LocalMutex
from softmutex.runtime.terms import Terms
from softmutex.runtime.timers import Timers

ASKED_MAX = 32  # a larger group is not asked: whoever is new listens first
ANSWER = from_seconds(0.1)  # after this it is asked again, after twice this once more
ROUNDS = 3
STOOD_BACK = from_seconds(1.0)  # who waits for another's word waits no longer: it may have died
INTRODUCTION = from_seconds(2.0)
UNDESCRIBED_MAX = 64
KEPT_MAX = 8


class Table(Protocol):
    @property
    def table(self) -> Mapping[NodeId, object]:
        """The other members."""
        ...

    @property
    def greetings(self) -> Mapping[str, object]:
        """Who was not met yet, by address."""
        ...


class NodeForFounding(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    id: NodeId
    now: Clock
    timers: Timers
    mutexes: dict[str, LocalMutex]

    @property
    def members(self) -> Sequence[NodeId]: ...

    @property
    def peers(self) -> Table: ...

    def send(self, to: NodeId, mutex: str, message: Message, address: str | None = None) -> None: ...

    def drop(self, why: str, count: int = 1) -> None: ...

    def warn(self, what: str, message: str, *, once: str = "") -> None: ...

    def call(self, id: NodeId) -> str: ...

    def knows_everybody(self) -> bool: ...

    def make_mutex(self, name: str, terms: Terms) -> LocalMutex: ...

    def start(self, mutex: LocalMutex, founder: bool) -> None: ...

    def handle(self, mutex: LocalMutex, event: Event) -> None: ...


class Inquiry:
    """Who has not said yet whether it knows of this mutex."""

    __slots__ = ("others", "rounds", "seat", "silent", "stood_back")

    def __init__(self, seat: LocalMutex, silent: set[NodeId]) -> None:
        self.seat = seat
        self.others: dict[NodeId, None] = {}  # who asks as well, and may wait for our word
        self.stood_back = False
        self.silent = silent
        self.rounds = 0


class Introduction:
    """Messages about a mutex that nobody has described yet, and who was asked to, and when."""

    __slots__ = ("asked", "kept")

    def __init__(self) -> None:
        self.asked: dict[NodeId, Instant] = {}
        self.kept: list[Received] = []


class Founding:
    def __init__(self, node: NodeForFounding) -> None:
        self._node = node
        self._inquiries: dict[str, Inquiry] = {}
        self._introductions: dict[str, Introduction] = {}

    # --- the application opens a mutex ------------------------------------------------------------------------------

    def open(self, seat: LocalMutex) -> None:
        """Starts the machine of a mutex that nobody here has heard of, now or after the others were asked."""
        node = self._node
        if seat.machine.needs_every_member and not node.knows_everybody():
            self._warn_of_strangers(seat)
        others = [id for id in node.members if id != node.id]
        introduction = self._introductions.pop(seat.name, None)
        node.timers.cancel(("introduction", seat.name))
        if introduction is not None or len(others) > ASKED_MAX or not node.knows_everybody():
            self._start(seat, founder=False)
            for received in introduction.kept if introduction else ():
                node.handle(seat, received)
        elif not others:
            self._start(seat, founder=True)
        else:
            inquiry = self._inquiries[seat.name] = Inquiry(seat, set(others))
            self._ask(inquiry)

    def _warn_of_strangers(self, seat: LocalMutex) -> None:
        silent = ", ".join(sorted(self._node.peers.greetings)) or "whom the membership does not show"
        what = f"the mutex {seat.name!r} is run by {seat.terms.algorithm!r}, which has to ask every member"
        remedy = "Use a membership that shows everybody, such as static://, or another algorithm."
        self._node.warn("strangers", f"{what}, and there may be some that this node does not know ({silent}). {remedy}")

    def _ask(self, inquiry: Inquiry) -> None:
        node, seat = self._node, inquiry.seat
        gone = not inquiry.silent <= node.peers.table.keys()  # it may have had the token, and others wait for it
        if gone or inquiry.stood_back or inquiry.rounds == ROUNDS:
            self._conclude(inquiry, founder=False)
            return
        for id in sorted(inquiry.silent):
            node.send(id, seat.name, Describe(founding=True))
        node.timers.set(("inquiry", seat.name), node.now() + (ANSWER << inquiry.rounds), self._ask, inquiry)
        inquiry.rounds += 1

    def _conclude(self, inquiry: Inquiry, founder: bool) -> None:
        if self._inquiries.pop(inquiry.seat.name, None) is inquiry:
            self._node.timers.cancel(("inquiry", inquiry.seat.name))
            spoken_to = any(isinstance(event, Received) for event in inquiry.seat.backlog)
            self._start(inquiry.seat, founder and not spoken_to)
            for other in inquiry.others:
                self._node.send(other, inquiry.seat.name, inquiry.seat.terms.describe(Standing.KNOWN))

    def _stand_back(self, inquiry: Inquiry) -> None:
        inquiry.stood_back = True
        at = self._node.now() + STOOD_BACK
        self._node.timers.set(("inquiry", inquiry.seat.name), at, self._ask, inquiry)

    def _start(self, seat: LocalMutex, founder: bool) -> None:
        self._node.start(seat, founder)

    # --- a peer's message is about a mutex that nobody opened here --------------------------------------------------

    def keep(self, name: str, received: Received) -> None:
        """Keeps the message until somebody has told what the mutex is: its sender, or that of the next message."""
        node, sender = self._node, received.sender
        introduction = self._introductions.get(name)
        if introduction is None:
            if len(self._introductions) >= UNDESCRIBED_MAX:
                node.drop("undescribed")
                return
            introduction = self._introductions[name] = Introduction()
            node.timers.set(("introduction", name), node.now() + INTRODUCTION, self._forget, name)
        if node.now() - introduction.asked.get(sender, 0) >= ANSWER and len(introduction.asked) < KEPT_MAX:
            introduction.asked[sender] = node.now()
            node.send(sender, name, Describe(founding=False))
        if len(introduction.kept) < KEPT_MAX:
            introduction.kept.append(received)
        else:
            node.drop("undescribed")

    def _forget(self, name: str) -> None:
        self._node.drop("undescribed", len(self._introductions.pop(name).kept))

    # --- messages ---------------------------------------------------------------------------------------------------

    def received(self, sender: NodeId, name: str, message: Message) -> bool:
        if isinstance(message, Describe):
            inquiry = self._inquiries.get(name)
            if message.founding and inquiry is not None:
                inquiry.others[sender] = None
                if sender < self._node.id and not inquiry.stood_back:
                    self._stand_back(inquiry)  # it may have come after we asked, and counts on that
            self._node.send(sender, name, self._describe(name))
        elif isinstance(message, Description):
            self._on_description(sender, name, message)
        else:
            return False
        return True

    def _describe(self, name: str) -> Description:
        seat = self._node.mutexes.get(name)
        if seat is None:
            return Description(Standing.UNKNOWN)
        return seat.terms.describe(Standing.ASKING if name in self._inquiries else Standing.KNOWN)

    def _on_description(self, sender: NodeId, name: str, said: Description) -> None:
        inquiry = self._inquiries.get(name)
        if inquiry is not None:
            if self._is_refused(inquiry, sender, said):
                return
            if said.standing is Standing.KNOWN:
                self._conclude(inquiry, founder=False)
                return
            if said.standing is Standing.ASKING:
                inquiry.others[sender] = None
            if inquiry.stood_back:
                return
            if said.standing is Standing.ASKING and sender < self._node.id:
                self._stand_back(inquiry)
            else:
                inquiry.silent.discard(sender)
                if not inquiry.silent:
                    self._conclude(inquiry, founder=True)
            return
        seat = self._node.mutexes.get(name)
        if seat is not None:
            self._compare(seat, sender, said)
        elif said.standing is not Standing.UNKNOWN and name in self._introductions:
            self._take_part(name, sender, said)

    def _is_refused(self, inquiry: Inquiry, sender: NodeId, said: Description) -> bool:
        """The others run it by other terms: it is not opened here."""
        seat = inquiry.seat
        difference = said.standing is Standing.KNOWN and seat.terms.difference(Terms.described(said))
        if difference:
            self._node.timers.cancel(("inquiry", seat.name))
            del self._inquiries[seat.name], self._node.mutexes[seat.name]
            seat.fail(refusal(seat.name, self._node.call(sender), difference))
        return bool(difference)

    def _take_part(self, name: str, sender: NodeId, said: Description) -> None:
        node = self._node
        node.timers.cancel(("introduction", name))
        kept = self._introductions.pop(name).kept
        try:
            seat = node.make_mutex(name, Terms.described(said))
        except (SoftMutexError, ValueError, TypeError) as error:
            why = f"this node cannot take part in the mutex {name!r} as {node.call(sender)} runs it: {error}"
            node.warn("terms", why, once=f"terms {name}")
            return
        self._start(seat, founder=False)
        for received in kept:
            node.handle(seat, received)

    # --- different terms --------------------------------------------------------------------------------------------

    def explain_mismatch(self, seat: LocalMutex, peer: NodeId, detail: str) -> None:
        """A machine met a token of other settings. Which ones is found out by asking, and told once a mutex."""
        if peer and "asked" not in seat.warned_of:
            seat.warned_of.add("asked")
            self._node.send(peer, seat.name, Describe(founding=False))
        elif not peer:
            self._warn_once(seat, detail or "a token of other settings was met")

    def _compare(self, seat: LocalMutex, sender: NodeId, said: Description) -> None:
        if said.standing is Standing.UNKNOWN:
            return
        difference = seat.terms.difference(Terms.described(said))
        if difference:
            self._warn_once(seat, f"{self._node.call(sender)} runs it otherwise: {difference}")

    def _warn_once(self, seat: LocalMutex, what: str) -> None:
        if "mismatch" not in seat.warned_of:
            seat.warned_of.add("mismatch")
            self._node.warn("mismatch", f"the mutex {seat.name!r}: {what}. Give all members the same settings.")

    def check(self, seat: LocalMutex, terms: Terms) -> None:
        """The application opens a mutex that runs already: it has to want the same."""
        difference = terms.difference(seat.terms)
        if difference:
            raise refusal(seat.name, "this group", difference)


def refusal(name: str, who: str, difference: str) -> ConfigError:
    return ConfigError(
        f"the mutex {name!r} is run by {who} with other settings: {difference}. Give all members the same ones."
    )
