"""What goes wrong in `campaign.py`, and what the hosts share that can fail: a list server, a small disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from softmutex.core.errors import ConfigError
from softmutex.runtime import keyfile
from softmutex.runtime.sealing import key_id, read_keys
from tests.faults.harness import Worker
from tests.faults.lan import Lan, run

SERVER = "10.77.0.254"  # on the bridge: of Redis, of the registry
DISK_KIB, DISK_INODES = 8192, 128  # a registry's log of what it writes comes to 4 MiB
CLOCKS_S = (7200.0, -7200.0, 5 * 86400.0, -5 * 86400.0)


class Place(Protocol):
    """A host of the campaign, and whichever process lives there now."""

    number: int
    worker: Worker
    wall_s: float

    def kill(self) -> None: ...
    def restart(self) -> None: ...


class Trouble(NamedTuple):
    kind: str
    begin_s: float
    end_s: float


def filter_of(place: Lan, number: int, *rules: str) -> None:
    place.on(number, "nft", "flush", "ruleset")
    if rules:
        place.on(number, "nft", "add", "table", "inet", "weather")
    for hook in ("input", "output") if rules else ():
        place.on(number, *f"nft add chain inet weather {hook}".split(), f"{{ type filter hook {hook} priority 0; }}")
    for rule in rules:
        place.on(number, "nft", "add", "rule", "inet", "weather", *rule.split())


class Server:
    """Of lists, on the bridge: whatever the command starts."""

    def __init__(self, place: Lan, name: str, words: Sequence[str]) -> None:
        self.name = name
        self._words = [*place.prefix(0), *words]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._words, stdin=quiet, stdout=quiet, stderr=quiet)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def server_of(place: Lan, membership: str, disk: Path) -> Server | None:
    """Redis forgets all when it stops; the registry has its store on the small disk."""
    if membership not in ("redis", "registry"):
        return None
    place.on(0, "ip", "addr", "add", f"{SERVER}/24", "dev", "br0")
    if membership == "redis":
        words = ["redis-server", "--bind", SERVER, "--port", "6379", "--save", "", "--protected-mode", "no"]
    else:
        words = [sys.executable, "-m", "softmutex", "registry", "--insecure", "--listen", f"{SERVER}:9430"]
        words += ["--store", f"sqlite:{disk}/registry.db", "--ttl", "5"]
    return Server(place, membership, words)


class Disk:
    """Small enough to be filled: the group's key lies there, the run directory, the registry's store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir()
        options = f"size={DISK_KIB}k,nr_inodes={DISK_INODES},mode=0700"
        run("mount", "-t", "tmpfs", "-o", options, "softmutex-campaign", str(path))

    def fill(self) -> None:
        """To the last byte, and to the last file."""
        self._ballast.mkdir()
        try:
            with (self._ballast / "bytes").open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        try:
            for number in range(2 * DISK_INODES):
                (self._ballast / str(number)).touch()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def free(self) -> None:
        for file in self._ballast.iterdir():
            file.unlink()
        self._ballast.rmdir()

    def clean_up(self) -> None:
        run("umount", "--lazy", str(self.path))


