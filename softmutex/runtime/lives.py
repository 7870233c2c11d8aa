"""When a node takes a new life: this machine was cloned or set back, or somebody else lives under its id.

    another process proves to be there under our id (`porter.py`) ---.
    a member has opened frames of ours that we never sealed: AHEAD ---+--> end --> a new id, a new seal, a new group
    boot, machine, start of the process differ (`whereabouts.py`) ----'            holds: lost; who waits: asks again
    the wall clock jumped ahead --> doubt --> PING to some members --> AHEAD, or nothing

What it decides: what becomes of a life that is lived twice. A life is known by its id, and its frames by its counters
(`sealing.py`, S1). Two that share them are heard by turns: what the one sends the others have opened before, from the
other one. Both may believe that they have the token. The naive ways: to stop and to say so, as this node did once, ends
a service for a night; to hand over in good order hands over what the other one still has. So nothing more is said in
the old name, not even a farewell; whoever holds is told that it may not be alone.

The members know it first: a frame that is genuine, and whose counter was opened before, is either played back, or of a
life that was set back. They tell the sender how far it has got (`Ahead`), and only that can be true or not.

L1  Nothing is sealed in the old name once the new life has begun.
L2  A hold that was granted in the old life is lost; a wait goes on, with what is left of its time.
L3  By the word of one member a life ends TOLD_AN_HOUR times in an hour at most: a member may lie.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from softmutex.core.events import SECOND, Duration, LostReason, NodeId, from_seconds, to_seconds
from softmutex.core.messages import Ahead, Ping
from softmutex.ports import Member
from softmutex.runtime.budgets import HOUR, Quota
from softmutex.runtime.claim import MutexClaim, Progress
from softmutex.runtime.crossing import Crossing
from softmutex.runtime.keys import seal_again
from softmutex.runtime.observing import default_name

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode

TOLD_AN_HOUR: Final = 3
TELLERS: Final = 256
ASKED: Final = 8  # members, where there is a doubt
AGAIN: Final = from_seconds(0.2)
REMEDY: Final = "was this machine cloned, or set back?"


class NodeLives:
    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._told: dict[NodeId, Quota] = {}
        self._is_ending = False
        self._is_joining = False

    # --- signs ------------------------------------------------------------------------------------------------------

    def told(self, sender: NodeId, ahead: Ahead) -> None:
        """A member says that it has opened frames of this life up to that counter."""
        node = self._node
        if self._is_ending or sender not in node.driver.peers:
            return
        if not node.seal.sealed or ahead.counter < node.seal.sealed:
            return
        quota = self._told.setdefault(sender, Quota(TOLD_AN_HOUR, HOUR))
        if len(self._told) > TELLERS:
            del self._told[next(iter(self._told))]
        who = node.call(sender)
        if quota.take(node.now()):
            self.end(f"{who} has opened frames of this life that it never sealed: {REMEDY}")
        else:
            said = f"{who} says again and again that this node lives twice: it lies, or there are many clones."
            node.warn("own id", said, once=f"own id {sender}")

    def doubt(self, jump: Duration) -> None:
        """The others are asked; where this life was set back, they have opened the question before."""
        node = self._node
        start = bisect_left(node.members, node.id)
        others = [id for id in (*node.members[start:], *node.members[:start]) if id != node.id]
        node.notice("", "clock_jumped", {"seconds": to_seconds(jump)})
        for id in others[:ASKED]:
            node.send(id, "", Ping(secrets.randbits(63)))

    # --- what comes of them -----------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """As soon as what is under way now is over."""
        self._is_ending = True
        self._node.timers.set("life", self._node.now(), self._end, why)

    def _end(self, why: str) -> None:
        node = self._node
        if node.closing or not node.is_mine():
            return
        if not node.is_open or self._is_joining:
            node.timers.set("life", node.now() + AGAIN, self._end, why)
            return
        node.warn("own id", f"{why} This node takes a new life: its holds are lost, and who waits asks again.")
        waiting = self._let_go(why)
        self._begin()
        self._is_ending = False
        now = node.now()
        for claim in waiting:
            asked_at = claim._asked_at
            claim._progress = Progress.NEW
            if claim._timeout_s:
                claim._timeout_s = max(0.001, claim._timeout_s - (now - asked_at) / SECOND)
            Crossing.ask(claim._crossing, claim)
            claim._asked_at = asked_at
        self._is_joining = True
        node.start_task(self._join(), "new life")

    def _let_go(self, why: str) -> list[MutexClaim]:
        """L2. Who waits."""
        node = self._node
        old = list(node.mutexes.values())
        waiting = [claim for mutex in old for claim in mutex.waiting.values()]
        for mutex in old:
            mutex.started = False
            mutex.waiting.clear()
            mutex.backlog.clear()
            for claim in list(mutex.holding.values()):
                mutex.tell_lost(claim, LostReason.CLOSED, why)
            mutex.abandon()
        for asked in list(node.lookout.rounds.values()):
            asked.end()
        node.timers.cancel_of({*old, "group"})
        node.mutexes.clear()
        return waiting

    def _begin(self) -> None:
        node = self._node
        view = node.driver.view
        node.id = fresh_id(node.transport.address)
        node.name = node.settings["name"] or default_name(node.id)
        node.banned = None
        seal_again(node)
        node.begin_group()
        node.observers.begin_anew()
        node.driver.listed(view)

    async def _join(self) -> None:
        node = self._node
        try:
            await node.membership.leave()
            await node.membership.join(Member(node.transport.address, node.id, node.name))
        except Exception as error:
            node.warn("own id", f"the new life of this node could not join its membership: {error}")
        finally:
            self._is_joining = False


def fresh_id(address: str) -> NodeId:
    """Two clones may draw the same from a system that was cloned as well: not at the same time at the same address."""
    seed = f"{address} {time.time_ns()} {time.perf_counter_ns()}".encode()
    digest = hashlib.blake2b(seed, digest_size=8, key=secrets.token_bytes(32)).digest()
    return int.from_bytes(digest) or 1
