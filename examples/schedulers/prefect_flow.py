"""Prefect: the mutex around the transfer in a task. Prefect's own limits end at its server; this is for all of them.

    python prefect_flow.py DIRECTORY

A turn that does not come in time (AcquireTimeout) fails the run of the task, and Prefect tries it again (`retries`).
"""

import sys
import time
from pathlib import Path

from prefect import flow, task

from softmutex import sync


@task(retries=50, retry_delay_seconds=5)
def fetch(path: str) -> None:
    with sync.SoftMutex("nightly-ftp", timeout=10):
        with open(path, "a") as log:
            log.write("in\n")
        time.sleep(0.1)  # the transfer
        with open(path, "a") as log:
            log.write("out\n")


@flow
def nightly(directory: str, files: int = 2) -> None:
    fetch.map([str(Path(directory, "visits"))] * files).result()


if __name__ == "__main__":
    nightly(sys.argv[1])
