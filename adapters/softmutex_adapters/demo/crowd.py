"""The subscribers: each a process of its own, with a node of its own, forked from one that has imported everything.

    python -m softmutex_adapters.demo.crowd ORDERS        (run.py starts it; ORDERS is JSON)

    fork --> ready ---go---> wants --> waits --> in --> bytes ... --> out --+--> end        one line of JSON each,
                                       ^                                    |              on standard output
                                       '------ pause, one try less ---------'

Importing asyncio and softmutex costs a tenth of a second and 25 MiB a process; a fork costs a millisecond and what it
writes to. So 32 subscribers are there in a second on two cores.

C1  A line is shorter than PIPE_BUF, so lines of different processes never mix.
C2  Standard input is the life line: when it ends, whoever started us is gone, and every process here ends.
C3  Nobody begins before all are ready: `go` is a pipe that ends. Ready is who knows all others, has held the mutex once
    and has come to rest: subscribers run all the time, so starting 32 of them on a small machine, and the first use of
    a mutex (a second or two for 64 processes on two busy cores), are not what is to be measured.
C4  The clock is time.monotonic(), one for all processes of a Linux machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import aioftp

from softmutex import Node
from softmutex_adapters.demo.plan import FILE, Plan
from softmutex_adapters.memberships.local import LocalMembership

NEWS_S = 0.2  # how often progress is told
SILENCE_S = 30.0  # without socket_timeout aioftp waits for ever for a server that has gone
TOGETHER_S = 20.0
REST_S = 5.0


@dataclass(frozen=True)
class Orders:
    plan: dict[str, Any]
    stage: str
    host: str
    port: int
    directory: str  # in which the subscribers of a coordinated run find each other
    go: int
    take: int  # two ends of the ideal semaphore
    give: int


class Pipe:
    """An ideal semaphore: a byte in a pipe is a permission. Taken and given in microseconds, by processes that one
    parent has started on one machine."""

    def __init__(self, take: int, give: int) -> None:
        self._take, self._give = take, give
        os.set_blocking(take, False)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        while not self._took():
            await readable(self._take)
        try:
            yield
        finally:
            os.write(self._give, b".")

    def _took(self) -> bool:
        try:
            return bool(os.read(self._take, 1))
        except BlockingIOError:
            return False


async def readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(descriptor, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(descriptor)


async def rest() -> None:
    """Until this process gets the processor when it wants it, or for a while where others are too busy for that."""
    in_time, limit = 0, time.monotonic() + REST_S
    while in_time < 3 and time.monotonic() < limit:
        asked_at = time.monotonic()
        await asyncio.sleep(0.1)
        in_time = in_time + 1 if time.monotonic() - asked_at < 0.12 else 0


class Subscriber:
    def __init__(self, number: int, orders: Orders) -> None:
        self.number = number
        self.orders = orders
        self.plan = Plan(**orders.plan)
        # The same in each of the three runs, so that they differ in nothing but who waits for whom.
        self.chance = random.Random(number)

    def tell(self, what: str, **more: Any) -> None:
        line = json.dumps({"who": self.number, "what": what, "at": time.monotonic(), **more})
        os.write(1, line.encode() + b"\n")

    async def run(self) -> None:
        starts_after_s = self.chance.uniform(0, self.plan.spread_s)
        async with AsyncExitStack() as stack:
            gate = await self.gate(stack)
            await rest()
            self.tell("ready")
            await readable(self.orders.go)
            await asyncio.sleep(starts_after_s)
            self.tell("end", ok=await self.fetch(gate))
            await asyncio.Event().wait()  # a subscriber stays one: the next file will come

    async def gate(self, stack: AsyncExitStack) -> Any:
        """What is entered before each transfer."""
        if self.orders.stage == "uncoordinated":
            return nullcontext
        if self.orders.stage == "ideal":
            return Pipe(self.orders.take, self.orders.give).hold
        membership = LocalMembership("demo", directory=self.orders.directory)
        node = await stack.enter_async_context(
            Node(transport="udp://127.0.0.1:0", membership=membership, name=f"subscriber-{self.number:02}")
        )
        async with asyncio.timeout(TOGETHER_S):
            while len(node.peers()) < self.plan.clients - 1:  # noqa: ASYNC110 a node has no event for that
                await asyncio.sleep(0.05)
        mutex = node.mutex("ftp-server", slots=self.plan.slots)
        async with asyncio.timeout(TOGETHER_S), mutex:
            pass  # subscribers live long: this is not the first file that they fetch in turns
        return mutex.hold

    async def fetch(self, gate: Any) -> bool:
        """Until the file is here, or the tries are used up. A file that broke off is started again from zero."""
        self.tell("wants")
        for attempt in range(self.plan.tries):
            self.tell("waits")
            turn: AbstractAsyncContextManager[Any] = gate()
            async with turn as hold:
                self.tell("in")
                why, got = await self.transfer()
                lost = hold is not None and hold.lost.is_set()
                self.tell("out", why=why, got=got, lost=lost)
            if why == "done":
                return True
            if why == "refused":
                await asyncio.sleep(self.plan.pause_s * 2**attempt * self.chance.uniform(0.5, 1.5))
        return False

    async def transfer(self) -> tuple[str, int]:
        """How it ended, and how many bytes came."""
        got, told_at = 0, time.monotonic()
        client = aioftp.Client(socket_timeout=SILENCE_S, connection_timeout=SILENCE_S)
        try:
            async with asyncio.timeout(self.plan.deadline_s or None):
                await client.connect(self.orders.host, self.orders.port)
                await client.login()
                async with client.download_stream(FILE) as stream:
                    async for block in stream.iter_by_block(65_536):
                        got += len(block)
                        if time.monotonic() - told_at >= NEWS_S:
                            told_at = time.monotonic()
                            self.tell("bytes", got=got)
            return ("done" if got == self.plan.size else "broken"), got
        except TimeoutError:
            return "deadline", got
        except aioftp.StatusCodeError as error:
            return ("refused" if error.received_codes[-1].matches("421") else "broken"), got
        except OSError:
            return "broken", got
        finally:
            client.close()


async def live(number: int, orders: Orders) -> None:
    """Until the run is over, which is when the life line ends. Then there is nobody left to hand anything over to."""
    work = asyncio.ensure_future(Subscriber(number, orders).run())
    life_line = asyncio.ensure_future(readable(0))
    await asyncio.wait({work, life_line}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    os._exit(0)


def main(text: str) -> int:
    orders = Orders(**json.loads(text))
    gc.freeze()  # a collection in a child would write to, and so copy, what all share
    children = set()
    for number in range(orders.plan["clients"]):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                asyncio.run(live(number, orders))
                code = 0
            except BaseException as error:
                sys.stderr.write(f"subscriber {number}: {error!r}\n")
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.add(pid)
    worst = 0
    while children:
        pid, status = os.wait()
        children.discard(pid)
        worst = max(worst, abs(os.waitstatus_to_exitcode(status)))
    return worst


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us; they end the life line
    sys.exit(main(sys.argv[1]))
