"""Members whose addresses change: NAT gives one another place, or gives it that of somebody else; all of them move at
once; lists show it late, or one list does. They take turns meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence

from softmutex import AcquireTimeout, Node
from softmutex.mailbox import Mailbox
from softmutex.ports import Datagram, Member
from softmutex.testing import in_virtual_time
from tests.runtime.test_peers import Listed
from tests.security.insider import KEY
from tests.security.under_attack import last_seen_apart, reproducible

T_S = 40.0  # as in `test_flaps.py`
MOVES = 10
DELAY_S = 0.002
PAUSES_S = (0.05, 0.5, 3.0, 20.0)


class Outside:
    """Where the world sees each of them."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.seen_at: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def move(self, name: str) -> None:
        self.seen_at[name] = f"10.0.0.{next(self._numbers)}:1"

    def carry(self, sender: str, to: str, payload: bytes) -> None:
        for name, address in self.seen_at.items():
            if address == to:
                datagram = Datagram(self.seen_at[sender], payload)
                asyncio.get_running_loop().call_later(DELAY_S, self.places[name].mailbox.put, datagram)


class Place:
    max_datagram = 1400

    def __init__(self, outside: Outside, name: str) -> None:
        self._outside, self._name = outside, name
        self.mailbox = Mailbox()
        outside.places[name] = self
        outside.move(name)
        self.address = outside.seen_at[name]

    async def open(self) -> None: ...

    def send(self, address: str, payload: bytes) -> None:
        self._outside.carry(self._name, address, payload)

    async def receive(self) -> Sequence[Datagram]:
        return await self.mailbox.receive()

    async def aclose(self) -> None:
        self.mailbox.close()

    def statistics(self) -> Mapping[str, int]:
        return {}


def move(seed: int) -> float:
    """How long after the lists are right again, in seconds, until all know all."""
    with reproducible(seed):
        return moved(random.Random(seed))


@in_virtual_time
async def moved(rng: random.Random) -> float:
    outside, names = Outside(), "abcd"[: rng.choice((2, 3, 4))]
    places = {name: Place(outside, name) for name in names}

    def everybody() -> list[Member]:
        return [Member(address) for address in outside.seen_at.values()]

    lists = {name: Listed(*everybody()) for name in names}
    nodes = [Node(transport=places[name], membership=lists[name], key=KEY, name=name) for name in names]
    await asyncio.gather(*(node.open() for node in nodes))
    works = [asyncio.create_task(turns(node)) for node in nodes]
    try:
        await asyncio.sleep(2.0)
        for _ in range(MOVES):
            one, other = rng.sample(names, 2)
            seen_at = outside.seen_at
            match rng.randrange(3):
                case 0:
                    outside.move(one)
                case 1:
                    seen_at[one], seen_at[other] = seen_at[other], seen_at[one]
                case _:
                    for name in names:
                        outside.move(name)
            await asyncio.sleep(rng.choice(PAUSES_S))
            for name in rng.sample(names, rng.randrange(len(names) + 1)):
                lists[name].show(*everybody())
            await asyncio.sleep(rng.choice(PAUSES_S))
        for name in names:
            lists[name].show(*everybody())
        back_s = await last_seen_apart(nodes, T_S + 20.0)
        assert back_s < T_S, [[peer.name for peer in node.peers()] for node in nodes]
        for node in nodes:
            async with node.mutex("x").hold(timeout=T_S):
                pass
        return back_s
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in nodes))


async def turns(node: Node) -> None:
    while True:
        try:
            async with node.mutex("x", on_lost="continue").hold(timeout=60):
                await asyncio.sleep(0.05)
        except AcquireTimeout:
            pass
