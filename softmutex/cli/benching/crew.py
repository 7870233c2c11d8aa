"""A crew of real processes that want one mutex all the time, and what somebody outside sees of them.

    controller --go, keep, release, look, rest--> member          one line each, by standard input
    controller <--asked, in, kept, looked, out, rested-- member   one JSON object a line, with the host's clock

The members' own counts cannot show that a request was lost or that two overlapped: so each says when it asks, when it
is in and when it is out, and all is added up here. What a killed process said before it died is still in its pipe.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

NAME = "bench-recovery"
HOLD_S = 0.02
PATIENCE_S = 60.0

Event = dict[str, Any]


class Stay(NamedTuple):
    """One hold, from outside. A process that was killed in it ended it by that."""

    begin_s: float
    end_s: float
    told: bool  # that it may not be the only one


class CrewMember:
    """One process, which may die and be started again."""

    def __init__(self, crew: Crew, node: dict[str, Any], prefix: Sequence[str]) -> None:
        self.crew = crew
        self.log: list[Event] = []  # of all its lives
        self._node = node
        self._prefix = prefix

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self._prefix, sys.executable, "-m", __name__, json.dumps(self._node),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.life = len(self.log)
        self._reader = asyncio.create_task(self._read(self.process))
        self.id, self.pid = 0, 0
        ready = await self.says("ready")
        self.id, self.pid = int(ready["id"]), int(ready["pid"])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.log.append(json.loads(line))
            await self.crew.stir()

    def successor(self) -> CrewMember:
        return CrewMember(self.crew, self._node, self._prefix)

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")

    async def says(self, what: str) -> Event:
        """The first thing of that kind from now on."""
        seen = len(self.log)

        def said() -> Event | None:
            return next((event for event in self.log[seen:] if event["what"] == what), None)

        event: Event = await self.crew.until(said, f"a member says {what!r}")
        return event

    def signal(self, number: int) -> float:
        os.kill(self.pid, number)
        return time.monotonic()

    async def kill(self) -> float:
        at = self.signal(signal.SIGKILL)
        await self.process.wait()
        await self._reader
        self.log.append({"what": "killed", "at": at})
        return at

    async def leave(self) -> None:
        """In good order, after what it has asked for."""
        self.order("rest")
        await self.crew.until(lambda: self.log[-1]["what"] == "rested", "a member that leaves rests")
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()
        await self._reader

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            if self.pid:
                with suppress(ProcessLookupError):
                    self.signal(signal.SIGKILL)
        await self.process.wait()
        await self._reader

    def stays(self) -> list[Stay]:
        found, begun = [], 0.0
        for event in self.log:
            if event["what"] == "in":
                begun = event["at"]
            elif begun and event["what"] in ("out", "killed"):
                found.append(Stay(begun, event["at"], bool(event.get("told"))))
                begun = 0.0
        return found if not begun else [*found, Stay(begun, time.monotonic(), False)]

    def unanswered(self) -> int:
        """Requests that came to nothing, but for those that died with their process."""
        open_requests = 0
        for event in self.log:
            if event["what"] in ("asked", "in"):
                open_requests += 1 if event["what"] == "asked" else -1
            elif event["what"] == "killed":
                open_requests = 0
        return open_requests


class Crew:
    """`async with Crew(nodes) as crew:` all have started, know each other, and want the mutex again and again."""

    def __init__(self, nodes: Sequence[dict[str, Any]], prefixes: Sequence[Sequence[str]] = ()) -> None:
        self._stirred = asyncio.Condition()
        self.members = [CrewMember(self, node, prefixes[i] if prefixes else ()) for i, node in enumerate(nodes)]
        self.gone: list[CrewMember] = []  # left in good order

    async def __aenter__(self) -> Crew:
        try:
            await asyncio.gather(*(member.start() for member in self.members))
            for member in self.members:
                member.order("go")
            await self.all_get_in(time.monotonic())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            if hasattr(member, "process"):
                await member.end()

    async def stir(self) -> None:
        async with self._stirred:
            self._stirred.notify_all()

    async def until(self, condition: Any, what: str) -> Any:
        """What the condition gives as soon as that is true; looked at whenever anybody says something."""
        try:
            async with asyncio.timeout(PATIENCE_S), self._stirred:
                while not (result := condition()):
                    await self._stirred.wait()
                return result
        except TimeoutError:
            last = "\n  ".join(f"{member.id:016x} {member.log[-2:]}" for member in self.members)
            raise RuntimeError(f"not within {PATIENCE_S:.0f} s: {what}. What they said last:\n  {last}") from None

    def others(self, *members: CrewMember) -> list[CrewMember]:
        return [member for member in self.members if member not in members]

    async def next_grant(self, after_s: float, among: Sequence[CrewMember]) -> float:
        """When the first of them got in after that."""

        def first() -> float | None:
            times = (event["at"] for member in among for event in reversed(member.log[member.life :]) if is_in(event))
            return min((at for at in times if at > after_s), default=None)

        return float(await self.until(first, "somebody gets in"))

    async def all_get_in(self, after_s: float, among: Sequence[CrewMember] = ()) -> float:
        """When the last of them had been in once after that."""
        firsts = [await self.next_grant(after_s, [member]) for member in among or self.members]
        return max(firsts)

    async def rest(self) -> int:
        """Nobody asks any more; how many requests were never granted."""
        for member in self.members:
            member.order("rest")
        with suppress(RuntimeError):
            await self.until(
                lambda: all(member.log[-1]["what"] == "rested" for member in self.members), "everybody rests"
            )
        return sum(member.unanswered() for member in (*self.members, *self.gone))

    def stays(self) -> list[Stay]:
        return sorted(stay for member in (*self.members, *self.gone) for stay in member.stays())

    def longest_gap(self, begin_s: float, end_s: float) -> float:
        """The longest time within these that nobody was in."""
        free_from, longest = begin_s, 0.0
        for stay in self.stays():
            if stay.end_s > begin_s and stay.begin_s < end_s:
                longest = max(longest, stay.begin_s - free_from)
                free_from = max(free_from, stay.end_s)
        return longest


def is_in(event: Event) -> bool:
    return bool(event["what"] == "in")


def overlaps_of(stays: Sequence[Stay]) -> tuple[float, int, int]:
    """Seconds with more than one in, how often that began, and how often nobody in it was told."""
    seconds, free_from, count, untold = 0.0, 0.0, 0, 0
    last: Stay | None = None
    for stay in stays:
        if last is not None and stay.begin_s < free_from:
            seconds += min(stay.end_s, free_from) - stay.begin_s
            count += 1
            untold += not (stay.told or last.told)
        if stay.end_s > free_from:
            free_from, last = stay.end_s, stay
    return seconds, count, untold


# --- the member's side -----------------------------------------------------------------------------------------------


def say(what: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"what": what, "at": time.monotonic(), **values}) + "\n")
    sys.stdout.flush()


async def take_part(node_options: dict[str, Any]) -> None:
    from softmutex import Hold, Node

    wanting, keeping, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stay(hold: Hold) -> None:
        if not keeping.is_set():
            await asyncio.sleep(HOLD_S)
            return
        keeping.clear()
        released.clear()
        say("kept")
        ends = [released.wait()] if hold.lost.is_set() else [released.wait(), hold.lost.wait()]
        waits = [asyncio.create_task(end) for end in ends]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def turns(node: Node) -> None:
        mutex = node.mutex(NAME)
        while True:
            await wanting.wait()
            say("asked")
            async with mutex as hold:
                say("in")
                await stay(hold)
                say("out", told=hold.lost.is_set())
            if not wanting.is_set():
                say("rested")

    orders: dict[str, Callable[[], object]] = {
        "go": wanting.set,
        "rest": wanting.clear,
        "keep": keeping.set,
        "release": released.set,
    }
    logging.disable()  # each loss is counted, none has to be read
    async with Node(**node_options) as node:
        orders["look"] = lambda: say("looked", watchers=watchers_of(node))
        say("ready", id=node.id, pid=os.getpid())
        work = asyncio.create_task(turns(node))
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            orders[line]()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def watchers_of(node: Any) -> list[int]:
    """Who watches the token that is here, in their order."""
    view = node.running().mutexes[NAME].machine.view()
    return [watcher for token in view.tokens for watcher in token.escort.watch]


if __name__ == "__main__":
    asyncio.run(take_part(json.loads(sys.argv[1])))
