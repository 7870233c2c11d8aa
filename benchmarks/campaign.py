"""Real processes on hosts of their own, in bad weather, with an observer outside; and a soak.

    python benchmarks/campaign.py --minutes 60 --seed 1                   root: hosts are network namespaces
    python benchmarks/campaign.py --minutes 60 --membership redis         their list is in a Redis, restarted too;
                                                                          or `registry`, or `local`: a run directory
    python benchmarks/campaign.py --soak --minutes 60                     eight processes, churn: does anything grow?

Each host has one process with one node; whoever is free asks for the mutex, holds it for a while, and hands it on.
The seed draws who asks when, and each ten seconds or so what goes wrong (`weather.py`): a kill, a pause, a cut, a cut
in one direction, loss, flapping, a restart under the same name, a wall clock that is set hours or days off, a full
disk, a change of the group's key, a restart of the list's server. All write into one file when a hold begins and ends,
by the machine's one clock: that file is the observer, and nobody can be wrong about the others' lines in it.

Judged as the simulator judges (`softmutex/sim/checkers.py`), by what is seen from outside:

    overlap    only within a fault, or GRACE_S after it
    evidence   whoever overlapped for longer than TELL_S, and lives, is told within TELL_S of being reached again
    requests   when all is healed everybody is granted within two rounds and GRACE_S
    tokens     then all are served by one token (`tests/faults/harness.py:settles`)
    keys       a change of the key that finds no room changes nothing

Not here: clocks that run too fast or too slowly, since namespaces share the kernel's; the simulator has those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.weather import SERVER, Disk, Trouble, Weather, server_of
from tests.faults.harness import Stay, Worker, overlaps, settles, stays
from tests.faults.lan import Lan, lan

GRACE_S = 10.0
TELL_S = 10.0
HOSTS, SOAKING = 5, 8
HOLD_S = (0.05, 3.0)
THINK_S = (0.0, 2.0)
CALM_S = (4.0, 12.0)  # between two faults


class Host:
    """One place, and whichever process lives there now. A thread of its own asks and hands on."""

    def __init__(
        self, number: int, order: dict[str, Any], prefix: Sequence[str], seed: int, looks_inside: bool = False
    ) -> None:
        self.looks_inside = looks_inside
        self.number, self.order, self.prefix = number, order, prefix
        self.wall_s = 0.0  # how far off the clock is with which the next process starts
        self.worker = self._start()
        self.dice = random.Random(f"host {seed} {number}")
        self.over = threading.Event()
        self.waits: list[tuple[float, float]] = []  # (asked, granted)
        self.killed: dict[int, float] = {}
        self.workers = [self.worker]
        self.turns = 0
        self.inside: list[Inside] = []  # after each turn, where somebody wants to know
        self._thread = threading.Thread(target=self._use, daemon=True)

    def _start(self) -> Worker:
        worker = Worker({**self.order, "wall_s": self.wall_s}, self.prefix)
        try:
            worker.hears("ready")
        except AssertionError:
            worker.clean_up()
            raise
        return worker

    def begin(self) -> None:
        self._thread.start()

    def _use(self) -> None:
        while not self.over.is_set():
            self.over.wait(self.dice.uniform(*THINK_S))
            worker = self.worker
            self.turns += 1
            with contextlib.suppress(AssertionError, OSError, ValueError):  # it was killed
                asked_s = time.monotonic()
                worker.order(f"enter {self.turns}")
                worker.hears("in", 1e6, key=str(self.turns))
                self.waits.append((asked_s, time.monotonic()))
                time.sleep(self.dice.uniform(*HOLD_S))
                worker.order(f"leave {self.turns}")
                worker.hears("out", 1e6, key=str(self.turns))
                if self.looks_inside:
                    self.inside.append(inside(worker))

    def kill(self) -> None:
        worker = self.worker
        pid = worker.pid
        self.killed[pid] = worker.kill()

    def restart(self) -> None:
        self.worker = self._start()
        self.workers.append(self.worker)

    def clean_up(self) -> None:
        self.over.set()
        for worker in self.workers:
            with contextlib.suppress(BrokenPipeError):  # it was killed while somebody spoke to it
                worker.clean_up()

    def stops(self) -> bool:
        """Whether its last request was granted in time."""
        self.over.set()
        self._thread.join(HOSTS * HOLD_S[1] * 2 + GRACE_S)
        return not self._thread.is_alive()


# --- the observer ----------------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    table: list[str]
    broken: list[str]


def judged(here: Path, hosts: Sequence[Host], troubles: Sequence[Trouble], late: Sequence[int], settled: str) -> Judged:
    killed = {pid: at for host in hosts for pid, at in host.killed.items()}
    seen = stays(here, killed)
    pairs = overlaps(seen)
    broken = [f"tokens: {settled}"] if settled else []
    broken += [f"requests: host {number} was not granted when all was healed" for number in late]
    for first, second in pairs:
        if not any(each.begin_s <= second.begin_s <= each.end_s + GRACE_S for each in troubles):
            broken.append(
                f"overlap: of {first.pid} and {second.pid}, {length(first, second):.2f} s, and nothing was wrong"
            )
        broken += [f"evidence: {pid} was never told" for pid in untold(hosts, first, second, killed)]
    rows = [f"{'fault':<16} {'times':>5} {'overlaps':>9} {'longest':>8} {'next grant: median':>19} {'longest':>8}"]
    for kind in sorted({each.kind for each in troubles}):
        mine = [each for each in troubles if each.kind == kind]
        after = [next_grant(seen, each) for each in mine]
        lengths = [length(*pair) for pair in pairs if any(is_in_wake(pair, each) for each in mine)]
        rows.append(
            f"{kind:<16} {len(mine):>5} {len(lengths):>9} {max(lengths, default=0):>6.1f} s "
            f"{statistics.median(after):>17.2f} s {max(after):>6.2f} s"
        )
    waits = sorted(granted - asked for host in hosts for asked, granted in host.waits)
    both = sum(length(*pair) for pair in pairs)
    spent = seen[-1].end_s - seen[0].begin_s
    rows.append(f"{len(seen)} holds in {spent:.0f} s, two at once for {both / spent:.2%} of the time")
    rows.append(
        f"waits: median {waits[len(waits) // 2]:.2f} s, 99 % {waits[len(waits) * 99 // 100]:.2f} s, "
        f"longest {waits[-1]:.2f} s"
    )
    return Judged(rows, broken)


def length(first: Stay, second: Stay) -> float:
    return min(first.end_s, second.end_s) - second.begin_s


def is_in_wake(pair: tuple[Stay, Stay], trouble: Trouble) -> bool:
    return trouble.begin_s <= pair[1].begin_s <= trouble.end_s + GRACE_S


def next_grant(seen: Sequence[Stay], trouble: Trouble) -> float:
    """From when it began; a hold that went on meanwhile is no wait."""
    running = [stay.end_s for stay in seen if stay.begin_s <= trouble.begin_s < stay.end_s]
    since = max([trouble.begin_s, *running])
    return min((stay.begin_s for stay in seen if stay.begin_s >= since), default=since) - since


def untold(hosts: Sequence[Host], first: Stay, second: Stay, killed: dict[int, float]) -> list[int]:
    if length(first, second) < TELL_S / 10 or {first.pid, second.pid} & killed.keys():
        return []
    workers = {worker.pid: worker for host in hosts for worker in host.workers}
    return [pid for pid in (first.pid, second.pid) if not was_told(workers[pid])]


def was_told(worker: Worker) -> bool:
    if worker.has_said("lost"):
        return True
    with contextlib.suppress(AssertionError, OSError):
        mutex = worker.statistics(TELL_S)["mutex"]
        return bool(mutex.get("lost") or mutex.get("overlaps") or mutex.get("facts", {}).get("overlap"))
    return False


# --- the two commands ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hosts_on(place: Lan, here: Path, membership: str, seed: int) -> Iterator[list[Host]]:
    key = here / "disk/key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    addresses = [f"10.77.0.{number}:9431" for number in range(1, HOSTS + 1)]
    where = {
        "static": "static://" + ",".join(addresses),
        "redis": f"redis://{SERVER}:6379/campaign",
        "registry": f"registry+http://{SERVER}:9430/campaign?insecure=yes",
        "local": f"local://?directory={here}/disk/run",
    }[membership]
    hosts: list[Host] = []
    try:
        for number, address in enumerate(addresses, 1):
            node = {"transport": f"udp://{address}", "membership": where, "key": str(key), "name": f"host{number}"}
            order = {"witness": str(here / "witness"), "node": node, "mutex": {}}
            hosts.append(Host(number, order, place.prefix(number), seed))
        yield hosts
    finally:
        for host in hosts:
            host.clean_up()


def campaign(minutes: float, seed: int, membership: str) -> Judged:
    dice = random.Random(f"campaign {seed}")
    with tempfile.TemporaryDirectory(prefix="softmutex-campaign-") as folder, lan(HOSTS) as place:
        disk = Disk(Path(folder) / "disk")
        os.environ["HOME"] = os.environ["XDG_STATE_HOME"] = folder  # whoever met a registry before knows another key
        server = server_of(place, membership, disk.path)
        try:
            if server is not None:
                server.start()
            with hosts_on(place, Path(folder), membership, seed) as hosts:
                return in_weather(Path(folder), hosts, Weather(place, hosts, server, disk, dice), minutes)
        finally:
            if server is not None:
                server.stop()
            disk.clean_up()


def in_weather(here: Path, hosts: Sequence[Host], weather: Weather, minutes: float) -> Judged:
    until = time.monotonic() + 60 * minutes
    for host in hosts:
        host.begin()
    while time.monotonic() < until:
        time.sleep(weather.dice.uniform(*CALM_S))
        weather.one()
        if sys.stderr.isatty():
            left = max(0.0, until - time.monotonic())
            sys.stderr.write(f"\r{len(weather.troubles)} faults, {left:.0f} s left \x1b[K")
    time.sleep(GRACE_S)
    late = [host.number for host in hosts if not host.stops()]
    settled = ""
    if not late:
        try:
            settles(here, [host.worker for host in hosts])
        except AssertionError as error:
            settled = str(error)
    found = judged(here, hosts, weather.troubles, late, settled)
    return found._replace(broken=[*weather.broken, *found.broken])


class Inside(NamedTuple):
    """What only the process itself can count."""

    timers: int
    tasks: int


def inside(worker: Worker) -> Inside:
    counted = worker.statistics()
    return Inside(counted["node"]["timers"], counted["tasks"])


class Measure(NamedTuple):
    rss_kib: int
    descriptors: int
    threads: int
    timers: int
    tasks: int


def measured(host: Host) -> Measure | None:
    """None before its first turn. The most timers and tasks of its last ten turns."""
    if not (counted := host.inside[-10:]):
        return None
    pid = host.worker.pid
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Measure(
        int(status["VmRSS"].split()[0]),
        descriptors,
        int(status["Threads"]),
        max(each.timers for each in counted),
        max(each.tasks for each in counted),
    )


def soak(minutes: float, seed: int) -> Judged:
    """Eight on one host; each few seconds one of the last four leaves in good order, and another one comes."""
    with tempfile.TemporaryDirectory(prefix="softmutex-soak-") as folder:
        here = Path(folder)

        def host(number: int) -> Host:
            runtime = {"membership": f"local://?directory={here}/runtime", "name": f"node{number}"}
            order = {"witness": str(here / "witness"), "node": runtime, "mutex": {}}
            return Host(number, order, (), seed, looks_inside=True)

        staying, moving = [host(number) for number in range(4)], [host(number) for number in range(4, SOAKING)]
        for each in (*staying, *moving):
            each.begin()
        until, taken, lives = time.monotonic() + 60 * minutes, list[list[Measure]](), 0
        try:
            while time.monotonic() < until:
                time.sleep(5)
                looks = [measured(each) for each in staying]
                taken += [[look for look in looks if look]] if all(looks) else []
                leaver = moving.pop(0)
                leaver.stops()
                leaver.worker.ends()
                leaver.clean_up()
                lives += 1
                moving.append(host(SOAKING + lives))
                moving[-1].begin()
            late = [each.number for each in (*staying, *moving) if not each.stops()]
        finally:
            for each in (*staying, *moving):
                each.clean_up()
        pairs = overlaps(stays(here))
    return soaked(taken, lives, late, len(pairs))


def soaked(taken: list[list[Measure]], lives: int, late: Sequence[int], both: int) -> Judged:
    """What is there in the last quarter, beside the second one: the first is for warming up."""
    quarter = max(1, len(taken) // 4)
    rows, broken = [f"{lives} came and left; overlaps {both}"], [f"host {number} was not granted" for number in late]
    broken += [f"{both} overlaps"] if both else []
    for name in Measure._fields:
        values = [[getattr(each, name) for each in measures] for measures in taken]
        early = [max(column) for column in zip(*values[quarter : 2 * quarter], strict=True)]
        lately = [max(column) for column in zip(*values[-quarter:], strict=True)]
        rows.append(f"{name:<12} most of a member: second quarter {max(early)}, last quarter {max(lately)}")
        room = {"rss_kib": 1.05, "timers": 1.25, "tasks": 1.25}.get(name, 1.0)  # those come and go with each hold
        if any(last > room * first + 1 for first, last in zip(early, lately, strict=True)):
            broken.append(f"{name} grew: {early} to {lately}")
    return Judged(rows, broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--membership", choices=["static", "redis", "registry", "local"], default="static")
    parser.add_argument("--soak", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)  # has a mount namespace of its own
    asked = parser.parse_args()
    if not (asked.soak or asked.apart):  # the disk that is filled is seen by this run alone, and goes with it
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv, "--apart"])
    found = soak(asked.minutes, asked.seed) if asked.soak else campaign(asked.minutes, asked.seed, asked.membership)
    if asked.json:
        print(json.dumps(found._asdict()))
    else:
        print("\n".join([*found.table, *(f"BROKEN {line}" for line in found.broken)]))
        print(f"{len(found.broken)} laws broken" if found.broken else "all laws held")
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
