"""A life has no end: what may come without number takes no memory. As long as one likes:

    python -m tests.security.endless [peers names keys beats days] [--share 0.01]

A line for each: how many came, how much memory the process had taken since the beginning, at most, in the first and in
the second half, in bytes, and by how much it grew. It is weighed at equal points of what repeats itself: where a table
is full, or where all have rested. Of beats also the work is counted: how many calls so much time takes, late and early.
The whole is a million peers, 100,000 names, 100,000 changes of the key, a year of beats in virtual time, and ten days
of them as they come. Exit code 1 where it grew by more than one per cent.

Nothing is traced meanwhile (that would make all of it five times slower): all objects that there are, of whatever
module, are counted when it is weighed. So nothing else may live in this process, and tests start one.
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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import pytest

from softmutex import Node
from softmutex.core.events import SECOND, from_seconds
from softmutex.core.messages import Ping, Pong, Withdraw
from softmutex.core.wire import Frame
from softmutex.runtime.sealing import KeyRing, Refusal, Refused, Sealer, key_id
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import lower
from tests.runtime.group import node_on, until

KEY = bytes(range(32))
SENDERS = "senders whose counters are remembered"
NAMES = "mutexes of a node"
DIGITS = 512  # a large number takes more than a small one: counters, names, sizes
TICK_S = 60.0
ROOM = 16  # names, in place of 4,096
REST_S = 61.0
MORE_WORK = 1.2  # what a node decides by lot makes two per cent


class Memory(NamedTuple):
    """In bytes, at most, beyond what was there before."""

    half: int
    end: int

    @property
    def growth(self) -> float:
        return (self.end - DIGITS) / self.half - 1


async def calls_in(seconds: float) -> int:
    """How many functions are called meanwhile: work, in virtual time, whatever else the machine does."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await asyncio.sleep(seconds)
    finally:
        sys.setprofile(before)
    return calls


class Scales:
    def __init__(self) -> None:
        self._most = [0, 0]
        self._before = allocated()

    def weigh(self, is_late: bool) -> None:
        self._most[is_late] = max(self._most[is_late], allocated() - self._before)

    def memory(self) -> Memory:
        return Memory(*self._most)


def allocated() -> int:
    """By all objects of this process."""
    gc.collect()
    left = gc.get_objects()
    seen = {id(left)}
    size = 0
    while left:
        found = []
        for each in left:
            if id(each) not in seen:
                seen.add(id(each))
                found.append(each)
                size += sys.getsizeof(each)
        left = [each for each in gc.get_referents(*found) if id(each) not in seen]
    return size


