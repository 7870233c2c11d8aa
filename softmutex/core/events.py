"""The vocabulary between a machine and whoever drives it: events go in, effects come out.

What it decides: a machine never reads a clock, sends a byte or draws a number of its own. The driver (the
asyncio runtime or the simulator) tells it what happened and when, and performs what it answers:

    driver -- event, now --> Algorithm.handle --> [effect, effect, ...] --> driver performs them in order

The naive way (coroutines that await sockets and sleep) cannot be replayed, explored or paused between two
messages, and that is exactly where distributed algorithms break.

Everything here is an immutable tuple with names: cheap to make in the simulator's inner loop, safe to keep
in a trace. Events are named in the past tense, effects are orders. A is the piece of work that the mutex protects,
as the papers call it.

N1  A `NodeId` names one life of one process: a restart gets a new one, so a message that was meant for the
    dead predecessor finds nobody. 0 is nobody.
N2  An `Instant` is integer nanoseconds since 1970 on a clock that never jumps: wall time read once at start,
    monotonic from then on. Differences on one node are exact; across nodes it is as good as their clocks.
N3  A `RequestId` is unique within one node and one mutex, and grows with time.
N4  Each kind of integer says, as `Annotated` metadata, how it travels (`wire.py`); nothing else reads that.
"""

# Here and where other tuples are declared by the dozen there is no `from __future__ import annotations`: a NamedTuple
# compiles each annotation that is a text, and to start would take two milliseconds more.
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from softmutex.core.tuples import NamedTuple

if TYPE_CHECKING:
    from softmutex.core.messages import Message

U64: TypeAlias = Annotated[int, "u64"]  # random numbers, fingerprints: eight bytes
Count: TypeAlias = Annotated[int, "varint"]  # not negative and mostly small
Instant: TypeAlias = Annotated[int, "i64"]
Duration: TypeAlias = Annotated[int, "varint"]
NodeId: TypeAlias = Annotated[int, "u64"]
RequestId: TypeAlias = Annotated[int, "varint"]
TimerName: TypeAlias = str | tuple[str, int]

new = tuple.__new__  # a tuple with names, without the detour over them: where they are made by the hundred thousand

SECOND: Duration = 1_000_000_000
NOBODY: NodeId = 0


def from_seconds(value_s: float) -> Duration:
    return round(value_s * SECOND)


def to_seconds(value_ns: Duration) -> float:
    return value_ns / SECOND


class Ticket(NamedTuple):
    """One waiting request, as it travels in a token's queue."""

    node: NodeId
    request: RequestId


class Escort(NamedTuple):
    """What the wandering token alone takes along; other algorithms leave it as it is."""

    watch: Annotated[tuple[NodeId, ...], "<=2"] = ()  # who watches over it
    unseen: Duration = 0  # how long they have not heard of it
    more: Annotated[bool, "flag"] = False  # more wait than the queue tells: ask the first watcher


class Token(NamedTuple):
    """The right to run A, as it wanders. `key` orders rivals of one epoch: the older one wins (lower precedes)."""

    epoch: U64  # generation: a regenerated token has a higher one
    stamp: Instant  # when it was made, by its maker's clock
    id: U64  # 53 random bits: tells tokens of one stamp apart
    hop: U64  # how often it has been passed on; (epoch, hop) grows at the resource
    slot: Count = 0  # which of the `slots` of a soft semaphore
    queue: Annotated[tuple[Ticket, ...], "<=32"] = ()  # who waits, first come first served
    settings: U64 = 0  # fingerprint of the group's settings
    baggage: Annotated[bytes, "<=64"] = b""  # opaque to the core: the trace context of the last hold
    escort: Escort = Escort()

    @property
    def key(self) -> tuple[Instant, int]:
        return (self.stamp, self.id)


def escorted(token: Token, **changes: Any) -> Token:
    """The same one, with that in its escort."""
    return token._replace(escort=token.escort._replace(**changes))


def queued(token: Token, queue: tuple[Ticket, ...]) -> Token:
    """The same one, with these in its queue: done so often that `_replace` would be too slow."""
    return new(Token, (*token[:5], queue, *token[6:]))


def hopped(token: Token) -> Token:
    """The same one, passed on once more: a third of the price of `_replace`."""
    return new(Token, (*token[:3], token.hop + 1, *token[4:]))


# --- events: what happened ------------------------------------------------------------------------------------------


class Started(NamedTuple):
    """The node begins. A founder makes the first token at once; anybody else listens first.

    `hint`: a node that uses this mutex, or NOBODY where that is not known.
    """

    founder: bool = False
    hint: NodeId = NOBODY


class Received(NamedTuple):
    sender: NodeId
    message: "Message"


class Fired(NamedTuple):
    """A timer that was set and not cancelled since; `now` may be much later than it was due."""

    timer: TimerName


class Requested(NamedTuple):
    """The application wants to run A once."""

    request: RequestId
    priority: int = 0  # 0 to PRIORITY_MOST; only where the algorithm has priorities


class Withdrawn(NamedTuple):
    """The application no longer wants it (time limit, cancellation). Comes only before the grant was performed."""

    request: RequestId


class Released(NamedTuple):
    """The application has finished A. `baggage` travels on with the token."""

    request: RequestId
    baggage: bytes = b""


