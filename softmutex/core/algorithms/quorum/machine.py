"""One node of a mutex with n replicas: what it asks of them, what it passes on, which of them it has itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from softmutex.core.algorithms.one_by_one import OneByOne
from softmutex.core.algorithms.quorum.messages import (
    NO_BID,
    Bid,
    Heir,
    ReleaseVote,
    RenewVote,
    RequestVote,
    Response,
    Untouched,
    Yield,
)
from softmutex.core.algorithms.quorum.replica import LEASE, Replicas
from softmutex.core.errors import ConfigError, InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Effect,
    Event,
    FactKind,
    Instant,
    Lose,
    LostReason,
    NodeId,
    Note,
    RequestId,
    Send,
    SetTimer,
    Suspect,
    TimerName,
    from_seconds,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup, View
from softmutex.core.messages import Message
from softmutex.core.options import Options, within
from softmutex.core.patience import Patience
from softmutex.core.routing import HOPS_MOST, PrefixRing, key_of

AGAIN: Final = "again"
RENEW: Final = "renew"
LAPSE: Final = "lapse"
HIGHEST: Final = 2**62  # a stamp from there on is no honest one
TRIES: Final = 3  # unanswered, until the member with the replica is suspected
SOON: Final = SECOND // 1_000_000  # clocks at other rates are not exact to the nanosecond
SELDOM: Final = 15 * SECOND  # how often at the least who waits asks again
REPLICAS_MOST: Final = 32
ROUTED: Final = frozenset({RequestVote, Yield, ReleaseVote, RenewVote})


@dataclass(frozen=True)
class QuorumOptions(Options):
    replicas: int = within(5, 1, REPLICAS_MOST)
    votes: int | None = within(None, 1, REPLICAS_MOST)  # None: more than half of the replicas
    lease_s: float = within(5.0, 0.1, 3600.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.votes is not None and not self.replicas < 2 * self.votes <= 2 * self.replicas:
            raise ConfigError(
                f"votes is {self.votes} of {self.replicas} replicas, and two could run at once or nobody: "
                f"give {self.replicas // 2 + 1} to {self.replicas}"
            )

    @property
    def votes_needed(self) -> int:
        return self.replicas // 2 + 1 if self.votes is None else self.votes


class Quorum(OneByOne):
    """One mutex on one node."""

    Options: ClassVar[type[QuorumOptions]] = QuorumOptions
    laws = (
        claim(Weather.ANY, Law.EFFECTS)
        # Where views differ, a key that moves is nobody's until its heir knows of it, and quiet for a lease then.
        | claim(Weather.ANY & ~(Weather.DEATHS | Weather.VIEWS), Law.REQUESTS)
        | claim(Weather.ANY & ~Weather.VIEWS, Law.ALARMS, Law.OVERLAP)  # else two nodes may have one replica's vote
    )
    routed: ClassVar[frozenset[type[Message]]] = ROUTED
    newer_ends_older: ClassVar[bool] = True  # a node that asks anew has nothing more to do with its last bid

    __slots__ = (
        "_asked_at",
        "_bid",
        "_clock",
        "_homes",
        "_inbox",
        "_isolated",
        "_keys",
        "_lease",
        "_lost",
        "_mute",
        "_needed",
        "_owners",
        "_patience",
        "_renewed_at",
        "_replicas",
        "_ring",
        "_since",
        "_tries",
        "_votes",
        "_yielded",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options = self.Options.read(setup.options, self.name)
        self._lease = from_seconds(options.lease_s)
        self._needed = options.votes_needed
        self._keys = tuple(key_of(setup.place, number) for number in range(options.replicas))
        ring = setup.shared.get("ring")
        self._ring: PrefixRing = setup.shared.setdefault("ring", PrefixRing(setup.members)) if ring is None else ring
        self._ring.update((self._me,), ())  # the others may hear of this node later
        self._homes: list[NodeId] = [self._ring.owner(key) for key in self._keys]
        self._replicas = Replicas(self._lease, self._counts, self._post, self.newer_ends_older)
        self._inbox: list[Message] = []  # from this node to itself
        self._clock = 0
        self._bid = NO_BID  # what is asked for, or runs
        self._votes: dict[int, Instant] = {}  # replica -> since when I know of its vote for me
        self._owners: dict[int, Bid] = {}  # replica -> for whom it has voted, as it told last
        self._since: dict[int, int] = {}  # replica -> the round before which its votes are void
        self._mute: dict[int, int] = {}  # replica -> how often it did not answer
        self._patience = Patience(SECOND)
        self._asked_at: Instant = 0
        self._renewed_at: Instant = 0
        self._tries = 0
        self._lost = False
        self._isolated = False
        self._yielded = False

    # --- what happens ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out = list(super().handle(event, now))
        self._drain(now, out)
        return out

    def _drain(self, now: Instant, out: list[Effect]) -> None:
        inbox = self._inbox
        while inbox:
            self._received(self._me, inbox.pop(0), now, out)

    def _post(self, node: NodeId, message: Message, out: list[Effect]) -> None:
        if type(message) is Response:
            message = message._replace(clock=self._clock)
        if node == self._me:
            self._inbox.append(message)
        else:
            out.append(Send(node, message))

    def _started(self, founder: bool, now: Instant, out: list[Effect]) -> None:
        self._ring.agree(self._members)  # of what happened before it began, nobody told it
        self._homes = [self._ring.owner(key) for key in self._keys]
        for number, home in enumerate(self._homes):
            if founder:
                self._post(home, Heir(number, NO_BID, 0), out)
            if home == self._me:
                self._replicas.get(number, now, out)

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        kind = type(message)
        if kind in self.routed:
            if message[0] < len(self._keys) and message[1].stamp < HIGHEST:
                self._clock = max(self._clock, message[1].stamp)
                self._pass_on(sender, message, now, out)
        elif kind is Response:
            number, bid, owner, ahead, clock = message
            is_ours = bid.node == self._me or bid.name == self._right().name
            if number < len(self._keys) and is_ours and clock < HIGHEST:
                self._clock = max(self._clock, clock)
                self._answered(sender, number, bid, owner, ahead, now, out)
        elif isinstance(message, Heir) and message.replica < len(self._keys) and message.owner.stamp < HIGHEST:
            self._inherit(sender, message, now, out)
        elif isinstance(message, Untouched) and message.replica < len(self._keys):
            self._inherit(sender, Heir(message.replica, NO_BID, message.left, True), now, out, untouched=True)

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if isinstance(timer, tuple):
            if timer[0] == LEASE:
                self._replicas.lapse(timer[1], now, out)
        elif timer == AGAIN:
            if self._bid != NO_BID and self._running is None:
                self._ask_again(now, out)
        elif self._running is not None:
            if timer == RENEW:
                self._renew(now, out)
            self._look_at_votes(now, out)

    # --- passing on --------------------------------------------------------------------------------------------------

    def _pass_on(self, sender: NodeId, message: Any, now: Instant, out: list[Effect]) -> None:
        """What is for a replica, one step further."""
        number = message.replica
        home = self._ring.owner(self._keys[number])
        message = self._on_the_way(sender, message, home == self._me, now, out)
        if message is None:
            return
        if home == self._me:
            self._arrived(message, now, out)
        elif message.hops < HOPS_MOST:
            step = home if type(message) is RenewVote else self._ring.next_hop(self._me, self._keys[number])
            out.append(Send(step, message._replace(hops=message.hops + 1)))

    def _on_the_way(self, sender: NodeId, message: Any, arrived: bool, now: Instant, out: list[Effect]) -> Any:
        """What goes on; None: this node answers for the replica."""
        return message

    def _arrived(self, message: Any, now: Instant, out: list[Effect]) -> None:
        number, bid = message.replica, message.bid
        match message:
            case RequestVote():
                self._replicas.ask(number, bid, now, out)
            case Yield():
                self._merge(number, message.queue, now, out)
                self._replicas.give_back(number, bid, now, out)
            case ReleaseVote():
                self._merge(number, message.queue, now, out)
                self._replicas.release(number, bid, now, out)
            case RenewVote():
                self._replicas.renew(number, bid, message.holder or bid.node, message.known, now, out)
            case _:
                raise InvariantBreach(f"node {self._me}: a replica cannot answer {message}")

    def _merge(self, number: int, queue: Sequence[Bid], now: Instant, out: list[Effect]) -> None:
        replica = self._replicas.get(number, now, out)
        for bid in queue:
            if not replica.is_over(bid) and bid.name != replica.owner.name and self._counts(bid.node):
                replica.wait(bid)

    def _learn(self, now: Instant) -> None:
        """The first answer came; if it came late, that was for another reason than the way there."""
        if not self._tries and self._running is None and now - self._asked_at < self._lease // 4:
            self._patience.learn(now - self._asked_at)

    def _right(self) -> Bid:
        """By which bid A runs, or is to run."""
        return self._bid

    # --- asking ------------------------------------------------------------------------------------------------------

    def _want(self, now: Instant, out: list[Effect]) -> None:
        self._clock += 1
        self._bid = Bid(self._clock, self._me)
        self._votes, self._owners, self._since, self._mute = {}, {}, {}, {}
        self._asked_at, self._tries, self._lost, self._renewed_at = now, 0, False, 0
        self._yielded = False
        self._inbox += [RequestVote(number, self._bid, 0) for number in range(len(self._keys))]
        out.append(SetTimer(AGAIN, now + self._patience.wait()))

    def _answered(
        self, sender: NodeId, number: int, bid: Bid, owner: Bid, ahead: int, now: Instant, out: list[Effect]
    ) -> None:
        mine = self._right()
        if bid.name != mine.name:
            if owner.name == bid.name and self._is_over(bid):
                self._post(sender, ReleaseVote(number, bid, 0), out)
            return
        if bid.round < self._since.get(number, 0):
            return
        if not self._owners:
            self._learn(now)
        self._mute.pop(number, None)
        if owner.name == mine.name:
            self._votes[number] = max(self._votes.get(number, 0), self._renewed_at or now)
        elif now - self._votes.get(number, 0) < self._lease:
            return  # an old answer: a vote is not taken back before its lease is over
        else:
            self._votes.pop(number, None)
        self._owners[number] = owner
        if self._running is not None:
            self._look_at_votes(now, out)
        elif len(self._votes) >= self._needed and len(self._fresh(now)) >= self._needed:
            self._run(now, out)
        else:
            self._judge(ahead, now, out)

    def _is_over(self, bid: Bid) -> bool:
        """A bid of this node's, not the one that it asks by."""
        return bid.name != self._bid.name

    def _fresh(self, now: Instant) -> list[int]:
        return [number for number, since in self._votes.items() if now - since <= self._lease // 2]

    def _judge(self, ahead: int, now: Instant, out: list[Effect]) -> None:
        """Has somebody won? Can anybody yet?"""
        best = max(Counter(owner.name for owner in self._owners.values()).values())
        mute = sum(
            self._mute.get(number, 0) >= TRIES for number in range(len(self._keys)) if number not in self._owners
        )
        hopeless = best + len(self._keys) - len(self._owners) - mute < self._needed
        if hopeless and self._votes and not self._yielded:
            self._yielded = True  # not again before the others have had the time to do the same
            self._bid = bid = self._bid._replace(round=self._bid.round + 1)
            for number in self._votes:
                self._since[number] = bid.round
                self._owners.pop(number, None)
                self._inbox.append(Yield(number, bid, 0))
            self._votes = {}
            self._wait_a_little(now, out)
        elif best >= self._needed or (hopeless and not self._votes):
            longest = SELDOM if best >= self._needed else self._lease
            wait = min(longest, self._op * (2 * ahead + 1) // 2)
            out.append(SetTimer(AGAIN, now + max(self._patience.wait(), wait)))

    def _wait_a_little(self, now: Instant, out: list[Effect]) -> None:
        wait = self._patience.wait(self._tries)
        if self._tries > TRIES:  # who does not answer is quiet, or gone
            wait = max(wait, self._lease // 2)
        wait = wait + int(wait * self._rng.random() / 2)
        out.append(SetTimer(AGAIN, now + (min(wait, self._lease // 4) if self._votes else wait)))

    def _ask_again(self, now: Instant, out: list[Effect]) -> None:
        """Who has not voted for us, and who did so long ago."""
        self._tries += 1
        self._yielded = False
        self._votes = {number: self._votes[number] for number in self._fresh(now)}
        for number, home in enumerate(self._homes):
            if number in self._votes and now - self._votes[number] < self._lease // 4:
                continue
            if number not in self._owners:
                self._mute[number] = self._mute.get(number, 0) + 1
                if self._mute[number] % TRIES == 0 and home != self._me:
                    out.append(Suspect(home))
            self._owners.pop(number, None)
            self._inbox.append(RequestVote(number, self._bid, 0, again=True))
        self._wait_a_little(now, out)

    def _run(self, now: Instant, out: list[Effect]) -> None:
        if len(self._fresh(now)) < self._needed:
            raise InvariantBreach(f"quorum.S1: node {self._me} runs A with the votes of {list(self._votes)}")
        self._begin(now, out)

    def _begin(self, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(AGAIN))
        self._enter(out, hop=self._bid.stamp)
        oldest = min(self._votes.values(), default=now)
        out.append(SetTimer(RENEW, max(now + SOON, oldest + self._lease // 3)))
        self._look_at_votes(now, out)

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(AGAIN))
        self._ended(b"", now, out)

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        bid, self._bid = self._bid, NO_BID
        if bid != NO_BID:
            self._inbox += [ReleaseVote(number, bid, 0) for number in range(len(self._keys))]

    # --- while A runs ------------------------------------------------------------------------------------------------

    def _renew(self, now: Instant, out: list[Effect]) -> None:
        self._renewed_at = now
        for number in range(len(self._keys)):
            if now - self._votes.get(number, 0) >= self._lease // 4:
                self._inbox.append(self._renewal(number, now))
        out.append(SetTimer(RENEW, now + self._lease // 6))

    def _renewal(self, number: int, now: Instant) -> RenewVote:
        return RenewVote(number, self._bid, 0, self._has(number, now))

    def _has(self, number: int, now: Instant) -> bool:
        return now - self._votes.get(number, 0) < self._lease

    def _valid_until(self, now: Instant) -> Instant:
        times = sorted(self._votes.values())
        return times[-self._needed] + 9 * self._lease // 10 if len(times) >= self._needed else now

    def _look_at_votes(self, now: Instant, out: list[Effect]) -> None:
        """Are m of them valid, and until when?"""
        until = self._valid_until(now)
        if now < until:
            out.append(SetTimer(LAPSE, max(now + SOON, until)))
        elif not self._lost and self._running is not None:
            self._lost = True
            out.append(Lose(self._running, LostReason.LEASE))

    def _slept(self, now: Instant, out: list[Effect]) -> None:
        if self._running is not None:
            self._look_at_votes(now, out)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        self._ring.update(joined, left)
        for number, key in enumerate(self._keys):
            home = self._ring.owner(key)
            if home != self._homes[number]:
                self._homes[number] = home
                self._moved(number, home, now, out)
        self._replicas.forget_gone(self._may_be_gone, now, out)

    def _may_be_gone(self, number: int, owner: Bid) -> bool:
        """Whether its vote ends when its node is no member any more."""
        return True

    def _moved(self, number: int, home: NodeId, now: Instant, out: list[Effect]) -> None:
        if home == self._me:
            self._replicas.get(number, now, out)
        else:
            self._bequeath(number, home, now, out)
        if self._running is not None:
            self._inbox.append(self._renewal(number, now))
        elif self._bid != NO_BID:
            self._mute.pop(number, None)
            self._inbox.append(RequestVote(number, self._bid, 0, again=True))

    def _bequeath(self, number: int, heir: NodeId, now: Instant, out: list[Effect]) -> None:
        if (known := self._replicas.lose(number, heir, now)) is not None and heir not in (self._me, NOBODY):
            left = max(0, known.until - now)
            untouched = known.quiet and known.new
            out.append(
                Send(heir, Untouched(number, left) if untouched else Heir(number, known.owner, left, known.quiet))
            )

    def _inherit(self, sender: NodeId, heir: Heir, now: Instant, out: list[Effect], untouched: bool = False) -> None:
        """For this node, or for one of whom the sender did not know yet that it has come since."""
        home = self._ring.owner(self._keys[heir.replica])
        if home in (self._me, sender) or heir.hops >= HOPS_MOST:
            self._replicas.heir(heir, now, out, untouched_by=sender if untouched else NOBODY)
        else:
            out.append(Send(home, heir._replace(hops=heir.hops + 1)))

    def _may_depart(self, now: Instant, out: list[Effect]) -> bool:
        self._drain(now, out)
        for number in self._replicas.numbers():
            self._bequeath(number, self._ring.owner(self._keys[number], but=self._me), now, out)
        return True

    def _falls_silent(self, node: NodeId, now: Instant, out: list[Effect]) -> None:
        """A silent replica has no vote; only where too many are silent is there something to tell."""
        if node not in self._silent and node in self._members:
            self._silent.append(node)
            self._tell_whether_isolated(node, out)

    def _speaks(self, node: NodeId, out: list[Effect]) -> bool:
        if node not in self._silent:
            return False
        self._silent.remove(node)
        self._tell_whether_isolated(node, out)
        return True

    def _tell_whether_isolated(self, node: NodeId, out: list[Effect]) -> None:
        isolated = sum(home in self._silent for home in self._homes) > len(self._keys) - self._needed
        if isolated != self._isolated:
            self._isolated = isolated
            kind = FactKind.ISOLATED if isolated else FactKind.REJOINED
            out.append(Note(kind, None, node, "too few replicas answer" if isolated else ""))

    def _meet(self, nodes: Sequence[NodeId], out: list[Effect]) -> None:
        """Who comes learns of a holder from the replicas."""

    def view(self) -> View:
        owners = Counter(owner.node for owner in self._owners.values())
        holder, votes = owners.most_common(1)[0] if owners else (NOBODY, 0)
        seen = super().view()
        return seen if seen.holder or votes < self._needed else seen._replace(holder=holder)
