"""Groups of real worker processes, the witness that they write, and what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests import prepared

ROOT = Path(__file__).parent.parent.parent
WORKER = Path(__file__).with_name("worker.py")
SETTLE_S = 60.0  # after healing, until there is one token again
PATIENCE_S = 100.0  # for what must come in the end, on a machine that does other things, too

Event = dict[str, Any]


class Worker:
    """One process. What it says is collected by a thread, and looked for in order."""

    def __init__(self, order: dict[str, Any], prefix: Sequence[str] = ()) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
        self.process = prepared.Popen(
            [*prefix, sys.executable, str(WORKER), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self.said: list[Event] = []
        self.seen = 0  # how much of it was looked at
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._more:
                self.said.append(json.loads(line))
                self._more.notify_all()
        with self._more:
            self.said.append({"what": "end"})
            self._more.notify_all()

    @property
    def pid(self) -> int:
        """Of the worker itself, which may have been started through another program."""
        return int(self.said[0]["pid"])

    @property
    def id(self) -> int:
        return int(self.said[0]["id"])

    def order(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hears(self, what: str, patience_s: float = PATIENCE_S, **values: Any) -> Event:
        """The next thing that it says of that kind; what it says before is passed over."""
        deadline = time.monotonic() + patience_s
        with self._more:
            while True:
                while self.seen < len(self.said):
                    event = self.said[self.seen]
                    self.seen += 1
                    if event["what"] == what and values.items() <= event.items():
                        return event
                    assert event["what"] != "end", f"it ended, and never said {what} {values}: {self.said}"
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"not within {patience_s} s: {what} {values}, but {self.said}"
                self._more.wait(left_s)

    def has_said(self, what: str, **values: Any) -> bool:
        with self._more:
            return any(event["what"] == what and values.items() <= event.items() for event in self.said)

    def is_told_of_loss(self, key: str, patience_s: float = PATIENCE_S) -> None:
        """Waits until its hold was told that it may not be alone, now or before."""
        deadline = time.monotonic() + patience_s
        while not self.has_said("lost", key=key):
            assert time.monotonic() < deadline, f"not told within {patience_s} s: {self.said}"
            time.sleep(0.005)

    def enters(self, key: str, patience_s: float = PATIENCE_S) -> Event:
        self.order(f"enter {key}")
        return self.hears("in", patience_s, key=key)

    def leaves(self, key: str) -> None:
        self.order(f"leave {key}")
        self.hears("out", key=key)

    def statistics(self, patience_s: float = PATIENCE_S) -> Event:
        self.order("statistics")
        return self.hears("statistics", patience_s)

    def queue(self) -> list[int]:
        self.order("queue")
        return list(self.hears("queue")["ids"])

    def queues(self, *waiters: Worker) -> None:
        """Waits until this one, which holds it, has all of them in its queue."""
        wanted = {worker.id for worker in waiters}
        deadline = time.monotonic() + PATIENCE_S
        while not wanted <= set(self.queue()):
            assert time.monotonic() < deadline, self.said[-1]
            time.sleep(0.01)

    def is_watched(self) -> None:
        """Waits until others have confirmed that they heard of its hold. A holder that dies before (it speaks within
        1.6 s) is missed only by those who wait, and they are patient."""
        before = self.statistics()["mutex"]["received"].get("HEARD", 0)
        deadline = time.monotonic() + PATIENCE_S
        while self.statistics()["mutex"]["received"].get("HEARD", 0) == before:
            assert time.monotonic() < deadline, self.said[-1]
            time.sleep(0.05)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> float:
        """When it died, by the clock of the witness."""
        self.send(signal.SIGKILL)
        self.process.wait()
        return time.monotonic()

    def ends(self) -> None:
        """Closes its node in good order, and must have nothing left open."""
        assert self.process.stdin
        self.process.stdin.close()
        assert self.hears("left")["open"] == ""
        assert self.process.wait(100) == 0

    def last_words(self) -> str:
        """What it said last, and what it counts, if it still answers: for whoever reads of a test that failed."""
        words = [f"worker {self.process.pid}:", *map(str, self.said[-3:])]
        with suppress(AssertionError, OSError, ValueError):  # it ended, or its input is closed
            words.append(str(self.statistics(patience_s=2.0)))
        return "\n  ".join(words)

    def clean_up(self) -> None:
        if self.process.poll() is None:
            if self.said:
                self.send(signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with suppress(BrokenPipeError):  # what was written to it last was not read
                pipe.close()


@contextmanager
def group(
    here: Path, nodes: Sequence[dict[str, Any]], prefixes: Sequence[Sequence[str]] = (), **mutex: Any
) -> Iterator[list[Worker]]:
    """Workers, ready, one for each dictionary of keywords; they meet through `here` unless it says otherwise."""
    workers: list[Worker] = []
    try:
        for number, keywords in enumerate(nodes):
            node = {"membership": f"local://?directory={here}/runtime", "name": f"node{number}", **keywords}
            order = {"witness": str(here / "witness"), "node": node, "mutex": mutex}
            workers.append(Worker(order, prefixes[number] if prefixes else ()))
        for worker in workers:
            worker.hears("ready")
        yield workers
    except AssertionError as error:
        for worker in workers:
            error.add_note(worker.last_words())
        raise
    finally:
        for worker in workers:
            worker.clean_up()


# --- the witness -----------------------------------------------------------------------------------------------------


class Stay(NamedTuple):
    """One hold as the witness saw it. Of a process that was killed in it, the end is when it was killed."""

    begin_s: float
    end_s: float
    pid: int
    epoch: int
    hop: int


def stays(here: Path, killed: dict[int, float] | None = None) -> list[Stay]:
    """All holds, in the order in which they began."""
    begun: dict[tuple[int, str], tuple[float, int, int]] = {}
    found = []
    for line in (here / "witness").read_text().splitlines():
        at, what, pid, key, epoch, hop = line.split()
        who = (int(pid), key)
        if what == "in":
            begun[who] = (int(at) / 1e9, int(epoch), int(hop))
        else:
            begin_s, *place = begun.pop(who)
            found.append(Stay(begin_s, int(at) / 1e9, who[0], *place))
    now = time.monotonic()
    found += [Stay(begin_s, (killed or {}).get(pid, now), pid, *place) for (pid, _), (begin_s, *place) in begun.items()]
    return sorted(found)


def overlaps(seen: Sequence[Stay], slots: int = 1) -> list[tuple[Stay, Stay]]:
    """Pairs of holds that were there at once, more than `slots` of them."""
    found = []
    for number, stay in enumerate(seen):
        rivals = [later for later in seen[number + 1 :] if later.begin_s < stay.end_s]
        if len(rivals) >= slots:
            found.append((stay, rivals[0]))
    return found


def trouble_in(seen: Sequence[Stay]) -> str:
    """What there is against it that no two were there at once, and that (epoch, hop) grew from each to the next."""
    both = overlaps(seen)
    wrong = [(a, b) for a, b in pairwise(seen) if (a.epoch, a.hop) >= (b.epoch, b.hop)]
    if not both and not wrong:
        return ""
    return f"{len(both)} overlaps, {len(wrong)} out of order; first {[*both, *wrong][0]}"


def assert_alone(seen: Sequence[Stay]) -> None:
    trouble = trouble_in(seen)
    assert not trouble, trouble


def take_turns(workers: Sequence[Worker], rounds: int = 20) -> int:
    """Two tasks of each acquire `rounds` times. How many of these holds were told that they may not be alone."""
    for worker in workers:
        worker.order(f"turns 2 {rounds}")
    return sum(int(worker.hears("turned")["lost"]) for worker in workers)


def settles(here: Path, workers: Sequence[Worker]) -> None:
    """After a disturbance: within a bound all are served by one token again, and it stays one.

    Two tokens need not overlap to be two: each round must be served by a single one, whoever asks.
    """
    deadline = time.monotonic() + SETTLE_S
    while trouble := trouble_in_round(round_of_turns(here, workers)):
        assert time.monotonic() < deadline, f"{SETTLE_S} s after the disturbance still {trouble}"
    for _ in range(2):
        trouble = trouble_in_round(round_of_turns(here, workers))
        assert not trouble, f"all were served by one token, and then not: {trouble}"


def trouble_in_round(seen: Sequence[Stay]) -> str:
    epochs = sorted({stay.epoch for stay in seen})
    return trouble_in(seen) or (f"tokens of epochs {epochs}" if len(epochs) > 1 else "")


def round_of_turns(here: Path, workers: Sequence[Worker]) -> list[Stay]:
    before = len(stays(here))
    take_turns(workers)
    return stays(here)[before:]


def turns_of(seen: Sequence[Stay]) -> dict[int, int]:
    counted: dict[int, int] = defaultdict(int)
    for stay in seen:
        counted[stay.pid] += 1
    return dict(counted)
