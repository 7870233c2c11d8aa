"""dramatiq: a middleware opens one node for each worker process, and the actor takes its turn on it.

    dramatiq dramatiq_actors

An actor that does not get its turn in time raises AcquireTimeout, and dramatiq's own middleware tries it again later.
"""

import os
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from softmutex import sync

node = sync.Node.from_env(name="dramatiq-worker")  # a recipe only: nothing is open yet


class SoftMutexNode(dramatiq.Middleware):
    def after_process_boot(self, broker: Any) -> None:
        node.open()

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        node.close()


broker = RedisBroker(url=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
broker.add_middleware(SoftMutexNode())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=50, min_backoff=1000)
def fetch(path: str) -> None:
    with node.mutex("nightly-ftp").hold(timeout=10):
        with open(path, "a") as log:
            log.write("in\n")
        time.sleep(0.1)  # the transfer
        with open(path, "a") as log:
            log.write("out\n")
