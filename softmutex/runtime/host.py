"""A node of its own for as long as a mutex is used: what is behind the one-shot `SoftMutex`.

    first use: a Node opens --> the uses share it --> the last one is over: it hands over, says farewell, closes

One at a time opens or closes: the naive way, to open the next node while the last one still leaves, finds its port in
use, or meets itself in the group.

Each loop has a node of its own. So a mutex made at import time works in any loop, and a forked child that uses a loop
of its own joins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from softmutex.core.errors import AcquireTimeout, NodeClosed
from softmutex.runtime.config import Settings, resolve, with_places

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode
    from softmutex.runtime.public import Node
    from softmutex.runtime.statistics import MutexStatistics


class Shared:
    """The node of one loop, and how many use it."""

    def __init__(self) -> None:
        self.one_at_a_time = asyncio.Lock()
        self.users = 0
        self.node: Node | None = None


class OneShot:
    lends_for_a_while = True

    def __init__(self, keywords: Mapping[str, Any], config: str | PathLike[str] | None) -> None:
        self._keywords = keywords
        self._config = config
        self._settings: Settings | None = None
        self._shared: dict[asyncio.AbstractEventLoop, Shared] = {}

    def settings(self) -> Settings:
        """Read at the first use: the environment may be set after the module that made the mutex was imported."""
        if self._settings is None:
            self._settings = with_places(resolve(self._keywords, file=self._config))
        return self._settings

    def running(self) -> RunningNode:
        shared = self._shared.get(asyncio.get_running_loop())
        if shared is None or shared.node is None:
            raise NodeClosed("the mutex is not in use: its node joins when it is entered.")
        return shared.node.running()

    async def lend_within(self, mutex: str, limit_s: float | None) -> RunningNode:
        """The node of its own, which joins first. That takes its time out of what the caller allowed."""
        try:
            async with asyncio.timeout(limit_s or None):
                return await self._lend()
        except TimeoutError as error:
            raise AcquireTimeout(
                f"the node that was to acquire {mutex!r} could not join its group within {limit_s:g} s. "
                "See `softmutex doctor`."
            ) from error

    async def _lend(self) -> RunningNode:
        from softmutex.runtime.public import Node

        shared = self._shared.setdefault(asyncio.get_running_loop(), Shared())
        shared.users += 1
        try:
            async with shared.one_at_a_time:
                if shared.node is None:
                    node = Node._of(self.settings())
                    await node.open()
                    shared.node = node
                return shared.node.running()
        except BaseException:
            shared.users -= 1
            self._forget(shared)
            raise

    async def take_back(self) -> None:
        shared = self._shared[asyncio.get_running_loop()]
        shared.users -= 1
        async with shared.one_at_a_time:
            if not shared.users and shared.node is not None:
                node, shared.node = shared.node, None
                await node.close()
        self._forget(shared)

    def _forget(self, shared: Shared) -> None:
        loop = asyncio.get_running_loop()
        if not shared.users and shared.node is None and self._shared.get(loop) is shared:
            del self._shared[loop]

    def mutex_statistics(self, name: str) -> MutexStatistics:
        for shared in self._shared.values():
            if shared.node is not None:
                return shared.node.mutex_statistics(name)
        from softmutex.runtime.statistics import MutexStatistics  # slow to make

        return MutexStatistics.nothing(name)
