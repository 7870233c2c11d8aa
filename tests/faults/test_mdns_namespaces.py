"""mDNS between hosts: network namespaces on a bridge, real multicast between them, nothing configured but a name."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.faults.harness import ROOT, Worker, assert_alone, group, stays, turns_of
from tests.faults.lan import Lan, lan

pytestmark = [pytest.mark.needs("netns", "ip"), pytest.mark.slow]

PATIENCE_S = 100.0

# Joins as what a transport on a wildcard would announce, and says each list that it is shown, and when.
WATCHER = """
import asyncio, json, sys, time
from softmutex_adapters.memberships.mdns import MdnsMembership
from softmutex.ports import Closed, Member

def say(what, **values):
    print(json.dumps({"what": what, "at": time.monotonic(), **values}), flush=True)

async def watch(membership):
    while True:
        say("list", members=[[one.address, one.name] for one in await membership.watch()])

async def main(url, address, id):
    membership = MdnsMembership.from_url(url)
    say("start", pid=0)
    await membership.join(Member(address, int(id), f"host{id}"))
    watching = asyncio.create_task(watch(membership))
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line == "statistics":
            say("statistics", **membership.statistics())
    watching.cancel()
    say("leave")
    await membership.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


class Watcher:
    def __init__(self, prefix: Sequence[str], url: str, address: str, id: int) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", WATCHER, url, address, str(id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def order(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def says(self, what: str, **values: Any) -> float:
        """When it said so last, as soon as that is the last thing of its kind."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            last = next((event for event in reversed(self.said) if event["what"] == what), None)
            if last is not None and values.items() <= last.items():
                return float(last["at"])
            time.sleep(0.005)
        raise AssertionError(f"it does not say {what} {values}, but {self.said}")

    def counts(self, name: str) -> int:
        self.order("statistics")
        self.says("statistics")
        return int(next(event for event in reversed(self.said) if event["what"] == "statistics")[name])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def hosts() -> Iterator[Lan]:
    with lan(3) as made:
        yield made


def nodes(key: str, count: int, *, host: str = "0.0.0.0", options: str = "") -> list[dict[str, Any]]:
    return [{"transport": f"udp://{host}:9431", "membership": f"mdns://lab{options}", "key": key}] * count


# --- mutual exclusion ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "host", "options"),
    [
        (True, False, "0.0.0.0", ""),
        (False, True, "[::]", ""),
        (True, True, "0.0.0.0", ""),
        (True, True, "[::]", "?ip=6&interfaces=eth0"),
    ],
    ids=["IPv4", "IPv6", "both", "IPv6 chosen"],
)
def test_hosts_that_know_a_name_only_exclude_each_other(
    tmp_path: Path, key: str, ipv4: bool, ipv6: bool, host: str, options: str
) -> None:
    with (
        lan(3, ipv4=ipv4, ipv6=ipv6) as made,
        group(tmp_path, nodes(key, 3, host=host, options=options), made.prefixes()) as workers,
    ):
        for worker in workers:
            worker.order("turns 2 10")
        for worker in workers:
            worker.hears("turned")
        for worker in workers:
            worker.ends()
    seen = stays(tmp_path)
    assert_alone(seen)
    assert sorted(turns_of(seen).values()) == [20, 20, 20]


ONE_SHOT = """
import asyncio, os, sys, time
from softmutex import SoftMutex

async def main(witness, key):
    file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(3):
        async with SoftMutex("x", transport="udp://0.0.0.0:9431", membership="mdns://lab", key=key, timeout=60) as hold:
            os.write(file, f"{time.monotonic_ns()} in {os.getpid()} {number} {hold.epoch} {hold.hop}\\n".encode())
            await asyncio.sleep(0.2)
            os.write(file, f"{time.monotonic_ns()} out {os.getpid()} {number} {hold.epoch} {hold.hop}\\n".encode())

