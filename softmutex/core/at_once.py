"""A token that comes in one message: who waits promises in its request to take it, and whoever has it commits it.

What it decides: whether a commit that nobody offered is taken, and what is said of it afterwards. An offer and its
ACCEPT cost a round trip for each hop, which is most of what a hop takes; yet who waits has said already that it wants
the token. The naive way, to take whatever comes, takes every copy of a commit; and to say VOID of what is not known
gives a token back to a sender whose commit was taken, and forgotten since. Nor may nothing be said: a node that slept
knows requests of long ago, commits to one after the other, and loses its token each time. So a request is a promise
like any other (`handover.py`): the reply of the hand-over is the request itself, and it is settled once. And as the
nonces of a sender grow, the highest one taken from it tells for all its later commits that they were never taken.

    sender    give_at_once --> COMMITTED as there          receiver  standing --COMMIT--> taken
                                                                         '--ASK, stand(another), renounce--> void

Invariants, by the names they have there
    S1  A request is promised once in a life, and the first COMMIT for it settles it, or the first ASK about one that
        never came. Requests grow; those that are forgotten, and all before them, are refused for ever.
    S3  VOID is said only of a commit that was never taken and never will be: its request is remembered as settled by
        another, or is refused for ever, and nothing so late was taken from this sender. Of others, nothing is said.
    A4  Whatever arrives, at most `memory` settled requests are kept, and of at most `memory` senders the last taking.
        Those who are forgotten leave their highest request: up to there, nothing is said to senders not remembered.

DONE may wait a moment (`OWED_FOR`): between two nodes that pass the token to and fro its return says the same.
"""

from __future__ import annotations

from typing import Final

from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Duration,
    Effect,
    FactKind,
    Instant,
    NodeId,
    Note,
    Send,
    SetTimer,
    TimerName,
    Token,
)
from softmutex.core.messages import Ask, Commit, Done, Void

OWED: Final = "owed"  # every timer set here is named (OWED, nonce of the sender)
STANDING: Final = 2**63  # replies from here on are requests; nonces stay below
OWED_FOR: Final[Duration] = SECOND // 250  # how long a DONE may wait; a sender waits longer than that before it repeats


class AtOnce:
    """What one node promised in its requests, and the DONEs that it owes."""

    def __init__(self, me: NodeId, memory: int) -> None:
        self._me = me
        self._memory = memory
        self.standing = 0  # the request that we stand for
        self.retired: dict[int, int] = {}  # requests that we stood for, and the nonce of the commit we took, or 0
        self.retired_to = 0  # the last of them
        self.forgotten_to = 0  # those up to here that are not remembered are refused for ever
        self.latest: dict[NodeId, tuple[int, int]] = {}  # by sender: the highest nonce, and request, that we took
        self.unsure_to = 0  # up to here, senders that are not in `_latest` may have been taken from
        self.owed: dict[tuple[NodeId, int], tuple[int, tuple[Instant, int]]] = {}  # DONEs that wait: reply, key

    def stand(self, request: int) -> None:
        if self.standing and request != self.standing:
            self.retire(self.standing, 0)
        if request > self.retired_to:
            self.standing = request

    def take(self, name: tuple[NodeId, int], commit: Commit, possible: bool, now: Instant, out: list[Effect]) -> bool:
        """Is the token taken that this commit, `name`, brings? `possible`: nothing is wrong with the token itself."""
        self.forgive(name[0], commit.token, out)
        request = commit.reply - STANDING
        # An earlier request that was served by another way does as well: it is one node that waits.
        stands = self.forgotten_to < request <= self.standing and request not in self.retired
        if not (stands and possible):
            self.answer(name, commit, out)
            return False
        self.retire(request, commit.nonce)
        self.remember(name, request)
        self.owed[name] = (commit.reply, commit.token.key)
        out.append(SetTimer((OWED, commit.nonce), now + OWED_FOR))
        return True

    def answer(self, name: tuple[NodeId, int], question: Commit | Ask, out: list[Effect]) -> None:
        """Was this commit taken? As often as it is asked."""
        request = question.reply - STANDING
        if request > self.forgotten_to and request not in self.retired:
            self.retire(request, 0)
        if request in self.retired:
            taken = self.retired[request] == question.nonce
        else:
            taken = self.latest.get(name[0]) == (question.nonce, request)
            if not taken and self.may_be_taken(name, request):
                out.append(Note(FactKind.STALE, None, name[0], type(question).__name__))
                return
        out.append(Send(name[0], (Done if taken else Void)(question.nonce, question.reply)))

    def may_be_taken(self, name: tuple[NodeId, int], request: int) -> bool:
        sender, nonce = name
        if sender in self.latest:
            return nonce <= self.latest[sender][0]
        return request <= self.unsure_to

    def remember(self, name: tuple[NodeId, int], request: int) -> None:
        sender, nonce = name
        before = self.latest.pop(sender, (0, 0))
        self.latest[sender] = (max(nonce, before[0]), max(request, before[1]))
        if len(self.latest) > self._memory:
            forgotten = next(iter(self.latest))
            self.unsure_to = max(self.unsure_to, self.latest.pop(forgotten)[1])

    def retire(self, request: int, taken: int) -> None:
        if request in self.retired:
            raise InvariantBreach(f"node {self._me} stands for request {request} twice")  # S1
        self.retired[request] = taken
        self.retired_to = max(self.retired_to, request)
        if request == self.standing:
            self.standing = 0
        if len(self.retired) > self._memory:
            forgotten = next(iter(self.retired))
            del self.retired[forgotten]
            self.forgotten_to = max(self.forgotten_to, forgotten)

    # --- DONE, a moment later ----------------------------------------------------------------------------------------

    @property
    def senders(self) -> int:
        """How many it remembers."""
        return len(self.latest)

    @property
    def owes(self) -> bool:
        return bool(self.owed)

    def fired(self, timer: TimerName, out: list[Effect]) -> None:
        """Say DONE; the token did not return meanwhile, which would have said it, too."""
        for name, (reply, _) in list(self.owed.items()):
            if timer == (OWED, name[1]):
                del self.owed[name]
                out.append(Send(name[0], Done(name[1], reply)))

    def forgive(self, node: NodeId, token: Token, out: list[Effect]) -> None:
        """The token goes back to this node, or comes from it again: it needs no DONE to know that it had arrived."""
        for name, (_, key) in list(self.owed.items()):
            if name[0] == node and key == token.key:
                self._drop_debt(name, out)

    def departed(self, node: NodeId, out: list[Effect]) -> None:
        for name in [name for name in self.owed if name[0] == node]:
            self._drop_debt(name, out)

    def _drop_debt(self, name: tuple[NodeId, int], out: list[Effect]) -> None:
        del self.owed[name]
        out.append(CancelTimer((OWED, name[1])))
