"""Ports for servers that a test starts in a moment, or again at the same place.

The naive way, asking the system for any port (0) and giving it back, hands it to whoever asks for any port next: of
tests that run side by side now and then one. So these are below those that the system gives away, and each worker of a
run begins elsewhere. A server that can be told port 0 and says what it got needs none of this.
"""

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator

FIRST, EACH = 20_000, 1_000  # the system's own begin at 32,768
ROOMS = 12
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw11").removeprefix("gw"))
_next = itertools.count(os.getpid() % EACH)


def free_port() -> int:
    while True:
        port = FIRST + EACH * (WORKER % ROOMS) + next(_next) % EACH
        if is_free(port, socket.SOCK_STREAM) and is_free(port, socket.SOCK_DGRAM):
            return port


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """Nobody else gets it while no server listens there. The server has to be made with `reuse_port`."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def is_free(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
