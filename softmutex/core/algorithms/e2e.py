"""`e2e`, seed 004: the queue is where A runs, and the right to run goes from one to the next of it.

What it decides: who answers for a replica, and how the right is passed on. Who has won says so on its way to each
replica (I_AM_WINNER): from then on each node of that way sends whoever wants a vote straight to the winner (ENQUEUE).
When A has run there, a token with the rest of the queue goes to the first of it; the votes are for the reign that
began with the win, so no replica need hear of that. When nobody waits, the reign is over, and the votes are given back
along the winner's ways (its next pointers are what routing computes: the same way again).

    loser --REQUEST_VOTE--> node on the winner's way --ENQUEUE--> winner --ENQUEUED(ahead)--> loser
    winner, A has run --PASS_TOKEN(rest of the queue)--> the first of it --TOKEN_TAKEN--> winner, and who cried
    the last --UNCROWN--> who cried --RELEASE_VOTE--> the replicas, clearing the way

The naive way lets each holder cry anew, which costs more than it saves. So who cried stays the address of the reign: it
is told who has the token and sends on what comes to it. If it is gone, the holder cries itself.

Survives what `sigma` survives. A dead holder: its lease ends at the replicas. A dead queue: it is soft, each of its
members asks the holder for its place after T_cs * (P + 1/2), and asks the replicas when there is no answer. A dead or
forgetful node in between: its entries are leased, and who asks again is passed on to the replica itself. A token that
is lost is sent again while its lease lasts, to the same node only: to another one only when that one wants it no more,
or is known to be gone.

Invariants
    T1  A token is passed on only within nine tenths of a lease of the last renewal by m replicas. Whoever gets it with
        less than a third of a lease left renews first.
    T2  One of (reign, turn) is taken once, and given to no other node while the one that it was sent to may have it.
    T3  A replica renews no turn of a reign after a later one.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from softmutex.core.algorithms.quorum import Quorum
from softmutex.core.algorithms.quorum.machine import AGAIN, HIGHEST, ROUTED, SELDOM, TRIES
from softmutex.core.algorithms.quorum.messages import (
    NO_BID,
    OF_QUORUM,
    Bid,
    ReleaseVote,
    RenewVote,
    RequestVote,
)
from softmutex.core.events import (
    NOBODY,
    U64,
    CancelTimer,
    Count,
    Duration,
    Effect,
    Instant,
    NodeId,
    SetTimer,
    Suspect,
    TimerName,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Flag, Message

PASS: Final = "pass"
QUEUE_MOST: Final = 32
DETOURS: Final = 8  # how often an ENQUEUE is sent on after the token
REMEMBERED: Final = 16  # reigns of which it is known who has the token


class IAmWinner(NamedTuple):
    """I have m votes: whoever wants this replica's is to ask me."""

    replica: Count
    bid: Bid
    hops: Count
    crier: NodeId


class Enqueue(NamedTuple):
    """These wait for what you have. `again`: answer even if you know."""

    bids: Annotated[tuple[Bid, ...], "<=32"]
    hops: Count = 0
    again: Flag = False


class Enqueued(NamedTuple):
    """You wait here, behind so many."""

    bid: Bid
    ahead: Count


class NotHere(NamedTuple):
    """What this bid is asked, or is given, for: I have it not, or want it no more."""

    bid: Bid


class PassToken(NamedTuple):
    """TOKEN: it is your turn, and these wait behind you. `left`: how long the votes of the `voters` are leased yet."""

    reign: Bid
    turn: Count
    bid: Bid
    crier: NodeId
    left: Duration
    voters: U64  # a bit each
    queue: Annotated[tuple[Bid, ...], "<=32"] = ()


class TokenTaken(NamedTuple):
    """I have it."""

    reign: Bid
    turn: Count


class Uncrown(NamedTuple):
    """Nobody waits any more: clear the way."""

    reign: Bid


class Crown(NamedTuple):
    """Who is to be asked instead of the replicas."""

    reign: Bid
    holder: NodeId
    turn: int
    until: Instant


NO_CROWN: Final = Crown(NO_BID, NOBODY, 0, 0)


