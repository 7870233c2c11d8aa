"""Where many runs are done: here, in several processes, or on a Dask cluster. What comes out is the same.

    Here()                          one after the other
    Processes(4)                    four processes of this machine
    on("tcp://scheduler:8786")      the workers of a cluster: they need this softmutex, and no files

Results come in the order of the calls, wherever they were done and whatever finished first, so that what is printed
of them is equal to the byte. A worker of the cluster that dies costs nothing: what it did, and had not been fetched
from it, another one does again; only a call that outlives no worker is an error. Who joins late gets work at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from softmutex.core.errors import ConfigError

AHEAD = 3  # calls that wait for each worker
PATIENCE_S = 10  # with a scheduler that does not answer

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound="Ended")
Call: TypeAlias = tuple[Callable[..., T], tuple[Any, ...]]


class Ended(Protocol):
    def done(self) -> bool: ...


class Engine(Protocol):
    def run(self, calls: Iterator[Call[T]]) -> Iterator[T]:
        """Their results, in their order. A call is taken from `calls` soon before it is begun."""
        ...


def map_on(engine: Engine, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    return engine.run((work, (item,)) for item in items)


class InThisProcess:
    def run(self, calls: Iterator[Call[T]]) -> Iterator[T]:
        return (call(*arguments) for call, arguments in calls)


class Processes:
    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, calls: Iterator[Call[T]]) -> Iterator[T]:
        with ProcessPoolExecutor(self._jobs, multiprocessing.get_context("spawn")) as pool:

            def begin(call: Call[T]) -> Future[T]:
                return pool.submit(call[0], *call[1])

            wait_for = functools.partial(wait, return_when=FIRST_COMPLETED)
            try:
                for future in in_order(calls, deque(), begin, wait_for, lambda: self._jobs):
                    yield future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def in_order(
    calls: Iterator[Call[Any]],
    begun: deque[F],
    begin: Callable[[Call[Any]], F],
    wait_for: Callable[[list[F]], object],
    at_once: Callable[[], int],
) -> Iterator[F]:
    """Each call when it is done. That all which were begun are done is no end: they may have been few, and quick."""
    while True:
        room = at_once() * AHEAD - len(unfinished(begun))
        begun.extend(map(begin, islice(calls, max(room, 0))))
        if not begun:
            return
        while begun and begun[0].done():
            yield begun.popleft()
        if running := unfinished(begun):
            wait_for(running)


def unfinished(begun: Iterable[F]) -> list[F]:
    return [future for future in begun if not future.done()]


def side_by_side(jobs: int) -> Engine:
    return InThisProcess() if jobs == 1 else Processes(jobs)


# --- a cluster -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on(address: str | None, jobs: int = 1, patience_s: float = PATIENCE_S) -> Iterator[Engine]:
    """The cluster whose scheduler listens there; without one, so many processes here."""
    if address is None:
        if jobs < 1:
            raise ConfigError(f"--jobs is {jobs}: give the number of cores to use, 1 or more")
        yield side_by_side(jobs)
        return
    try:
        import distributed
    except ImportError:
        raise ConfigError("--on needs Dask: pip install 'softmutex[dask]', here and for each worker") from None
    try:
        connect: Any = distributed.Client  # it comes with half of its types
        client = connect(address, timeout=patience_s, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"--on {address}: no Dask scheduler answers there ({error or type(error).__name__}). Start one with "
            "`dask scheduler`, and `dask worker` with its address, or name another"
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise ConfigError(f"--on {address}: that scheduler has no workers. Start some: `dask worker {address}`")
        yield Dask(client)


class Dask:
    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, calls: Iterator[Call[T]]) -> Iterator[T]:
        import distributed

        wait: Any = distributed.wait
        begun: deque[Any] = deque()

        def begin(call: Call[T]) -> Any:
            return self._client.submit(same_code, code(), *call, pure=False)

        def wait_for(running: list[Any]) -> None:  # one that was done is not, if its worker died with the result
            with self._client.as_current():
                wait(running, return_when="FIRST_COMPLETED")

        try:
            yield from map(self._result, in_order(calls, begun, begin, wait_for, self._threads))
        finally:
            for future in begun:
                future.cancel()

    def _threads(self) -> int:
        threads: int = sum(self._client.nthreads().values())
        return max(1, threads)

    def _result(self, future: Any) -> Any:
        from distributed.scheduler import KilledWorker

        try:
            return future.result()
        except KilledWorker as error:
            raise ConfigError(f"this outlived no worker, for want of memory perhaps: {error}") from error


def same_code(expected: str, call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """The same answer comes of the same code only."""
    if code() != expected:
        raise ConfigError("a worker has another softmutex than you: install the same one for all, and start them anew")
    return call(*arguments)


@functools.cache
def code() -> str:
    """A digest of what a run depends on."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for room in ("core", "sim"):
        for file in sorted((package / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
