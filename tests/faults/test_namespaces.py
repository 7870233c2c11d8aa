"""Hosts of their own, as network namespaces with a bridge between them, and the kernel's own filter in the way."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Worker, assert_alone, group, overlaps, settles, stays, take_turns, turns_of

pytestmark = pytest.mark.needs("root", "netns", "nft")

REPLACED_S = 60.0
NEWS_S = 60.0


class Hosts:
    """`count` namespaces 10.77.0.1 ... on a bridge that is in another one: the machine's own network is not touched."""

    def __init__(self, count: int) -> None:
        self._hub = f"sm{os.getpid()}h"
        self.names = [f"sm{os.getpid()}n{number}" for number in range(count)]

    def build(self) -> None:
        for name in (self._hub, *self.names):
            command("ip", "netns", "add", name)
        self.within(self._hub, "ip", "link", "add", "bridge", "type", "bridge")
        self.within(self._hub, "ip", "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            plug = f"plug{number}"
            self.within(self._hub, "ip", "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.within(self._hub, "ip", "link", "set", plug, "master", "bridge", "up")
            self.within(name, "ip", "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            self.within(name, "ip", "link", "set", "lo", "up")
            self.within(name, "ip", "link", "set", "eth0", "up")

    def take_down(self) -> None:
        for name in (*self.names, self._hub):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def within(self, name: str, *words: str) -> None:
        command("ip", "netns", "exec", name, *words)

    def filter(self, number: int, *rules: str) -> None:
        """Of one host: `output drop`, `input ip saddr 10.77.0.2 drop` ... Without a rule everything passes again."""
        name = self.names[number]
        self.within(name, "nft", "flush", "ruleset")
        if not rules:
            return
        self.within(name, "nft", "add", "table", "inet", "weather")
        for hook in ("input", "output"):
            shape = f"{{ type filter hook {hook} priority 0; }}"
            self.within(name, "nft", "add", "chain", "inet", "weather", hook, shape)
        for rule in rules:
            self.within(name, "nft", "add", "rule", "inet", "weather", *rule.split())


def command(*words: str) -> None:
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, f"{' '.join(words)}: {run.stderr}"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts(4)
    try:
        made.build()
        yield made
    finally:
        made.take_down()


@pytest.fixture
def workers(hosts: Hosts, tmp_path: Path) -> Iterator[list[Worker]]:
    """One on each host, sealed with the group's key, in a static list."""
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    addresses = [f"{hosts.address(number)}:9431" for number in range(4)]
    nodes = [
        {"transport": f"udp://{address}", "membership": "static://" + ",".join(addresses), "key": str(key)}
        for address in addresses
    ]
    with group(tmp_path, nodes, [["ip", "netns", "exec", name] for name in hosts.names]) as started:
        take_turns(started, 2)
        yield started


@pytest.mark.parametrize("rules", [("input drop", "output drop"), ("output drop",)], ids=["cut off", "mute"])
def test_a_holder_on_a_host_that_is_cut_off_is_replaced_and_told(
    hosts: Hosts, workers: list[Worker], tmp_path: Path, rules: tuple[str, ...]
):
    holder, *others = workers
    holder.enters("a")
    others[0].order("enter b")
    holder.queues(others[0])
    holder.is_watched()
    hosts.filter(0, *rules)
    others[0].hears("in", key="b", patience_s=REPLACED_S)
    holder.is_told_of_loss("a", NEWS_S)
    hosts.filter(0)
    others[0].leaves("b")
    holder.leaves("a")
    assert len(overlaps(stays(tmp_path))) == 1
    settles(tmp_path, workers)
    for worker in workers:
        worker.ends()


def test_what_the_kernel_forbids_to_send_is_counted_and_comes_later(
    hosts: Hosts, workers: list[Worker], tmp_path: Path
):
    """A filter on output gives EPERM to whoever sends; the node goes on, and so does the group."""
    before = workers[0].statistics()["node"]["transport"]["send_forbidden"]
    hosts.filter(0, "output drop")
    workers[0].order("enter a")
    time.sleep(1.0)
    take_turns(workers[1:], 10)
    hosts.filter(0)
    workers[0].hears("in", key="a")
    workers[0].leaves("a")
    assert workers[0].statistics()["node"]["transport"]["send_forbidden"] > before
    take_turns(workers)
    for worker in workers:
        worker.ends()


def test_one_in_twenty_packets_lost_on_each_host_costs_time_only(hosts: Hosts, workers: list[Worker], tmp_path: Path):
    before = stays(tmp_path)
    for number in range(4):
        hosts.filter(number, "input numgen random mod 20 < 1 drop")
    take_turns(workers, 50)
    for number in range(4):
        hosts.filter(number)
    seen = [stay for stay in stays(tmp_path) if stay not in before]
    assert set(turns_of(seen).values()) == {100}
    assert_alone(seen)
    for worker in workers:
        worker.ends()


def test_a_host_whose_cable_is_pulled_for_a_while_takes_part_again(hosts: Hosts, workers: list[Worker], tmp_path: Path):
    hosts.within(hosts.names[3], "ip", "link", "set", "eth0", "down")
    take_turns(workers[:3])
    workers[3].order("enter a")
    hosts.within(hosts.names[3], "ip", "link", "set", "eth0", "up")
    workers[3].hears("in", key="a")
    workers[3].leaves("a")
    settles(tmp_path, workers)
    for worker in workers:
        worker.ends()
