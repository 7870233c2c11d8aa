"""Datagrams from strangers, at full speed: garbage, replays, giants. Nothing stops, nothing grows, all is counted."""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.harness import Worker, assert_alone, group, stays, take_turns, turns_of
from tests.faults.relay import Relay
from tests.schedulers.contract import wait_until

FLOOD_S = 1.0
GROWTH_MAX_KB = 30_000
REFUSED = ("malformed", "forged", "replayed", "misdirected", "unknown_key", "version", "unproven", "not_sealed")

Maker = Callable[[random.Random, list[bytes]], Iterator[bytes]]


def noise(chance: random.Random, taped: list[bytes]) -> Iterator[bytes]:
    while True:
        yield chance.randbytes(chance.randrange(1401))


def replays(chance: random.Random, taped: list[bytes]) -> Iterator[bytes]:
    while True:
        yield chance.choice(taped)


def damaged(chance: random.Random, taped: list[bytes]) -> Iterator[bytes]:
    """Real frames with one byte changed, cut short, or with something behind them."""
    while True:
        frame = bytearray(chance.choice(taped))
        frame[chance.randrange(len(frame))] ^= 1 + chance.randrange(255)
        yield bytes(frame[: chance.randrange(1, len(frame) + 1)] + chance.randbytes(chance.choice((0, 0, 9))))


def giants(chance: random.Random, taped: list[bytes]) -> Iterator[bytes]:
    while True:
        yield bytes(65_507)


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"no process {pid}")


def flood(victims: list[tuple[str, int]], datagrams: Iterator[bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        until = time.monotonic() + FLOOD_S
        while time.monotonic() < until:
            for victim in victims:
                stranger.sendto(next(datagrams), victim)


def is_refused(workers: Sequence[Worker], relay: Relay, datagrams: Iterator[bytes]) -> bool:
    """A thousand of them by each. Who got no processor meanwhile has read few, and is flooded again."""
    counted = [worker.statistics()["node"] for worker in workers]
    dropped = [sum(each["dropped"].get(why, 0) for why in REFUSED) + each["transport"]["oversized"] for each in counted]
    few = [number for number, refused in enumerate(dropped) if refused <= 1000]
    if few:
        flood([relay.direct(number) for number in few], datagrams)
    return not few


@pytest.mark.parametrize("make", [noise, replays, damaged, giants])
def test_a_flood_from_strangers_is_counted_and_the_group_goes_on(tmp_path: Path, make: Maker):
    with Relay(2) as relay:
        relay.tape_max = 5000
        with group(tmp_path, [{"transport": relay.transport(number)} for number in range(2)]) as workers:
            take_turns(workers, 20)
            taped = [payload for _, _, payload in relay.taped]
            relay.tape_max = 0
            before = [resident_kb(worker.pid) for worker in workers]
            for worker in workers:
                worker.order("turns 2 20")
            datagrams = make(random.Random(1), taped)
            flood([relay.direct(0), relay.direct(1)], datagrams)
            for worker in workers:
                worker.hears("turned")
            wait_until(lambda: is_refused(workers, relay, datagrams), "what strangers send is not counted")
            for worker, was_kb in zip(workers, before, strict=True):
                counted = worker.statistics()["node"]
                assert counted["told"].get("breakdowns", 0) == 0
                assert resident_kb(worker.pid) - was_kb < GROWTH_MAX_KB
            take_turns(workers, 20)
            for worker in workers:
                worker.ends()
    seen = stays(tmp_path)
    assert set(turns_of(seen).values()) == {120}
    assert_alone(seen)


def test_what_was_taped_of_an_earlier_life_is_void_after_a_restart(tmp_path: Path):
    with Relay(2) as relay:
        relay.tape_max = 5000
        nodes = [{"transport": relay.transport(number)} for number in range(2)]
        with group(tmp_path, nodes) as workers:
            take_turns(workers, 20)
            for worker in workers:
                worker.ends()
        taped = [(receiver, payload) for _, receiver, payload in relay.taped]
        with group(tmp_path, nodes) as workers:
            workers[0].enters("a")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for receiver, payload in taped * 3:
                    stranger.sendto(payload, relay.direct(receiver))
            workers[1].order("enter b 1")
            workers[1].hears("timeout", key="b")
            workers[0].leaves("a")
            assert sum(workers[1].statistics()["node"]["dropped"].get(why, 0) for why in REFUSED) > 0
            take_turns(workers, 20)
            for worker in workers:
                worker.ends()
    assert_alone([stay for stay in stays(tmp_path) if stay.pid in [worker.pid for worker in workers]])


def test_a_member_of_another_group_with_another_key_is_a_stranger(tmp_path: Path):
    for name in ("ours", "theirs"):
        (tmp_path / name).write_bytes(os.urandom(32))
        (tmp_path / name).chmod(0o600)
    with Relay(3) as relay:
        everybody = "static://" + ",".join(relay.address(number) for number in range(3))
        nodes = [
            {"transport": relay.transport(number), "membership": everybody, "key": str(tmp_path / name)}
            for number, name in enumerate(("ours", "ours", "theirs"))
        ]
        # "proceed": by default a stranger that is told so does not begin alone (tests/security/test_hints.py)
        with group(tmp_path, nodes, when_isolated="proceed") as workers:
            *ours, stranger = workers
            ours[0].enters("a")
            stranger.enters("b")  # another group, another mutex
            assert stranger.statistics()["node"]["peers"] == 0
            assert all(worker.statistics()["node"]["peers"] == 1 for worker in ours)
            assert sum(ours[0].statistics()["node"]["dropped"].get(why, 0) for why in REFUSED) > 0
            ours[0].leaves("a")
            stranger.leaves("b")