class Weather:
    def __init__(
        self, place: Lan, hosts: Sequence[Place], server: Server | None, disk: Disk, dice: random.Random
    ) -> None:
        self.place, self.hosts, self.server, self.disk, self.dice = place, hosts, server, disk, dice
        self.troubles: list[Trouble] = []
        self.broken: list[str] = []
        self.kinds: dict[str, Callable[[], None]] = {
            "kill": self.kill,
            "restart at once": self.restart_at_once,
            "pause": self.pause,
            "cut": lambda: self.filtered(self.dice.uniform(2, 20), "input drop", "output drop"),
            "one-way cut": lambda: self.filtered(
                self.dice.uniform(2, 20), self.dice.choice(["input drop", "output drop"])
            ),
            "loss": self.loss,
            "flapping": self.flapping,
            "clock set": self.clock_set,
            "clock set, restart": self.clock_set_and_restart,
            "disk full": self.disk_full,
            "new key": self.new_key,
        }
        if server is not None:
            self.kinds[f"{server.name} restarted"] = self.server_restarted
        self._bag: list[str] = []

    def one(self) -> None:
        """Each kind once, in an order by lot, then each once more."""
        if not self._bag:
            self._bag = self.dice.sample(sorted(self.kinds), len(self.kinds))
        kind = self._bag.pop()
        begin_s = time.monotonic()
        self.kinds[kind]()
        self.troubles.append(Trouble(kind, begin_s, time.monotonic()))

    def somebody(self) -> Place:
        return self.dice.choice(list(self.hosts))

    def kill(self) -> None:
        host = self.somebody()
        host.kill()
        time.sleep(self.dice.uniform(1, 15))
        host.restart()

    def restart_at_once(self) -> None:
        host = self.somebody()
        host.kill()
        host.restart()

    def pause(self) -> None:
        host = self.somebody()
        host.worker.send(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.5, 12))
        host.worker.send(signal.SIGCONT)

    def filtered(self, seconds: float, *rules: str) -> None:
        number = self.somebody().number
        filter_of(self.place, number, *rules)
        time.sleep(seconds)
        filter_of(self.place, number)

    def loss(self) -> None:
        share = self.dice.choice([1, 5, 20, 40])
        for host in self.hosts:
            filter_of(self.place, host.number, f"input numgen random mod 100 < {share} drop")
        time.sleep(self.dice.uniform(5, 20))
        for host in self.hosts:
            filter_of(self.place, host.number)

    def flapping(self) -> None:
        number = self.somebody().number
        for _ in range(self.dice.randint(3, 12)):
            filter_of(self.place, number, "input drop", "output drop")
            time.sleep(0.6)
            filter_of(self.place, number)
            time.sleep(0.6)

    def clock_set(self) -> None:
        """By an operator, who sees it and sets it right: namespaces have no wall clock of their own, so the worker's
        process is told what to read (`tests/faults/worker.py`)."""
        host = self.somebody()
        host.worker.order(f"clock {self.dice.choice(CLOCKS_S)}")
        time.sleep(self.dice.uniform(2, 12))
        host.worker.order("clock 0")

    def clock_set_and_restart(self) -> None:
        """From now on, for as long as this process lives."""
        host = self.somebody()
        host.kill()
        host.wall_s = self.dice.choice(CLOCKS_S)
        try:
            host.restart()
        finally:
            host.wall_s = 0.0

    def disk_full(self) -> None:
        """Who runs goes on; who starts may say that it cannot; the key is as it was."""
        key = self.disk.path / "key"
        before = key.read_bytes()
        host = self.somebody()
        host.kill()
        self.disk.fill()
        try:
            if can_change_key(key):
                self.broken.append("keys: there was no room, and the key was changed")
            if key.read_bytes() != before:
                self.broken.append("keys: there was no room, and the key is not as it was")
            try:
                host.restart()
                is_there = True
            except AssertionError:  # it ended instead of saying that it is ready
                is_there = False
            time.sleep(self.dice.uniform(2, 12))
        finally:
            self.disk.free()
        if not is_there:
            host.restart()

    def new_key(self) -> None:
        """Installed, used, and the old one retired, while everybody works."""
        key = self.disk.path / "key"
        old = key_id(read_keys(key)[0])
        new = self.disk.path / "new"
        number = keyfile.make(new, beside=read_keys(key))
        for change in (
            lambda: keyfile.install(key, new),
            lambda: keyfile.use(key, number),
            lambda: keyfile.retire(key, old),
        ):
            change()
            time.sleep(self.dice.uniform(2, 4))
        new.unlink()

    def server_restarted(self) -> None:
        assert self.server is not None
        self.server.stop()
        time.sleep(self.dice.uniform(0.5, 8))
        self.server.start()


def can_change_key(key: Path) -> bool:
    """Whether what an operator would do comes through."""
    new = Path(f"/dev/shm/softmutex-campaign-{os.getpid()}")
    try:
        keyfile.make(new, beside=read_keys(key))
        keyfile.install(key, new)
    except ConfigError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True
