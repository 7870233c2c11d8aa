"""`binary-search`, seed 003's System BinarySearch: the token goes round, and is searched for by halving the ring.

What it decides: where to look for a token that goes round. The naive way, from neighbour to neighbour, takes half a
round. But the token leaves a trace: a node that saw it after the searcher did lies behind it, a node that saw it before
lies ahead of it. So a GIMME goes half-way round, and each node that it comes to
sends it half as far on, one way or the other, at most log2 N + 1 times:

    low  saw the token later than the searcher     high  has not seen it since; both set a trap
    low <= token < high, going round: whatever it does now, it meets the trap at one of them

All else is as in `ring_search.py`.

Readings. The paper's rule 5 prints n = N for the first jump, which ends at the searcher: N/2 is meant. Its n/2 is kept
as the span from low to high, so that a ring of any size is halved evenly. Histories are compared by (epoch, hop) of the
last visit on the way round; loans do not count. A searcher without a history begins where the token did, as far as it
knows, and the first node that has one takes its place as `low` and `high`. Where the search comes to a lender it ends.
"""

from __future__ import annotations

from typing import ClassVar

from softmutex.core.algorithms.remake import NEVER_SEEN, Sighting
from softmutex.core.algorithms.ring_search import RingSearch
from softmutex.core.algorithms.ring_words import Anybody, Gimme
from softmutex.core.events import NOBODY, Effect, NodeId, Send


class BinarySearch(RingSearch):
    name: ClassVar[str] = "binary-search"

    __slots__ = ()

    def _first(self, gimme: Gimme) -> tuple[NodeId, Gimme]:
        if gimme.seen > NEVER_SEEN:
            return self._between(gimme._replace(low=self._me, high=self._me))
        begin = self._maker or self._members[0]
        if begin == self._me:
            return self._between(gimme._replace(low=self._me, high=self._me, seen=Sighting(0, 1)))
        return begin, gimme

    def _onward(self, gimme: Gimme, at: NodeId, seen: Sighting) -> tuple[NodeId, Gimme]:
        if gimme.low == NOBODY:  # nobody on its way knows anything yet
            if seen == NEVER_SEEN:
                knows = self._maker not in (NOBODY, at, gimme.node)
                return (self._maker, gimme) if knows else (NOBODY, gimme)
            return self._between(gimme._replace(low=at, high=at, seen=seen))
        return self._between(gimme._replace(low=at) if seen > gimme.seen else gimme._replace(high=at))

    def _between(self, gimme: Gimme) -> tuple[NodeId, Gimme]:
        """The node in the middle between low and high."""
        count = len(self._members)
        while True:
            low = self._at(gimme.low) % count
            span = (self._at(gimme.high) - low) % count or count
            if span == 1:
                return NOBODY, gimme
            middle = self._members[(low + span // 2) % count]
            if middle != gimme.node:
                return middle, gimme
            gimme = gimme._replace(high=middle)

    def _ask_round(self, question: Anybody, out: list[Effect]) -> None:
        span = question.span // 2
        if span:
            count = len(self._members)
            to = self._members[(self._at(self._me) + span) % count]
            if to not in (self._me, question.holder):
                out.append(Send(to, Anybody(question.holder, span)))
