"""The messages of every mutex and of the node as a whole, and how each message gets its name and number on the wire.

A message is an immutable tuple with names. `wire.py` derives its codec from the declaration. What a field may be:

    NodeId  Instant  Duration  RequestId  U64  Count  Flag  Token      the vocabulary of `events.py` and below
    Annotated[bytes, "<=64"]    Annotated[str, "<=64"]                 so many bytes at most (of UTF-8, for text)
    Annotated[tuple[NodeId, ...], "<=32"]                              so many items at most
    SomeIntEnum (0..255)    SomeNamedTuple    AnyOfThese | None

Everything has a bound, and no message can outgrow a frame even with every bound reached: `wire.learn` refuses it.
Each message of an algorithm travels inside a frame that names the sender, the receiver and the mutex
(`wire.py`), so none of them repeats these.

Here are the kinds that belong to no single algorithm. An algorithm declares its own beside its machine and numbers them
in `Algorithm.messages`, each in a range that is nobody else's:

      1 to 15    passing a token (`handover.py`), for every algorithm that has one
     16 to 47    the wandering token
     48 to 63    the node as a whole; machines never see them
     64 to 191   further algorithms of this package, eight in a row each: 64 central, 72 voting, 80 ricart-agrawala,
                 88 token-ring; 96 ring-search and binary-search; 112 sigma, 120 e2e, 128 non-e2e, 136 the routing
                 that these three share; 144 elections (bully, ring); 152 `one_by_one.py`, for several of them;
                 160 suzuki-kasami and raymond; 168 is free; 176 and 184 keeper
    192 to 223   algorithms of other packages
    224 to 239   the node as a whole, too
    the rest     for versions to come

A message has one name, in code, statistics, traces and on these pages: that of its class, in capitals (`name_of`).
"""

from enum import IntEnum
from typing import Annotated, Any, Final, TypeAlias

from softmutex.core.events import NOBODY, U64, Count, Duration, NodeId, RequestId, Token
from softmutex.core.tuples import NamedTuple

Message: TypeAlias = tuple[Any, ...]  # a NamedTuple that has a number: here, or in the `messages` of an algorithm
Flag: TypeAlias = Annotated[bool, "flag"]
OF_ALGORITHMS: Final = (range(16, 48), range(64, 224))


# --- passing a token (handover.py) ----------------------------------------------------------------------------------


class Offer(NamedTuple):
    """Will you take this token? Nobody may use it on the strength of an offer alone."""

    nonce: U64  # names this attempt; never used again by its sender
    token: Token
    early: Flag = False  # pipelined: the commit may be long in coming, A still runs


class Accept(NamedTuple):
    """Yes, once you commit."""

    nonce: U64
    reply: U64  # the receiver's own nonce for this attempt


class Refuse(NamedTuple):
    """No: pick another. Sent at once, where silence would cost the sender a time-out."""

    nonce: U64


class Commit(NamedTuple):
    """It is yours. Carries the token as it is now: an early offer may be older than the last hold."""

    nonce: U64
    reply: U64
    token: Token


class Done(NamedTuple):
    """I have it (4-way); you may forget it."""

    nonce: U64
    reply: U64


class Ask(NamedTuple):
    """Did my commit reach you? From a sender that never got DONE."""

    nonce: U64
    reply: U64


class Void(NamedTuple):
    """I never saw the commit and refuse this nonce for ever: the token is yours again."""

    nonce: U64
    reply: U64


class Withdraw(NamedTuple):
    """An early offer is taken back before its commit."""

    nonce: U64


# --- of the node as a whole (core/group, runtime/status.py): kinds 48 to 63; machines never see them ------------------


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
    """Are you there? Sent on suspicion, and by a roll call. Answered on the way that it came."""

    nonce: U64


class Pong(NamedTuple):
    nonce: U64


class Ahead(NamedTuple):
    """I have opened frames of yours up to this counter: one that came now was played back, or you live twice."""

    counter: U64


class Bye(NamedTuple):
    """I leave now, in good order."""


class Relay(NamedTuple):
    """Pass this frame on to `to`, unopened: its sender cannot reach it. To `to` itself: it is from its own sender."""

    to: NodeId
    frame: Annotated[bytes, "<=1270"]


class Roster(NamedTuple):
    """Whom do you know? Those whose ids are above `after`, in ascending order."""

    after: NodeId


class Entry(NamedTuple):
    node: NodeId
    address: Annotated[str, "<=128"]


