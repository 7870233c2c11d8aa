"""Hosts that are far from each other, on one machine: network namespaces, and between each two the same delay.

    process -- kernel of its host -- tun0 == a thread here, which keeps each packet for a while == tun0 -- ...

For kernels without a queue that delays (`tc netem`). Each host is 10.78.0.<number>. Needs root and /dev/net/tun.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.faults.lan import run

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
PR_SET_TIMERSLACK = 29
TO = slice(16, 20)  # an IPv4 packet's destination
PACKET_MAX = 65536


def address(host: int) -> str:
    return f"10.78.0.{host}"


class FarHosts:
    def __init__(self, count: int, delay_s: float) -> None:
        """`delay_s`: each way."""
        self.hosts = range(1, count + 1)
        self.packets = 0
        self._delay_s = delay_s
        self._name = f"sf{secrets.token_hex(3)}"
        self._tuns: dict[int, int] = {}
        self._under_way: deque[tuple[float, int, bytes]] = deque()  # all take as long: the first in is the first out
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="far", daemon=True)

    def prefix(self, host: int) -> Sequence[str]:
        """What a command has to be preceded by, to run on that host."""
        return ["ip", "netns", "exec", f"{self._name}-{host}"]

    def _set_up(self, host: int) -> None:
        space, device = f"{self._name}-{host}", f"{self._name}{host}"
        run("ip", "netns", "add", space)
        self._tuns[host] = tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
        run("ip", "link", "set", device, "netns", space)
        for words in ("link set lo up", f"addr add {address(host)}/24 dev {device}", f"link set {device} up"):
            run(*self.prefix(host), "ip", *words.split())

    def __enter__(self) -> Self:
        try:
            for host in self.hosts:
                self._set_up(host)
        except BaseException:
            self._tear_down()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._tear_down()

    def _tear_down(self) -> None:
        for tun in self._tuns.values():
            os.close(tun)
        for host in self.hosts:
            space = f"{self._name}-{host}"
            if Path("/run/netns", space).exists():
                run("ip", "netns", "del", space)

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # a wait ends when it ends, not 0.05 ms later
        to_host = {bytes([10, 78, 0, host]): tun for host, tun in self._tuns.items()}
        under_way = self._under_way
        while not self._stopping.is_set():
            wait_s = under_way[0][0] - time.monotonic() if under_way else 0.05
            for tun in select.select(list(self._tuns.values()), [], [], max(0.0, min(wait_s, 0.05)))[0]:
                self._read(tun, to_host)
            while under_way and under_way[0][0] <= time.monotonic():
                _, tun, packet = under_way.popleft()
                os.write(tun, packet)

    def _read(self, tun: int, to_host: dict[bytes, int]) -> None:
        while True:
            try:
                packet = os.read(tun, PACKET_MAX)
            except BlockingIOError:
                return
            to = to_host.get(packet[TO]) if packet[0] >> 4 == 4 else None  # no IPv6 here, and no strangers
            if to is not None:
                self.packets += 1
                self._under_way.append((time.monotonic() + self._delay_s, to, packet))
