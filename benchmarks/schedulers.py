"""What turns add between two transfers, under each scheduler, beside the scheduler's own limit of one.

    python benchmarks/schedulers.py [slurm celery apscheduler dask]

Ten transfers of one second over two workers. `gap`: from the end of a transfer to the beginning of the next one, as the
transfers themselves saw it. The same run measures both. Slurm needs root and Debian's slurmctld and slurmd, Celery
needs redis-server; what is missing is said and left out. HTCondor: benchmarks/condor.py.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.schedulers.contract import transfer, visits, wait_until  # noqa: E402 from the source tree

JOBS = 10
TRANSFER_S = 1.0
servers = ExitStack()  # closed at the end
kept: dict[str, Any] = {}
Submit = Callable[[int], Any]
Way = Callable[[Path], AbstractContextManager[Submit]]


def measure(way: Way) -> list[float]:
    """The gaps, in order. `way` gives a function that submits one job for worker 0 or 1."""
    with tempfile.TemporaryDirectory() as here:
        log = Path(here) / "visits"
        with way(log) as submit:
            for number in range(JOBS):
                submit(number % 2)
            wait_until(lambda: len(visits(log)) == JOBS, "the transfers do not end", patience_s=180)
        return [two.begin - one.end for one, two in pairwise(visits(log))]


@contextmanager
def slurm_turns(log: Path, held: bool = False) -> Iterator[Submit]:
    from tests.schedulers import test_slurm

    with slurm(log, "") as cluster:
        releaser = test_slurm.start_releaser(cluster) if held else None
        site = test_slurm.SlurmSite(cluster, log, held)
        yield lambda worker: site.submit(worker, TRANSFER_S)
        if releaser is not None:
            test_slurm.stop(releaser)


@contextmanager
def slurm_held(log: Path) -> Iterator[Submit]:
    with slurm_turns(log, held=True) as submit:
        yield submit


@contextmanager
def slurm_licenses(log: Path) -> Iterator[Submit]:
    with slurm(log, "Licenses=ftp:1") as cluster:
        command = f"{sys.executable} -c 'import sys; from tests.schedulers.contract import transfer;"
        command += f' transfer("{log}", {TRANSFER_S})\''
        yield lambda worker: cluster.run(
            "sbatch", "--licenses=ftp:1", "--chdir", str(ROOT), "--output=/dev/null", "--wrap", command
        )


@contextmanager
def slurm(log: Path, more: str) -> Iterator[Any]:
    from importlib.resources import files

    from tests.schedulers.slurm_cluster import Cluster

    lua = files("softmutex_adapters.schedulers.slurm").joinpath("job_submit.lua").read_text()
    os.environ["SOFTMUTEX_GROUP"] = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    cluster = Cluster(log.parent, lua)
    cluster.conf.write_text(cluster.conf.read_text() + more + "\n")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def celery_turns(log: Path) -> Iterator[Submit]:
    with celery(log, 2) as (site, tasks):
        yield lambda worker: site.send(tasks.usual, worker, str(log), TRANSFER_S)


@contextmanager
def celery_one_process(log: Path) -> Iterator[Submit]:
    with celery(log, 1) as (site, tasks):
        yield lambda worker: site.send(tasks.unguarded, 0, str(log), TRANSFER_S)


@contextmanager
def celery(log: Path, processes: int) -> Iterator[Any]:
    from tests.schedulers import test_celery

    if "celery" not in kept:  # an application has one broker in its life
        here = servers.enter_context(tempfile.TemporaryDirectory())
        kept["celery"] = servers.enter_context(test_celery.redis_server(Path(here)))
    site = test_celery.CelerySite(kept["celery"], log, "prefork", processes)
    try:
        site.wait_until_ready()
        yield site, kept["celery"]
    finally:
        site.close()


@contextmanager
def apscheduler_turns(log: Path) -> Iterator[Submit]:
    from tests.schedulers.lines import line_site

    environ = {**os.environ, "SOFTMUTEX_GROUP": f"bench-{os.getpid()}-{time.monotonic_ns()}"}
    with line_site("tests.schedulers.apscheduler_worker", ["threads", str(log)], environ) as site:
        yield lambda worker: site.submit(worker, TRANSFER_S)


@contextmanager
def apscheduler_one_thread(log: Path) -> Iterator[Submit]:
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler(executors={"default": ThreadPoolExecutor(1)})
    scheduler.start()
    yield lambda worker: scheduler.add_job(transfer, args=[str(log), TRANSFER_S], misfire_grace_time=None)
    scheduler.shutdown()


@contextmanager
def dask_turns(log: Path, resources: dict[str, int] | None = None) -> Iterator[Submit]:
    from distributed import Client, LocalCluster
    from softmutex_adapters.schedulers.dask import SoftMutexPlugin

    from tests.schedulers.test_dask import plain

    os.environ["SOFTMUTEX_GROUP"] = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    workers = 1 if resources else 2
    more = {"resources": resources} if resources else {}
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=2, dashboard_address="127.0.0.1:0", silence_logs=50, **more
        ) as here,
        Client(here) as client,
    ):
        futures: list[Any] = []
        if resources:
            yield lambda worker: futures.append(
                client.submit(transfer, str(log), TRANSFER_S, pure=False, resources=resources)
            )
        else:
            client.register_plugin(SoftMutexPlugin())
            names = sorted(client.scheduler_info()["workers"])
            yield lambda worker: futures.append(
                client.submit(plain, str(log), TRANSFER_S, None, pure=False, workers=[names[worker]])
            )


@contextmanager
def dask_resources(log: Path) -> Iterator[Submit]:
    with dask_turns(log, {"ftp": 1}) as submit:
        yield submit


WAYS: dict[str, tuple[tuple[str, ...], list[tuple[str, Way]]]] = {
    "slurm": (
        ("slurmctld", "slurmd", "munged"),
        [("wrapped in the job", slurm_turns), ("held until its turn", slurm_held), ("licenses=1", slurm_licenses)],
    ),
    "celery": (("redis-server",), [("in turn", celery_turns), ("one worker process", celery_one_process)]),
    "apscheduler": ((), [("in turn", apscheduler_turns), ("max_workers=1", apscheduler_one_thread)]),
    "dask": ((), [("in turn", dask_turns), ("resources=1", dask_resources)]),
}


def main() -> int:
    with servers:
        return measure_all(sys.argv[1:] or list(WAYS))


def measure_all(wanted: list[str]) -> int:
    print(f"{JOBS} transfers of {TRANSFER_S:g} s, two workers; gaps between transfers in seconds")
    print(f"{'':32}{'median':>8}{'largest':>9}{'overlaps':>10}")
    for name in wanted:
        if name not in WAYS:
            sys.stderr.write(f"there is no {name!r} here (there are {', '.join(WAYS)})\n")
            return 64
        needs, ways = WAYS[name]
        if missing := [need for need in needs if not shutil.which(need)]:
            print(f"{name:32}left out: no {', '.join(missing)} here")
            continue
        for words, way in ways:
            gaps = sorted(measure(way))
            over = sum(gap < 0 for gap in gaps)
            print(f"{name + ', ' + words:32}{gaps[len(gaps) // 2]:8.2f}{gaps[-1]:9.2f}{over:10}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
