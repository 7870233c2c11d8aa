"""What a job and the agent that holds its mutex tell each other: one line of JSON a message, over a Unix socket.

job                                    agent
  -> want(name, timeout, since, ...)     only to an agent of many jobs; a private one knows already
  <- welcome  or  elsewhere(why)         it will see to it; or: it is in another group than the job wants
  <- progress(why)                       who is in the way, while it waits; where `progress` was wanted
  <- granted(turn)                       the mutex is yours, if you are there to take it
  -> take(turn)                          I am, and not stopped
  <- go(epoch, hop, trace, ...)          begin; nothing comes where it took you too long, and others came first
  -> running(group)                      so that the agent can kill the command if the job is killed
  -> touch                               there is progress
  <- lost(reason, why), overrun(end)     while it is held
  -> done                                it is over: hand the token on
  -> pause, resume                       the job is being stopped (Ctrl-Z) while it waits, and goes on
  <- failed(code, error, why)            not acquired, or not started

  -> look(name)          <- seen(...)    who holds it and who waits; instead of `want`, and that is all
  -> evict(name, reason) <- evicted(holds)

`since` is when the job began to wait, `keep` how long its place is kept when it gives up (room.py). A job that is gone
has let go: the end of the stream is as good as `done`. An agent that is gone has lost its holds.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]  # "is" names its kind

VERSION = 1  # of this protocol; docs/reference/agent-protocol.md tells what it promises
USAGE = 64  # EX_USAGE
NOT_STARTED = 69  # EX_UNAVAILABLE
NOT_ACQUIRED = 75  # EX_TEMPFAIL

LINE_MAX = 1 << 16


class NotALink(ValueError):
    """The other side speaks something else."""


def pack(kind: str, **values: Any) -> bytes:
    return json.dumps({"is": kind, **values}).encode() + b"\n"


class Lines:
    """Puts messages together again from what a stream yields."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Message]:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise NotALink(f"a line of more than {LINE_MAX} bytes")
        return [read(line) for line in whole]


def read(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise NotALink(f"not a message: {line[:40]!r}") from None
    if not isinstance(message, dict):
        raise NotALink(f"not a message: {line[:40]!r}")
    return message
