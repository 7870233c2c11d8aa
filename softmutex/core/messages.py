"""Every message that nodes exchange, with its number on the wire.

A message is an immutable tuple with names. Its fields carry their wire type as `Annotated` metadata, from which
`wire.py` derives the codec: to add a message, declare it here and give it a free number in `KINDS`.

Each message of an algorithm travels inside a frame that names the sender, the receiver and the mutex
(`wire.py`), so none of them repeats these.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

from softmutex.core.events import Token

# Wire types: the string is what wire.py knows them by.
U64: TypeAlias = Annotated[int, "u64"]  # random numbers, ids: eight bytes
Count: TypeAlias = Annotated[int, "varint"]  # small non-negative numbers
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


Message: TypeAlias = Offer | Accept | Refuse | Commit | Done | Ask | Void | Withdraw

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
}
