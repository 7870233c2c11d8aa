"""What either side remembers of one hand-over while it is under way, and what the receiver remembers afterwards.

The rules by which these change, and the diagram of the stages, are in `handover.py`.
"""

from __future__ import annotations

from enum import IntEnum

from softmutex.core.events import Instant, NodeId, Token
from softmutex.core.tuples import NamedTuple


class Stage(IntEnum):
    OFFERED = 0  # waits for the ACCEPT; nothing is committed, so it can be given up at any time
    READY = 1  # promised by the receiver; waits for this node's release
    COMMITTED = 2  # out of this node's hands until DONE or VOID


class Outgoing:
    """One hand-over, as its sender sees it."""

    __slots__ = ("nonce", "released", "reply", "since", "stage", "to", "token", "tries")

    def __init__(self, nonce: int, token: Token, to: NodeId, released: bool, since: Instant) -> None:
        self.nonce = nonce
        self.token = token
        self.to = to
        self.released = released  # commit as soon as the ACCEPT is here
        self.stage = Stage.OFFERED
        self.since = since  # when this stage began
        self.tries = 0  # how often its time ran out
        self.reply = 0


class Promise(NamedTuple):
    """An offer that this node has accepted and that is neither taken nor void yet."""

    reply: int
    key: tuple[Instant, int]
    until: Instant | None  # a later COMMIT is too late; None: never too late


class Settled(NamedTuple):
    reply: int
    taken: bool


class Remembered(NamedTuple):
    """How much that is."""

    outgoing: int
    promises: int
    settled: int
    senders: int  # that committed at once
