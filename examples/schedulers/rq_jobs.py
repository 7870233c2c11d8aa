"""RQ: a job that does not get its turn fails with AcquireTimeout, and RQ tries it again later, as it does with others.

    queue.enqueue(fetch, url, retry=Retry(max=50, interval=30))

Wait a short while only (RQ's worker runs one job at a time) and let RQ do the long waiting. RQ runs each job in a fork:
so the node is made where the job runs, by `sync.SoftMutex`.
"""

import time

from softmutex import sync


def fetch(path: str, seconds: float = 0.1) -> None:
    with sync.SoftMutex("nightly-ftp", timeout=5):
        with open(path, "a") as log:
            log.write("in\n")
        time.sleep(seconds)  # the transfer
        with open(path, "a") as log:
            log.write("out\n")