class RosterPage(NamedTuple):
    """The members after `after`. Hints: each is greeted before it counts. Fewer than ROSTER_PAGE: that is all."""

    after: NodeId
    entries: Annotated[tuple[Entry, ...], "<=8"]


ROSTER_PAGE: Final = 8


class Forget(NamedTuple):
    """An operator knows that `node` is gone for good. From who is no member only with the cookie of a `Challenge`."""

    nonce: U64
    cookie: U64
    node: NodeId


class Forgetting(IntEnum):
    """What became of an operator's word."""

    UNKNOWN = 0  # no member here
    FORGOTTEN = 1
    ALIVE = 2  # it was heard of seconds ago: it stays


class Forgotten(NamedTuple):
    nonce: U64
    outcome: Forgetting


class Standing(IntEnum):
    """What a node can say of a mutex."""

    UNKNOWN = 0  # never heard of it
    ASKING = 1  # `by` is about to open it, and asks who knows of it
    KNOWN = 2  # `by` uses it; NOBODY: the sender takes part, and does not use it


class Describe(NamedTuple):
    """What is this mutex (the frame's), that I have no machine for? `founding`: I am about to make its first token."""

    founding: Flag
    stage: U64 = 0  # of the asker's inquiry: the answer names it again, and counts for no other


class Description(NamedTuple):
    """What the sender knows of the mutex, and how its machine is set up. `algorithm` is empty where it has none."""

    standing: Standing
    algorithm: Annotated[str, "<=64"] = ""
    slots: Count = 1
    op: Duration = 0
    nodes_max: Count = 0
    skip: Duration | None = None
    min_interval: Duration | None = None
    max_interval: Duration | None = None
    options: Annotated[str, "<=256"] = ""  # JSON, the algorithm's own switches
    stage: U64 = 0  # of the question; 0: said unasked
    by: NodeId = NOBODY  # who uses it, or asks for it: the sender, or one of whom it heard; KNOWN by NOBODY: none here
    members: Count = 0  # how many the sender knows,
    digest: U64 = 0  # ... and who they are (`group.py`)


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


class Look(NamedTuple):
    """Who holds this mutex (the frame's) on your node, and who waits there? Answered by `StatusReply`, to members only.

    `past`: its last holds instead.
    """

    nonce: U64
    past: Flag = False


class Evict(NamedTuple):
    """That hold of this mutex (the frame's) is over: an operator says that it hangs. Answered each time it comes."""

    nonce: U64
    request: RequestId  # the hold, as the node that has it named it
    reason: Annotated[str, "<=128"]


class Evicted(NamedTuple):
    """False: it was over before, or you have no right to say so."""

    nonce: U64
    ended: Flag


class PastHold(NamedTuple):
    """A hold that is over, as members tell of it. `ended`: so long ago."""

    node: Annotated[str, "<=64"]
    user: Annotated[str, "<=32"]
    purpose: Annotated[str, "<=64"]
    lost: Annotated[str, "<=64"]  # why, in words; empty where nothing was lost
    epoch: U64
    hop: U64
    ended: Duration
    held: Duration
    waited: Duration


class Remember(NamedTuple):
    """I leave; these are the last holds of this mutex (the frame's) that I know of."""

    past: Annotated[tuple[PastHold, ...], "<=3"]


class ReadNote(NamedTuple):
    """What do you note on this topic (the name in the frame)? Answered by `StatusReply`, to members only."""

    nonce: U64


HANDOVER: Final[dict[int, type[Message]]] = {
    1: Offer,
    2: Accept,
    3: Refuse,
    4: Commit,
    5: Done,
    6: Ask,
    7: Void,
    8: Withdraw,
}
OF_NODE: Final[dict[int, type[Message]]] = {
    48: Hello,
    49: Challenge,
    50: Welcome,
    51: Ping,
    52: Pong,
    53: Bye,
    54: Describe,
    55: Description,
    56: StatusRequest,
    57: StatusReply,
    58: Relay,
    59: Roster,
    60: RosterPage,
    61: Forget,
    62: Forgotten,
    63: Ahead,
    224: Look,
    225: Evict,
    226: Evicted,
    227: Remember,
    228: ReadNote,
}


class _Names(dict[type[Message], str]):
    """`Offer` to OFFER, `StatusRequest` to STATUS_REQUEST. A dict, for it is asked with every message."""

    def __missing__(self, cls: type[Message]) -> str:
        word = cls.__name__
        name = "".join("_" + c if c.isupper() and at else c for at, c in enumerate(word)).upper()
        return self.setdefault(cls, name)


name_of = _Names().__getitem__
