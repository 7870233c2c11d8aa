"""A network in the hands of somebody who has everything but the key: who sees, drops, delays, reflects, replays,
changes and mixes every frame, says that nobody listens, and sends what he likes from whatever address he likes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from softmutex.mailbox import Mailbox
from softmutex.ports import Datagram

DELAY_S = 0.002
LATE_S = 3.0
KEPT = 400  # frames that he plays back; of more, those that come in by lot


class HostileNetwork:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.is_hostile = True
        self.loss = rng.choice((0.1, 0.1, 0.3, 0.6, 0.9))
        self.lies = random.Random(f"lies {seed}")
        self.lying = self.lies.choice((0.05, 0.2, 0.5)) if seed % 2 else 0.0
        self.preferred = rng.choice((None, None, *range(6)))  # what he does most of all, if anything
        self.taken: list[tuple[str, str, bytes]] = []
        self.forged = 0
        self.places: dict[str, HostilePlace] = {}

    def transport(self, address: str) -> HostilePlace:
        place = self.places[address] = HostilePlace(self, address)
        return place

    def carry(self, source: str, to: str, payload: bytes) -> None:
        if not self.is_hostile:
            self.deliver(source, to, payload, DELAY_S)
            return
        rng = self.rng
        if len(self.taken) < KEPT:
            self.taken.append((source, to, payload))
        else:
            self.taken[rng.randrange(KEPT)] = (source, to, payload)
        lot = rng.random()
        if lot >= self.loss:
            late = LATE_S * rng.random() if lot < self.loss + 0.1 else DELAY_S
            self.deliver(self.somewhere(source), to, payload, late)
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.interfere(source, to, payload)

    def interfere(self, source: str, to: str, payload: bytes) -> None:
        rng = self.rng
        if self.lies.random() < self.lying:  # "nobody listens there": he has seen what was sent, and can quote it
            self.deliver(to, source, b"", DELAY_S)
        old_source, old_to, old = rng.choice(self.taken)
        late = rng.choice((DELAY_S, LATE_S * rng.random()))
        self.forged += 1
        match self.preferred if self.preferred is not None and rng.random() < 0.7 else rng.randrange(6):
            case 0:  # reflected
                self.deliver(to, source, payload, late)
            case 1:  # once more, as from somebody else
                self.deliver(self.anywhere(), to, payload, late)
            case 2:  # an old one, where it went or elsewhere
                self.deliver(self.somewhere(old_source), rng.choice((old_to, self.anywhere())), old, late)
            case 3:  # the head of one, the body of another
                cut = rng.randrange(1, 1 + min(len(old), len(payload)))
                self.deliver(source, to, old[:cut] + payload[cut:], late)
            case 4:
                changed = bytearray(payload)
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
                self.deliver(source, to, bytes(changed), late)
            case _:
                self.deliver(self.anywhere(), self.anywhere(), rng.randbytes(rng.randrange(1, 200)), late)

    def somewhere(self, source: str) -> str:
        return source if self.rng.random() < 0.95 else self.anywhere()

    def anywhere(self) -> str:
        return self.rng.choice((*self.places, "nowhere"))

    def deliver(self, source: str, to: str, payload: bytes, late_s: float) -> None:
        place = self.places.get(to)
        if place is not None:
            asyncio.get_running_loop().call_later(late_s, place.mailbox.put, Datagram(source, payload))


class HostilePlace:
    max_datagram = 1400

    def __init__(self, network: HostileNetwork, address: str) -> None:
        self.address = address
        self.mailbox = Mailbox()
        self._network = network

    async def open(self) -> None: ...

    def send(self, address: str, payload: bytes) -> None:
        self._network.carry(self.address, address, payload)

    async def receive(self) -> Sequence[Datagram]:
        return await self.mailbox.receive()

    async def aclose(self) -> None:
        self.mailbox.close()
        self._network.places.pop(self.address, None)

    def statistics(self) -> Mapping[str, int]:
        return {}
