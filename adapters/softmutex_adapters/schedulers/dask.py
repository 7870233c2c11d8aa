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

    thread of the task        [ waits for `granted` ...... | the body ......... | waits for the end ]
    worker's loop, `_host`    [ waits for the mutex        | holds it ..........| gives it back     ]
                                   ^ client.cancel: Dask tells the plug-in, which cancels the wait

A thread cannot be cancelled, so it waits by a task of the worker's loop, which can. A task that is cancelled while it
waits leaves the queue at once and ends with Dask's own `Reschedule`, which is forgotten with it, or runs it again where
somebody wants it again meanwhile.

The node lives on the softmutex thread, not on the worker's loop: a worker that is busy with communication does not look
dead. A worker that is killed is replaced in the mutex within seconds, like any other member.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

import distributed
from distributed import Reschedule
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.threadpoolexecutor import thread_state as pool_state
from distributed.worker import thread_state as task_state  # type: ignore[attr-defined]

from softmutex import Hold, Node, SoftMutexError
from softmutex.core.names import check_name
from softmutex.runtime.options import read_mutex_options
from softmutex.saying import logger

PLUGIN: Final = "softmutex"
UNREGISTERED: Final = (
    "this worker has no softmutex node. Register it once: client.register_plugin(SoftMutexPlugin(...)), before the "
    "plug-ins that take turns."
)
log = logger("dask")
set_up: WeakSet[SoftMutexPlugin] = WeakSet()  # those of the workers of this process
inside = threading.local()  # `names`: whose turn the task of this thread has


class SoftMutexPlugin(WorkerPlugin):
    """Hosts the node. The options are those of `Node`; what is not given, the worker's environment says."""

    name = PLUGIN
    idempotent = True

    def __init__(self, **options: Any) -> None:
        self._options = options

    async def setup(self, worker: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.node = Node(**{"name": f"dask-{worker.name}"[:60], "thread": True, **self._options})
        self._waiting: dict[str, set[asyncio.Task[Any]]] = {}
        self._cancelled: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.opened = asyncio.ensure_future(self.node.open())
        set_up.add(self)
        await asyncio.shield(self.opened)

    async def teardown(self, worker: Any) -> None:
        set_up.discard(self)
        await self.node.close()

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        """Dask cannot stop a task that runs, and marks it; one that waits for its turn can be stopped."""
        if start in ("executing", "long-running") and finish == "released":
            for task in self._waiting.get(repr(key), ()):
                self._cancelled.add(task)
                task.cancel()

    @contextmanager
    def waiting(self, key: str) -> Iterator[None]:
        """The asyncio task that runs now waits for the turn of the Dask task `key`."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.setdefault(key, set()).add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._cancelled:
                raise
            task.uncancel()
            raise Reschedule from None
        finally:
            self._waiting[key].discard(task)
            if not self._waiting[key]:
                del self._waiting[key]


class TaskHold:
    """What a plain task has in hand: the hold of its worker's node. `lost` is a `threading.Event`."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.lost = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hold, name)


class turn:  # noqa: N801 reads as a word: `with turn("nightly-ftp")`
    """A hold for the task that runs now, plain or async. The options are those of `Node.mutex`.

    `worker`: whose node it is; found by itself in tasks, and in plug-ins where this process has one worker.
    """

    def __init__(self, name: str, *, secede: bool = True, worker: Any = None, **options: Any) -> None:
        read_mutex_options(options)  # refused before the task leaves its worker's pool
        self._name = check_name(name)
        self._secede = secede
        self._worker = worker
        self._options = options

    # --- a plain task ---------------------------------------------------------------------------------------------

    def __enter__(self) -> TaskHold:
        plugin = self._plugin()
        self._refuse_what_would_never_end(plugin)
        if self._secede and getattr(pool_state, "proceed", False):  # False: it left the pool already
            distributed.secede()  # type: ignore[no-untyped-call]
        self._granted: Future[TaskHold] = Future()
        self._ended: Future[None] = Future()
        self._over = asyncio.Event()
        self._loop = plugin.loop
        key, context = repr(getattr(task_state, "key", None)), contextvars.copy_context()
        self._loop.call_soon_threadsafe(self._start, plugin, key, context)
        hold = self._granted.result()
        names_inside().add(self._name)
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        names_inside().discard(self._name)
        try:
            self._loop.call_soon_threadsafe(self._over.set)
        except RuntimeError:  # the worker has ended, and its node with it
            return
        try:
            self._ended.result()
        except SoftMutexError:  # HoldLost, where it was asked for
            if error is None:
                raise

    def _refuse_what_would_never_end(self, plugin: SoftMutexPlugin) -> None:
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is plugin.loop:
                raise SoftMutexError(
                    f"`with turn({self._name!r})` on the loop of the worker would stop it. "
                    "Write `async with turn(...)`, in an async task or in `async def setup` of a plug-in."
                )
        if self._name in names_inside():
            raise SoftMutexError(
                f"this task has its turn of {self._name!r} already: waiting for another would never end. "
                "Do the inner work under the outer turn."
            )

    def _start(self, plugin: SoftMutexPlugin, key: str, context: contextvars.Context) -> None:
        self._task = plugin.loop.create_task(self._host(plugin, key), name=f"turn of {key}", context=context)

    async def _host(self, plugin: SoftMutexPlugin, key: str) -> None:
        """On the worker's loop, for as long as the task needs it."""
        try:
            await asyncio.shield(plugin.opened)
            mutex = plugin.node.mutex(self._name, **self._options)
            with plugin.waiting(key):
                hold = await mutex.__aenter__()
        except BaseException as error:
            self._granted.set_exception(error)
            return
        shown = TaskHold(hold)
        telling = asyncio.create_task(tell_of_loss(hold, shown))
        self._granted.set_result(shown)
        cancelled = None
        try:
            await self._over.wait()
        except asyncio.CancelledError as error:  # on_lost="cancel": a thread cannot be, it is told when it is done
            cancelled = error
            await self._over.wait()
        telling.cancel()
        try:
            await mutex.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
        except SoftMutexError as lost:
            self._ended.set_exception(lost)
        else:
            self._ended.set_result(None)

    # --- an async task --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Hold:
        plugin = self._plugin()
        await asyncio.shield(plugin.opened)
        self._mutex = plugin.node.mutex(self._name, **self._options)
        task = asyncio.current_task()
        name = task.get_name() if task else ""  # Dask names it execute('key')
        with plugin.waiting(name.removeprefix("execute(").removesuffix(")")):
            return await self._mutex.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._mutex.__aexit__(kind, error, traceback)

    def _plugin(self) -> SoftMutexPlugin:
        worker = self._worker
        if worker is None:
            try:
                worker = distributed.get_worker()
            except ValueError:  # not in a task
                return the_only_one()
        plugin = worker.plugins.get(PLUGIN)
        if not isinstance(plugin, SoftMutexPlugin):
            raise SoftMutexError(UNREGISTERED)
        return plugin


async def tell_of_loss(hold: Hold, shown: TaskHold) -> None:
    await hold.lost.wait()
    shown.lost.set()


def names_inside() -> set[str]:
    if not hasattr(inside, "names"):
        inside.names = set()
    names: set[str] = inside.names
    return names


def the_only_one() -> SoftMutexPlugin:
    found = list(set_up)
    if not found:
        raise SoftMutexError(UNREGISTERED)
    if len(found) > 1:
        raise SoftMutexError(
            f"{len(found)} workers live in this process: say whose turn it is, turn(..., worker=worker)."
        )
    return found[0]
