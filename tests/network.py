"""A network of its own for a test that runs in this process: a loopback on which nobody else speaks.

What is sent by multicast on the machine's loopback reaches the sockets of all tests that run beside it: their buffers
run over, and their questions wait for each other's. Without root there is only that one, and the test has it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x4000_0000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


@contextmanager
def own_loopback() -> Iterator[None]:
    """This thread's, and that of the threads and processes that it begins meanwhile."""
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    is_own = libc.unshare(CLONE_NEWNET) == 0
    try:
        if is_own:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        yield
    finally:
        is_back = not is_own or libc.setns(before, CLONE_NEWNET) == 0
        os.close(before)
        assert is_back, "whatever comes after this test is cut off"
