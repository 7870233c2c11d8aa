"""The road of one acquisition, counted: `python benchmarks/road.py [--json] [--calls]`.

Two nodes over UDP with the key of `local://`, one here and one on a thread of its own, which holds the mutex first.
What this thread calls in softmutex and its adapters is noted, in order, on four stretches:

    down      from `async with` until the request is at the socket
    up        from the socket until the body runs
    release   from the end of the body until the token is at the socket, for the other one waits
    parked    all of `async with mutex: pass` where the token is here and nobody else wants it

A coroutine that is resumed is not called again. Nobody observes. Of several rounds the shortest counts: now and then a
timer falls into one. `--calls` prints every call; the README's sketch is its short form.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import softmutex_adapters

import softmutex
from softmutex import Node, SoftMutex, sync

ROOMS = tuple(os.path.dirname(str(room.__file__)) + os.sep for room in (softmutex, softmutex_adapters))
STRETCHES = ("down", "up", "release", "parked")
ROUNDS = 20
PATIENCE_S = 10.0


class Recorder:
    """Notes the calls of one thread between `begin` and `end`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.to_socket = False  # ends by itself where something is sent
        self.from_socket = False  # begins anew where something comes in
        self.has_sent = False
        self._known: dict[int, FrameType] = {}  # kept, so that a coroutine that goes on is known again

    def begin(self, *, to_socket: bool = False, from_socket: bool = False) -> None:
        self.calls = []
        self.to_socket, self.from_socket, self.has_sent = to_socket, from_socket, False
        sys.setprofile(self._note)

    def end(self) -> list[str]:
        sys.setprofile(None)
        return self.calls

    def _note(self, frame: FrameType, event: str, what: Any) -> None:
        if not frame.f_code.co_filename.startswith(ROOMS):
            return
        if event == "call" and id(frame) not in self._known:
            if self.from_socket and frame.f_code.co_name == "_drain":
                self.calls = []
            self._known[id(frame)] = frame
            self.calls.append(f"{frame.f_globals['__name__']}:{frame.f_code.co_qualname}")
        elif event == "c_call" and self.to_socket and what.__name__ in ("sendto", "sendmsg"):
            self.has_sent = True
            sys.setprofile(None)


class Partner(threading.Thread):
    """The other node: holds the mutex until it is asked for it, then asks for it again."""

    def __init__(self, membership: str, rounds: int) -> None:
        super().__init__(name="partner", daemon=True)
        self._membership, self._rounds = membership, rounds
        self.has_it, self.may_let_go, self.may_ask = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        with sync.Node(transport="udp://127.0.0.1:0", membership=self._membership) as node:
            mutex = node.mutex("road")
            for _ in range(self._rounds):
                with mutex:
                    self.has_it.set()
                    self.may_let_go.wait(PATIENCE_S)
                self.may_let_go.clear()
                self.may_ask.wait(PATIENCE_S)
                self.may_ask.clear()
            with mutex:
                pass
            self.has_it.set()
            self.may_let_go.wait(PATIENCE_S)


async def go(rounds: int) -> dict[str, list[str]]:
    """The calls of each stretch."""
    recorder, found = Recorder(), dict[str, list[list[str]]]()
    with tempfile.TemporaryDirectory() as directory:
        membership = f"local://road?directory={directory}"
        partner = Partner(membership, rounds)
        async with Node(transport="udp://127.0.0.1:0", membership=membership, observers=[]) as node:
            mutex = node.mutex("road")
            partner.start()
            for _ in range(rounds):
                await there(partner.has_it)
                for name, calls in (await one_round(mutex, partner, recorder)).items():
                    found.setdefault(name, []).append(calls)
            await there(partner.has_it)
            async with mutex:
                pass
            for _ in range(rounds):
                recorder.begin()
                async with mutex:
                    pass
                found.setdefault("parked", []).append(recorder.end())
            partner.may_let_go.set()
            await asyncio.to_thread(partner.join, PATIENCE_S)
    return {name: min(found[name], key=len) for name in STRETCHES}


async def one_round(mutex: SoftMutex, partner: Partner, recorder: Recorder) -> dict[str, list[str]]:
    stretches = {}

    async def use() -> None:
        recorder.begin(to_socket=True)
        async with mutex:
            stretches["up"] = recorder.end()
            received = sum(mutex.statistics().received.values())
            partner.may_ask.set()
            await until(lambda: sum(mutex.statistics().received.values()) > received)
            await asyncio.sleep(0.01)
            recorder.begin(to_socket=True)
        stretches["release"] = recorder.end()

    recorder.has_sent = False
    task = asyncio.create_task(use())
    await until(lambda: recorder.has_sent)
    stretches["down"] = recorder.end()
    recorder.begin(from_socket=True)
    partner.may_let_go.set()
    await task
    return stretches


async def there(event: threading.Event) -> None:
    await until(event.is_set)
    event.clear()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 in another thread, or beneath
        await asyncio.sleep(0.001)


def summary(stretches: dict[str, list[str]]) -> dict[str, dict[str, int]]:
    rows = {name: counted(calls) for name, calls in stretches.items()}
    rows["down + up"] = counted(stretches["down"] + stretches["up"])
    return rows


def counted(calls: list[str]) -> dict[str, int]:
    return {
        "calls": len(calls),
        "modules": len({name.partition(":")[0] for name in calls}),
        "outside the core": sum(".core." not in name for name in calls),
        "modules outside the core": len(
            {module for name in calls if ".core." not in (module := name.partition(":")[0])}
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", action="store_true", help="every call, in order")
    arguments = parser.parse_args()
    stretches = asyncio.run(go(ROUNDS))
    if arguments.json:
        print(json.dumps({"counts": summary(stretches), "calls": stretches}))
        return
    for name, row in summary(stretches).items():
        print(f"{name:10}", ", ".join(f"{count} {what}" for what, count in row.items()))
        if arguments.calls and name in stretches:
            print("\n".join(f"    {call}" for call in stretches[name]))


if __name__ == "__main__":
    main()
