"""What a user writes, as a type checker reads it. Not run: `test_typing.py` has it checked by mypy and by pyright."""
# ruff: noqa: T201

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import assert_type

from softmutex import (
    AcquireTimeout,
    ConfigError,
    Hold,
    HoldLost,
    Isolated,
    Node,
    NodeClosed,
    SoftMutex,
    SoftMutexError,
    Timing,
    sync,
)
from softmutex.testing import MemoryNetwork, NullMutex


async def one_shot() -> None:
    async with SoftMutex("nightly-ftp") as hold:
        assert_type(hold, Hold)
    async with SoftMutex(
        "nightly-ftp", transport="udp://0.0.0.0:9431", membership="mdns://lab", timeout=600, key=Path("/etc/key")
    ) as hold:
        hold.touch()


async def long_lived() -> None:
    async with Node.from_env() as node:
        mutex = node.mutex(
            "db-load",
            slots=1,
            max_hold=3600,
            on_overrun="warn",
            on_lost="continue",
            when_isolated="wait",
            algorithm="wandering",
            timing=Timing(op=4.0, nodes_max=300),
            min_interval=0.0,
        )
        async with mutex.hold(timeout=30) as hold:
            while not hold.lost.is_set():
                assert_type(hold.epoch, int)
                assert_type(hold.waited, float)
                assert_type(hold.deadline, float | None)
                assert_type(hold.peers, int)
                assert_type(hold.node, str)
        if free := await mutex.try_acquire():
            async with free:
                pass
        assert_type(await mutex.try_acquire(), Hold | None)
        assert_type(mutex.statistics().acquisitions, int)
        for peer in node.peers():
            assert_type(peer.name, str)


def told(hold: Hold) -> None:
    print(hold.lost_reason)


async def reactions(node: Node) -> None:
    async def told_later(hold: Hold) -> None:
        await hold.lost.wait()

    node.mutex("x", on_lost=told, on_overrun=told_later)
    Node.from_config("softmutex.toml", key=b"0" * 32)
    Node(transport=MemoryNetwork().transport(), membership=MemoryNetwork().membership(), thread=True)


@SoftMutex("reports").guard(timeout=60)
async def report(number: int, *, title: str = "") -> str:
    return title * number


@SoftMutex("reports").guard()
def plain(number: int) -> str:
    return str(number)


async def guarded() -> None:
    assert_type(await report(3, title="x"), str)
    assert_type(plain(3), str)


def threads() -> None:
    with sync.SoftMutex("rsync", timeout=60) as hold:
        subprocess.run(["true"], check=True)
        assert_type(hold.lost, threading.Event)
        assert_type(hold, sync.Hold)
    with sync.Node() as node, node.mutex("x").hold(timeout=3):
        pass


def errors() -> None:
    try:
        asyncio.run(one_shot())
    except (AcquireTimeout, HoldLost, Isolated, NodeClosed, ConfigError) as error:
        problem: SoftMutexError = error
        print(problem)


async def fake() -> None:
    mutex = NullMutex()
    async with mutex as hold:
        print(hold.epoch)
