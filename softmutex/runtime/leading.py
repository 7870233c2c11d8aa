"""Leadership, as applications see it: to lead is to hold a mutex whose algorithm is an election.

    async with node.lead("indexer") as lease:    lease.lost, lease.lost_reason: it leads no longer
    node.leader("indexer")                       the name of who leads, None where nobody does
    node.on_leader("indexer", callback)          callback(name or None), each time that this changes

What it decides: that a leader's name is no mutex's name. The naive way, one room for both, makes `lead("x")` and
`mutex("x")` of two programs a dispute about the algorithm of x.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.core.events import NOBODY, FactKind, NodeId
from softmutex.core.names import check_name
from softmutex.ports import Observation

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode

PREFIX = "lead:"
ELECTION, ON_LOST = "bully", "cancel"  # where nothing is said

OnLeader = Callable[[str | None], Any]


def mutex_of(name: str) -> str:
    """The mutex that whoever leads holds."""
    return check_name(PREFIX + check_name(name))


def election(algorithm: object) -> str:
    """The same, if it elects; the usual one where none is named. Who holds another one's mutex leads nobody, and
    `on_leader` would hear nothing."""
    algorithm = algorithm or ELECTION
    kind = plugins.algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    if not getattr(kind, "elects", False):
        raise ConfigError(f"algorithm is {algorithm!r}, which elects no leader: give bully or ring, or take a mutex")
    return algorithm  # type: ignore[return-value]


def leader_of(node: RunningNode, name: str) -> str | None:
    mutex = node.mutexes.get(mutex_of(name))
    return None if mutex is None else called(node, mutex.machine.view().holder)


def called(node: RunningNode, id: NodeId) -> str | None:
    """What people call it; its number where it has not said so yet."""
    if id == NOBODY:
        return None
    if id == node.id:
        return node.name
    peer = node.driver.peers.get(id)
    return peer.name if peer is not None and peer.name else f"{id:x}"


class LeaderWatch:
    """An observer of one leadership, for one callback."""

    messages: frozenset[str] = frozenset()

    def __init__(self, node: RunningNode, name: str, callback: OnLeader) -> None:
        self._node = node
        self._mutex = mutex_of(name)
        self._callback = callback
        self._told = leader_of(node, name)
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None  # a thread without one: it is told on the node's

    def notice(self, observation: Observation) -> None:
        note = observation.note
        if observation.mutex != self._mutex or note is None or note.kind is not FactKind.LEADER:
            return
        leader = called(self._node, note.peer)
        if leader != self._told:
            self._told = leader
            if self._loop is None:
                self._callback(leader)
            else:
                self._loop.call_soon_threadsafe(self._callback, leader)
