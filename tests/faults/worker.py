"""One real process with one node and one mutex, that does what it reads from standard input and says what happens.

    python worker.py '{"witness": FILE, "node": {keywords of Node}, "mutex": {keywords of Node.mutex}}'

    ("life": ID among the keywords of Node: its first life is this one, as after a snapshot; "room": for so many names)
    enter KEY [TIMEOUT]    acquires; says `in` (or `timeout`), and `lost` if that comes; holds until `leave KEY`
    turns TASKS ROUNDS     TASKS tasks acquire ROUNDS times each, one after the other; says `turned`
    block SECONDS          blocks the event loop
    clock SECONDS          this process's wall clock is off by so much from now on (`"wall_s"`: from the beginning)
    statistics             says what node and mutex count, and how many tasks there are
    queue                  says who waits, as far as this node knows
    (end of input)         closes the node; says `left` with what this process still has open

The witness is a file that all processes append to: one line when a hold begins, one before it ends, each with the
clock of the host. No process can be wrong about the others' lines, and a line is whole or not there.
"""

import asyncio
import itertools
import json
import os
import secrets
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from softmutex import AcquireTimeout, Hold, Node, SoftMutex, plugins
from softmutex.cli.survey import visiting
from softmutex.runtime import node as node_module
from softmutex.runtime import resting
from softmutex.runtime.keys import group_keys
from tests.leaks import Census, tasks_now
from tests.runtime.group import shown

REAL_TIME, REAL_TIME_NS = time.time, time.time_ns


class Worker:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.witness = os.open(order["witness"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.leaving: dict[str, asyncio.Event] = defaultdict(asyncio.Event)  # may be told to leave before it is in
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, what: str, **values: Any) -> None:
        sys.stdout.write(json.dumps({"what": what, "at": time.monotonic(), **values}) + "\n")
        sys.stdout.flush()

    def testify(self, what: str, key: str, hold: Hold) -> None:
        line = f"{time.monotonic_ns()} {what} {os.getpid()} {key} {hold.epoch} {hold.hop}\n"
        os.write(self.witness, line.encode())

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        before = Census.take()
        if (life := self.order["node"].pop("life", None)) is not None:
            begin_as(life)
        resting.MUTEXES_MAX = self.order["node"].pop("room", resting.MUTEXES_MAX)
        node = Node(**self.order["node"])
        await node.open()
        mutex = node.mutex("x", **self.order.get("mutex", {}))
        self.say("ready", pid=os.getpid(), id=node.id, address=node.address)
        while line := await reader.readline():
            verb, *words = line.decode().split()
            if verb == "enter":
                self.start(self.enter(mutex, *words))
            elif verb == "leave":
                self.leaving[words[0]].set()
            elif verb == "turns":
                self.start(self.turns(mutex, int(words[0]), int(words[1])))
            elif verb == "block":
                time.sleep(float(words[0]))  # noqa: ASYNC251 that is the point
            elif verb == "clock":
                set_wall_clock(float(words[0]))
            elif verb == "statistics":
                self.say(
                    "statistics",
                    node=asdict(node.statistics()),
                    mutex=asdict(mutex.statistics()),
                    tasks=len(tasks_now()),
                )
            elif verb == "queue":
                self.say("queue", ids=await queue_of(node))
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await node.close()
        try:
            await before.must_return(patience_s=60.0)
        except AssertionError as error:
            self.say("left", open=str(error))
        else:
            self.say("left", open="")
        pipe.close()

    def start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def enter(self, mutex: SoftMutex, key: str, timeout: str = "") -> None:
        try:
            async with mutex.hold(float(timeout) if timeout else None) as hold:
                self.testify("in", key, hold)
                self.say("in", key=key, epoch=hold.epoch, hop=hold.hop, waited=hold.waited, peers=hold.peers)
                news = asyncio.create_task(self.tell_loss(key, hold))
                await self.leaving[key].wait()
                self.testify("out", key, hold)
                news.cancel()
            self.say("out", key=key)
        except AcquireTimeout:
            self.say("timeout", key=key)

    async def tell_loss(self, key: str, hold: Hold) -> None:
        await hold.lost.wait()
        self.say("lost", key=key, reason=hold.lost_reason.value if hold.lost_reason else "")

    async def turns(self, mutex: SoftMutex, tasks: int, rounds: int) -> None:
        lost = 0

        async def one(task: int) -> None:
            nonlocal lost
            for number in range(rounds):
                async with mutex as hold:
                    self.testify("in", f"{task}.{number}", hold)
                    self.testify("out", f"{task}.{number}", hold)
                    lost += hold.lost.is_set()

        await asyncio.gather(*(one(task) for task in range(tasks)))
        self.say("turned", turns=tasks * rounds, lost=lost)


def begin_as(life: int) -> None:
    """Its frames count from 0, as those of every process that began from this snapshot."""
    lives = itertools.chain([life], iter(lambda: secrets.randbits(64), None))
    node_module.secrets = SimpleNamespace(randbits=lambda _: next(lives))


def set_wall_clock(off_s: float) -> None:
    """As an operator does it. The kernel has one for all namespaces; so what Python reads is changed, here alone."""
    time.time = lambda: REAL_TIME() + off_s
    time.time_ns = lambda: REAL_TIME_NS() + round(off_s * 1e9)


async def queue_of(node: Node) -> list[int]:
    """Who waits for the mutex, as far as this node knows: what it tells `softmutex status`."""
    settings = node.settings()
    membership = plugins.membership(settings["membership"])
    keys = group_keys(settings, membership)
    await membership.aclose()
    url = settings["transport"]
    place = url.partition("://")[2].partition("?")[0]  # what it advertises may be a relay's, which knows no visitors
    at = node.address if place.endswith(":0") else place
    document = await shown(node, plugins.transport(visiting(url)), keys, settings["group"], at)
    return [int(id, 16) for mutex in document["mutexes"] if mutex["name"] == "x" for id in mutex["queue"]]


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    if order.get("wall_s"):
        set_wall_clock(order["wall_s"])
    asyncio.run(Worker(order).main())
