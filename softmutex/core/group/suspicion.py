"""Whether a member that does not answer is dead, silent, or there all the same.

    suspected --ping, ping, ping--> PONG ---------------------> forgotten
                  |                 heard of meanwhile -------> forgotten
                  |                 refused twice in a row ---> dead
                  '-----------------nothing ------------------> silent --heard of--> forgotten
                                                                  |---refused twice--> dead
                                                                  '---isolated_timeout-> given up

What it decides: silence is not death. The naive way, to remove whoever does not answer, lets both sides of a cut take
the other for dead, and each goes on as if it was the whole group. Here a silent member still counts. Dead is only who
is known to be: nobody listens where it was (the transport says so, twice in a row, for one refusal may be late or
forged), or another life answers at its address.

Only those that are suspected take memory. It may be used alone, with one `members` sequence shared by all nodes: the
simulator of 100,000 nodes makes one where a machine first suspects somebody.

Q1  A suspicion ends within PING · (2^PINGS - 1), or the learnt patience in place of PING; then it is told, or dropped.
Q2  Not more than ASKED_AT_ONCE are pinged at once; who waits for that is not forgotten.
Q3  Whoever is silent stays silent until it is heard of, known to be dead, or given up.
"""

from __future__ import annotations

from typing import Final, Protocol

from softmutex.core.chance import Rng, drawn
from softmutex.core.events import SECOND, CancelTimer, Duration, Instant, NodeId, SetTimer, from_seconds
from softmutex.core.group.company import KnownPeer
from softmutex.core.patience import Patience

PING: Final = from_seconds(0.2)  # the first gap; the next ones double
PINGS: Final = 3
AFTER_REFUSAL: Final = from_seconds(0.05)
REFUSALS: Final = 2
ASKED_AT_ONCE: Final = 256
ISOLATED_TIMEOUT: Final = 600 * SECOND


class SuspicionOwner(Protocol):
    """What finds its use elsewhere: in `Group`, or in a driver that uses suspicion alone."""

    def put(self, effect: SetTimer | CancelTimer) -> None: ...

    def ping(self, node: NodeId, nonce: int, tries: int, now: Instant) -> None:
        """Sends it; the `tries`-th time by every way there is."""
        ...

    def found_dead(self, node: NodeId, why: str, now: Instant) -> None: ...

    def found_silent(self, node: NodeId, now: Instant) -> None: ...

    def found_back(self, node: NodeId, now: Instant) -> None:
        """Who was silent speaks again."""
        ...

    def given_up(self, node: NodeId, now: Instant) -> None:
        """Silent for `isolated_timeout`."""
        ...


class Doubt:
    """One suspected member."""

    __slots__ = ("is_asked", "is_awaited", "is_heard", "nonce", "refusals", "sent", "silent_since")

    def __init__(self) -> None:
        self.silent_since: Instant | None = None
        self.is_asked = False  # a round of pings is under way
        self.is_heard = False  # since that began
        self.is_awaited = False  # the last ping was not refused
        self.refusals = 0  # of pings in a row
        self.nonce = 0  # of the first ping of the round; the next ones count on
        self.sent: list[Instant] = []  # when


