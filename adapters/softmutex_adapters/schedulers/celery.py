"""Celery: tasks that run only while they hold a soft mutex, and workers that host the agent for them.

    app.steps["worker"].add(SoftMutexAgent)

    @app.task(**in_turn("nightly-ftp", slots=2))
    def fetch(url): ...

What it decides: a task waits for its turn a short while only, and is then tried again later by Celery itself
(`self.retry(countdown=estimate)`), so that a worker of eight processes is not eight tasks that wait. That trying again
costs none of the task's own `max_retries`, and its place in the queue is kept by the agent for KEEP_S: among the tasks
of a host that are there when the turn comes, the one that waits longest has it.

    worker (main process): SoftMutexAgent, one node on a thread, a Unix socket
       '-- pool: processes, threads, solo --> task --> [its turn, `wait` s at most] --> the function
                                                          '--not yet--> retry(countdown); after `give_up` AcquireTimeout

A pool process that is killed (revoke with terminate, a hard time limit, the kernel) hangs up on the agent, which hands
the mutex on at once; a soft time limit is an exception in the body, and the `with` ends. Forked processes have no node
of their own: that is the worker's.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from celery import Task, bootsteps

from softmutex import AcquireTimeout, Node
from softmutex.agent.place import VARIABLE, AgentDoor
from softmutex.agent.server import serve
from softmutex.client import SoftMutex
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import check_name
from softmutex.runtime.options import SETTINGS, read_one, refuse_what_never_fits
from softmutex.saying import logger
from softmutex.values import duration_s

LEAST_S, MOST_S = 1.0, 50.0  # between two tries
KEEP_S: Final = 60.0  # that long its place in the queue is kept meanwhile
WEIGHT: Final = 0.2  # of the newest hold in the estimate
SINCE: Final = "softmutex_since"  # the header in which a task remembers when it first asked
START_PATIENCE_S: Final = 30.0
PREFIX: Final = "softmutex-celery-"
log = logger("celery")


def sweep() -> None:
    """Directories of workers that were killed: nobody listens there any more."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if left.stat().st_uid == os.geteuid() and time.time() - left.stat().st_mtime > START_PATIENCE_S:
                try:
                    probe.connect(str(left / "agent.sock"))
                except OSError:
                    shutil.rmtree(left, ignore_errors=True)


class SoftMutexAgent(bootsteps.StartStopStep):  # type: ignore[misc]
    """Hosts the agent in the worker's main process. `app.conf.softmutex_node` has the options of the `Node`, if any.

    An agent that SOFTMUTEX_AGENT names is used instead: one node for all workers of a host.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._node_options = dict(parent.app.conf.get("softmutex_node") or {})
        self._directory: str | None = None
        if VARIABLE not in os.environ:  # said before any pool process is forked
            self._directory = tempfile.mkdtemp(prefix=PREFIX)
            sweep()
            os.environ[VARIABLE] = os.path.join(self._directory, "agent.sock")
        self._ready = threading.Event()
        self._error: Exception | None = None

    def start(self, parent: Any) -> None:
        if self._directory is None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="softmutex agent", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_PATIENCE_S):
            raise SoftMutexError(f"the worker's node did not start in {START_PATIENCE_S:g} s.")
        if self._error is not None:
            raise self._error

    def stop(self, parent: Any) -> None:
        if self._directory is not None and self._error is None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()
        self._tidy()

    terminate = stop

    def _tidy(self) -> None:
        if self._directory is not None:
            os.environ.pop(VARIABLE, None)
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        try:
            node = Node(**{"name": f"celery-{os.getpid()}", **self._node_options})
            await node.open()
            door = AgentDoor(os.environ[VARIABLE])
        except Exception as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        try:
            await serve(node, door)
        except asyncio.CancelledError:
            log.info("the worker's agent has ended")


class SoftMutexTask(Task):  # type: ignore[misc]
    """The base of a task that takes turns. What is below may be set by `in_turn`, or in a class of one's own."""

    abstract = True
    mutex: str = ""
    mutex_options: ClassVar[dict[str, Any]] = {}
    mutex_wait: float = 5.0  # how long a worker waits for a turn before the task is tried again later
    mutex_give_up: float | None = None  # after that, since it first asked, the task fails with AcquireTimeout
    _usual_s: float = LEAST_S  # how long a hold takes, of late, in this process

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.time()
        since_s = float((self.request.headers or {}).get(SINCE) or began_s)
        left_s = None if self.mutex_give_up is None else max(0.0, since_s + self.mutex_give_up - began_s)
        wait_s = self.mutex_wait if left_s is None else min(self.mutex_wait, left_s)
        mutex = SoftMutex(self.mutex, timeout=wait_s, since=since_s, keep=KEEP_S, **self.mutex_options)
        try:
            hold = mutex.acquire()
        except AcquireTimeout:
            if self.request.called_directly or (left_s is not None and left_s <= wait_s):
                raise
            self.request.retries -= 1  # for `retry` adds one, and those are for the task's own failures
            raise self.retry(countdown=self._estimate_s(), max_retries=None, headers={SINCE: since_s}) from None
        with hold:
            entered_s = time.monotonic()
            try:
                return super().__call__(*args, **kwargs)
            finally:
                self._learn(time.monotonic() - entered_s)

    def _learn(self, hold_s: float) -> None:
        kind = type(self)
        kind._usual_s += WEIGHT * (hold_s - kind._usual_s)

    def _estimate_s(self) -> float:
        """About one hold later, and not all at the same moment."""
        return min(max(self._usual_s, LEAST_S), MOST_S) * random.uniform(0.5, 1.5)


def in_turn(
    name: str, *, wait: float | str = 5.0, give_up: float | str | None = None, **options: Any
) -> dict[str, Any]:
    """Keywords for `app.task`. The further options are those of the agent's clients: `slots`, `max_hold`, ...

    `ConfigError` where the task is defined, not in a worker at night.
    """
    SoftMutex(check_name(name), **options)  # refuses what no agent can be told
    given = {key: value for key, value in options.items() if key in SETTINGS and value is not None}
    refuse_what_never_fits({key: read_one(SETTINGS[key], value, "keyword") for key, value in given.items()})
    return {
        "base": SoftMutexTask,
        "mutex": name,
        "mutex_options": options,
        "mutex_wait": read_s("wait", wait),
        "mutex_give_up": None if give_up is None else read_s("give_up", give_up),
    }


def read_s(name: str, value: float | str) -> float:
    try:
        return duration_s(value)
    except ValueError as error:
        raise ConfigError(f"{name}={value!r}: {error}.") from None
