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

from softmutex.core.events import U64, Count, Duration, Instant, NodeId, RequestId, Ticket, Token

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


# --- the wandering token (algorithms/wandering) ---------------------------------------------------------------------


class Place(NamedTuple):
    """Where a token was: `holder` had it at `hop`. No more than a hint, except that a higher epoch is a fact."""

    slot: Count
    epoch: Count
    stamp: Instant
    id: U64
    hop: Count
    holder: NodeId


class Presence(IntEnum):
    """What a node says of itself when it is asked for a token."""

    ABSENT = 0  # it is not here
    PARKED = 1  # it is here, and nobody uses it
    IN_USE = 2  # it is here, and A runs
    PASSING = 3  # it is committed to another node, which has not confirmed it
    DOUBTED = 4  # it is here, and its holder finds out whether it was replaced


Tickets: TypeAlias = Annotated[tuple[Ticket, ...], "<=32"]


class Want(NamedTuple):
    """`node` wants the token. Passed on towards a home or holder, `steps` times at most; 0: who gets it keeps it."""

    node: NodeId
    request: RequestId
    late: Flag  # it had its turn less than the least interval ago, and lets others go first
    steps: Count


class Queued(NamedTuple):
    """Your request is known; ask again after `patience` at the earliest."""

    request: RequestId
    patience: Duration


class Feed(NamedTuple):
    """To a holder: these wait. Where the token has moved on, it is passed on after it."""

    slot: Count
    tickets: Tickets
    more: Flag  # others wait that are not told of
    steps: Count


class Seen(NamedTuple):
    """From a holder to who watches over it: the token is here, and you will hear of it within `lease` (0: parked)."""

    place: Place
    lease: Duration
    queue: Tickets


class Heard(NamedTuple):
    """From a watcher: I know; and these wait."""

    slot: Count
    epoch: Count
    hop: Count
    tickets: Tickets
    more: Flag


class Probe(NamedTuple):
    """Where is the token? With a `ballot` (the epoch that the asker would make): may I replace it if nobody has it?"""

    number: U64  # names this inquiry
    slot: Count
    ballot: Count
    rival: Place | None  # the asker's own token, if it has one that it doubts
    overlap: Flag  # ... and A runs with it


class Sight(NamedTuple):
    """The answer: the newest sighting, what this node has of it, and whether nobody else was promised the ballot."""

    number: U64
    slot: Count
    place: Place | None
    presence: Presence
    free: Flag


class Bequest(NamedTuple):
    """From a home that leaves, or is one no longer, to the next: who waits, and where the token is."""

    place: Place | None
    tickets: Tickets


class Span(NamedTuple):
    """A hold, by how long ago it was: clocks of different nodes are not compared."""

    begun: Duration
    ended: Duration  # 0 also if it runs


class Recall(NamedTuple):
    """Two tokens have met. What do you know of your visit of this one? `use`: that hold of it was not the only one."""

    number: Count
    place: Place  # the last visit that began at this hop or before
    rival: Place  # the other token
    use: Count  # 0: only asks


class Account(NamedTuple):
    """The answer: when it came, when it was used, where it came from and went, and what others met it."""

    number: Count
    place: Place | None  # as it came; None: not known, or forgotten
    came: Duration
    spans: Annotated[tuple[Span, ...], "<=8"]
    first: Count  # number of the first of these uses
    running: Flag  # the last one still runs
    before: Place | None
    after: Place | None
    rivals: Annotated[tuple[Place, ...], "<=4"]


# --- of the node as a whole (runtime/peers.py, runtime/status.py): kinds 48 to 63; machines never see them ------------


class Hello(NamedTuple):
    """Who is at this address? Sent to receiver 0. Taken note of only with the cookie that a `Challenge` gave."""

    nonce: U64  # names the greeting: the answers may come from another address than was greeted
    cookie: U64
    group: U64  # fingerprint of the group's name
    visitor: Flag  # only looks (`softmutex status`): no member
    name: Annotated[str, "<=64"]


class Challenge(NamedTuple):
    """Prove that you are where you say: repeat with this cookie. Never larger than what it answers."""

    nonce: U64
    cookie: U64


class Welcome(NamedTuple):
    """I am here, and this is my name. The frame's sender is the life at this address."""

    nonce: U64
    group: U64
    name: Annotated[str, "<=64"]


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
    | Want
    | Queued
    | Feed
    | Seen
    | Heard
    | Probe
    | Sight
    | Bequest
    | Recall
    | Account
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
    16: ("WANT", Want),
    17: ("QUEUED", Queued),
    18: ("FEED", Feed),
    19: ("SEEN", Seen),
    20: ("HEARD", Heard),
    21: ("PROBE", Probe),
    22: ("SIGHT", Sight),
    23: ("BEQUEST", Bequest),
    24: ("RECALL", Recall),
    25: ("ACCOUNT", Account),
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
