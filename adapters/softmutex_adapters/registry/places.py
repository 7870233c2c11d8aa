"""Whose an address, or an id, is: one lease's, from the request on, not only from the commit on. Pure.

What it decides: a place belongs to the lease that came first, for as long as its member may live. The naive way, who
comes last is listed, lets everybody who may join evict everybody else, one request each, without the group's key.

A process that was killed must come back in place, though, under a lease of its own, before the old one is over. So a
lease whose stream has broken gives way, and is remembered while it lasts: if its member lives after all, it has its
place back.
"""

from __future__ import annotations

from collections import OrderedDict

from softmutex.ports import Member

PUT_ASIDE_MAX = 1_000


class Places:
    def __init__(self) -> None:
        self._owner: dict[str | int, str] = {}  # address or id -> lease
        self._claimed: dict[str, tuple[str | int, ...]] = {}
        self._put_aside: OrderedDict[str, float] = OrderedDict()  # leases that gave way, and when each is over

    def claim(self, lease: str, member: Member) -> None:
        """Before this, `rivals` have given way."""
        places = (member.address, member.id) if member.id else (member.address,)
        if self._claimed.get(lease) != places:
            self.release(lease)
            self._claimed[lease] = places
            self._owner.update(dict.fromkeys(places, lease))

    def release(self, lease: str) -> None:
        for place in self._claimed.pop(lease, ()):
            if self._owner.get(place) == lease:
                del self._owner[place]

    def rivals(self, lease: str, member: Member) -> list[str]:
        """Other leases at this address, or of this id."""
        found = (self._owner.get(place) for place in (member.address, member.id))
        return [other for other in dict.fromkeys(found) if other is not None and other != lease]

    def put_aside(self, lease: str, until: float) -> None:
        self._put_aside[lease] = until
        if len(self._put_aside) > PUT_ASIDE_MAX:
            self._put_aside.popitem(last=False)

    def was_first(self, lease: str, now: float) -> bool:
        """It gave way, and its time is not over: whoever is there now came while it was away."""
        return self._put_aside.get(lease, now) > now