class MembersChanged(NamedTuple):
    """The membership's view changed; the shared `members` sequence has been updated already."""

    joined: tuple[NodeId, ...]
    left: tuple[NodeId, ...]


class Slept(NamedTuple):
    """The driver did not get its turn for so long (SIGSTOP, a blocked loop, a suspended host), and is behind the times.

    What was sent to it meanwhile comes after this, and so do the timers that are overdue.
    """

    span: Duration


class Leaving(NamedTuple):
    """The node wants to leave in good order; it goes on driving the machine until `Depart` or its patience ends."""


class Silenced(NamedTuple):
    """A suspected member was asked in every way and does not answer; nothing says that it is dead. It still counts."""

    node: NodeId


class Returned(NamedTuple):
    """A member that was `Silenced` speaks again: it was only cut off, and may know another story."""

    node: NodeId


class Level(IntEnum):
    """How much of its group a node reaches, itself included."""

    LESS = 0  # than half
    HALF = 1  # exactly
    MORE = 2


class Reach(NamedTuple):
    """What a roll call has found (`CallRoll`)."""

    level: Level


OfGroup: TypeAlias = Silenced | Returned | Reach
Event: TypeAlias = (
    Started | Received | Fired | Requested | Withdrawn | Released | MembersChanged | Slept | Leaving | OfGroup
)


# --- effects: what is to be done ------------------------------------------------------------------------------------


class Send(NamedTuple):
    to: NodeId
    message: "Message"


class SetTimer(NamedTuple):
    """Fire `timer` at `at`; replaces an earlier setting of the same name."""

    timer: TimerName
    at: Instant


class CancelTimer(NamedTuple):
    timer: TimerName


class Right(NamedTuple):
    """What a grant rests on, where there is a thing that stands for the right to run A: mostly one token."""

    slot: Count
    epoch: U64
    id: U64
    hop: U64


class Grant(NamedTuple):
    """Request `request` may run A now, until `Released`. `alone` is False where the machine knows of another holder.

    The application is told `epoch` and `hop`, and its observers `baggage`: what `Released` brought the last time, if it
    came this way. An algorithm of permissions has none of the three, or counts them itself. `rights` is for those who
    watch: (epoch, hop) of one slot grows from grant to grant, and no two holders have the same right.
    """

    request: RequestId
    epoch: U64 = 0
    hop: U64 = 0
    baggage: bytes = b""
    alone: bool = True
    rights: tuple[Right, ...] = ()  # one for each slot that it takes; empty where nothing stands for a right

    @classmethod
    def by(cls, token: Token, request: RequestId, alone: bool = True) -> Self:
        """A grant that rests on one token."""
        epoch, _, id, hop, slot, _, _, baggage, *_ = token
        return cls(request, epoch, hop, baggage, alone, (Right(slot, epoch, id, hop),))


class LostReason(StrEnum):
    OVERLAP = "overlap"  # another live token was seen while A ran
    LEASE = "lease"  # this node was silent for so long that others may have replaced its token
    ISOLATED = "isolated"  # too few members can be reached to know
    # Those that no machine says, but the runtime:
    OVERRUN = "overrun"  # A took longer than max_hold, and the mutex was told to release it then
    CLOSED = "closed"  # the node was closed while A ran
    EVICTED = "evicted"  # somebody took it away: `Hold.lost_detail` has the reason that was given


class Lose(NamedTuple):
    """The hold of `request` may no longer be the only one. The application decides what to do; A is not stopped."""

    request: RequestId
    reason: LostReason


class FactKind(StrEnum):
    """What an observer is told. Each has a counter in the telemetry; an outside observer must be able to trust them."""

    GENERATED = "generated"  # a token was made (first one, regeneration, spurious one)
    DISCARDED = "discarded"  # a token was removed on purpose
    TOKEN_LOST = "token_lost"  # a token is known to be gone (unfinished hand-over, dead holder)
    HANDED_OVER = "handed_over"  # a hand-over completed, as its sender sees it
    HANDOVER_FAILED = "handover_failed"  # it failed and the sender kept the token
    OVERLAP = "overlap"  # two holders were seen at once
    ISOLATED = "isolated"
    REJOINED = "rejoined"  # no longer isolated
    MISMATCH = "mismatch"  # a peer is configured otherwise
    LEADER = "leader"  # `peer` leads from now on, or nobody
    STALE = "stale"  # a late, replayed or impossible message was dropped


class Note(NamedTuple):
    """A fact for the observer. Never changes what the machine does."""

    kind: FactKind
    token: Token | None = None
    peer: NodeId = NOBODY
    detail: str = ""


class Depart(NamedTuple):
    """Everything has been handed over: the node may close."""


class Suspect(NamedTuple):
    """It does not answer. The group finds out: dead (`MembersChanged`), silent (`Silenced`), or there all the same."""

    node: NodeId


class CallRoll(NamedTuple):
    """Does this node still reach more than half of its group? One random member is asked; wide: all, or a large sample.

    Answered by one `Reach`.
    """

    wide: bool


class Overlapped(NamedTuple):
    """A hold of this node and one of `other` were, or are, held at once, with tokens of one slot."""

    request: RequestId
    other: NodeId
    their_request: RequestId
    length: Duration  # as far as it is known yet: the same pair may be told of again, with more


Effect: TypeAlias = Send | SetTimer | CancelTimer | Grant | Lose | Note | Depart | Suspect | CallRoll | Overlapped