@contextlib.contextmanager
def rare_ticks() -> Iterator[None]:
    """A loop in virtual time is never blocked: four ticks a second would be most of what a year costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softmutex.runtime.lag.PERIOD_S", TICK_S)
        patch.setattr("softmutex.runtime.lag.SLEEP", from_seconds(2 * TICK_S))
        yield


def peers(count: int) -> Memory:
    """So many lives, one after the other. Weighed whenever the table of those that are remembered is full."""
    ring, me, room, scales = KeyRing.of(KEY), 1, min(8_192, count // 6), Scales()
    sealer = Sealer(ring, "lab", me)

    with pytest.MonkeyPatch.context() as patch:
        lower(SENDERS, room, patch)
        for number in range(2, count + 2):
            peer = Sealer(ring, "lab", number)
            got = sealer.open(peer.seal(Frame(number, me, "m", Withdraw(1))))
            if isinstance(got, Refused):  # something was forgotten, so it has to prove that it is there
                assert got.reason is Refusal.UNPROVEN
                assert isinstance(got.answer, Ping)
                assert isinstance(sealer.open(peer.seal(Frame(number, me, "", Pong(got.answer.nonce)))), Frame)
            if len(sealer.replays) == room and sealer.replays.forgettings:  # the first table grew by itself
                scales.weigh(number > count // 2)
    assert sealer.replays.forgettings > count // room - 2
    return scales.memory()


def keys(count: int) -> Memory:
    """So many changes of the group's key under two that speak to each other."""
    scales, changes = Scales(), 0
    me, peer = Sealer(KeyRing.of(KEY), "lab", 1), Sealer(KeyRing.of(KEY), "lab", 2)
    made = (number.to_bytes(4) * 8 for number in range(1, count + 1))
    for number, (old, new) in enumerate(itertools.pairwise(itertools.chain([KEY], made)), 1):
        if key_id(old) != key_id(new):
            for each in (me, peer):
                each.rekey(KeyRing.of(new, old))
            assert isinstance(me.open(peer.seal(Frame(2, 1, "m", Withdraw(1)))), Frame)
            changes += 1
        if number % (count // 4) == 0:
            scales.weigh(number > count // 2)
    assert changes > 0.99 * count - 5
    return scales.memory()


def names(count: int) -> Memory:
    """So many names, each held once by one of three members that have room for sixteen, while the others ask for it:
    who never did may forget it. Weighed where all of them have rested and every member is full."""
    with pytest.MonkeyPatch.context() as patch, rare_ticks():
        lower(NAMES, ROOM, patch)
        patch.setattr("softmutex.core.group.founding.NOTES_MAX", ROOM)  # of who uses what, bounded as well
        return many_names(count)


WARM = 500  # names after which what is bounded and remembered of each has come to its bound


@in_virtual_time
async def many_names(count: int) -> Memory:
    network, scales = MemoryNetwork(seed=1, delay=0.001), Scales()
    weighed = 0
    async with quiet(network, "a") as a, quiet(network, "b") as b, quiet(network, "c") as c:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))
        for number in range(-min(count, WARM), count):
            name, node = f"report of day {number:06}", (a, b, c)[number % 3]
            async with node.mutex(name).hold(timeout=30):
                assert not any([await is_free(each, name) for each in (a, b, c)])
            if number % (ROOM // 2) == ROOM // 2 - 1:
                await asyncio.sleep(REST_S)
                is_full = all(node.statistics().mutexes == ROOM for node in (a, b, c))
                if is_full and number >= (weighed + 1) * count // 5:
                    scales.weigh(number > count // 2)
                    weighed += 1
        assert weighed >= 3
        for node in (a, b, c):
            assert node.statistics().mutexes <= ROOM
            assert node.statistics().told["names forgotten"] > count / 6
    return scales.memory()


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
        return long_hold(days, 60.0)


def slow_beats(days: float) -> Memory:
    """... where a beat that is sent each six seconds is sent once a minute: half a million a year."""
    with rare_ticks(), pytest.MonkeyPatch.context() as patch:
        for constant in ("watch.PACE_MOST", "home.PATIENCE", "requests.PATIENCE"):
            patch.setattr(f"softmutex.core.algorithms.wandering.{constant}", 60 * SECOND)
        return long_hold(days, 600.0)


@in_virtual_time
async def long_hold(days: float, seldom_s: float) -> Memory:
    """`seldom_s`: the fewest beats, one in so many seconds."""
    network, scales = MemoryNetwork(seed=1, delay=0.002), Scales()
    async with quiet(network, "a") as a, quiet(network, "b") as b, quiet(network, "c") as c:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))
        async with a.mutex("x").hold(timeout=60) as hold:
            waiting = asyncio.create_task(b.mutex("x").acquire())
            await asyncio.sleep(3600)  # what is rare has happened once
            work = [await calls_in(200 * seldom_s / 10)]
            for number in range(4):
                await asyncio.sleep(86_400 * days / 4)
                scales.weigh(number >= 2)
                work.append(await calls_in(200 * seldom_s / 10))
            assert max(work) < MORE_WORK * min(work), f"the same time takes more and more calls: {work}"
            assert not hold.lost.is_set()
            assert not waiting.done()
            sent = a.statistics().transport["sent"]
        await (await waiting).release()
    assert sent > days * 86_400 / seldom_s, "there were no beats"
    return scales.memory()


class Endless(NamedTuple):
    what: str
    run: Callable[[Any], Memory]
    whole: int | float


ALL: dict[str, Endless] = {
    "peers": Endless("lives that were met", peers, 1_000_000),
    "names": Endless("names, each used once", names, 100_000),
    "keys": Endless("changes of the key", keys, 100_000),
    "beats": Endless("days of beats, one a minute, in virtual time", slow_beats, 365.0),
    "days": Endless("days of beats as they come, in virtual time", beats, 10.0),
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
        count = type(endless.whole)(endless.whole * asked.share)
        memory = endless.run(count)
        worst = max(worst, memory.growth)
        spent = f"{time.process_time() - began:.0f} s of CPU"
        print(f"{name}: {count:,} {endless.what}: {memory.half:,} and {memory.end:,} bytes", end="")
        print(f", {memory.growth:+.2%}; {spent}", flush=True)
    return int(worst > 0.01)


if __name__ == "__main__":
    sys.exit(main())
