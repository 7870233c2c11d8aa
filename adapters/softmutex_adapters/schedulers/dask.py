"""Dask distributed: one node for each worker, and turns for the tasks that run there.

    client.register_plugin(SoftMutexPlugin(membership="mdns://lab"))

    def fetch(url):                              async def fetch(url):
        with turn("nightly-ftp", slots=2):           async with turn("nightly-ftp", slots=2):
            ...                                          ...

What it decides: who waits occupies no thread of the worker. The naive way, a lock that is waited for in the pool, fills
all threads with tasks that wait, and the one task that all wait for finds none. A plain task *secedes*: its thread
leaves the pool, another takes its place, and the transfer itself runs beside the pool, too (it waits for the network,
not for a core; to come back it would have to wait for a free thread while it holds the mutex). `secede=False` stays in
the pool. An async task waits on the worker's loop anyway.

The node lives on the softmutex thread, not on the worker's loop: a worker that is busy with communication does not look
dead. A worker that is killed is replaced in the mutex within seconds, like any other member.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from softmutex import Hold, Node, SoftMutexError, sync
from softmutex.runtime.blocking import BlockingMutex
from softmutex.runtime.options import read_mutex_options

PLUGIN = "softmutex"


class SoftMutexPlugin(WorkerPlugin):
    """Hosts the node. The options are those of `Node`; what is not given, the worker's environment says."""

    name = PLUGIN
    idempotent = True

    def __init__(self, **options: Any) -> None:
        self._options = options

    async def setup(self, worker: Any) -> None:
        self.node = Node(**{"name": f"dask-{worker.name}"[:60], "thread": True, **self._options})
        await self.node.open()

    async def teardown(self, worker: Any) -> None:
        await self.node.close()


class turn:  # noqa: N801 reads as a word: `with turn("nightly-ftp")`
    """A hold for the task that runs now, plain or async. The options are those of `Node.mutex`."""

    def __init__(self, name: str, *, secede: bool = True, **options: Any) -> None:
        self._name = name
        self._secede = secede
        self._options = options
        self._mutex: Any = None

    def __enter__(self) -> sync.Hold:
        self._mutex = BlockingMutex(self._name, node_of_this_worker(), read_mutex_options(self._options))
        if self._secede:
            distributed.secede()  # type: ignore[no-untyped-call]
        hold: sync.Hold = self._mutex.__enter__()
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._mutex.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Hold:
        self._mutex = node_of_this_worker().mutex(self._name, **self._options)
        hold: Hold = await self._mutex.__aenter__()
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._mutex.__aexit__(kind, error, traceback)


def node_of_this_worker() -> Node:
    plugin = distributed.get_worker().plugins.get(PLUGIN)
    if not isinstance(plugin, SoftMutexPlugin):
        raise SoftMutexError(
            "this worker has no softmutex node. Register it once: client.register_plugin(SoftMutexPlugin(...))."
        )
    return plugin.node
