"""What `softmutex.sync` shows: `SoftMutex` and `Node` for programs without a loop."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self, Unpack

from softmutex.core.events import NodeId
from softmutex.runtime import background, leading, nesting
from softmutex.runtime.blocking import BlockingMutex
from softmutex.runtime.config import Settings
from softmutex.runtime.host import OneShot
from softmutex.runtime.node import RunningNode
from softmutex.runtime.options import MutexOptions, OneShotOptions, read_mutex_options, read_one_shot_options
from softmutex.runtime.public import NodeBase


class SoftMutex(BlockingMutex):
    """A soft mutex for threads: joins when it is entered, waits, works, hands on, leaves.

    >>> from softmutex import sync
    >>> with sync.SoftMutex("rsync", transport="memory://doc", membership="memory://doc", timeout=60) as hold:
    ...     hold.lost.is_set()
    False
    """

    def __init__(self, name: str, **options: Unpack[OneShotOptions]) -> None:
        node, mutex = read_one_shot_options(options)
        super().__init__(name, OneShot(node, options.get("config")), mutex)


class Node(NodeBase):
    """One member of a group for a program without a loop, with any number of mutexes.

    >>> from softmutex import sync
    >>> with sync.Node(transport="memory://doc", membership="memory://doc") as node:
    ...     with node.mutex("db-load").hold(timeout=30) as hold:
    ...         hold.name
    'db-load'
    """

    _ways_to_open = "`with node:`, or node.open()"
    _thread: background.Background | None = None

    def mutex(self, name: str, **options: Unpack[MutexOptions]) -> BlockingMutex:
        """A mutex on this node. It may be made before the node is open."""
        return BlockingMutex(name, self, read_mutex_options(options))

    def lead(self, name: str, **options: Unpack[MutexOptions]) -> BlockingMutex:
        """`with node.lead("indexer") as lease:` waits until this node leads. No body of a thread can be cancelled: look
        at `lease.lost`."""
        options["algorithm"] = leading.election(options.get("algorithm"))
        return BlockingMutex(leading.mutex_of(name), self, read_mutex_options(options))

    def open(self) -> None:
        settings = self._next_settings()
        self._thread = background.acquire()
        try:
            self._thread.wait(self._open_over_there(settings))
        except BaseException:
            self.close()
            raise

    async def _open_over_there(self, settings: Settings) -> None:
        self._running = await RunningNode.open(settings)

    def close(self) -> None:
        """Hands everything over and leaves."""
        running, self._running = self._running, None
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            if running is not None and running.is_mine():
                thread.wait(running.close(nesting.bodies_here()))
        finally:
            background.release(thread)

    def notes(self, topic: str) -> dict[NodeId, Any]:
        """What each member, this one too, notes on this topic now. One round trip; of members that do not answer within
        a second, what they said last, until they are known to be silent or gone."""
        node = self.running()
        return asyncio.run_coroutine_threadsafe(node.lookout.notes.read(topic), node.loop).result()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
