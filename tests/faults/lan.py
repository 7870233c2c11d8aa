"""A LAN on one machine: hosts are network namespaces, each with an eth0 on one bridge. Needs root: `needs("netns")`.

The bridge lives in a namespace of its own, so nothing of it is seen on the machine, and deleting the namespaces deletes
it all. No host has a default route, as in a laboratory.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Lan:
    def __init__(self, count: int, *, ipv4: bool = True, ipv6: bool = True) -> None:
        self._name = f"sm{secrets.token_hex(3)}"
        self._ipv4, self._ipv6 = ipv4, ipv6
        self._made: list[str] = []
        self._count = count

    def host(self, number: int) -> str:
        return f"{self._name}-{number}"

    def prefix(self, number: int) -> Sequence[str]:
        """What a command has to be preceded by, to run on that host."""
        return ["ip", "netns", "exec", self.host(number)]

    def prefixes(self) -> list[Sequence[str]]:
        return [self.prefix(number) for number in range(1, self._count + 1)]

    def on(self, number: int, *command: str) -> None:
        run(*self.prefix(number), *command)

    def set_up(self) -> None:
        for number in range(self._count + 1):
            run("ip", "netns", "add", self.host(number))
            self._made.append(self.host(number))
            self.on(number, "ip", "link", "set", "lo", "up")
        self.on(0, "ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        self.on(0, "ip", "link", "set", "br0", "up")
        for number in range(1, self._count + 1):
            self.plug_in(number, number)

    def plug_in(self, number: int, address: int) -> None:
        """An eth0 with 10.77.0.<address> and fd77::<address>."""
        port, host = f"p{number}", self.host(number)
        self.on(0, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        self.on(0, "ip", "link", "set", port, "master", "br0", "up")
        # No waiting for other owners of an address; without IPv6 not even a link-local one.
        setting = "accept_dad=0" if self._ipv6 else "disable_ipv6=1"
        self.on(number, "sysctl", "-qw", f"net.ipv6.conf.eth0.{setting}")
        if self._ipv4:
            self.on(number, "ip", "addr", "add", f"10.77.0.{address}/24", "dev", "eth0")
        if self._ipv6:
            self.on(number, "ip", "addr", "add", f"fd77::{address}/64", "dev", "eth0", "nodad")
        self.on(number, "ip", "link", "set", "eth0", "up")

    def unplug(self, number: int) -> None:
        self.on(0, "ip", "link", "del", f"p{number}")

    def tear_down(self) -> None:
        for name in self._made:
            run("ip", "netns", "del", name)


@contextmanager
def lan(count: int, *, ipv4: bool = True, ipv6: bool = True) -> Iterator[Lan]:
    made = Lan(count, ipv4=ipv4, ipv6=ipv6)
    try:
        made.set_up()
        yield made
    finally:
        made.tear_down()