class E2E(Quorum):
    name: ClassVar[str] = "e2e"
    messages: ClassVar = {
        120: IAmWinner,
        121: Enqueue,
        122: Enqueued,
        123: NotHere,
        124: PassToken,
        125: TokenTaken,
        126: Uncrown,
        **OF_QUORUM,
    }
    routed = ROUTED | {IAmWinner}
    newer_ends_older = False  # a reign goes on when the node that won it wants more

    __slots__ = (
        "_asked_server",
        "_crier",
        "_crown",
        "_has_reigned",
        "_is_renewing",
        "_passed",
        "_passing",
        "_queue",
        "_reign",
        "_server",
        "_taken",
        "_tries_to_pass",
        "_turn",
        "_until",
        "_voters",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._crown = NO_CROWN  # as it was last heard of here
        self._reign = NO_BID  # whose token is here
        self._has_reigned = False  # once, under a bid of its own
        self._turn = 0
        self._crier = NOBODY
        self._queue: list[Bid] = []
        self._passing: PassToken | None = None  # sent, and nobody has said yet that it has it
        self._until: Instant = 0  # the end of its lease
        self._voters: list[int] = []  # who voted for it
        self._tries_to_pass = 0
        self._passed: dict[tuple[int, NodeId], tuple[int, NodeId]] = {}  # reign -> its last known turn, and holder
        self._taken: tuple[tuple[int, NodeId], int] = (NO_BID.name, 0)  # reign and turn
        self._server = NOBODY  # in whose queue we are
        self._asked_server = False
        self._is_renewing = False  # the token is here, and its lease is too short to run A

    def _right(self) -> Bid:
        has_token = self._reign != NO_BID and (self._running is not None or self._is_renewing)
        return self._reign if has_token else self._bid

    def _is_over(self, bid: Bid) -> bool:
        """A reign goes on where its token is."""
        reigns = {*self._passed, self._taken[0], self._reign.name}
        return super()._is_over(bid) and bid.name not in reigns

    # --- the winner, and its ways ------------------------------------------------------------------------------------

    def _run(self, now: Instant, out: list[Effect]) -> None:
        if self._is_renewing:
            self._is_renewing = False
            super()._run(now, out)
            return
        self._drop_token(out)
        super()._run(now, out)
        self._reign, self._turn, self._queue = self._bid, 0, []
        self._has_reigned = True
        self._cry()

    def _cry(self) -> None:
        self._crier = self._me
        self._inbox += [IAmWinner(number, self._reign, 0, self._me) for number in range(len(self._keys))]

    def _on_the_way(self, sender: NodeId, message: Any, arrived: bool, now: Instant, out: list[Effect]) -> Any:
        bid, crown = message.bid, self._crown
        match message:
            case RequestVote(_, _, _, again):
                asks_in_vain = again and crown.holder == bid.node  # it knows no better than this node does
                if self._is_crowned(now) and (arrived or not again) and not asks_in_vain:
                    self._post(crown.holder, Enqueue((bid,), 0, again), out)
                    return None
            case IAmWinner():
                self._crown = Crown(bid, message.crier, 0, now + self._lease)
            case ReleaseVote():
                if crown.reign.name == bid.name:
                    self._crown = NO_CROWN
            case RenewVote() if arrived:
                if crown.reign.name == bid.name and message.turn < crown.turn:
                    return None  # T3
                self._crown = Crown(bid, message.holder or bid.node, message.turn, now + self._lease)
        return message

    def _is_crowned(self, now: Instant) -> bool:
        return now < self._crown.until and self._counts(self._crown.holder)

    def _arrived(self, message: Any, now: Instant, out: list[Effect]) -> None:
        if not isinstance(message, IAmWinner):
            super()._arrived(message, now, out)
            return
        replica = self._replicas.get(message.replica, now, out)
        if replica.is_over(message.bid):
            self._crown = NO_CROWN
            return
        waiting = [bid for bid in (replica.owner, *replica.queue) if bid.name not in (NO_BID.name, message.bid.name)]
        if waiting:
            self._post(message.crier, Enqueue(tuple(waiting[:QUEUE_MOST])), out)
        replica.queue = []

    # --- in the queue ------------------------------------------------------------------------------------------------

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        match message:
            case Enqueue():
                self._enqueue(message, out)
            case Enqueued(bid, ahead):
                if bid.name == self._bid.name and self._running is None:
                    if not self._owners:
                        self._learn(now)
                    self._server, self._asked_server = sender, False
                    wait = min(SELDOM, self._op * (2 * min(ahead, QUEUE_MOST) + 1) // 2)
                    out.append(SetTimer(AGAIN, now + max(self._patience.wait(), wait)))
            case NotHere(bid):
                if self._passing is not None and bid.name == self._passing.bid.name:
                    self._pass_token(now, out)
                elif bid.name == self._bid.name and self._running is None and self._server in (sender, NOBODY):
                    self._server = NOBODY
                    out.append(SetTimer(AGAIN, now + self._patience.wait() // 2))
            case PassToken():
                self._given(sender, message, now, out)
            case TokenTaken(reign, turn):
                self._heard_of_token(sender, reign, turn, out)
            case Uncrown(reign):
                self._clear_way(reign)
            case _:
                super()._received(sender, message, now, out)

    def _enqueue(self, message: Enqueue, out: list[Effect]) -> None:
        bids = [bid for bid in message.bids if self._counts(bid.node) and bid.stamp < HIGHEST]
        self._clock = max([self._clock, *(bid.stamp for bid in bids)])
        if self._reign != NO_BID and self._passing is None:
            for bid in bids:
                known = next((other for other in self._queue if other.node == bid.node), NO_BID)
                if bid.name == self._bid.name or bid < known or (bid.name == known.name and not message.again):
                    continue
                self._queue = [other for other in self._queue if other.node != bid.node]
                insort(self._queue, bid)
                self._post(bid.node, Enqueued(bid, self._queue.index(bid)), out)
            del self._queue[QUEUE_MOST:]  # who comes last comes again
            return
        if self._passing is not None:
            heir = self._passing.bid.node
        elif self._crier != self._me and self._counts(self._crier):
            heir = self._crier  # it is told who has the token
        else:
            heir = next(reversed(self._passed.values()), (0, NOBODY))[1]
        if bids and message.hops < DETOURS and heir not in (NOBODY, self._me) and self._counts(heir):
            self._post(heir, Enqueue(tuple(bids), message.hops + 1, message.again), out)
        else:
            for bid in bids:
                self._post(bid.node, NotHere(bid), out)

    def _want(self, now: Instant, out: list[Effect]) -> None:
        self._server, self._asked_server = NOBODY, False
        super()._want(now, out)
        if self._is_crowned(now):
            self._inbox = [message for message in self._inbox if type(message) is not RequestVote]
            self._server = self._crown.holder
            self._ask_again(now, out)

    def _ask_again(self, now: Instant, out: list[Effect]) -> None:
        if self._is_renewing:
            self._renew_first(now, out)
        elif self._server != NOBODY and not self._asked_server and self._counts(self._server):
            self._asked_server = True
            self._post(self._server, Enqueue((self._bid,), 0, True), out)
            out.append(SetTimer(AGAIN, now + self._patience.wait(1)))
        else:
            self._server = NOBODY
            super()._ask_again(now, out)

    # --- the token ---------------------------------------------------------------------------------------------------

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        bid, self._bid = self._bid, NO_BID
        self._is_renewing = False
        if self._reign == NO_BID or self._passing is not None:  # it never ran
            # Also where no vote has come yet: who leaves now could not give it back. But a newer bid ends an older one
            # of the same node at a replica, and under that one the next in turn may run.
            numbers = self._owners if self._has_reigned else range(len(self._keys))
            self._inbox += [ReleaseVote(number, bid, 0) for number in numbers]
        else:
            self._pass_token(now, out)

    def _pass_token(self, now: Instant, out: list[Effect]) -> None:
        """To the first that waits and is there; where nobody is, the reign is over."""
        if self._passing is None:
            self._until, waiting = self._valid_until(now), self._queue
            self._voters = [n for n, since in self._votes.items() if self._until - since <= 9 * self._lease // 10]
        else:
            waiting = list(self._passing.queue)
        while waiting and now < self._until:  # T1
            bid = waiting.pop(0)
            if self._counts(bid.node):
                self._turn, self._tries_to_pass = self._turn + 1, 0
                voters = sum(1 << number for number in self._voters)
                self._passing = PassToken(self._reign, self._turn, bid, self._crier, 0, voters, tuple(waiting))
                self._send_token(now, out)
                return
        reign, crier = self._reign, self._crier
        self._drop_token(out)
        if self._crown.reign.name == reign.name:
            self._crown = NO_CROWN  # what this node wants next goes to the replicas
        if crier != self._me and self._counts(crier):
            self._post(crier, Uncrown(reign), out)
        else:
            self._clear_way(reign)

    def _clear_way(self, reign: Bid) -> None:
        self._inbox += [ReleaseVote(number, reign, 0) for number in range(len(self._keys))]

    def _send_token(self, now: Instant, out: list[Effect]) -> None:
        token = self._passing
        if token is None or now >= self._until:
            self._drop_token(out)  # whoever has it or not: the lease of the reign is over
            return
        self._post(token.bid.node, token._replace(left=self._until - now), out)
        out.append(SetTimer(PASS, now + self._patience.wait(self._tries_to_pass)))

    def _drop_token(self, out: list[Effect]) -> None:
        self._reign, self._passing, self._queue, self._is_renewing = NO_BID, None, [], False
        out.append(CancelTimer(PASS))

    def _given(self, sender: NodeId, token: PassToken, now: Instant, out: list[Effect]) -> None:
        reign, turn, bid, crier, left, voters, queue = token
        if self._taken[0] == reign.name and turn <= self._taken[1]:
            self._post(sender, TokenTaken(reign, turn), out)
        elif bid.name == self._bid.name and self._running is None and reign.stamp < HIGHEST:
            self._drop_token(out)
            self._taken = (reign.name, turn)
            for node in dict.fromkeys((sender, crier)):
                self._post(node, TokenTaken(reign, turn), out)
            self._inbox += [ReleaseVote(number, bid, 0) for number in self._owners]
            self._reign, self._turn, self._crier, self._queue = reign, turn, crier, list(queue)
            self._server, self._renewed_at = NOBODY, 0
            self._owners, self._since, self._votes = {}, {}, {}
            self._voters = [number for number in range(len(self._keys)) if voters >> number & 1]
            left = min(left, self._lease) - self._patience.wait() // 2  # it was on its way for a while
            self._until = now + max(0, left)
            if left < self._lease // 3 or len(self._voters) < self._needed:
                self._is_renewing = True
                self._renew_first(now, out)
            else:
                self._votes = dict.fromkeys(self._voters, now + left - 9 * self._lease // 10)
                self._begin(now, out)
            if not self._counts(crier):
                self._cry()
        else:
            self._post(sender, NotHere(bid), out)

    def _renew_first(self, now: Instant, out: list[Effect]) -> None:
        if now >= self._until + self._lease:
            self._give_up(now, out)
            return
        self._renewed_at = now
        self._votes = {number: self._votes[number] for number in self._fresh(now)}
        self._inbox += [self._renewal(number, now) for number in range(len(self._keys)) if number not in self._votes]
        out.append(SetTimer(AGAIN, now + self._patience.wait(1)))

    def _judge(self, ahead: int, now: Instant, out: list[Effect]) -> None:
        if not self._is_renewing:
            super()._judge(ahead, now, out)
        elif len(self._owners) - len(self._votes) > len(self._keys) - self._needed:
            self._give_up(now, out)

    def _give_up(self, now: Instant, out: list[Effect]) -> None:
        """The token came too late: others have the votes."""
        self._drop_token(out)
        self._owners, self._votes, self._renewed_at = {}, {}, 0
        super()._ask_again(now, out)

    def _heard_of_token(self, sender: NodeId, reign: Bid, turn: int, out: list[Effect]) -> None:
        token = self._passing
        if token is not None and token.reign.name == reign.name and turn >= token.turn:
            self._drop_token(out)
        if turn >= self._passed.get(reign.name, (0, NOBODY))[0]:
            self._passed.pop(reign.name, None)
            self._passed[reign.name] = (turn, sender)
            if len(self._passed) > REMEMBERED:
                del self._passed[next(iter(self._passed))]

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer != PASS:
            super()._fired(timer, now, out)
        elif self._passing is not None:
            self._tries_to_pass += 1
            if self._tries_to_pass % TRIES == 0:
                out.append(Suspect(self._passing.bid.node))
            self._send_token(now, out)

    def _renewal(self, number: int, now: Instant) -> RenewVote:
        known = self._has(number, now) or (self._is_renewing and now < self._until and number in self._voters)
        return RenewVote(number, self._right(), 0, known, self._turn, self._me)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        super()._changed(joined, left, now, out)
        if self._passing is not None:
            if not self._counts(self._passing.bid.node):
                self._pass_token(now, out)
        elif self._reign != NO_BID and not self._counts(self._crier):
            self._cry()

    def _may_be_gone(self, number: int, owner: Bid) -> bool:
        """Whether a vote ends with its owner: that of a reign does not, and a new home may not know that it is one."""
        return False

    def _may_depart(self, now: Instant, out: list[Effect]) -> bool:
        self._drain(now, out)
        return self._passing is None and super()._may_depart(now, out)
