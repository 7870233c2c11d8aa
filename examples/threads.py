"""Without asyncio: threads and subprocesses under a mutex. One background thread runs the node meanwhile."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from softmutex import sync

mutex = sync.SoftMutex("example-threads", timeout=30)


def copy(number: int) -> str:
    with mutex as hold:
        run = subprocess.run(
            [sys.executable, "-c", f"print('copy {number}')"], check=True, capture_output=True, text=True
        )
        return f"{run.stdout.strip()}: {'lost meanwhile' if hold.lost.is_set() else 'alone'}"


@mutex.guard()
def summary() -> str:
    return "all copied"


with ThreadPoolExecutor(4) as pool:
    for line in pool.map(copy, range(4)):
        print(line)
print(summary())
