"""What is said between those who want to run A and the replicas, in all three algorithms of seed 004."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from softmutex.core.events import NOBODY, Count, Duration, NodeId
from softmutex.core.messages import Flag


class Bid(NamedTuple):
    """One request of a node. The smaller comes first. `round`: it has taken back all votes of lower rounds."""

    stamp: Count  # Lamport's clock
    node: NodeId
    round: Count = 0

    @property
    def name(self) -> tuple[int, NodeId]:
        """Without the round."""
        return (self.stamp, self.node)


NO_BID: Final = Bid(0, NOBODY)


class RequestVote(NamedTuple):
    """REQUEST: your vote, please. `again`: I asked before."""

    replica: Count
    bid: Bid
    hops: Count
    again: Flag = False


class Response(NamedTuple):
    """To your bid: the replica has voted for `owner`; so many are before you there."""

    replica: Count
    bid: Bid
    owner: Bid
    ahead: Count = 0
    clock: Count = 0  # the sender's: without it who hears of nobody's stamps would always come first


class Yield(NamedTuple):
    """Nobody won: I give your vote back, and ask for it again. `queue`: who waited on the way (non-e2e)."""

    replica: Count
    bid: Bid
    hops: Count
    queue: Annotated[tuple[Bid, ...], "<=32"] = ()


class ReleaseVote(NamedTuple):
    """RELEASE: this bid is over. `queue`: as in YIELD."""

    replica: Count
    bid: Bid
    hops: Count
    queue: Annotated[tuple[Bid, ...], "<=32"] = ()


class RenewVote(NamedTuple):
    """A runs, as this bid: keep your vote. `known`: I had it, less than a lease ago.

    `turn`, `holder`: by whose token, where it has been passed on (e2e).
    """

    replica: Count
    bid: Bid
    hops: Count
    known: Flag
    turn: Count = 0
    holder: NodeId = NOBODY


class Heir(NamedTuple):
    """You have this replica's key now, or soon: it has voted for `owner`, and so long the vote is leased yet.

    `quiet`: for whom it has voted is not known here either, but will be over by then.
    """

    replica: Count
    owner: Bid
    left: Duration
    quiet: Flag = False
    hops: Count = 0


class Untouched(NamedTuple):
    """You have this replica's key now, or soon. I had it for the first time, was quiet, and will be for so long yet.

    Whoever had it before me knows for whom it has voted; for anybody else this is a HEIR that is `quiet`.
    """

    replica: Count
    left: Duration


OF_QUORUM: Final = {
    136: RequestVote,
    137: Response,
    138: Yield,
    139: ReleaseVote,
    140: RenewVote,
    141: Heir,
    142: Untouched,
}
