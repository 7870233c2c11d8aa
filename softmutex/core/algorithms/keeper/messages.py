"""What nodes say to one another for the keeper's token, beside the hand-over itself: kinds 176 to 189."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

from softmutex.core.events import U64, Count, Duration, Instant, NodeId, RequestId, Ticket
from softmutex.core.messages import Flag, Message


class Name(NamedTuple):
    """One token, as it was at `hop`. Of two of one slot, the later epoch is better, then the older stamp."""

    slot: Count
    epoch: Count
    stamp: Instant
    id: U64
    hop: Count


Tickets: TypeAlias = Annotated[tuple[Ticket, ...], "<=32"]
Names: TypeAlias = Annotated[tuple[Name, ...], "<=8"]


class Claim(NamedTuple):
    """`node` wants the token and stands for `request`. Passed on towards the keeper, `steps` times at most."""

    node: NodeId
    request: RequestId
    term: Count
    waited: Duration
    late: Duration  # it had its turn less than the least interval ago, and lets others go first for so long
    steps: Count


class Entered(NamedTuple):
    """From the keeper: your claim is in the register; ask again after `patience`."""

    request: RequestId
    term: Count
    patience: Duration


class Beat(NamedTuple):
    """From a holder to the keeper: the token is here. Lend it for so long, from `sent` on (0: it is parked)."""

    term: Count
    token: Name
    lease: Duration
    parked: Flag
    queue: Tickets
    sent: Instant  # by the holder's clock


class Lease(NamedTuple):
    """The answer. `better`: this token has been replaced. `renewed`: the lease that the beat asked for is lent."""

    term: Count
    token: Name
    renewed: Flag
    more: Flag  # others wait that are not in the token's queue
    better: Name | None
    sent: Instant  # as in the beat


class Fed(NamedTuple):
    """To a holder: these wait. Passed on after the token, which was there at `hop`."""

    token: Name
    tickets: Tickets
    more: Flag
    steps: Count


class Unclaimed(NamedTuple):
    """To the keeper: this ticket was in a token, and its node does not stand for it."""

    ticket: Ticket


class Unconfirmed(NamedTuple):
    """To the keeper: I passed this token on, and it was never confirmed."""

    token: Name


class Propose(NamedTuple):
    """I would keep in this term, or do and miss tokens. What do you know? Take none until I say who keeps."""

    number: U64
    term: Count
    left: Annotated[tuple[NodeId, ...], "<=16"]  # the last that I know to have left: they do not count


class Report(NamedTuple):
    """The answer: who keeps, how lately that was heard, what is here, and whether it is promised to take none."""

    number: U64
    promised: Flag
    term: Count
    keeper: NodeId
    heard: Duration  # since the keeper was heard; 0: this node is the keeper
    members: Count  # how many this node knows, without those that the proposer knows to have left
    joined: Annotated[tuple[NodeId, ...], "<=8"]  # the last of them: the proposer may not know them yet
    left: Annotated[tuple[NodeId, ...], "<=8"]  # the last of them: the proposer may count them still
    here: Names
    passing: Names  # committed to others, and not confirmed
    best: Names  # the best token of each slot that it ever heard of


class Keeps(NamedTuple):
    """That node keeps, in this term: whoever hears of a higher one follows it. NOBODY: I know of nobody."""

    term: Count
    keeper: NodeId
    number: U64 = 0  # of the round that this ends


class Legacy(NamedTuple):
    """I leave: keep in my place, in this term. Answered by KEEPS."""

    term: Count
    tickets: Tickets
    tokens: Names
    holders: Annotated[tuple[NodeId, ...], "<=8"]
    lent: Duration  # how long the last lease may still run


class Reckon(NamedTuple):
    """Two tokens of this slot have met: which holds do you remember?"""

    number: U64
    slot: Count


class KeptSpan(NamedTuple):
    """A hold, by how long ago it began and ended: clocks of different nodes are not compared."""

    token: U64
    request: RequestId
    begun: Duration
    ended: Duration  # 0 also if it runs


class Reckoned(NamedTuple):
    """The answer."""

    number: U64
    spans: Annotated[tuple[KeptSpan, ...], "<=24"]


class Told(NamedTuple):
    """Your hold and one of `other` overlapped for so long."""

    request: RequestId
    other: NodeId
    their_request: RequestId
    length: Duration


MESSAGES: Final[dict[int, type[Message]]] = {
    176: Claim,
    177: Entered,
    178: Beat,
    179: Lease,
    180: Fed,
    181: Propose,
    182: Report,
    183: Keeps,
    184: Legacy,
    185: Reckon,
    186: Reckoned,
    187: Told,
    188: Unclaimed,
    189: Unconfirmed,
}
