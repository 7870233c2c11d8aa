"""Every message that nodes exchange, with its number on the wire.

A message is an immutable tuple with names. `wire.py` derives its codec from the declaration: to add a message,
declare it here, add it to `Message`, and give it a free number in `KINDS`. What a field may be:

    NodeId  Instant  Duration  RequestId  U64  Count  Flag  Token      the vocabulary of `events.py` and below
    Annotated[bytes, "<=64"]    Annotated[str, "<=64"]                 so many bytes at most (of UTF-8, for text)
    Annotated[tuple[NodeId, ...], "<=32"]                              so many items at most
    SomeIntEnum (0..255)    SomeNamedTuple    AnyOfThese | None

Everything has a bound, and `tests/wire` holds that no message can outgrow a frame even with every bound reached.
Each message of an algorithm travels inside a frame that names the sender, the receiver and the mutex
(`wire.py`), so none of them repeats these.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple, TypeAlias

from softmutex.core.events import U64, Count, Duration, Token

Flag: TypeAlias = Annotated[bool, "flag"]


# --- passing a token (handover.py) ----------------------------------------------------------------------------------


class Offer(NamedTuple):
    """TOKEN: will you take this token? Nobody may use it on the strength of an offer alone."""

    nonce: U64  # names this attempt; never used again by its sender
    token: Token
    early: Flag = False  # pipelined: the commit may be long in coming, A still runs


class Accept(NamedTuple):
    """ACK: yes, once you commit."""

    nonce: U64
    reply: U64  # the receiver's own nonce for this attempt


class Refuse(NamedTuple):
    """No: pick another. Sent at once, where silence would cost the sender a time-out."""

    nonce: U64


class Commit(NamedTuple):
    """COMMIT: it is yours. Carries the token as it is now: an early offer may be older than the last hold."""

    nonce: U64
    reply: U64
    token: Token


class Done(NamedTuple):
    """DONE: I have it (4-way); you may forget it."""

    nonce: U64
    reply: U64


class Ask(NamedTuple):
    """Did my commit reach you? From a sender that never got DONE."""

    nonce: U64
    reply: U64


class Void(NamedTuple):
    """VOID: I never saw the commit and refuse this nonce for ever: the token is yours again."""

    nonce: U64
    reply: U64


class Withdraw(NamedTuple):
    """An early offer is taken back before its commit."""

    nonce: U64


# --- of the node as a whole (runtime/peers.py, runtime/status.py): kinds 48 to 63; machines never see them -------------


class Hello(NamedTuple):
    """Who is at this address? Sent to receiver 0. Taken note of only with the cookie that a `Challenge` gave."""

    cookie: U64
    group: U64  # fingerprint of the group's name
    visitor: Flag  # only looks (`softmutex status`): no member
    name: Annotated[str, "<=64"]
    address: Annotated[str, "<=128"]  # where the sender says that it is reached; empty: where this came from


class Challenge(NamedTuple):
    """Prove that you are where you say: repeat with this cookie. Never larger than what it answers."""

    cookie: U64


class Welcome(NamedTuple):
    """I am here, and this is my name. The frame's sender is the life at this address."""

    group: U64
    visitor: Flag
    name: Annotated[str, "<=64"]
    address: Annotated[str, "<=128"]


class Ping(NamedTuple):
    """Are you there? Sent on suspicion only."""

    nonce: U64


class Pong(NamedTuple):
    nonce: U64


class Bye(NamedTuple):
    """I leave now, in good order."""


class Standing(IntEnum):
    """What a node can say of a mutex."""

    UNKNOWN = 0  # never heard of it
    ASKING = 1  # about to open it, and asking as well
    KNOWN = 2  # has a machine for it


class Describe(NamedTuple):
    """What is this mutex (the frame's), that I have no machine for? `founding`: I am about to make its first token."""

    founding: Flag


class Description(NamedTuple):
    """How the sender's machine is set up. Empty where it has none."""

    standing: Standing
    algorithm: Annotated[str, "<=64"] = ""
    slots: Count = 1
    op: Duration = 0
    nodes_max: Count = 0
    skip: Duration | None = None
    min_interval: Duration | None = None
    max_interval: Duration | None = None
    options: Annotated[str, "<=256"] = ""  # JSON, the algorithm's own switches


class StatusRequest(NamedTuple):
    """`softmutex status` asks what this node knows. As with `Hello`, the cookie proves where it asks from."""

    nonce: U64
    cookie: U64
    page: Count


class StatusReply(NamedTuple):
    """One page of a JSON document."""

    nonce: U64
    page: Count
    pages: Count
    content: Annotated[bytes, "<=1024"]


Message: TypeAlias = (
    Offer
    | Accept
    | Refuse
    | Commit
    | Done
    | Ask
    | Void
    | Withdraw
    | Hello
    | Challenge
    | Welcome
    | Ping
    | Pong
    | Bye
    | Describe
    | Description
    | StatusRequest
    | StatusReply
)

# number on the wire -> (name in statistics, class)
KINDS: dict[int, tuple[str, type[Message]]] = {
    1: ("TOKEN", Offer),
    2: ("ACK", Accept),
    3: ("REFUSE", Refuse),
    4: ("COMMIT", Commit),
    5: ("DONE", Done),
    6: ("ASK", Ask),
    7: ("VOID", Void),
    8: ("WITHDRAW", Withdraw),
    48: ("HELLO", Hello),
    49: ("CHALLENGE", Challenge),
    50: ("WELCOME", Welcome),
    51: ("PING", Ping),
    52: ("PONG", Pong),
    53: ("BYE", Bye),
    54: ("DESCRIBE", Describe),
    55: ("DESCRIPTION", Description),
    56: ("STATUS?", StatusRequest),
    57: ("STATUS", StatusReply),
}
