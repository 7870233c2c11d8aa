"""The private agent of `softmutex run`, where no agent of many jobs is there: a node that lives as long as one command.

    join --> a session (softmutex.agent.session) with the front, over a socket pair --> leave, end

G3  It ends: at the latest `LEAVE_MARGIN_S` after what leaving may take, even when its loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

from softmutex import AcquireTimeout, Node
from softmutex.agent.groups import KILL_PATIENCE_S
from softmutex.agent.session import JobSession, JobWish
from softmutex.cli import tracing
from softmutex.core.names import printable
from softmutex.runtime.config import Settings

LEAVE_MARGIN_S = 3.0


def serve(link: socket.socket, wish: JobWish, settings: Settings, log_level: str) -> None:
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(PrintableLines("softmutex: %(message)s"))
    logging.basicConfig(handlers=[to_stderr], level=log_level)
    logging.getLogger("softmutex.hold").setLevel(logging.CRITICAL)  # for programmers; the front has its own words
    tracing.set_up()
    try:
        asyncio.run(attend(link, wish, settings))
    finally:
        tracing.flush()


class PrintableLines(logging.Formatter):
    """What is told names other members, and those chose their names."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name that logging calls)
        return printable(super().formatMessage(record))


async def attend(link: socket.socket, wish: JobWish, settings: Settings) -> None:
    node = Node._of(settings)

    async def join() -> None:
        try:
            async with asyncio.timeout(wish.timeout_s or None):
                await node.open()
        except TimeoutError:
            raise AcquireTimeout from None

    def end_in_time() -> None:
        """Not by the loop: that may be what is blocked."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, settings["leave_timeout"] + KILL_PATIENCE_S + LEAVE_MARGIN_S)

    try:
        await JobSession(link, wish, node, join=join, on_end=end_in_time).attend()
    finally:
        await node.close()
