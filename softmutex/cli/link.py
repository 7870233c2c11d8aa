"""What the two processes of `softmutex run` tell each other: one line of JSON a message, over a socket pair.

front                                  agent
  <- granted(epoch)                      the mutex is yours, if you are there to take it
  -> take                                I am, and not stopped
  <- go(epoch)  or  wait                 run the command; or: it took you too long, others came first
  -> running(group)                      so that the agent can kill the command if the front is killed
  <- lost(reason), overrun(terminate)    while the command runs
  -> done                                the command is over: hand the token on, leave, end
  -> pause, resume                       the front is being stopped (Ctrl-Z) while it waits, and goes on
  <- failed(code, why)                   not acquired, or not started; the agent ends
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]  # "is" names its kind


def pack(kind: str, **values: Any) -> bytes:
    return json.dumps({"is": kind, **values}).encode() + b"\n"


class Lines:
    """Puts messages together again from what a stream yields."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Message]:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in whole]
