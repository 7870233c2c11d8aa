"""Who was announced, and how long that is believed. No sockets and no clock in here: `now` is given, in seconds.

What it decides: a record is a hint that anybody can send, so everything here is bounded, and nobody can be kept out by
mere numbers. The naive way, a table that is full when it is full, lets ten thousand invented members lock out the ten
real ones. Here only those who were heard again, CONFIRMED_S after the first time, have a safe seat: whoever is real
answers the next question, and what somebody shouted once into the network does not.

    heard --more than NEW_A_SECOND--> refused, and everybody is asked again soon
      '--> listed --heard again--> confirmed --half of its TTL without a word--> asked --TTL without a word--> gone
             '--room is needed--> displaced             goodbye --> gone, and deaf to what comes BURIED_S after it

A goodbye is believed, for the list only: the node asks whoever leaves the list, and keeps him if he answers. He himself
hears that he was declared gone (`declared_gone_at`), and announces himself again. An answer that was on its way when a
member left, on the other hand, must not bring him back: hence BURIED_S.

D1  There are at most MEMBERS_MAX members and HOST_MAX at one host; a newcomer displaces an unconfirmed one, by lot.
D2  In any second at most NEW_A_SECOND members come in.
D3  What `others` shows has an address that can be sent to, is not this node itself, and names each address once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from softmutex.core.events import NodeId
from softmutex.ports import Member
from softmutex_adapters.memberships.mdns_places import ADDRESSES_MAX, Places, reachable
from softmutex_adapters.memberships.mdns_text import Announced, Unfit, label_of, parts, read

MEMBERS_MAX = 2048
HOST_MAX = 256
NEW_A_SECOND = 250
CONFIRMED_S = 1.0
BURIED_S = 0.6
TTL_MAX_S = 3600.0
QUESTIONS_MAX = 30  # that one look at the table may lead to
REASONS = ("heard", "garbage", "other_versions", "other_groups", "refused", "displaced", "goodbyes", "expired")


class Entry:
    __slots__ = (
        *("address", "addresses", "ask_at", "asked", "first_at", "heard_at", "host", "is_confirmed", "said", "text"),
        "ttl_s",
    )

    def __init__(self, text: bytes, said: Announced, now: float) -> None:
        self.addresses: tuple[str, ...] = ()  # of the record, with scopes
        self.first_at = now
        self.is_confirmed = False
        self.address: str | None = None  # where this host sends to
        self.say(text, said)

    def say(self, text: bytes, said: Announced) -> None:
        self.text = text
        self.said = said
        self.host = parts(said.address)[1]

    def find(self, here: Places) -> None:
        self.address = reachable(self.said.address, self.addresses, here)

    def hear(self, ttl_s: float, now: float, lot: float) -> None:
        self.heard_at = now
        self.ttl_s = ttl_s
        self.asked = 0
        self.ask_at = now + ttl_s * (0.5 + 0.2 * lot)  # one of all asks first, and the answer serves them all
        self.is_confirmed = self.is_confirmed or now - self.first_at >= CONFIRMED_S


class Roll:
    def __init__(self, group: str, rng: random.Random | None = None) -> None:
        self.group = group
        self.me: NodeId = 0
        self.here = Places()
        self.version = 0  # grows when `others` may show something else
        self.counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.declared_gone_at: float | None = None  # when somebody said goodbye for this node
        self._entries: dict[NodeId, Entry] = {}
        self._buried: dict[NodeId, float] = {}
        self._rng = rng or random.Random()
        self._second = 0
        self._newcomers = 0

    def __len__(self) -> int:
        return len(self._entries)

    # --- what is heard ----------------------------------------------------------------------------------------------

    def hear(self, id: NodeId, text: bytes, ttl_s: float, now: float) -> None:
        entry = self._entries.get(id)
        if entry is None or entry.text != text:
            try:
                said = read(text, id, self.group)
            except Unfit as unfit:
                self.counts[unfit.reason] += 1
                return
            if entry is None:
                if now - self._buried.pop(id, float("-inf")) < BURIED_S:
                    return
                entry = Entry(text, said, now)
                if not self._make_room(id, entry, now):
                    self.counts["refused"] += 1
                    return
                self._entries[id] = entry
            else:
                entry.say(text, said)
            entry.find(self.here)
            self.version += 1
        self.counts["heard"] += 1
        entry.hear(min(max(ttl_s, 1.0), TTL_MAX_S), now, self._rng.random())

    def hear_addresses(self, id: NodeId, addresses: Sequence[str]) -> None:
        """All that one packet tells of; older ones are void. A scope is known of what came over IPv6, and is kept."""
        entry = self._entries.get(id)
        if entry is None:
            return
        scoped = {known.partition("%")[0]: known for known in entry.addresses if "%" in known}
        now = tuple(sorted({scoped.get(one, one) for one in addresses[:ADDRESSES_MAX]}))
        if now != entry.addresses:
            entry.addresses = now
            entry.find(self.here)
            self.version += 1

    def goodbye(self, id: NodeId, now: float) -> None:
        if id not in self._entries:
            return
        self.counts["goodbyes"] += 1
        self._drop(id)
        self._buried[id] = now
        if id == self.me:
            self.declared_gone_at = now

    def expire(self, now: float) -> None:
        for id in [id for id, entry in self._entries.items() if now - entry.heard_at >= entry.ttl_s]:
            self.counts["expired"] += 1
            self._drop(id)
        self._buried = {id: at for id, at in self._buried.items() if now - at < BURIED_S}

    def moved(self, here: Places) -> None:
        """The interfaces of this host are others now."""
        self.here = here
        for entry in self._entries.values():
            entry.find(here)
        self.version += 1

    def left(self) -> None:
        """This node is no member any more."""
        self._entries.pop(self.me, None)
        self.me, self.declared_gone_at = 0, None

    def _drop(self, id: NodeId) -> None:
        del self._entries[id]
        self.version += 1

    def _make_room(self, id: NodeId, entry: Entry, now: float) -> bool:
        if id == self.me:
            return True
        if int(now) != self._second:
            self._second, self._newcomers = int(now), 0
        if self._newcomers >= NEW_A_SECOND:
            return False
        self._newcomers += 1
        rivals = [other for other, one in self._entries.items() if one.host == entry.host and other != self.me]
        if len(rivals) < HOST_MAX:
            if len(self._entries) < MEMBERS_MAX:
                return True
            rivals = [other for other in self._entries if other != self.me]
        rivals = [other for other in rivals if not self._entries[other].is_confirmed]
        if not rivals:
            return False
        self.counts["displaced"] += 1
        self._drop(rivals[int(self._rng.random() * len(rivals))])
        return True

    # --- what is asked ----------------------------------------------------------------------------------------------

    def due(self, now: float) -> list[str]:
        """Labels of those of whom nothing was heard for too long: twice each, the confirmed ones first."""
        stale = [
            (entry.asked, not entry.is_confirmed, id) for id, entry in self._entries.items() if entry.ask_at <= now
        ]
        labels = []
        for asked, _, id in sorted(stale)[:QUESTIONS_MAX]:
            entry = self._entries[id]
            entry.asked += 1
            entry.ask_at = now + entry.ttl_s * 0.15 if not asked else float("inf")
            labels.append(label_of(id))
        return labels

    def known(self, now: float, limit: int) -> list[tuple[str, int]]:
        """Labels of those who need not answer when all are asked, each with the seconds that it is still believed."""
        fresh = (
            (label_of(id), int(entry.heard_at + entry.ttl_s - now))
            for id, entry in self._entries.items()
            if entry.is_confirmed and now - entry.heard_at < 0.4 * entry.ttl_s
        )
        return list(islice(fresh, limit))

    def hears_itself(self) -> bool:
        return self.me in self._entries

    # --- what is shown ----------------------------------------------------------------------------------------------

    def others(self, mine: str) -> tuple[Member, ...]:
        """Everybody but this node. Where two claim one address, only a greeting can tell who is there: id 0."""
        shown: dict[str, Member] = {}
        for id, entry in self._entries.items():
            address = entry.address
            if id != self.me and address is not None and address != mine:
                member = Member(address, id, entry.said.name)
                shown[address] = member if address not in shown else Member(address)
        return tuple(shown[address] for address in sorted(shown))
