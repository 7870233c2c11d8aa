"""Airflow: tasks in turn, a long wait takes no worker slot. Airflow's pools end at its database; this does not.

    airflow dags trigger nightly --conf '{"directory": "/var/lib/mirror"}'

A task waits a short while in its slot, and is then put off as a sensor in `mode="reschedule"` is: the slot is free, and
that costs none of the task's `retries`. After `execution_timeout` of one try or `dagrun_timeout` it fails as any other.
"""

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.decorators import dag, task
from airflow.exceptions import AirflowRescheduleException

from softmutex import AcquireTimeout, sync


def in_turn(name: str, wait: float = 10, again_after: float = 5, **options: Any) -> Callable[[Any], Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as turn:
                try:
                    turn.enter_context(sync.SoftMutex(name, timeout=wait, **options))
                except AcquireTimeout:
                    later = datetime.now(UTC) + timedelta(seconds=again_after)
                    raise AirflowRescheduleException(later) from None
                return function(*args, **kwargs)

        return run

    return decorate


@dag(schedule=None, start_date=datetime(2024, 1, 1, tzinfo=UTC), dagrun_timeout=timedelta(hours=8))
def nightly() -> None:
    @task(retries=3)
    @in_turn("nightly-ftp")
    def fetch(number: int, dag_run: Any = None) -> None:
        path = Path(dag_run.conf["directory"], "visits")
        with path.open("a") as log:
            log.write("in\n")
        time.sleep(0.1)  # the transfer
        with path.open("a") as log:
            log.write("out\n")

    fetch.expand(number=[1, 2])


nightly()
