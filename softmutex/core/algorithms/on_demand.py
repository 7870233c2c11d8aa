"""A token that stays where it was used until somebody asks for it: what `suzuki-kasami` and `raymond` have in common.

What it decides: how long a wish is repeated. A lost WISH beside a token that rests would wait for ever; but to repeat
it while others have their turns would cost more than all the rest. So whoever has queued a wish says NOTED, and from
then on it is repeated seldom.

How the token is passed on without being lost or doubled, and made anew when it died with a member, is `token_ring.py`,
with its invariants. Whom the wish is sent to, and who is next, is a subclass's.

A token that does not go round does not tell those who come that there is one, and an epoch that nobody knew would be
used twice. So whoever has it tells them (SOUGHT).

Invariant
    D1  Whoever wants the token, or has a wish of another one to serve, and has it not, asks again until it has, and
        looks for it when nobody has noted that.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from softmutex.core.algorithms.token_ring import Sought, TokenRing
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Count,
    Effect,
    Instant,
    NodeId,
    RequestId,
    Send,
    SetTimer,
    TimerName,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Flag, Message
from softmutex.core.patience import Patience

AGAIN: Final = "again"
SELDOM: Final = 15 * SECOND
AHEAD_MOST: Final = 1000
LOST_AFTER: Final = 3  # repeats that nobody noted, until the token is looked for


class Wish(NamedTuple):
    """I want the token, for this time. `again`: I said so before."""

    number: Count
    again: Flag = False


class Noted(NamedTuple):
    """Your wish with this number is in a queue, behind so many."""

    number: Count
    ahead: Count = 0


class OnDemand(TokenRing):
    messages: ClassVar = {**TokenRing.messages, 160: Wish, 161: Noted}

    __slots__ = ("_asked", "_asked_at", "_repeats", "_wish", "_wishes")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._asked = 0  # so many wishes were said
        self._wish = 0  # the number of the one that is not fulfilled; 0: there is none
        self._asked_at: Instant = 0
        self._repeats = 0
        self._wishes = Patience(SECOND)

    def _want(self, now: Instant, out: list[Effect]) -> None:
        super()._want(now, out)
        if self._token is None:
            self._ask(now, out)

    def _ask(self, now: Instant, out: list[Effect]) -> None:
        """For a wish that nobody was told of yet."""
        if not self._wish:
            self._asked += 1
            self._wish, self._repeats, self._asked_at = self._asked, 0, now
            self._say(Wish(self._wish), now, out)
            out.append(SetTimer(AGAIN, now + self._wishes.wait()))

    def _unask(self, out: list[Effect]) -> None:
        self._wish = 0
        out.append(CancelTimer(AGAIN))

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        super()._unwant(request, now, out)
        self._unask(out)

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        match message:
            case Wish(number, again):
                if self._counts(sender):
                    self._wished(sender, number, again, now, out)
            case Noted(number, ahead):
                if number == self._wish:
                    self._wishes.learn(now - self._asked_at, self._repeats)
                    self._repeats = 0
                    out.append(SetTimer(AGAIN, now + max(SELDOM, 2 * self._op * min(ahead, AHEAD_MOST))))
            case _:
                super()._received(sender, message, now, out)

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        super()._changed(joined, left, now, out)
        if self._token is not None or self._passing is not None:  # it may never come by there
            out.extend(Send(node, Sought(0, self._epoch)) for node in joined if node != self._me)

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer != AGAIN:
            super()._fired(timer, now, out)
        elif self._wish and self._token is None:
            self._repeats += 1
            self._say(Wish(self._wish, again=True), now, out)
            if self._repeats % LOST_AFTER == 0:
                self._search(now, out)
            out.append(SetTimer(AGAIN, now + self._wishes.wait(self._repeats)))

    def _use_it(self, now: Instant, out: list[Effect]) -> None:
        if self._wish:
            self._wishes.learn(now - self._asked_at, self._repeats)
        self._unask(out)
        if self._is_mine() and not self._leaving:
            self._run(out)
        else:
            self._pass_on(now, out)

    def _is_mine(self) -> bool:
        """Whether it came for this node."""
        return bool(self._waiting)

    def _next_one(self) -> NodeId:
        if (heir := self._heir()) != NOBODY or not self._leaving:
            return heir
        return super()._next_one()

    @abstractmethod
    def _heir(self) -> NodeId:
        """Who is next, or nobody: then it stays."""

    @abstractmethod
    def _say(self, wish: Wish, now: Instant, out: list[Effect]) -> None: ...

    @abstractmethod
    def _wished(self, sender: NodeId, number: int, again: bool, now: Instant, out: list[Effect]) -> None: ...
