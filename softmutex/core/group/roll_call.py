"""Whether this node still reaches more than half of its group: one member is asked, or a sample, or all.

    narrow --one member, heard of within a second, or answers--> MORE
           '--it is silent--> wide --all others, or 32 of them: who was heard of within a second, or answers, is there
                               |  '--> MORE than half, HALF of them, LESS; this node counts as one that is there
                               '--of 32: a quarter to three quarters--> all others, or 256 of them --> the same

The one is that of sixteen which was heard of longest ago: who speaks anyway may be one of the few on our side of a cut,
and of a small group nobody is asked again before all the others were. Who is known to be silent says nothing new, and
is asked no more often than by chance. And 32 are no judge of two sides that are nearly equal: where a node had 45 % of
ninety on its side, one call in three told it that these were more than half.

What it decides: a keeper asks before it lends, and that costs next to nothing. The naive way, beats from everybody to
everybody, costs N² messages; the other naive way, to judge by whoever happened to speak lately, takes a group in which
nobody has anything to say for one that is gone. A random member is out of reach with a probability that is the share of
members that are: a node that is cut off with a small part of its group finds out at the first or second call.

Company that turn out to be dead on the way (`left`) do not count. Only who calls the roll takes memory; it may be used
alone, as `suspicion.py`.

K1  A call ends within WAIT · (2^TRIES - 1), twice that where it began narrow, and once more where a sample was unclear,
    or the learnt patience in place of WAIT.
K2  A call takes 2 · TRIES · (SAMPLE + MANY) messages at most; one that several ask for at once is called once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from softmutex.core.chance import Rng, drawn
from softmutex.core.events import SECOND, CancelTimer, Duration, Instant, Level, NodeId, Reach, Send, SetTimer
from softmutex.core.group.effects import Answer
from softmutex.core.group.suspicion import PING
from softmutex.core.machine import pick_other
from softmutex.core.messages import Ping
from softmutex.core.patience import Patience

OLDEST_OF: Final = 16
SAMPLE: Final = 32
MANY: Final = 256
LATELY: Final[Duration] = SECOND
WAIT: Final = PING
TRIES: Final = 2
TIMER: Final = "roll"


class RollCallOwner(Protocol):
    def put(self, effect: Send | SetTimer | CancelTimer | Answer) -> None: ...

    def is_silent(self, node: NodeId) -> bool:
        """It is known to be."""
        ...

    def not_there(self, nodes: Sequence[NodeId], now: Instant) -> None:
        """They did not answer a wide call."""
        ...


class RollCall:
    __slots__ = (
        "_askers",
        "_awaited",
        "_called",
        "_heard_at",
        "_is_sample",
        "_is_wide",
        "_me",
        "_members",
        "_owner",
        "_patience",
        "_present",
        "_rng",
        "_tries",
    )

    def __init__(
        self,
        me: NodeId,
        members: Sequence[NodeId],
        owner: RollCallOwner,
        rng: Rng,
        patience: Patience,
        heard_at: Callable[[NodeId], Instant],
    ) -> None:
        """`members` is shared and live, with `me` in it. `heard_at`: when a member was last heard of."""
        self._me = me
        self._members = members
        self._owner = owner
        self._rng = rng
        self._patience = patience
        self._heard_at = heard_at
        self._askers: list[str] = []  # nobody: no call is under way
        self._awaited: dict[NodeId, None] = {}
        self._is_wide = False
        self._is_sample = False  # not all others
        self._present = 0  # of those that are called, this node included
        self._called = 0
        self._tries = 0

    def call(self, asker: str, wide: bool, now: Instant) -> None:
        is_under_way = bool(self._askers)
        if asker not in self._askers:
            self._askers.append(asker)
        if not is_under_way:
            self._begin(self._choose(now), now) if not wide else self._widen(now)
        elif wide and not self._is_wide:
            self._widen(now)

    def heard(self, node: NodeId, now: Instant) -> None:
        """Any frame of it came."""
        if node in self._awaited:
            del self._awaited[node]
            self._present += 1
            self._judge()

    def left(self, nodes: Sequence[NodeId], now: Instant) -> None:
        """They no longer count."""
        for node in nodes:
            if node in self._awaited:
                del self._awaited[node]
                self._called -= 1
                if self._is_wide:
                    self._judge()
                else:
                    self._widen(now)  # the one that was chosen is dead, which says nothing of the others

    def fired(self, now: Instant) -> None:
        if not self._askers:
            return
        if self._tries < TRIES:
            self._ask(now)
        elif self._is_sample and 4 * self._present > self._called:
            self._widen(now, MANY)
        elif self._is_wide:
            missing = [node for node in self._awaited if not self._owner.is_silent(node)]
            self._conclude()
            self._owner.not_there(missing, now)
        else:
            self._widen(now)

    # --- how --------------------------------------------------------------------------------------------------------

    def _choose(self, now: Instant) -> list[NodeId]:
        """The one to ask; nobody where more than half spoke just now."""
        members, me = self._members, self._me
        if len(members) <= OLDEST_OF:
            start = int(self._rng.random() * len(members))
            some = [node for node in (*members[start:], *members[:start]) if node != me]
            present = [node for node in some if self._heard_at(node) >= now - LATELY]
            if 2 * (1 + len(present)) > len(members):
                return present
        else:
            some = [pick_other(members, me, self._rng) for _ in range(OLDEST_OF)]
        if self._owner.is_silent(some[0]):
            return some[:1]
        return [min((node for node in some if not self._owner.is_silent(node)), key=self._heard_at)]

    def _widen(self, now: Instant, most: int = SAMPLE) -> None:
        self._is_wide = True
        others = len(self._members) - 1
        self._is_sample = most < others and most == SAMPLE
        if others <= most:
            self._begin([node for node in self._members if node != self._me], now)
            return
        chosen: dict[NodeId, None] = {}
        while len(chosen) < most:
            chosen[pick_other(self._members, self._me, self._rng)] = None
        self._begin(list(chosen), now)

    def _begin(self, called: list[NodeId], now: Instant) -> None:
        lately = now - LATELY
        self._awaited = {node: None for node in called if self._heard_at(node) < lately}
        self._called = 1 + len(called)
        self._present = self._called - len(self._awaited)
        self._tries = 0
        self._judge()
        if self._askers:
            self._ask(now)

    def _ask(self, now: Instant) -> None:
        wait = max(WAIT, self._patience.wait()) << self._tries
        self._tries += 1
        for node in self._awaited:
            self._owner.put(Send(node, Ping(drawn(self._rng))))
        self._owner.put(SetTimer(TIMER, now + wait))

    def _judge(self) -> None:
        """As soon as it is clear."""
        enough = 4 * self._present >= 3 * self._called if self._is_sample else 2 * self._present > self._called
        if enough or not self._awaited:
            self._conclude()

    def _conclude(self) -> None:
        level = Level.LESS
        if 2 * self._present > self._called:
            level = Level.MORE
        elif 2 * self._present == self._called:
            level = Level.HALF
        askers, self._askers, self._awaited = self._askers, [], {}
        self._is_wide = self._is_sample = False
        if self._tries:
            self._owner.put(CancelTimer(TIMER))
        for asker in askers:
            self._owner.put(Answer(asker, Reach(level)))