asyncio.run(main(*sys.argv[1:]))
"""


def test_one_shots_on_two_hosts_that_come_and_go_exclude_each_other(tmp_path: Path, key: str, hosts: Lan) -> None:
    command = [sys.executable, "-c", ONE_SHOT, str(tmp_path / "witness"), key]
    both = [subprocess.Popen([*hosts.prefix(number), *command], cwd=ROOT) for number in (1, 2)]
    assert [process.wait(100) for process in both] == [0, 0]
    seen = sorted(stays(tmp_path))
    assert sorted(turns_of(seen).values()) == [3, 3]
    for one, next_one in pairwise(seen):
        assert one.end_s <= next_one.begin_s, "two held it at once"


HOLDER = """
import asyncio, sys
from softmutex import SoftMutex

async def main(key):
    async with SoftMutex("x", transport="udp://0.0.0.0:9431", membership="mdns://lab", key=key):
        print("in", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


def test_who_has_a_wrong_key_ends_with_69_instead_of_running_alone(tmp_path: Path, key: str, hosts: Lan) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(os.urandom(32))
    wrong.chmod(0o600)
    right = [*hosts.prefix(1), sys.executable, "-c", HOLDER, key]
    where = ["--transport", "udp://0.0.0.0:9431", "--membership", "mdns://lab", "--key-file"]
    run = [sys.executable, "-m", "softmutex", "run", "-n", "x", *where]
    holder = subprocess.Popen(right, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert holder.stdout and holder.stdout.readline() == b"in\n"
        outcome = subprocess.run(
            [*hosts.prefix(2), *run, str(wrong), "--", "echo", "alone"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=ROOT,
        )
        assert (outcome.returncode, outcome.stdout) == (69, ""), outcome.stderr
        assert "10.77.0.1:9431 is there and refuses this node" in outcome.stderr
        assert "softmutex key list shows a key's id" in outcome.stderr
    finally:
        holder.kill()
        holder.communicate()


# --- who comes, who goes, who dies -----------------------------------------------------------------------------------


@pytest.mark.alone
def test_newcomers_are_known_to_all_within_a_second_and_a_half_and_leavers_gone_within_one(hosts: Lan) -> None:
    known, gone = [], []
    with ExitStack() as stack:

        def start(number: int, id: int) -> Watcher:
            watcher = Watcher(hosts.prefix(number), "mdns://lab", "0.0.0.0:9431", id)
            stack.callback(watcher.end)
            return watcher

        one, two = start(1, 1), start(2, 2)
        here = [["10.77.0.1:9431", "host1"], ["10.77.0.2:9431", "host2"]]
        one.says("list", members=[here[1]])
        two.says("list", members=[here[0]])
        for id in range(3, 8):
            newcomer, shown = start(3, id), ["10.77.0.3:9431", f"host{id}"]
            at = [one.says("list", members=[here[1], shown]), two.says("list", members=[here[0], shown])]
            at.append(newcomer.says("list", members=here))
            known.append(max(at) - newcomer.says("start"))
            newcomer.order("")
            left_at = newcomer.says("leave")
            at = [one.says("list", members=[here[1]]), two.says("list", members=[here[0]])]
            gone.append(max(at) - left_at)
    assert median(known) <= 1.5, known
    assert median(gone) <= 1.0, gone
    assert max(known + gone) <= 30.0, (known, gone)  # a machine that does other things has its moments


def peers_of(worker: Worker) -> int:
    return int(worker.statistics()["node"]["peers"])


def until_peers(workers: Sequence[Worker], count: int) -> float:
    start = time.monotonic()
    while any(peers_of(worker) != count for worker in workers):
        assert time.monotonic() - start < PATIENCE_S, f"{[peers_of(worker) for worker in workers]} peers, not {count}"
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.mark.alone
def test_a_member_that_is_killed_while_nobody_needs_it_is_forgotten_when_its_record_is(
    tmp_path: Path, key: str, hosts: Lan
) -> None:
    """The record's end makes the nodes ask, and they get no answer. A mutex in use finds out sooner: by needing it."""
    with group(tmp_path, nodes(key, 3, options="?ttl=4"), hosts.prefixes()) as workers:
        until_peers(workers, 2)
        workers[2].kill()
        assert until_peers(workers[:2], 1) < 30.0  # 5.9 at most where nobody else wants the processor; else 120


def test_a_node_that_takes_the_place_of_a_killed_one_is_met_and_the_dead_one_forgotten(
    tmp_path: Path, key: str, hosts: Lan
) -> None:
    with group(tmp_path, nodes(key, 2), hosts.prefixes()[:2]) as workers:
        until_peers(workers, 1)
        workers[1].kill()
        with group(tmp_path, nodes(key, 1), hosts.prefixes()[1:2]) as [heir]:
            for worker in (workers[0], heir):
                worker.order("turns 1 5")
            for worker in (workers[0], heir):
                worker.hears("turned")
            until_peers([workers[0], heir], 1)
    assert len(turns_of(stays(tmp_path))) == 2


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.needs("nft")
def test_where_multicast_is_blocked_there_is_silence_and_a_counter_and_afterwards_they_meet(hosts: Lan) -> None:
    with ExitStack() as stack:
        hosts.on(1, "nft", "add table inet wall; add chain inet wall out { type filter hook output priority 0; }")
        hosts.on(1, "nft", "add chain inet wall in { type filter hook input priority 0; }")
        for chain in ("in", "out"):
            hosts.on(1, "nft", f"add rule inet wall {chain} udp dport 5353 drop")
        watchers = [Watcher(hosts.prefix(n), "mdns://lab", "0.0.0.0:9431", n) for n in (1, 2)]
        for watcher in watchers:
            stack.callback(watcher.end)
        one, two = watchers
        one.says("list", members=[])
        two.says("list", members=[])
        deadline = time.monotonic() + PATIENCE_S
        while one.counts("unheard") == 0:
            assert time.monotonic() < deadline, "it is not counted that nothing comes back"
            time.sleep(0.1)
        assert two.counts("unheard") == 0
        assert one.process.poll() is None
        hosts.on(1, "nft", "delete table inet wall")
        one.says("list", members=[["10.77.0.2:9431", "host2"]])
        two.says("list", members=[["10.77.0.1:9431", "host1"]])


def test_a_network_card_that_is_replaced_and_has_another_address_is_followed(hosts: Lan) -> None:
    with ExitStack() as stack:
        watchers = [Watcher(hosts.prefix(n), "mdns://lab", "0.0.0.0:9431", n) for n in (1, 2)]
        for watcher in watchers:
            stack.callback(watcher.end)
        one, two = watchers
        one.says("list", members=[["10.77.0.2:9431", "host2"]])
        two.says("list", members=[["10.77.0.1:9431", "host1"]])
        hosts.unplug(2)
        hosts.plug_in(2, 22)
        one.says("list", members=[["10.77.0.22:9431", "host2"]])
        hosts.unplug(1)
        hosts.plug_in(1, 1)  # a new card under the old address
        late = Watcher(hosts.prefix(3), "mdns://lab", "0.0.0.0:9431", 3)
        stack.callback(late.end)
        everybody = [["10.77.0.1:9431", "host1"], ["10.77.0.22:9431", "host2"], ["10.77.0.3:9431", "host3"]]
        late.says("list", members=everybody[:2])
        one.says("list", members=everybody[1:])
        two.says("list", members=[everybody[0], everybody[2]])


def test_a_mutex_survives_that_a_host_gets_another_address(tmp_path: Path, key: str, hosts: Lan) -> None:
    with group(tmp_path, nodes(key, 2), hosts.prefixes()[:2]) as workers:
        until_peers(workers, 1)
        hosts.unplug(2)
        hosts.plug_in(2, 22)
        for worker in workers:
            worker.order("turns 1 5")
        for worker in workers:
            worker.hears("turned")
        until_peers(workers, 1)
        for worker in workers:
            worker.ends()
    assert sorted(turns_of(stays(tmp_path)).values()) == [5, 5]
