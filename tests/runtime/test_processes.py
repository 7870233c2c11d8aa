"""Real processes over UDP: they exclude each other, and survive each other's deaths."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tests import prepared

WORKER = """
import asyncio, json, sys, time
from softmutex import Node

def say(**what):
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)

async def main(directory, script):
    async with Node(membership=f"local://?directory={directory}") as node:
        mutex = node.mutex("x", on_lost=lambda hold: say(what="lost", reason=str(hold.lost_reason)))
        say(what="ready")
        for step in script.split():
            verb, _, number = step.partition("=")
            if verb == "peers":
                while len(node.peers()) < int(number):
                    await asyncio.sleep(0.01)
            elif verb == "turns":
                for _ in range(int(number)):
                    async with mutex as hold:
                        say(what="in", epoch=hold.epoch, hop=hold.hop)
                        await asyncio.sleep(0.002)
                        say(what="out")
            elif verb == "hold":
                say(what="asks")
                async with mutex as hold:
                    say(what="in", epoch=hold.epoch, hop=hold.hop)
                    await asyncio.to_thread(sys.stdin.readline)
                    say(what="out")
            elif verb == "stay":
                await asyncio.to_thread(sys.stdin.readline)
        say(what="done", **mutex.statistics().facts)

asyncio.run(main(*sys.argv[1:]))
"""


class Worker:
    def __init__(self, directory: Path, script: str) -> None:
        self.process = prepared.Popen(
            [sys.executable, "-c", WORKER, str(directory), script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self.unread: Queue[dict[str, Any]] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.unread.put(json.loads(line))

    def next(self, what: str, limit_s: float = 100.0) -> dict[str, Any]:
        """The next thing it says of that kind."""
        while True:
            try:
                self.said.append(self.unread.get(timeout=limit_s))
            except Empty:
                raise AssertionError(f"{what!r} was not said within {limit_s} s, only {self.said}") from None
            if self.said[-1]["what"] == what:
                return self.said[-1]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> list[dict[str, Any]]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._reader.join()
        assert self.process.returncode == 0, self.process.stderr and self.process.stderr.read()
        while not self.unread.empty():
            self.said.append(self.unread.get())
        return self.said

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def first_of(workers: list[Worker], what: str, limit_s: float = 100.0) -> tuple[Worker, dict[str, Any]]:
    """Whichever worker says it first."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for worker in workers:
            with suppress(AssertionError):
                return worker, worker.next(what, limit_s=0.02)
    raise AssertionError(f"nobody said {what!r} within {limit_s} s: {[worker.said for worker in workers]}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Worker]]:
    workers: list[Worker] = []

    def start(script: str) -> Worker:
        workers.append(Worker(tmp_path, script))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def test_processes_exclude_each_other_and_order_their_holds(start: Callable[[str], Worker]):
    workers = [start("peers=3 turns=20 stay") for _ in range(4)]
    for worker in workers:
        for _ in range(20):
            worker.next("out")
    events = sorted((event for worker in workers for event in worker.end()), key=lambda event: event["at"])
    turns = [event for event in events if event["what"] in ("in", "out")]
    assert [event["what"] for event in turns] == ["in", "out"] * 80
    order = [(event["epoch"], event["hop"]) for event in turns if event["what"] == "in"]
    assert order == sorted(order)
    assert len({epoch for epoch, _ in order}) == 1
    assert not any(event["what"] == "lost" for event in events)


def test_a_killed_holder_is_replaced_within_seconds_by_a_new_generation(start: Callable[[str], Worker]):
    holder = start("peers=2 hold stay")
    others = [start("peers=2 stay hold") for _ in range(2)]
    first = holder.next("in")
    for worker in others:
        worker.go_on()
        worker.next("asks")
    killed_at = time.monotonic()
    holder.process.kill()
    winner, entered = first_of(others, "in")
    assert entered["at"] - killed_at < 60  # the kernel tells of it: about 2 s
    assert entered["epoch"] > first["epoch"]
    winner.go_on()
    [other] = [worker for worker in others if worker is not winner]
    assert other.next("in")["epoch"] == entered["epoch"]
    other.go_on()
    for worker in others:
        worker.end()


def test_a_killed_waiter_holds_nobody_up(start: Callable[[str], Worker]):
    holder, waiter, next_one = start("peers=2 hold stay"), start("peers=2 stay hold"), start("peers=2 stay hold stay")
    holder.next("in")
    for worker in (waiter, next_one):
        worker.go_on()
        worker.next("asks")
    waiter.process.kill()
    holder.go_on()
    released_at = holder.next("out")["at"]
    entered = next_one.next("in")
    assert entered["at"] - released_at < 60  # at once, or after the token was lost with the one that had accepted it
    next_one.go_on()
    next_one.end()
    holder.end()


def test_a_holder_that_is_stopped_past_its_lease_learns_that_it_lost(start: Callable[[str], Worker]):
    holder, other, witness = start("peers=2 hold stay"), start("peers=2 stay hold stay"), start("peers=2 stay")
    first = holder.next("in")
    other.go_on()
    other.next("asks")
    holder.process.send_signal(signal.SIGSTOP)
    entered = other.next("in")
    assert entered["epoch"] > first["epoch"]
    holder.process.send_signal(signal.SIGCONT)
    assert holder.next("lost")["reason"] in ("lease", "overlap")
    holder.go_on()
    other.go_on()
    for worker in (holder, other, witness):
        worker.end()
