"""What becomes of the turns of tasks and pods when something happens: Celery, Dask, the wiring of Kubernetes.

    python benchmarks/worker_faults.py celery|dask|kubernetes [--only "is killed" ...]

Beside each the scheduler's own limit of one, where it has one, in the same run: for Celery a queue of its own with a
worker of one process, for Dask its `Semaphore`. A holds, B and then C wait; something happens. Told is how long after A
was over (or after the fault, where A did not end) the next one came in, in which order, and who never did. Celery needs
redis-server; Kubernetes root, ip and unshare (namespaces stand for pods, tests/schedulers/pods.py).
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.schedulers.contract import have_come, may_end, transfer, visits, wait_until  # noqa: E402 from the source tree

SHORT_S, LONG_S, PATIENCE_S, LOST_AFTER_S = 0.3, 600.0, 100.0, 60.0
TURN, OWN = "in turn", "its own limit"


class Place(NamedTuple):
    """Where a worker runs: what its command is preceded by, and what it finds in its environment."""

    prefix: Sequence[str] = ()
    environ: Mapping[str, str] = {}


HERE: Sequence[Place] = (Place(), Place())
LOCALHOST = "127.0.0.1"


class NotHere(Exception):
    """There is no such thing under this scheduler, or in this way to take turns."""


class Site:
    """One scheduler, one way to take turns. Each job has a log of its own, named as it is."""

    ways: ClassVar[tuple[str, ...]] = (TURN, OWN)

    def __init__(self, way: str, here: Path) -> None:
        self.way, self.here = way, here
        self.names: list[str] = []

    def log(self, name: str) -> Path:
        return self.here / name

    def submit(self, name: str, seconds: float = SHORT_S, limit_s: float | None = None, after: str = "") -> None:
        self.names.append(name)
        self.start(name, seconds, limit_s, after)

    def came(self, since_s: float) -> list[tuple[float, str]]:
        """Who came in, and when, in that order."""
        found = []
        for name in self.names:
            lines = self.log(name).read_text().split("\n") if self.log(name).exists() else []
            found += [(float(line.split()[1]), name) for line in lines if line.startswith("in ")]
        return sorted(each for each in found if each[0] >= since_s)

    def end(self, name: str) -> float:
        """In good order; when it was over."""
        may_end(self.log(name)).touch()
        wait_until(lambda: visits(self.log(name)), f"{name} does not end")
        return visits(self.log(name))[-1].end

    def most_at_once(self, *but: str) -> int:
        """Of those that came to their end, but those that take no turn."""
        seen = [visit for name in self.names if name not in but for visit in visits(self.log(name))]
        return max((sum(other.begin <= one.begin < other.end for other in seen) for one in seen), default=0)

    # what each scheduler has of its own

    def start(self, name: str, seconds: float, limit_s: float | None, after: str) -> None:
        raise NotImplementedError

    def cancel(self, name: str) -> None:
        raise NotHere

    def kill_process(self, name: str) -> None:
        raise NotHere

    def kill_worker(self, name: str, is_replaced: bool = True) -> None:
        raise NotHere

    def stop_worker(self, name: str) -> None:
        raise NotHere

    def restart_broker(self, number: signal.Signals) -> None:
        raise NotHere


# --- the faults -------------------------------------------------------------------------------------------------------


def setting(site: Site, limit_s: float | None = None) -> None:
    site.submit("A", LONG_S, limit_s)
    wait_until(lambda: have_come(site.log("A")), "A does not come in")
    for name in "BC":
        site.submit(name)
        time.sleep(1.0)  # so that it is clear who asked first


def told(site: Site, since_s: float, *but: str, early_s: float = 0.0) -> str:
    """Some seconds after all of them, or LOST_AFTER_S, so that what is run twice is seen, too."""
    deadline = time.monotonic() + LOST_AFTER_S
    wanted = [name for name in site.names if name not in but]
    while time.monotonic() < deadline and not all(visits(site.log(name)) for name in wanted):
        time.sleep(0.05)
    time.sleep(2.0)
    came = site.came(since_s - early_s)
    gap = f"{max(0.0, came[0][0] - since_s):.2f} s, {' '.join(name for _, name in came)}" if came else "nobody"
    lost = [name for name in site.names if not visits(site.log(name)) and name not in but]
    over = site.most_at_once("D")
    return gap + (f"; lost {' '.join(lost)}" if lost else "") + (f"; {over} at once" if over > 1 else "")


def orderly(site: Site) -> str:
    setting(site)
    return told(site, site.end("A"))


def happens_to_a(act: Callable[[Site], None]) -> Callable[[Site], str]:
    """... and ends it. Where it is run once more it is short."""

    def story(site: Site) -> str:
        setting(site)
        at = time.monotonic()
        act(site)
        may_end(site.log("A")).touch()
        return told(site, at)

    return story


def b_is_cancelled(site: Site) -> str:
    setting(site)
    site.cancel("B")
    time.sleep(1.0)
    return told(site, site.end("A"), "B")


def b_is_killed(how: Callable[[Site], None], *but: str) -> Callable[[Site], str]:
    def story(site: Site) -> str:
        setting(site)
        how(site)
        time.sleep(1.0)
        return told(site, site.end("A"), *but)

    return story


def out_of_time(site: Site) -> str:
    """From the limit on, which counts from when A was taken up: a little before it came in."""
    setting(site, limit_s=8.0)
    return told(site, site.came(0.0)[0][0] + 8.0, "A", early_s=1.0)


def broker(number: signal.Signals) -> Callable[[Site], str]:
    def story(site: Site) -> str:
        setting(site)
        site.restart_broker(number)
        time.sleep(1.0)
        return told(site, site.end("A"))

    return story


def four_at_once(site: Site) -> str:
    for number in range(1, 5):
        site.submit(f"A{number}")
    said = told(site, 0.0)
    seen = sorted(visit for name in site.names for visit in visits(site.log(name)))
    gaps = sorted(two.begin - one.end for one, two in pairwise(seen))
    return f"{gaps[len(gaps) // 2]:.2f} s, {said.partition(', ')[2]}" if gaps else said


def a_dependency(site: Site) -> str:
    """B waits for D, which takes no turn and ends after C."""
    site.submit("A", LONG_S)
    wait_until(lambda: have_come(site.log("A")), "A does not come in")
    site.submit("B", after="D")
    time.sleep(1.0)
    site.submit("C")
    time.sleep(1.0)
    at = site.end("A")
    wait_until(lambda: visits(site.log("C")), "C does not come in")
    may_end(site.log("D")).touch()
    return told(site, at)


FAULTS: dict[str, Callable[[Site], str]] = {
    "A ends in good order": orderly,
    "A's process is killed (SIGKILL)": happens_to_a(lambda site: site.kill_process("A")),
    "B's process is killed (SIGKILL) while it waits": b_is_killed(lambda site: site.kill_process("B")),
    "B's worker is killed while B and C wait, and started again": b_is_killed(lambda site: site.kill_worker("B")),
    "A's worker is killed, whole, and started again": happens_to_a(lambda site: site.kill_worker("A")),
    "A's worker is lost with its host": happens_to_a(lambda site: site.kill_worker("A", is_replaced=False)),
    "A's worker ends in good order": happens_to_a(lambda site: site.stop_worker("A")),
    "A is cancelled": happens_to_a(lambda site: site.cancel("A")),
    "B is cancelled while it waits": b_is_cancelled,
    "A is out of time": out_of_time,
    "four at once": four_at_once,
    "B waits for another one": a_dependency,
    "the broker is restarted in good order": broker(signal.SIGTERM),
    "the broker is killed and restarted": broker(signal.SIGKILL),
}


# --- Celery -----------------------------------------------------------------------------------------------------------


class Redis:
    """Remembers what it was told, also when it is killed."""

    def __init__(self, here: Path, address: str = LOCALHOST) -> None:
        with socket.create_server((address, 0)) as free:
            self.port = free.getsockname()[1]
        self._here, self._address = here, address
        self.start()

    def start(self) -> None:
        words = ["--port", str(self.port), "--bind", self._address, "--save", "", "--dir", str(self._here)]
        words += [] if self._address == LOCALHOST else ["--protected-mode", "no"]  # in a network of its own
        self._process = subprocess.Popen(
            ["redis-server", *words, "--appendonly", "yes", "--appendfsync", "always"], stdout=subprocess.DEVNULL
        )
        wait_until(self.answers, "redis does not answer")

    def answers(self) -> bool:
        try:
            socket.create_connection((self._address, self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)


class CelerySite(Site):
    """A is with one worker, the others with a second one; its own limit: all with a worker of one process."""

    def __init__(self, way: str, here: Path, redis: Redis, tasks: Any, places: Sequence[Place]) -> None:
        from tests.schedulers.test_celery import CelerySite as Workers

        super().__init__(way, here)
        self._redis, self._tasks = redis, tasks
        self._results: dict[str, Any] = {}
        processes = 2 if way == TURN else 1
        self.workers = Workers(tasks, here / "workers-log", "prefork", processes, places, VISIBILITY_TIMEOUT="10")
        try:
            self.workers.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def start(self, name: str, seconds: float, limit_s: float | None, after: str) -> None:
        task = self._tasks.usual if self.way == TURN else self._tasks.unguarded
        first, second = self.workers.queues
        queue = second if self.way == TURN and name != "A" else first
        wish = task.si(str(self.log(name)), seconds).set(queue=queue, soft_time_limit=limit_s)
        if after:
            self.names.append(after)
            wish = self._tasks.unguarded.si(str(self.log(after)), LONG_S).set(queue=second) | wish
        self._results[name] = wish.apply_async()

    def cancel(self, name: str) -> None:
        self._results[name].revoke(terminate=True)

    def kill_process(self, name: str) -> None:
        active = self._tasks.app.control.inspect().active()
        running = [each for tasks in active.values() for each in tasks if each["id"] == self._results[name].id]
        if not running:
            raise NotHere  # it waits at the broker
        os.kill(running[0]["worker_pid"], signal.SIGKILL)

    def kill_worker(self, name: str, is_replaced: bool = True) -> None:
        if self.way == OWN and name == "B":
            raise NotHere  # all are with one worker
        number = 0 if name == "A" else 1
        self.workers.kill(number)
        if is_replaced:
            self.workers.replace(number)

    def stop_worker(self, name: str) -> None:
        """It waits for the task that runs. A second one is there already."""
        self.workers.stop(0)
        self.workers.replace(0)

    def restart_broker(self, number: signal.Signals) -> None:
        self._redis.stop(number)
        time.sleep(1.0)
        self._redis.start()
        wait_until(self._is_heard, "nobody answers by way of the broker")

    def close(self) -> None:
        self._results.clear()  # while the broker is there, which results would ask in vain
        self.workers.close()

    def _is_heard(self) -> bool:
        try:
            return bool(self._tasks.app.control.ping(timeout=0.5))
        except Exception:  # the connection of this process is as old as the broker that is gone
            return False


@contextmanager
def celery_sites(address: str = LOCALHOST) -> Iterator[Callable[..., AbstractContextManager[Site]]]:
    with tempfile.TemporaryDirectory() as name:
        redis = Redis(Path(name), address)
        os.environ["REDIS_URL"] = f"redis://{address}:{redis.port}/0"
        tasks = importlib.import_module("tests.schedulers.celery_app")

        @contextmanager
        def made(way: str, here: Path, places: Sequence[Place] = HERE) -> Iterator[Site]:
            site = CelerySite(way, here, redis, tasks, places)
            try:
                yield site
            finally:
                site.close()

        try:
            yield made
        finally:
            redis.stop()


# --- Dask -------------------------------------------------------------------------------------------------------------


def in_turn(log: str, seconds: float, *_: Any) -> None:
    from softmutex_adapters.schedulers.dask import turn

    from tests.schedulers.contract import transfer

    with turn("transfers"):
        transfer(log, seconds)


def by_semaphore(log: str, seconds: float, *_: Any) -> None:
    from distributed import Semaphore

    from tests.schedulers.contract import transfer

    with Semaphore(max_leases=1, name="transfers"):  # type: ignore[no-untyped-call]
        transfer(log, seconds)


class DaskSite(Site):
    """A scheduler and two workers of two threads, each a process; a nanny starts its worker again."""

    def __init__(self, way: str, here: Path, address: str, places: Sequence[Place]) -> None:
        from distributed import Client
        from softmutex_adapters.schedulers.dask import SoftMutexPlugin

        super().__init__(way, here)
        self._address = address
        with socket.create_server((address, 0)) as free:
            self._port = free.getsockname()[1]
        environ = {"SOFTMUTEX_GROUP": here.name, "SOFTMUTEX_WHEN_ISOLATED": "proceed", "PYTHONPATH": str(ROOT)}
        self._environ = {**os.environ, **environ}
        self._scheduler = self._start_scheduler()
        url = f"tcp://{address}:{self._port}"
        self._workers = [
            self._run("worker", url, "--name", f"w{number}", "--nthreads", "2", place=place)
            for number, place in enumerate(places)
        ]
        self._client: Any = Client(url, timeout=PATIENCE_S)  # type: ignore[no-untyped-call]
        self._client.wait_for_workers(2, timeout=PATIENCE_S)
        self._futures: dict[str, Any] = {}
        if way == TURN:
            try:
                self._client.register_plugin(SoftMutexPlugin())
            except BaseException:
                self.close()
                raise

    def _run(self, what: str, *words: str, place: Place = HERE[0]) -> subprocess.Popen[bytes]:
        command = [*place.prefix, sys.executable, "-m", f"distributed.cli.dask_{what}", *words, "--no-dashboard"]
        with (self.here / f"{what}.out").open("ab") as out:
            environ = {**self._environ, **place.environ}
            return subprocess.Popen(command, cwd=self.here, env=environ, stdout=out, stderr=out)

    def _start_scheduler(self) -> subprocess.Popen[bytes]:
        return self._run("scheduler", "--host", self._address, "--port", str(self._port))

    def start(self, name: str, seconds: float, limit_s: float | None, after: str) -> None:
        if limit_s is not None:
            raise NotHere
        where = ["w0" if name == "A" else "w1"]
        needs = []
        if after:
            self.names.append(after)
            needs = [self._client.submit(transfer, str(self.log(after)), LONG_S, key=after, workers=["w0"])]
            self._futures[after] = needs[0]
        self._futures[name] = self._client.submit(
            in_turn if self.way == TURN else by_semaphore, str(self.log(name)), seconds, *needs,
            key=f"{name}-{time.monotonic_ns()}", workers=where, allow_other_workers=True,
        )  # fmt: skip

    def _worker(self, name: str = "w0") -> tuple[str, int]:
        told = self._client.scheduler_info()["workers"].items()
        (found,) = (address for address, each in told if each["name"] == name)
        return found, self._client.run(os.getpid, workers=[found])[found]

    def cancel(self, name: str) -> None:
        self._futures[name].cancel()

    def kill_worker(self, name: str, is_replaced: bool = True) -> None:
        number = 0 if name == "A" else 1
        worker = self._worker(f"w{number}")[1]
        if not is_replaced:
            self._workers[number].kill()  # its nanny
        os.kill(worker, signal.SIGKILL)

    def stop_worker(self, name: str) -> None:
        self._client.retire_workers([self._worker()[0]])

    def restart_broker(self, number: signal.Signals) -> None:
        self._scheduler.send_signal(number)
        self._scheduler.wait(PATIENCE_S)
        self._scheduler = self._start_scheduler()

    def close(self) -> None:
        with ExitStack() as stack:
            for process in (self._scheduler, *self._workers):
                stack.callback(process.wait, PATIENCE_S)
                stack.callback(process.kill)
            stack.callback(lambda: self._client.close(timeout=5))
            for each in self._workers:
                each.terminate()  # the nanny takes its worker along
            time.sleep(2.0)


@contextmanager
def dask_sites(address: str = LOCALHOST) -> Iterator[Callable[..., AbstractContextManager[Site]]]:
    @contextmanager
    def made(way: str, here: Path, places: Sequence[Place] = HERE) -> Iterator[Site]:
        site = DaskSite(way, here, address, places)
        try:
            yield site
        finally:
            site.close()

    yield made


# --- Kubernetes -------------------------------------------------------------------------------------------------------


class PodSite(Site):
    """The CronJob of examples/kubernetes, once for each."""

    ways = (TURN,)

    def __init__(self, way: str, here: Path, pods: Any) -> None:
        super().__init__(way, here)
        self._pods = pods
        self._started: dict[str, tuple[int, Any]] = {}
        pods.serve(2, 3, 4, 5)

    def start(self, name: str, seconds: float, limit_s: float | None, after: str) -> None:
        if limit_s is not None or after:
            raise NotHere
        how = "finishes" if seconds == LONG_S else "is short"
        code = f"from tests.schedulers.pods import on_sigterm; on_sigterm({str(self.log(name))!r}, {how!r})"
        number = 2 + len(self._started)
        self._started[name] = number, self._pods.start(number, "cronjob.yaml", sys.executable, "-c", code)

    def cancel(self, name: str) -> None:
        """`kubectl delete pod`: it may finish in its grace period."""
        self._started[name][1].delete(30.0)

    def kill_worker(self, name: str, is_replaced: bool = True) -> None:
        """Its node is lost: the service lists it no more. It is not started again."""
        if is_replaced:
            raise NotHere
        self._started[name][1].kill()
        self.names.remove(name)
        self._pods.serve(*(number for each, (number, _) in self._started.items() if each != name))


@contextmanager
def pod_sites() -> Iterator[Callable[[str, Path], AbstractContextManager[Site]]]:
    from tests.schedulers.pods import cluster

    @contextmanager
    def made(way: str, here: Path) -> Iterator[Site]:
        with cluster(here, here / "log") as pods:
            yield PodSite(way, here, pods)

    yield made


# --- the run ----------------------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, tuple[type[Site], Callable[..., AbstractContextManager[Any]], tuple[str, ...]]] = {
    "celery": (CelerySite, celery_sites, ("redis-server",)),
    "dask": (DaskSite, dask_sites, ()),
    "kubernetes": (PodSite, pod_sites, ("ip", "unshare")),
}


def cell(made: Callable[[str, Path], AbstractContextManager[Site]], way: str, story: Callable[[Site], str]) -> str:
    with tempfile.TemporaryDirectory() as here, made(way, Path(here)) as site:
        try:
            return story(site)
        except NotHere:
            return "-"
        except (AssertionError, OSError) as error:
            return f"**{str(error)[:90]}**"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scheduler", choices=SCHEDULERS)
    parser.add_argument("--only", nargs="+", help="faults, by a part of their words")
    arguments = parser.parse_args()
    kind, sites, needs = SCHEDULERS[arguments.scheduler]
    if missing := [need for need in needs if not shutil.which(need)]:
        sys.stderr.write(f"left out: no {', '.join(missing)} here\n")
        return 1
    only = arguments.only or [""]
    print(f"| what happens | {' | '.join(kind.ways)} |\n| --- |{' --- |' * len(kind.ways)}", flush=True)
    with sites() as made:
        for name, story in FAULTS.items():
            if any(words in name for words in only):
                cells = [cell(made, way, story) for way in kind.ways]
                if set(cells) != {"-"}:
                    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
