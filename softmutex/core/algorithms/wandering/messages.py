"""What nodes say to one another for the wandering token, beside the hand-over itself: kinds 16 to 26."""

from enum import IntEnum
from typing import Annotated, Final, TypeAlias

from softmutex.core.events import U64, Count, Duration, Instant, NodeId, RequestId, Ticket
from softmutex.core.messages import Flag, Message
from softmutex.core.tuples import NamedTuple


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
    WATCHED = 5  # it is not here, but its holder spoke to this node, and is not overdue


Tickets: TypeAlias = Annotated[tuple[Ticket, ...], "<=32"]


class Want(NamedTuple):
    """`node` wants the token. Passed on towards a home or holder, `steps` times at most; 0: who gets it keeps it."""

    node: NodeId
    request: RequestId
    late: Flag  # it had its turn less than the least interval ago, and lets others go first
    steps: Count
    ahead: Count = 0  # > 0: at this hop the token went on, with the receiver in its queue; keep it until it comes by


class Urge(NamedTuple):
    """WANT where there are priorities: it counts as having come so long ago."""

    want: Want
    credit: Duration


class Queued(NamedTuple):
    """Your request is known; ask again after `patience` at the earliest."""

    request: RequestId
    patience: Duration


class Feed(NamedTuple):
    """To a holder: these wait. Where the token has moved on, it is passed on after it, or ahead of it."""

    slot: Count
    tickets: Tickets
    more: Flag  # others wait that are not told of
    steps: Count
    ahead: Count = 0  # as in WANT


class Seen(NamedTuple):
    """From a holder to who watches over it: the token is here, and you will hear of it within `lease` (0: parked)."""

    place: Place
    lease: Duration
    queue: Tickets
    sent: Instant = 0  # by the holder's clock; 0: said to who need not answer


class Heard(NamedTuple):
    """From a watcher: I know; and these wait."""

    slot: Count
    epoch: Count
    hop: Count
    tickets: Tickets
    more: Flag
    sent: Instant  # as in the SEEN that this answers: the lease counts from then


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

    request: RequestId
    begun: Duration
    ended: Duration  # 0 also if it runs


class Together(NamedTuple):
    """What is known of two holds that overlapped."""

    request: RequestId
    other: RequestId  # of the rival's holder
    length: Duration  # so far


class Recall(NamedTuple):
    """Two tokens have met. What do you know of your visit of this one? `told`: that hold of it was not the only one."""

    number: Count
    place: Place  # the last visit that began at this hop or before
    rival: Place  # the other token
    told: Together | None  # None: only asks


class Account(NamedTuple):
    """The answer: when it came, when it was used, where it came from and went, and what others met it."""

    number: Count
    place: Place | None  # as it came; None: not known, or forgotten
    came: Duration
    spans: Annotated[tuple[Span, ...], "<=16"]
    running: Flag  # the last one still runs
    before: Place | None
    after: Place | None
    rivals: Annotated[tuple[Place, ...], "<=4"]


MESSAGES: Final[dict[int, type[Message]]] = {
    16: Want,
    17: Queued,
    18: Feed,
    19: Seen,
    20: Heard,
    21: Probe,
    22: Sight,
    23: Bequest,
    24: Recall,
    25: Account,
    26: Urge,
}
