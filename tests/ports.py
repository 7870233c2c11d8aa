"""Ports for servers that a test starts in a moment, or again at the same place.

The naive way, asking the system for any port (0) and giving it back, hands it to whoever asks for any port next: of
tests that run side by side now and then one. So these are below those that most systems give away, and each worker of a
run begins elsewhere. Where the system gives away these, too (`ip_local_port_range`), it does not: for TCP a socket that
never listens keeps the place, until this process has asked for many more; a server binds beside it, as servers set
SO_REUSEADDR. For UDP nothing can keep it: a port at `OWN_HOST` is safe, since programs ask for any port at 127.0.0.1,
and it is taken at one address. A server that can be told port 0 and says what it got needs none of this.
"""

import contextlib
import itertools
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator

from tests import leaks

FIRST, EACH = 20_000, 1_000  # the system's own begin at 32,768
ROOMS = 12
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw11").removeprefix("gw"))
KEPT = 200
# A loopback address of this process; other systems than Linux have one only.
OWN_HOST = f"127.{64 + (os.getpid() >> 16) % 128}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
if not sys.platform.startswith("linux"):
    OWN_HOST = "127.0.0.1"
_next = itertools.count(os.getpid() % EACH)
_kept: deque[socket.socket] = deque()


def free_port(host: str = "127.0.0.1") -> int:
    while True:
        port = FIRST + EACH * (WORKER % ROOMS) + next(_next) % EACH
        if is_free(port, socket.SOCK_DGRAM, host) and keep(port, host):
            return port


def keep(port: int, host: str) -> bool:
    """Whether it was free. No test has left the socket behind: it is there until as many others are."""
    if not is_free(port, socket.SOCK_STREAM, host):
        return False
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
    except OSError:
        place.close()
        return False
    leaks.SPARED.add(leaks.descriptor(place.fileno()))
    _kept.append(place)
    if len(_kept) > KEPT:
        old = _kept.popleft()
        leaks.SPARED.discard(leaks.descriptor(old.fileno()))
        old.close()
    return True


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """Nobody else gets it while no server listens there. The server has to be made with `reuse_port`."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def is_free(port: int, kind: socket.SocketKind, host: str) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
