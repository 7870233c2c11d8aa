"""A network between processes of one host, with weather: seeded loss, delay, duplication, reordering, one-way cuts.

    node 0 (own port P0) --> relay's socket R1 --weather--> sent from R0 --> node 1 (own port P1)

Each node tells others the address R of its own, so all that is sent to it comes by here, and a reply goes back the same
way: what node i sends to node j is delivered from Ri. It knows who sends by the port that it comes from.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tests.ports import OWN_HOST, free_port

# Told of each datagram: from whom, to whom, what. True: it is lost.
Hook = Callable[[int, int, bytes], bool]


@dataclass(frozen=True, slots=True)
class Weather:
    """Shares between 0 and 1; seconds. What is reordered comes `late` later than it would."""

    loss: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    late: float = 0.02


class Relay:
    def __init__(self, nodes: int, weather: Weather = Weather(), seed: int = 1) -> None:
        self.weather = weather
        self.counts: Counter[str] = Counter()
        self.hook: Hook | None = None
        self.cuts: set[tuple[int, int]] = set()
        self.taped: list[tuple[int, int, bytes]] = []
        self.tape_max = 0
        self._random = random.Random(seed).random
        self._own = [free_port(OWN_HOST) for _ in range(nodes)]
        self._who = {port: number for number, port in enumerate(self._own)}
        self._sockets = [open_socket() for _ in range(nodes)]
        self._late: list[tuple[float, int, int, int, bytes]] = []
        self._serial = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def address(self, node: int) -> str:
        """Where others reach the node."""
        return f"127.0.0.1:{self._sockets[node].getsockname()[1]}"

    def transport(self, node: int) -> str:
        """The URL that the node is given."""
        return f"udp://{OWN_HOST}:{self._own[node]}?advertise={self.address(node)}"

    def direct(self, node: int) -> tuple[str, int]:
        """The node's own socket, past the relay."""
        return (OWN_HOST, self._own[node])

    def cut(self, *links: tuple[int, int]) -> None:
        """From now on nothing gets from the first to the second node of each; the other way it does."""
        self.cuts |= set(links)

    def cut_off(self, *nodes: int) -> None:
        """These on one side, all others on the other side."""
        others = [node for node in range(len(self._own)) if node not in nodes]
        self.cut(*[link for a in nodes for b in others for link in ((a, b), (b, a))])

    def heal(self) -> None:
        self.cuts = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for number, each in enumerate(self._sockets):
                selector.register(each, selectors.EVENT_READ, number)
            while not self._stopping.is_set():
                wait_s = self._late[0][0] - time.monotonic() if self._late else 0.05
                for key, _ in selector.select(max(0.0, min(wait_s, 0.05))):
                    self._drain(key.data)
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, sender, receiver, payload = heapq.heappop(self._late)
                    self.deliver(sender, receiver, payload)

    def _drain(self, receiver: int) -> None:
        for _ in range(64):
            try:
                payload, (_, port) = self._sockets[receiver].recvfrom(65536)
            except BlockingIOError:
                return
            except ConnectionRefusedError:  # of an earlier datagram: the node is gone
                continue
            sender = self._who.get(port)
            if sender is None:
                self.counts["stranger"] += 1
            else:
                self._take(sender, receiver, payload)

    def _take(self, sender: int, receiver: int, payload: bytes) -> None:
        weather, chance = self.weather, self._random
        if len(self.taped) < self.tape_max:
            self.taped.append((sender, receiver, payload))
        if (sender, receiver) in self.cuts:
            self.counts["cut"] += 1
        elif (self.hook is not None and self.hook(sender, receiver, payload)) or chance() < weather.loss:
            self.counts["lost"] += 1
        else:
            self._send(sender, receiver, payload)
            if chance() < weather.duplication:
                self.counts["duplicated"] += 1
                self._send(sender, receiver, payload)

    def _send(self, sender: int, receiver: int, payload: bytes) -> None:
        weather, chance = self.weather, self._random
        delay_s = weather.delay + weather.jitter * (2 * chance() - 1) if weather.delay else 0.0
        if weather.reordering and chance() < weather.reordering:
            self.counts["reordered"] += 1
            delay_s += weather.late
        if delay_s <= 0:
            self.deliver(sender, receiver, payload)
            return
        self._serial += 1
        heapq.heappush(self._late, (time.monotonic() + delay_s, self._serial, sender, receiver, payload))

    def deliver(self, sender: int, receiver: int, payload: bytes) -> None:
        self.counts["delivered"] += 1
        try:
            self._sockets[sender].sendto(payload, self.direct(receiver))
        except OSError:
            self.counts["undeliverable"] += 1


def open_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made
