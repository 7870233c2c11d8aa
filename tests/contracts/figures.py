"""How soon a group knows who came, who left and who was killed: `python -m tests.contracts.figures redis etcd`.

A group of 20 in one process and one member in another, on a real server with the defaults of each membership; the worst
member counts. DNS tells of nobody by itself: there the figure is what passes after the name server has changed.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from softmutex import plugins
from softmutex.ports import Member, Membership
from tests.contracts.boards import join_in_another_process
from tests.contracts.name_server import NameServer
from tests.registry.serving import Served
from tests.registry.store_process import Process

MEMBERS, ROUNDS = 20, 5
NEW, VICTIM = Member("10.0.0.2:1", 1001, "new"), Member("10.0.0.2:2", 1002, "victim")


@contextlib.asynccontextmanager
async def server(kind: str, folder: Path) -> AsyncIterator[str]:
    served = Served(folder) if kind == "registry" else Process(kind, folder)
    await asyncio.to_thread(served.start)
    try:
        yield served.url("figures") if isinstance(served, Served) else f"{kind}://127.0.0.1:{served.port}/figures"
    finally:
        await asyncio.to_thread(served.stop)


class Group:
    """Everybody watches; `until` says how long it took until the last one saw it."""

    def __init__(self, memberships: list[Membership]) -> None:
        self.shown: list[set[str]] = [set() for _ in memberships]
        self.news = asyncio.Event()
        self.tasks = [asyncio.ensure_future(self.watch(number, one)) for number, one in enumerate(memberships)]

    async def watch(self, number: int, membership: Membership) -> None:
        while True:
            self.shown[number] = {one.address for one in await membership.watch()}
            self.news.set()

    async def until(self, condition: Callable[[set[str]], bool], since: float) -> float:
        async with asyncio.timeout(120):
            while not all(map(condition, self.shown)):
                self.news.clear()
                await self.news.wait()
        return time.perf_counter() - since

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def measure(kind: str) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"new": [], "left": [], "killed": []}
    with tempfile.TemporaryDirectory() as folder:
        async with server(kind, Path(folder)) as url:
            memberships = [plugins.membership(url) for _ in range(MEMBERS)]
            for number, one in enumerate(memberships, 1):
                await one.join(Member(f"10.0.0.1:{number}", number))
            group = Group(memberships)
            for _ in range(ROUNDS):
                newcomer, began = plugins.membership(url), time.perf_counter()
                await newcomer.join(NEW)
                took["new"].append(await group.until(lambda seen: NEW.address in seen, began))
                began = time.perf_counter()
                await newcomer.aclose()
                took["left"].append(await group.until(lambda seen: NEW.address not in seen, began))
                kill = await asyncio.to_thread(join_in_another_process, url, VICTIM)
                await group.until(lambda seen: VICTIM.address in seen, time.perf_counter())
                began = time.perf_counter()
                kill()
                took["killed"].append(await group.until(lambda seen: VICTIM.address not in seen, began))
            await group.stop()
            for one in memberships:
                await one.aclose()
    return took


async def measure_dns() -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"new": [], "left": []}
    async with NameServer() as names:
        names.addresses["figures.test"] = ["10.0.0.1"]
        url = f"dns://figures.test:9431?server=127.0.0.1:{names.port}"
        memberships = [plugins.membership(url) for _ in range(MEMBERS)]
        group = Group(memberships)
        await group.until(lambda seen: len(seen) == 1, time.perf_counter())
        for _ in range(2):
            for what, addresses in (("new", ["10.0.0.1", "10.0.0.2"]), ("left", ["10.0.0.1"])):
                names.addresses["figures.test"] = addresses
                count = len(addresses)
                began = time.perf_counter()
                took[what].append(await group.until(lambda seen, count=count: len(seen) == count, began))
        await group.stop()
        for one in memberships:
            await one.aclose()
    return took


async def main(kinds: list[str]) -> None:
    for kind in kinds:
        took = await (measure_dns() if kind == "dns" else measure(kind))
        told = [f"{what} {statistics.median(all_s):.2f} s (worst {max(all_s):.2f})" for what, all_s in took.items()]
        sys.stdout.write(f"{kind:9} {MEMBERS} members: {', '.join(told)}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="+", choices=["redis", "etcd", "registry", "dns"])
    asyncio.run(main(parser.parse_args().kinds))
