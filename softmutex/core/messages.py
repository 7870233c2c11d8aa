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

from typing import Annotated, NamedTuple, TypeAlias

from softmutex.core.events import U64, Token

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
