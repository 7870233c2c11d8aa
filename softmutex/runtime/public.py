"""`Node`: one member of a group, with any number of mutexes on one socket.

    Node(...) --open--> RunningNode on this loop, or on a thread of its own --close--> gone; may be opened again, anew

The object is only a recipe: all that is bound to a loop, a process and an identity is in the `RunningNode` (node.py)
that each opening makes. So a node may be made at import time, used in one loop, closed, and used in the next.
"""

from __future__ import annotations

import asyncio
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from softmutex.core.errors import ConfigError, NodeClosed
from softmutex.core.events import NodeId
from softmutex.runtime import background, leading, nesting
from softmutex.runtime.config import Settings, resolve, with_places
from softmutex.runtime.crossing import see_through
from softmutex.runtime.keys import group_keys
from softmutex.runtime.mutex import SoftMutex
from softmutex.runtime.node import RunningNode
from softmutex.runtime.options import MutexOptions, NodeOptions, read_mutex_options, read_node_options

if TYPE_CHECKING:
    from softmutex.runtime.statistics import MutexStatistics, NodeStatistics, Peer


class NodeBase:
    """What asyncio's and the threads' nodes share."""

    lends_for_a_while = False
    _ways_to_open = "`async with node:`, or await node.open()"

    def __init__(self, **options: Unpack[NodeOptions]) -> None:
        self._keywords = read_node_options(options)
        self._config = options.get("config")
        self._settings: Settings | None = None
        self._running: RunningNode | None = None
        self._was_open = False

    @classmethod
    def from_env(cls, **options: Unpack[NodeOptions]) -> Self:
        """A node as the environment (`SOFTMUTEX_TRANSPORT`, ...) and the configuration file say; keywords go first."""
        return cls(**options)

    @classmethod
    def from_config(cls, path: str | PathLike[str], **options: Unpack[NodeOptions]) -> Self:
        """A node as this file says: `softmutex.toml`, or a `pyproject.toml` with `[tool.softmutex]`."""
        options["config"] = path
        return cls(**options)

    @classmethod
    def _of(cls, settings: Settings) -> Self:
        node = cls()
        node._settings = with_places(settings)
        return node

    def settings(self) -> Settings:
        """What is in force, and from where; read when it is first needed."""
        if self._settings is None:
            self._settings = with_places(resolve(self._keywords, file=self._config))
        return self._settings

    def _next_settings(self) -> Settings:
        """For the life that begins now. An adapter that was handed over as an instance has one life only (T6)."""
        if self._running is not None:
            raise NodeClosed("the node is open already.")
        settings = self.settings()
        used = [role for role in ("transport", "membership") if not isinstance(settings[role], str)]
        if self._was_open and used:
            raise ConfigError(
                f"this node was open before, with a {' and a '.join(used)} given as an instance, which can be opened "
                "only once. Give a URL instead, or make a new Node."
            )
        self._was_open = True
        return settings

    def running(self) -> RunningNode:
        if self._running is None:
            raise NodeClosed(f"the node is not open: use {self._ways_to_open}.")
        self._running.check_usable()
        return self._running

    async def lend_within(self, mutex: str, limit_s: float | None) -> RunningNode:
        return self.running()

    async def take_back(self) -> None:
        """It stays."""

    @property
    def id(self) -> NodeId:
        """Names this life of the node: each opening has another one."""
        return self.running().id

    @property
    def name(self) -> str:
        """What people call it."""
        return self.running().name

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self.running().transport.address

    def peers(self) -> tuple[Peer, ...]:
        """The other live nodes that are known."""
        return self.running().driver.shown()

    def statistics(self) -> NodeStatistics:
        return self.running().statistics()

    def leader(self, name: str) -> str | None:
        """The name of the node that leads (`lead`), as far as this one knows; None where nobody does."""
        return leading.leader_of(self.running(), name)

    def on_leader(self, name: str, callback: leading.OnLeader) -> None:
        """Calls it with the leader's name, or None, each time that this changes, on the loop of the caller."""
        node = self.running()
        watch = leading.LeaderWatch(node, name, callback)
        node.loop.call_soon_threadsafe(node.observers.add, watch)

    def note(self, topic: str, value: Any) -> None:
        """Keeps plain data (as JSON has it, 15 KiB at most) for the other members to read by `notes(topic)`, until it
        is replaced, or this node leaves or dies. None takes it back."""
        self.running().lookout.notes.write(topic, value)

    def reload_keys(self) -> None:
        """Reads the key file again at once. A node does so by itself within a second: see `softmutex key --help`."""
        node = self.running()
        keys = group_keys(node.settings, node.membership)
        if node.keys is not None and keys:
            node.keys.check(keys)
        node.loop.call_soon_threadsafe(node.rekey, keys)

    def mutex_statistics(self, name: str) -> MutexStatistics:
        from softmutex.runtime.statistics import MutexStatistics  # slow to make

        mutex = self.running().mutexes.get(name)
        return MutexStatistics.nothing(name) if mutex is None else mutex.statistics()


class Node(NodeBase):
    """One member of a group, for a process that lives longer than one use.

    >>> import asyncio
    >>> from softmutex import Node
    >>> async def main():
    ...     async with Node(transport="memory://doc", membership="memory://doc") as node:
    ...         mutex = node.mutex("db-load", max_hold=3600)
    ...         async with mutex.hold(timeout=30):
    ...             return mutex.statistics().holding
    >>> asyncio.run(main())
    1
    """

    _thread: background.Background | None = None

    def mutex(self, name: str, **options: Unpack[MutexOptions]) -> SoftMutex:
        """A mutex on this node. It may be made before the node is open."""
        return SoftMutex._on(self, name, read_mutex_options(options))

    def lead(self, name: str, **options: Unpack[MutexOptions]) -> SoftMutex:
        """`async with node.lead("indexer") as lease:` waits until this node is the leader. One leads in the whole group
        for as long as its body runs; where that may be no longer so, `lease.lost` is set and the body is cancelled,
        unless `on_lost` says otherwise. The election is `bully`; `algorithm="ring"` for the other."""
        wanted: MutexOptions = {"on_lost": leading.ON_LOST, **options}  # type: ignore[typeddict-item]
        wanted["algorithm"] = leading.election(options.get("algorithm"))
        return SoftMutex._on(self, leading.mutex_of(name), read_mutex_options(wanted))

    async def open(self) -> None:
        settings = self._next_settings()
        if not settings["thread"]:
            self._running = await RunningNode.open(settings)
            return
        self._thread = background.acquire()
        try:
            await self._thread.run(self._open_over_there(settings))
        except BaseException:
            await self.close()
            raise

    async def _open_over_there(self, settings: Settings) -> None:
        self._running = await RunningNode.open(settings)

    async def close(self) -> None:
        """Hands everything over and leaves. A cancellation of the caller does not stop that."""
        running, self._running = self._running, None
        thread, self._thread = self._thread, None
        own = nesting.bodies_here()
        if thread is None:
            if running is not None and running.is_mine():
                await see_through(running.close(own))
            return
        try:
            if running is not None and running.is_mine():
                await see_through(thread.run(running.close(own)))
        finally:
            background.release(thread)

    async def notes(self, topic: str) -> dict[NodeId, Any]:
        """What each member, this one too, notes on this topic now. One round trip; of members that do not answer within
        a second, what they said last, until they are known to be silent or gone."""
        node = self.running()
        if node.loop is asyncio.get_running_loop():
            return await node.lookout.notes.read(topic)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(node.lookout.notes.read(topic), node.loop))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except asyncio.CancelledError:
            if error is None:
                raise
