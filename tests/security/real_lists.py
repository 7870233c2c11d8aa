"""Real servers of lists that die, forget, go back in time or lie: a name server, Redis, etcd, a registry. The members
are nodes over UDP; one of them goes and comes back as another life, and one has gone whom an old list shows again.

What is judged: T_S after the last fault has ended all who live know each other, and each has its turn. Whom an old list
shows and who is gone may be believed until its lease is over.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

import redis.asyncio

from softmutex import Node
from softmutex.ports import CannotOpen
from tests.contracts.name_server import NameServer
from tests.contracts.test_redis import STEP
from tests.ports import free_port
from tests.registry.serving import Served
from tests.registry.store_process import Process
from tests.runtime.group import until
from tests.security.insider import KEY

KINDS = ("dns", "registry", "redis", "etcd")
T_S = 40.0  # as in `test_flaps.py`
FAULTS = 5
CALM_S = 8.0  # so long nothing changes any more
TTL_S, LEASE_S = 2.0, 5.0
PAUSES_S = {"registry": (0.2, 5.0, 20.0)}  # shorter than a lease, and longer
SHORT_S = (0.2, 1.5, 5.0)
NAME = "group.test"

Fault = Callable[[], Coroutine[Any, Any, None]]


class Lists(Protocol):
    def places(self) -> Sequence[str]:
        """Where four members are."""
        ...

    def url(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def remember(self) -> None:
        """What it shows now it may show again later."""
        ...

    def faults(self, pause: Callable[[], Coroutine[Any, Any, None]]) -> Sequence[Fault]:
        """Each ends before it returns, but for what the server has lost by it."""
        ...


class OfFiles:
    """A server whose list is in files: it is killed, loses them, or finds old ones."""

    def __init__(self, folder: Path, server: Process | Served, *files: str) -> None:
        self.folder, self.server, self.files = folder, server, files
        self.old = folder / "old"

    def places(self) -> Sequence[str]:
        return [f"127.0.0.1:{free_port()}" for _ in range(4)]

    def url(self) -> str:
        if isinstance(self.server, Served):
            return self.server.url("g", insecure="yes")
        return f"{self.server.kind}://127.0.0.1:{self.server.port}/g?ttl={TTL_S}"

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.kill if isinstance(self.server, Served) else self.server.stop)

    async def remember(self) -> None:
        await self.stop()
        self._copy(self.folder, self.old)
        await self.start()

    def _copy(self, source: Path, to: Path) -> None:
        for pattern in self.files:
            for gone in to.glob(pattern):
                shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
            for each in source.glob(pattern):
                to.mkdir(exist_ok=True)
                shutil.copytree(each, to / each.name) if each.is_dir() else shutil.copy2(each, to)

    def faults(self, pause: Callable[[], Coroutine[Any, Any, None]]) -> Sequence[Fault]:
        async def away() -> None:
            await self.stop()
            await pause()
            await self.start()

        async def forgets() -> None:
            await self.stop()
            self._copy(self.folder / "nothing", self.folder)
            await pause()
            await self.start()

        async def goes_back() -> None:
            await self.stop()
            self._copy(self.old, self.folder)
            await pause()
            await self.start()

        async def has_another_clock() -> None:
            assert isinstance(self.server, Process)
            async with redis.asyncio.Redis.from_url(self.server.url) as client:
                for step_s in (-3600, 3610):
                    await client.eval(
                        STEP, 2, *(f"softmutex:{what}:{{g}}" for what in ("leases", "page")), step_s * 1000
                    )
                    await pause()

        is_redis = isinstance(self.server, Process) and self.server.kind == "redis"
        return [away, forgets, goes_back, *([has_another_clock] if is_redis else [])]


class OfNames:
    """A name server: it says nothing, that it failed, that there is nobody, only some, or others."""

    def __init__(self) -> None:
        self.server = NameServer()
        self.port = free_port()

    def places(self) -> Sequence[str]:
        return [f"127.0.0.{number}:{self.port}" for number in (1, 2, 3, 4)]

    def url(self) -> str:
        return f"dns://{NAME}:{self.port}?refresh=0.2&server=127.0.0.1:{self.server.port}"

    def _show(self, *numbers: int) -> None:
        self.server.addresses[NAME] = [f"127.0.0.{number}" for number in numbers]

    async def start(self) -> None:
        self._show(1, 2, 3, 4)
        await self.server.__aenter__()

    async def stop(self) -> None:
        await self.server.__aexit__()

    async def remember(self) -> None:
        pass

    def faults(self, pause: Callable[[], Coroutine[Any, Any, None]]) -> Sequence[Fault]:
        def answering(*numbers: int) -> Fault:
            async def answer() -> None:
                self._show(*numbers)
                await pause()
                self._show(1, 2, 3, 4)

            return answer

        async def is_silent() -> None:
            self.server.works = False
            await pause()
            self.server.works = True

        async def fails() -> None:
            self.server.code = 2
            await pause()
            self.server.code = 0

        async def knows_no_name() -> None:
            del self.server.addresses[NAME]
            await pause()
            self._show(1, 2, 3, 4)

        lies = [answering(), answering(1), answering(2, 4), answering(77, 78), answering(77, 1)]
        return [is_silent, fails, knows_no_name, *lies]


def lists(kind: str, folder: Path) -> Lists:
    match kind:
        case "dns":
            return OfNames()
        case "registry":
            return OfFiles(folder, Served(folder, "--ttl", str(LEASE_S)), "registry.db*")
        case _:
            return OfFiles(folder, Process(kind, folder), kind)


async def comes(node: Node) -> None:
    """As somebody who starts it again and again."""
    while True:
        try:
            await node.open()
        except CannotOpen:
            await asyncio.sleep(0.2)
        else:
            return


def is_whole(nodes: Sequence[Node]) -> bool:
    names = {node.name for node in nodes}
    return all(names <= {node.name, *(peer.name for peer in node.peers() if not peer.silent)} for node in nodes)


async def flap(kind: str, seed: int, folder: Path) -> float:
    """How long after the last fault, in seconds, until all know all."""
    rng, shown = random.Random(seed), lists(kind, folder)
    now, pauses_s = asyncio.get_running_loop().time, PAUSES_S.get(kind, SHORT_S)
    await shown.start()
    places = shown.places()

    def member(number: int) -> Node:
        options: dict[str, Any] = {"membership": shown.url(), "key": KEY, "name": "abcd"[number]}
        return Node(transport=f"udp://{places[number]}", **options)

    nodes = [member(number) for number in range(4)]
    try:
        await asyncio.gather(*map(comes, nodes))
        await until(lambda: is_whole(nodes))
        await shown.remember()
        await until(lambda: is_whole(nodes))
        await nodes.pop().close()
        for _ in range(FAULTS):
            fault = rng.choice(shown.faults(lambda: asyncio.sleep(rng.choice(pauses_s))))
            if rng.random() < 0.5:
                await nodes[2].close()
                nodes[2] = member(2)
                await asyncio.gather(fault(), comes(nodes[2]))
            else:
                await fault()
            await asyncio.sleep(rng.choice(SHORT_S))
        began = apart_at = now()
        while now() - apart_at < CALM_S and now() - began < T_S + CALM_S:
            await asyncio.sleep(0.05)
            if not is_whole(nodes):
                apart_at = now()
        assert apart_at - began < T_S, (kind, seed, [[peer.name for peer in node.peers()] for node in nodes])
        for node in nodes:
            async with node.mutex("x").hold(timeout=T_S):
                pass
        return apart_at - began
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
        await shown.stop()
