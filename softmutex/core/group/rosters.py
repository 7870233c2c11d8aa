"""Asking a member whom it knows: how views that differ come to agree.

    ask(node) --ROSTER after 0--> page --ROSTER after its last--> page --> ... a page that is not full: all were told

What it decides: what another says is a hint. Everybody whom it names is greeted, and counts only once it answered. The
naive way, to merge lists, spreads the dead and the invented for ever.

O1  Not more than ASKED_AT_ONCE rosters are asked for at once; each ends: told, or not answered for TRIES waits.
O2  What is told counts only from whom it was asked, and only the page that was asked for.
"""

from __future__ import annotations

from typing import Final, Protocol

from softmutex.core.events import NOBODY, CancelTimer, Instant, NodeId, Send, SetTimer
from softmutex.core.group.company import Company
from softmutex.core.group.effects import Listed
from softmutex.core.group.suspicion import PING
from softmutex.core.messages import ROSTER_PAGE, Entry, Roster, RosterPage
from softmutex.core.patience import Patience

ASKED_AT_ONCE: Final = 4
TRIES: Final = 3
ADDRESS_MAX: Final = 128


class RostersOwner(Protocol):
    def put(self, effect: Send | SetTimer | CancelTimer) -> None: ...

    def hinted(self, place: Listed, now: Instant) -> None:
        """There may be a node at this address."""
        ...

    def roster_ended(self, node: NodeId, now: Instant) -> None: ...


class Asking:
    __slots__ = ("after", "tries")

    def __init__(self) -> None:
        self.after = NOBODY
        self.tries = 0


class Rosters:
    def __init__(self, owner: RostersOwner, company: Company, patience: Patience) -> None:
        self._owner = owner
        self._company = company
        self._patience = patience
        self._asked: dict[NodeId, Asking] = {}
        self._waiting: dict[NodeId, None] = {}

    def __contains__(self, node: NodeId) -> bool:
        return node in self._asked or node in self._waiting

    def ask(self, node: NodeId, now: Instant) -> None:
        """Ends with `roster_ended`."""
        if node in self:
            return
        if len(self._asked) >= ASKED_AT_ONCE:
            self._waiting[node] = None
            return
        asking = self._asked[node] = Asking()
        self._send(node, asking, now)

    def answer(self, node: NodeId, roster: Roster) -> None:
        ids = self._company.after(roster.after, ROSTER_PAGE)
        peers = [self._company.peers[id] for id in ids]
        entries = [Entry(peer.id, (peer.listed.address if peer.listed else "") or peer.address) for peer in peers]
        told = tuple(entry if len(entry.address.encode()) <= ADDRESS_MAX else Entry(entry.node, "")
                     for entry in entries)  # fmt: skip
        self._owner.put(Send(node, RosterPage(roster.after, told)))

    def told(self, node: NodeId, page: RosterPage, now: Instant) -> None:
        asking = self._asked.get(node)
        if asking is None or page.after != asking.after:
            return
        for entry in page.entries:
            if entry.address and entry.node not in self._company.peers and entry.node != self._company.me:
                self._owner.hinted(Listed(entry.address, entry.node), now)
        if len(page.entries) < ROSTER_PAGE or page.entries[-1].node <= asking.after:
            self._end(node, now)
            return
        asking.after, asking.tries = page.entries[-1].node, 0
        self._send(node, asking, now)

    def fired(self, node: NodeId, now: Instant) -> None:
        """The timer ("roster", node)."""
        asking = self._asked.get(node)
        if asking is None:
            return
        if asking.tries < TRIES:
            self._send(node, asking, now)
        else:
            self._end(node, now)

    def left(self, nodes: list[NodeId], now: Instant) -> None:
        for node in nodes:
            self._waiting.pop(node, None)
            if node in self._asked:
                self._end(node, now)

    def _send(self, node: NodeId, asking: Asking, now: Instant) -> None:
        wait = max(PING, self._patience.wait()) << asking.tries
        asking.tries += 1
        self._owner.put(Send(node, Roster(asking.after)))
        self._owner.put(SetTimer(("roster", node), now + wait))

    def _end(self, node: NodeId, now: Instant) -> None:
        del self._asked[node]
        self._owner.put(CancelTimer(("roster", node)))
        if self._waiting:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self.ask(following, now)
        self._owner.roster_ended(node, now)
