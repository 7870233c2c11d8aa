"""`voting`, the decentralised algorithm of seed 002: who wants to run A needs the votes of m of n coordinators.

What it decides: what is done where votes are split. Each coordinator has one vote, and gives it to whoever asks first;
two that ask at once may each get some. The naive one keeps what it has and waits, as the other does, for ever. Here who
was denied gives all back at once and comes again after a random while, which doubles up to the length of A. That is
what A took here last time: by the stated length, 4 s where nothing is said, turns of no time came every three seconds.

    wanted --POLL--> m of n --VOTE of m--> A runs --RETRACT--> m         2m + m messages, and 2m for each further round
                        '--DENY--> RETRACT to those who voted; later again

The coordinators are the n members that a hash of (mutex, member) puts first, so that all choose the same, and others
for another mutex. With m > n / 2 two majorities share a coordinator. Its memory may be lost: it dies, or a newcomer
takes its place. Who runs A then asks the newcomer for its vote, but until that is there another majority may be: two
may overlap, the less often the more votes are asked for (option `votes`). A vote whose RETRACT was lost is asked about
when it is in the way (CONFIRM).

Survives: loss, repetition, delay, reordering, pauses, wrong clocks, without two at once; deaths of any member and
comings and goings, with overlaps now and then. As long as m coordinators answer, nobody waits for a silent one. It is
no queue: nobody is promised to be granted within so many rounds.

Invariants
    V1  A coordinator has one vote, and it is given back only by who has it, or when that one is gone.
    V2  A runs only with m votes, each given for this very round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from softmutex.core.algorithms.one_by_one import OF_HOLDERS, OneByOne
from softmutex.core.errors import ConfigError, InvariantBreach
from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Count,
    Duration,
    Effect,
    Instant,
    NodeId,
    RequestId,
    Send,
    SetTimer,
    Suspect,
    TimerName,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup
from softmutex.core.messages import Message
from softmutex.core.options import Options, within
from softmutex.core.patience import Patience

ROUND: Final = "round"  # the answers should be there, or the next round begins
DOUBLINGS: Final = 6
STEADY: Final = 8  # rounds that are lost before a turn is taken to be longer than this node's own
MASK: Final = 2**64 - 1


class Poll(NamedTuple):
    """Your vote for my round?"""

    round: Count


class Vote(NamedTuple):
    """It is yours."""

    round: Count


class Deny(NamedTuple):
    """Somebody else has it."""

    round: Count


class Retract(NamedTuple):
    """I do not need it for this round, nor for an earlier one."""

    round: Count


class Confirm(NamedTuple):
    """You have my vote for this round. Do you still need it?"""

    round: Count


@dataclass(frozen=True)
class VotingOptions(Options):
    coordinators: int = within(5, 1, 64)
    votes: int | None = within(None, 1, 64)  # None: a majority

    def needed(self, there: int) -> int:
        """Votes, where so many coordinators are there: as many beyond the majority as was asked for."""
        votes = self.coordinators // 2 + 1 if self.votes is None else self.votes
        beyond = votes - (self.coordinators // 2 + 1)
        return min(there, there // 2 + 1 + beyond)


class Voting(OneByOne):
    name: ClassVar[str] = "voting"
    Options = VotingOptions
    messages: ClassVar = {72: Poll, 73: Vote, 74: Deny, 75: Retract, 76: Confirm, **OF_HOLDERS}
    laws = claim(Weather.ANY, Law.EFFECTS) | claim(
        Weather.ANY & ~(Weather.VIEWS | Weather.COMINGS | Weather.DEATHS), Law.OVERLAP, Law.EXCLUSION, Law.EVIDENCE
    )
    needs_every_member = True

    __slots__ = (
        "_asked_at",
        "_backing_off",
        "_confirmed_at",
        "_coordinators",
        "_ended_at",
        "_entered_at",
        "_given",
        "_latest",
        "_length",
        "_patience",
        "_place",
        "_polled",
        "_round",
        "_settings",
        "_tries",
        "_votes",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._settings = settings = VotingOptions.read(setup.options, self.name)
        if settings.votes is not None and not settings.coordinators < 2 * settings.votes <= 2 * settings.coordinators:
            raise ConfigError(
                f"votes is {settings.votes} of {settings.coordinators} coordinators: give more than half, and no more "
                "than there are"
            )
        self._place = setup.place
        self._patience = Patience(SECOND)
        self._coordinators: list[NodeId] = []  # empty: not worked out yet
        self._round = 0
        self._polled: dict[NodeId, None] = {}  # in this round
        self._votes: dict[NodeId, None] = {}  # of this round
        self._tries = 0  # rounds of this request
        self._backing_off = False
        self._asked_at: Instant = 0
        self._entered_at: Instant = 0
        self._ended_at: Instant = 0  # A ran until then, here ...
        self._length: Duration = self._op  # ... for so long: what is stated (`op`) may be far more than it takes
        # the coordinator's:
        self._given: tuple[NodeId, int] | None = None  # to whom, for which round
        self._confirmed_at: Instant = 0
        self._latest: dict[NodeId, int] = {}  # rounds up to this one are over

    # --- who is asked ------------------------------------------------------------------------------------------------

    def _electorate(self) -> list[NodeId]:
        if not self._coordinators:
            ranked = sorted([*self._others(), self._me], key=lambda node: (scatter(node ^ self._place), node))
            self._coordinators = ranked[: self._settings.coordinators]
        return self._coordinators

    def _needed(self) -> int:
        return self._settings.needed(len(self._electorate()))

    # --- as one that wants to run A ----------------------------------------------------------------------------------

    def _want(self, now: Instant, out: list[Effect]) -> None:
        self._tries = 0
        turn = max(self._length, self._patience.wait())
        if now - self._ended_at < turn:  # others have been denied meanwhile, and come at random: so does this one
            self._backing_off = True
            out.append(SetTimer(ROUND, now + round(turn * (self._rng.random() + 0.5))))
        else:
            self._begin(now, out)

    def _begin(self, now: Instant, out: list[Effect]) -> None:
        self._round += 1
        self._polled, self._votes, self._backing_off, self._asked_at = {}, {}, False, now
        out.append(SetTimer(ROUND, now + 2 * self._patience.wait()))
        self._poll(self._electorate()[: self._needed()], now, out)

    def _poll(self, nodes: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in nodes:
            self._polled[node] = None
            if node != self._me:
                out.append(Send(node, Poll(self._round)))
        if self._me in nodes:
            if self._asks(self._me, self._round, now, out):
                self._voted(self._me, self._round, now, out)
            else:
                del self._polled[self._me]
                self._denied(self._round, now, out)

    def _voted(self, node: NodeId, number: int, now: Instant, out: list[Effect]) -> None:
        if number != self._round or node not in self._polled or self._backing_off:
            self._give_back([node], number, now, out)  # too late
            return
        self._votes[node] = None
        if self._running is None and len(self._votes) >= self._needed():
            if self._round != number or not self._waiting:
                raise InvariantBreach(f"V2: node {self._me} runs A with votes of round {number}")
            if not self._tries:
                self._patience.learn(now - self._asked_at)
            out.append(CancelTimer(ROUND))
            self._entered_at = now
            self._enter(out, hop=number)

    def _denied(self, number: int, now: Instant, out: list[Effect]) -> None:
        """The round is lost: what was got is given back, and the next one begins at random."""
        if number != self._round or self._backing_off or self._running is not None or not self._waiting:
            return
        self._give_up_round(now, out)
        self._backing_off = True
        shortest = self._patience.wait()
        longest = min(max(self._op, shortest), max(self._length, shortest) << max(0, self._tries - STEADY))
        pause = min(longest, shortest << min(self._tries, DOUBLINGS))
        self._tries += 1
        out.append(SetTimer(ROUND, now + round(pause * (self._rng.random() + 0.5))))

    def _give_up_round(self, now: Instant, out: list[Effect]) -> None:
        polled, self._polled, self._votes = list(self._polled), {}, {}
        self._give_back(polled, self._round, now, out)

    def _give_back(self, nodes: Sequence[NodeId], number: int, now: Instant, out: list[Effect]) -> None:
        for node in nodes:
            if node == self._me:
                self._retracted(self._me, number)
            else:
                out.append(Send(node, Retract(number)))

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer != ROUND or not self._waiting or self._running is not None or self._leaving:
            return
        if self._backing_off:
            self._begin(now, out)
            return
        silent = [node for node in self._polled if node not in self._votes]
        others = [node for node in self._electorate() if node not in self._polled]
        out.extend(Suspect(node) for node in silent)
        self._tries += 1
        out.append(SetTimer(ROUND, now + self._patience.wait(min(self._tries, DOUBLINGS))))
        self._poll([*silent, *others], now, out)  # whoever of them answers first

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(ROUND))
        self._give_up_round(now, out)

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        self._ended_at, self._length = now, min(self._op, now - self._entered_at)
        self._give_up_round(now, out)

    # --- as a coordinator --------------------------------------------------------------------------------------------

    def _asks(self, node: NodeId, number: int, now: Instant, out: list[Effect]) -> bool:
        """Whether it has the vote now."""
        if number <= self._latest.get(node, 0):
            return False  # an old copy
        if self._given is None or self._given[0] == node:
            self._given, self._confirmed_at = (node, number), now
            return True
        holder, held = self._given  # V1
        if holder != self._me and now - self._confirmed_at > self._op:
            self._confirmed_at = now
            out.append(Send(holder, Confirm(held)))
        return False

    def _retracted(self, node: NodeId, number: int) -> None:
        self._latest[node] = max(number, self._latest.get(node, 0))
        if self._given is not None and self._given[0] == node and self._given[1] <= number:
            self._given = None

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        if not self._counts(sender):
            return  # dead, or not known yet: it asks again
        match message:
            case Poll(number):
                given = self._asks(sender, number, now, out)
                out.append(Send(sender, Vote(number) if given else Deny(number)))
            case Vote(number):
                self._voted(sender, number, now, out)
            case Deny(number):
                if number == self._round and sender in self._polled and sender not in self._votes:
                    del self._polled[sender]
                    self._denied(number, now, out)
            case Retract(number):
                self._retracted(sender, number)
            case Confirm(number):
                if number != self._round or sender not in self._polled:
                    self._give_back([sender], number, now, out)
            case _:
                pass

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        before, self._coordinators = self._coordinators, []
        for node in left:
            self._latest.pop(node, None)
            self._polled.pop(node, None)
            self._votes.pop(node, None)
            if self._given is not None and self._given[0] == node:
                self._given = None
        if self._polled and not self._backing_off:
            new = [node for node in self._electorate() if node not in before and node not in self._polled]
            self._poll(new, now, out)


def scatter(number: int) -> Duration:
    """Neighbours far apart, the same on all members (a finaliser of the kind that hash tables use)."""
    number = (number ^ (number >> 33)) * 0xFF51AFD7ED558CCD & MASK
    number = (number ^ (number >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
    return number ^ (number >> 33)
