"""`sigma`, seed 004's yardstick (Lin, Lian, Chen, Zhang): replicas in a DHT queue the requests and vote for the first.

What it decides: nothing beside what `quorum/` has. Requests go to each of the n replicas by the DHT, each replica keeps
its own queue, by Lamport clock and node, and votes for the first of it; m votes are enough. Who waits comes again after
T_cs * (P + 1/2), where P wait before it, for a replica may have forgotten it.

Survives (`softmutex sim check --algorithm sigma`): loss, repetition, delay, reordering, pauses, wrong clocks, churn,
dead links, members that die. A holder that dies is followed when its death is known, or a lease (5 s) after. A replica
that dies or moves has no vote for a lease at most, unless its heir is told. A member that falls silent takes the votes
of its replicas along, until it speaks or is known to be dead: if these are more than n - m, everybody waits. Two may
overlap in the wake of a fault: a holder that was cut off or asleep for longer than a lease is told so.

A replica that moves to a newcomer is quiet there for a lease, unless it is told what was before. If the newcomer goes
before that, it says so, and who had the replica before goes on as if nothing had happened (UNTOUCHED). Where members
do not agree on who is there, a replica votes again a lease after its heir has heard that it is the heir: no bound is
claimed there for a wait.
"""

from __future__ import annotations

from typing import ClassVar

from softmutex.core.algorithms.quorum import Quorum
from softmutex.core.algorithms.quorum.messages import OF_QUORUM


class Sigma(Quorum):
    name: ClassVar[str] = "sigma"
    messages: ClassVar = OF_QUORUM

    __slots__ = ()
