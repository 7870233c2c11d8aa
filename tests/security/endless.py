"""A life has no end: what may come without number takes no memory. As long as one likes:

    python -m tests.security.endless [peers names keys beats] [--share 0.01]

A line for each: how many came, how much memory the process had allocated after the half and at the end, in bytes, and
by how much it grew. The whole is a million peers, 100,000 names, 10,000 changes of the key, and a year of beats in
virtual time. Exit code 1 where it grew by more than one per cent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import logging
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from softmutex import Node
from softmutex.core.events import from_seconds
from softmutex.core.messages import Ping, Pong, Withdraw
from softmutex.core.wire import Frame
from softmutex.runtime.sealing import KeyRing, Refusal, Refused, Sealer, key_id
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import lower
from tests.runtime.group import node_on, until

KEY = bytes(range(32))
SENDERS = "senders whose counters are remembered"
NAMES = "mutexes of a node"
NOISE = 32_768  # tables that happen to grow once; what grows for ever outgrows it (`--share`)
TICK_S = 60.0


class Memory(NamedTuple):
    """In bytes, of all that is allocated."""

    half: int
    end: int

    @property
    def growth(self) -> float:
        return (self.end - NOISE) / self.half - 1


def allocated() -> int:
    """By our own code and the loop's; other threads of this process (a test worker's) allocate as they like."""
    gc.collect()
    ours = [tracemalloc.Filter(True, f"*/{package}/*") for package in ("softmutex", "softmutex_adapters", "asyncio")]
    return sum(each.size for each in tracemalloc.take_snapshot().filter_traces(ours).traces)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def rare_ticks() -> Iterator[None]:
    """A loop in virtual time is never blocked: four ticks a second would be most of what a year costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softmutex.runtime.lag.PERIOD_S", TICK_S)
        patch.setattr("softmutex.runtime.lag.SLEEP", from_seconds(2 * TICK_S))
        yield


def peers(count: int, room: int = 8_192) -> Memory:
    """So many lives, one after the other. `room`: how many are remembered."""
    ring, me = KeyRing.of(KEY), 1
    sealer = Sealer(ring, "lab", me)

    def come(begin: int, end: int) -> int:
        """How much memory that took at most."""
        gc.collect()
        tracemalloc.reset_peak()
        for number in range(begin, end):
            peer = Sealer(ring, "lab", number)
            got = sealer.open(peer.seal(Frame(number, me, "m", Withdraw(1))))
            if isinstance(got, Refused):
                assert got.reason is Refusal.UNPROVEN
                assert isinstance(got.answer, Ping)
                assert isinstance(sealer.open(peer.seal(Frame(number, me, "", Pong(got.answer.nonce)))), Frame)
        return tracemalloc.get_traced_memory()[1]

    with pytest.MonkeyPatch.context() as patch, traced():
        lower(SENDERS, room, patch)
        come(2, room)  # the first ones need prove nothing
        half, end = come(room, max(3 * room, count // 2)), come(max(3 * room, count // 2), max(6 * room, count))
    assert sealer.replays.forgettings > count // room - 2
    return Memory(half, end)


def keys(count: int) -> Memory:
    """So many changes of the group's key under two that speak to each other."""
    me, peer = Sealer(KeyRing.of(KEY), "lab", 1), Sealer(KeyRing.of(KEY), "lab", 2)
    made = (number.to_bytes(4) * 8 for number in range(1, count + 1))
    sizes: list[int] = []
    with traced():
        for number, (old, new) in enumerate(itertools.pairwise(itertools.chain([KEY], made)), 1):
            if key_id(old) == key_id(new):
                continue
            for each in (me, peer):
                each.rekey(KeyRing.of(new, old))
            assert isinstance(me.open(peer.seal(Frame(2, 1, "m", Withdraw(1)))), Frame)
            if number in (count // 2, count // 2 + 1, count - 1, count):
                sizes.append(allocated())
    return Memory(sizes[0], sizes[-1])


def names(count: int) -> Memory:
    """So many names, each used once, by three members that have room for sixteen."""
    with pytest.MonkeyPatch.context() as patch, rare_ticks():
        lower(NAMES, 16, patch)
        patch.setattr("softmutex.core.group.founding.NOTES_MAX", 16)  # of who uses what, bounded as well
        return many_names(count)


@in_virtual_time
async def many_names(count: int) -> Memory:
    network = MemoryNetwork(seed=1, delay=0.001)
    sizes: list[int] = []
    async with quiet(network, "a") as a, quiet(network, "b") as b, quiet(network, "c") as c:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))
        with traced():
            for number in range(count):
                node = (a, b, c)[number % 3]
                async with node.mutex(f"report of day {number:06}").hold(timeout=30):
                    assert not await is_free(node, f"report of day {number:06}")
                if number % 8 == 7:
                    await asyncio.sleep(61)
                if number in (count // 2 - 1, count - 1):
                    sizes.append(allocated())
        for node in (a, b, c):
            assert node.statistics().mutexes <= 16
            assert node.statistics().told["names forgotten"] > count / 6
    return Memory(*sizes)


async def is_free(node: Node, name: str) -> bool:
    hold = await node.mutex(name).try_acquire()
    if hold is not None:
        await hold.release()
    return hold is not None


def quiet(network: MemoryNetwork, name: str) -> Node:
    return node_on(network, key=KEY, name=name, observers=[])


def beats(days: float) -> Memory:
    """One holds for all that time, one waits, one looks on."""
    with rare_ticks():
        return long_hold(days)


@in_virtual_time
async def long_hold(days: float) -> Memory:
    network = MemoryNetwork(seed=1, delay=0.002)
    sizes: list[int] = []
    async with quiet(network, "a") as a, quiet(network, "b") as b, quiet(network, "c") as c:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))
        async with a.mutex("x").hold(timeout=60) as hold:
            waiting = asyncio.create_task(b.mutex("x").acquire())
            with traced():
                await asyncio.sleep(600)
                for _ in range(2):
                    await asyncio.sleep(86_400 * days / 2)
                    sizes.append(allocated())
            assert not hold.lost.is_set()
            sent = a.statistics().transport["sent"]
        await (await waiting).release()
    assert sent > days * 86_400 / 60, "there were no beats"
    return Memory(*sizes)


class Endless(NamedTuple):
    what: str
    run: Callable[[int], Memory]
    whole: int


ALL: dict[str, Endless] = {
    "peers": Endless("lives that were met", peers, 1_000_000),
    "names": Endless("names, each used once", names, 100_000),
    "keys": Endless("changes of the key", keys, 10_000),
    "beats": Endless("days of beats, in virtual time", beats, 365),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", metavar="WHAT", help=f"of {', '.join(ALL)}; all of them by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the whole (1.0)")
    asked: Any = parser.parse_args()
    logging.disable(logging.CRITICAL)
    worst = 0.0
    for name in asked.which or ALL:
        endless, began = ALL[name], time.process_time()
        count = max(2, round(endless.whole * asked.share))
        memory = endless.run(count)
        worst = max(worst, memory.growth)
        spent = f"{time.process_time() - began:.0f} s of CPU"
        print(f"{name}: {count:,} {endless.what}: {memory.half:,} and {memory.end:,} bytes", end="")
        print(f", {memory.growth:+.2%}; {spent}", flush=True)
    return int(worst > 0.01)


if __name__ == "__main__":
    sys.exit(main())
