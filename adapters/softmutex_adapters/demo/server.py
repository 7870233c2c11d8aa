"""A plain FTP server whose connections share one capacity, as they would share the link in front of it.

    python -m softmutex_adapters.demo.server PLAN DIRECTORY PORT

Says its port on standard output, and lives until standard input ends: so it never survives who started it.

pyftpdlib's own throttle is per connection, which models as many links as there are clients. Here all share one bucket:
each chunk is paid for in the order in which it was sent, and its connection rests until then. So N connections get an
N-th each, one alone gets all, and nobody gets more by opening two... other than by opening two.

B1  Over any span, what leaves is at most capacity * span + BURST_S * capacity + one chunk a connection.
B2  While anybody has something to send the capacity is used: a connection that wakes late is made up for (BURST_S).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any

from pyftpdlib.authorizers import DummyAuthorizer  # type: ignore[import-untyped]
from pyftpdlib.handlers import FTPHandler, ThrottledDTPHandler  # type: ignore[import-untyped]
from pyftpdlib.servers import FTPServer  # type: ignore[import-untyped]

from softmutex_adapters.demo.plan import Plan

BURST_S = 0.05
CHUNK = 16_384


class Bucket:
    """Bytes a second, for all connections together."""

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._paid_until = 0.0  # by time.monotonic()

    def pay(self, count: int) -> float:
        """How many seconds from now these bytes are paid for; not positive where there was room."""
        now = time.monotonic()
        self._paid_until = max(now - BURST_S, self._paid_until) + count / self._capacity
        return self._paid_until - now


class SharedLink(ThrottledDTPHandler):  # type: ignore[misc]
    """A data connection that pays into the bucket of all."""

    bucket: Bucket
    write_limit = 1  # pyftpdlib asks `_throttle_bandwidth` only where there is a limit; which one the bucket knows
    auto_sized_buffers = False
    ac_out_buffer_size = CHUNK

    def _throttle_bandwidth(self, len_chunk: int, max_speed: int) -> None:
        rest_s = self.bucket.pay(len_chunk)
        if rest_s > 0:
            self.del_channel()
            self._cancel_throttler()
            self._throttler = self.ioloop.call_later(rest_s, self._go_on, _errback=self.handle_error)

    def _go_on(self) -> None:
        self.add_channel(events=self.ioloop.WRITE)


def serve(plan: Plan, directory: str, port: int) -> None:
    logging.disable(logging.CRITICAL)  # each broken transfer would be told; here they are counted by those who lose
    SharedLink.bucket = Bucket(plan.capacity)

    class Handler(FTPHandler):  # type: ignore[misc]
        authorizer = DummyAuthorizer()
        dtp_handler = SharedLink
        use_sendfile = False  # the kernel would send past the bucket

    Handler.authorizer.add_anonymous(directory)
    server = FTPServer(("127.0.0.1", port), Handler, backlog=max(100, plan.clients))
    server.max_cons = 0
    server.max_cons_per_ip = plan.connections  # all clients come from 127.0.0.1, and only logins count
    threading.Thread(target=end_with_our_parent, daemon=True).start()
    sys.stdout.write(f"{server.address[1]}\n")
    sys.stdout.flush()
    server.serve_forever(handle_exit=False)


def end_with_our_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main(argv: list[Any]) -> None:
    serve(Plan.from_json(argv[0]), argv[1], int(argv[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