class Suspicion:
    __slots__ = ("_asked", "_doubts", "_owner", "_patience", "_put_off", "_rng", "isolated_timeout")

    def __init__(
        self, owner: SuspicionOwner, rng: Rng, patience: Patience, isolated_timeout: Duration | None = ISOLATED_TIMEOUT
    ) -> None:
        self._owner = owner
        self._rng = rng
        self._patience = patience
        self.isolated_timeout = isolated_timeout
        self._doubts: dict[NodeId, Doubt] = {}
        self._put_off: dict[NodeId, None] = {}  # who waits for its pings, in the order of suspicion
        self._asked = 0  # how many are pinged now

    def is_suspected(self, node: NodeId) -> bool:
        """Nobody knows yet what is the matter."""
        doubt = self._doubts.get(node)
        return node in self._put_off or (doubt is not None and doubt.is_asked)

    def is_silent(self, node: NodeId) -> bool:
        doubt = self._doubts.get(node)
        return doubt is not None and doubt.silent_since is not None

    def silent(self) -> list[NodeId]:
        return [node for node, doubt in self._doubts.items() if doubt.silent_since is not None]

    # --- what happens -----------------------------------------------------------------------------------------------

    def wait_for_silent(self, timeout: Duration | None, now: Instant) -> None:
        """Another `isolated_timeout` from now on, for those too that are silent already."""
        if timeout == self.isolated_timeout:
            return
        self.isolated_timeout = timeout
        for node, doubt in self._doubts.items():
            if doubt.silent_since is None:
                continue
            if timeout is None:
                self._owner.put(CancelTimer(("silent", node)))
            else:
                self._owner.put(SetTimer(("silent", node), max(now, doubt.silent_since + timeout)))

    def suspect(self, node: NodeId, now: Instant) -> None:
        """The owner sees to it that it is a member."""
        if self.is_suspected(node):
            return
        if self._asked < ASKED_AT_ONCE:
            self._begin(node, now)
        else:
            self._put_off[node] = None

    def displaced(self, before: KnownPeer | None, by: NodeId, now: Instant) -> None:
        """Another life speaks from its address: what it said until now does not show that it lives."""
        if before is not None and before.id != by:
            if (doubt := self._doubts.get(before.id)) is not None:
                doubt.is_heard = False
            self.suspect(before.id, now)

    def heard(self, node: NodeId, now: Instant) -> None:
        """Any frame of it came. While it is pinged that only saves it from being taken for silent: its frames may
        reach us and ours not reach it, and the pings find a way that does."""
        doubt = self._doubts.get(node)
        if doubt is None:
            self._put_off.pop(node, None)
            return
        doubt.is_heard = True
        doubt.refusals = 0
        was_silent = doubt.silent_since is not None
        self._is_speaking(node, doubt)
        if not doubt.is_asked:
            self.forget(node, now)
        if was_silent:
            self._owner.found_back(node, now)

    def answered(self, node: NodeId, nonce: int, now: Instant) -> bool:
        """A PONG. False where it answers no ping of ours: then it is a frame like any other."""
        doubt = self._doubts.get(node)
        number = nonce - doubt.nonce if doubt is not None else -1
        if doubt is None or not 0 <= number < len(doubt.sent):
            return False
        self._patience.learn(now - doubt.sent[number])  # each ping has its own nonce: no doubt which was answered
        self.forget(node, now)
        return True

    def refused(self, node: NodeId, now: Instant) -> None:
        """Nobody listens where its last frame went. Only what is said of two pings in a row is believed."""
        doubt = self._doubts.get(node)
        if doubt is None:
            self.suspect(node, now)
        elif doubt.refusals < len(doubt.sent) or not doubt.is_asked:
            doubt.is_awaited = False
            doubt.refusals += 1
            if doubt.refusals == REFUSALS:
                self.forget(node, now)
                self._owner.found_dead(node, "refused", now)
            elif doubt.is_asked:
                self._owner.put(SetTimer(("ping", node), now + AFTER_REFUSAL))

    def look(self, node: NodeId, now: Instant) -> None:
        """One ping to a silent one, to see whether it is back."""
        doubt = self._doubts.get(node)
        if doubt is not None and not doubt.is_asked:
            if doubt.is_awaited:
                doubt.refusals = 0  # the last one was not refused
            doubt.nonce, doubt.sent = drawn(self._rng), []
            self._send(node, doubt, now)

    def fired(self, kind: str, node: NodeId, now: Instant) -> None:
        """The timers ("ping", node) and ("silent", node)."""
        doubt = self._doubts.get(node)
        if doubt is None:
            return
        if kind == "silent":
            self.forget(node, now)
            self._owner.given_up(node, now)
        elif doubt.is_asked and len(doubt.sent) < PINGS:
            self._ping(node, doubt, now)
        elif doubt.is_asked:
            self._conclude(node, doubt, now)

    def forget(self, node: NodeId, now: Instant) -> None:
        """It is there, or it is no member any more. Who waits for its pings may be next."""
        self._put_off.pop(node, None)
        doubt = self._doubts.pop(node, None)
        if doubt is None:
            return
        self._is_speaking(node, doubt)
        if doubt.is_asked:
            self._owner.put(CancelTimer(("ping", node)))
            self._asked -= 1
            self._next(now)

    # --- how --------------------------------------------------------------------------------------------------------

    def _is_speaking(self, node: NodeId, doubt: Doubt) -> None:
        if doubt.silent_since is not None and self.isolated_timeout is not None:
            self._owner.put(CancelTimer(("silent", node)))
        doubt.silent_since = None

    def _begin(self, node: NodeId, now: Instant) -> None:
        doubt = self._doubts.setdefault(node, Doubt())
        doubt.is_asked, doubt.is_heard, doubt.is_awaited, doubt.refusals = True, False, False, 0
        doubt.nonce, doubt.sent = drawn(self._rng), []
        self._asked += 1
        self._ping(node, doubt, now)

    def _next(self, now: Instant) -> None:
        if self._put_off and self._asked < ASKED_AT_ONCE:
            node = next(iter(self._put_off))
            del self._put_off[node]
            self._begin(node, now)

    def _ping(self, node: NodeId, doubt: Doubt, now: Instant) -> None:
        gap = max(PING, self._patience.wait()) << len(doubt.sent)
        self._send(node, doubt, now)
        self._owner.put(SetTimer(("ping", node), now + gap))

    def _send(self, node: NodeId, doubt: Doubt, now: Instant) -> None:
        doubt.is_awaited = True
        doubt.sent.append(now)
        tries = len(doubt.sent) if doubt.is_asked else 1
        self._owner.ping(node, doubt.nonce + len(doubt.sent) - 1, tries, now)

    def _conclude(self, node: NodeId, doubt: Doubt, now: Instant) -> None:
        """All pings have gone unanswered."""
        if doubt.is_heard:
            self.forget(node, now)
            return
        doubt.is_asked = False
        self._asked -= 1
        if doubt.silent_since is None:
            doubt.silent_since = doubt.sent[0]
            if self.isolated_timeout is not None:
                self._owner.put(SetTimer(("silent", node), doubt.sent[0] + self.isolated_timeout))
        self._next(now)
        self._owner.found_silent(node, now)
