"""`suzuki-kasami`: who wants the token says so to everybody, and it goes to the next one who has not been served.

What it decides: whether a wish is fulfilled already. All hear it, and one serves it; the others would serve it once
more. So wishes are numbered, and the token tells up to which number it has served whom (PRIVILEGE).

    wanted --WISH(number)--> all      after A: who has wished more often than it was served? --PRIVILEGE--> the next
                                      nobody: the token stays, and using it again costs no message

An entry costs n - 1 WISHes, a PRIVILEGE, a TOOK and at most a NOTED; or nothing. The authors' token has an entry for
each member. Here it has the last 13 that were served and 32 that are not, and each node remembers those that it saw; a
token that goes to one that wants it no more goes on, so this costs messages in large groups, and no more. Who is next
is the next one by id: each waits for one round at most.

Survives what `token-ring` survives, in the same way.

Invariants, with those of `token_ring.py` and `on_demand.py`
    K1  Of two that wish, the one behind this node in the ring is served first, and nobody twice for one wish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, NamedTuple

from softmutex.core.algorithms.on_demand import Noted, OnDemand, Wish
from softmutex.core.events import NOBODY, Effect, Instant, NodeId, Send, Ticket, Token
from softmutex.core.machine import Setup
from softmutex.core.messages import Message

QUEUED: Final = 32
TOLD: Final = 13  # with certificates more would not fit a frame


class Privilege(NamedTuple):
    """The token, with who wishes, is yours; these were served, the last of them last, up to these numbers."""

    token: Token
    served: Annotated[tuple[Ticket, ...], "<=13"]


class SuzukiKasami(OnDemand):
    name: ClassVar[str] = "suzuki-kasami"
    messages: ClassVar = {**OnDemand.messages, 162: Privilege}

    __slots__ = ("_served", "_wished_by")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._wished_by: dict[NodeId, int] = {}  # the newest wish of each
        self._served: dict[NodeId, int] = {}  # in the order of serving

    def _say(self, wish: Wish, now: Instant, out: list[Effect]) -> None:
        out.extend(Send(node, wish) for node in self._others())

    def _wished(self, sender: NodeId, number: int, again: bool, now: Instant, out: list[Effect]) -> None:
        if number < self._wished_by.get(sender, 0):
            return
        self._wished_by[sender] = number
        if again and number <= self._served.get(sender, 0):
            del self._served[sender]  # it knows better
        if self._token is None:
            return
        if self._running is None and not self._waiting:
            self._pass_on(now, out)
        if self._token is not None and self._is_due(sender):
            self._note(sender, out)

    def _note(self, node: NodeId, out: list[Effect]) -> None:
        out.append(Send(node, Noted(self._wished_by[node], sum(map(self._is_due, self._others())))))

    def _is_due(self, node: NodeId) -> bool:
        return self._wished_by.get(node, 0) > self._served.get(node, 0)

    def _heir(self) -> NodeId:
        due = [node for node in self._others() if self._is_due(node)]
        return next((node for node in due if node > self._me), due[0] if due else NOBODY)

    def _is_served(self, node: NodeId, number: int) -> None:
        self._served[node] = max(number, self._served.pop(node, 0))

    def _pass_of(self, token: Token) -> Message:
        due = [Ticket(node, self._wished_by[node]) for node in self._others() if self._is_due(node)]
        served = [Ticket(*each) for each in self._served.items()]
        return Privilege(token._replace(queue=tuple(due[:QUEUED])), tuple(served[-TOLD:]))

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        if isinstance(message, Privilege):
            for node, number in message.served:
                if self._counts(node):
                    self._is_served(node, number)
            for node, number in message.token.queue:
                if self._counts(node):
                    self._wished_by[node] = max(number, self._wished_by.get(node, 0))
            had = self._token
            self._passed(sender, message.token._replace(queue=()), 0, out, now)
            if had is None and self._token is not None and len(message.token.queue) < QUEUED:
                for node in self._others():  # who wished while it was on its way
                    if self._is_due(node) and Ticket(node, self._wished_by[node]) not in message.token.queue:
                        self._note(node, out)
        else:
            super()._received(sender, message, now, out)

    def _use_it(self, now: Instant, out: list[Effect]) -> None:
        self._is_served(self._me, self._asked)
        super()._use_it(now, out)

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            self._wished_by.pop(node, None)
            self._served.pop(node, None)
        if self._wish:
            out.extend(Send(node, Wish(self._wish)) for node in joined if node != self._me)
        super()._changed(joined, left, now, out)
