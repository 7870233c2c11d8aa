"""Who leads: the elections of seed 002, `bully` and `ring`, for machines that need somebody to do a part for all.

What it decides: who is chosen, and from when on it may act. The papers' channels lose nothing, and their elections end
when a message was sent; the naive leader acts from then on, while others follow its predecessor. Here an election only
proposes: whoever is chosen acts when every member has said FOLLOW in its term, with what its own part in the matter is
(`_state`). Who follows (term, leader) obeys nobody lower ever after. So two that were both chosen, by lost messages or
in turn, cannot both be followed by all: each needs the other's FOLLOW.

    bully   I ask all above me: ELECTION. Who is there says TAKE_OVER and asks those above itself. Nobody is there or
            willing: I lead, COORDINATOR to all. Where the highest notices that the leader is gone: n - 2 messages.
    ring    A BALLOT goes round once and collects the highest that is willing, ELECTED goes round and tells: 2n - 1
            messages (2n with the last hop, to who began), and a GOES_ON for each, for a lost one would end the round.

        leader gone --> first in line --announce--> COORDINATOR or ELECTED --> FOLLOW(state) of all --> _led
                    '-> others wait; after a time they call an election, too

Survives: loss, repetition, delay, reordering: what is not answered is asked again. A silent member is waited for until
it speaks or is known to be dead (`one_by_one.py`). A leader stays, whoever comes: nobody is bullied out of office.

Invariants
    E1  Nobody acts as the leader before each member that counts has followed it in this very term.
    E2  (term, leader) that a node follows only grows, but for a leader that is gone: then nobody is followed.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

from softmutex.core.algorithms.one_by_one import OF_HOLDERS, OneByOne
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Count,
    Duration,
    Effect,
    FactKind,
    Instant,
    NodeId,
    Note,
    Send,
    SetTimer,
    Suspect,
    TimerName,
)
from softmutex.core.machine import Setup
from softmutex.core.messages import Flag, Message
from softmutex.core.options import Options
from softmutex.core.patience import Patience

ELECTION, PASS = "election", "pass"
WIDELY: Final = 15 * SECOND  # how often at the most all others are looked after
TRIES: Final = 2  # unanswered, until somebody is suspected
HIGHEST: Final = 2**62  # a term from there on is no honest one


class Method(StrEnum):
    BULLY = "bully"
    RING = "ring"


class Election(NamedTuple):
    """Bully: I am below you, and the leader of this term is gone. Who leads?"""

    term: Count


class TakeOver(NamedTuple):
    """Bully: I am there, and above you. `willing`: I see to it; otherwise go on without me."""

    willing: Flag


class Coordinator(NamedTuple):
    """I lead. Answered by FOLLOW."""

    term: Count


class Follow(NamedTuple):
    """I follow you. `state`: my part in the matter, as the algorithm says it."""

    term: Count
    state: Count


class Known(NamedTuple):
    """You are behind the times: this one leads (or nobody does, since this term)."""

    term: Count
    leader: NodeId


class Ballot(NamedTuple):
    """Ring, first round: `best` is the highest so far that is willing."""

    term: Count
    origin: NodeId
    round: Count  # of this origin
    best: NodeId


class Elected(NamedTuple):
    """Ring, second round: this one leads. Ends with the one before `origin`."""

    term: Count
    origin: NodeId
    leader: NodeId


class GoesOn(NamedTuple):
    """Ring: I have it (BALLOT, or ELECTED), and pass it on."""

    origin: NodeId
    elected: Flag


OF_ELECTIONS: Final = {
    144: Election,
    145: TakeOver,
    146: Coordinator,
    147: Follow,
    148: Known,
    149: Ballot,
    150: Elected,
    151: GoesOn,
    **OF_HOLDERS,
}


@dataclass(frozen=True)
class ElectionOptions(Options):
    election: Method = Method.BULLY


class WithLeader(OneByOne):
    """One mutex on one node, of whose members one does something for all. Subclasses say what."""

    listens: ClassVar[int] = 1  # for how many halves of a time-out it does so before its first election

    __slots__ = (
        "_announced_at",
        "_awaited",
        "_beaten",
        "_calling",
        "_leader",
        "_leads",
        "_listening",
        "_method",
        "_missing",
        "_passed",
        "_patience",
        "_rounds",
        "_term",
        "_tries",
        "_unpassed",
        "_wide_at",
    )

    def __init__(self, setup: Setup, method: Method) -> None:
        super().__init__(setup)
        self._method = method
        self._term = 0  # the highest that is known
        self._leader: NodeId = NOBODY  # whom this node follows in that term; itself: it was chosen
        self._leads = False  # it was chosen, and all follow
        self._missing: dict[NodeId, None] = {}  # who does not follow this node yet
        self._calling = False  # an election of this node is under way
        self._listening = False  # before the first one
        self._awaited: dict[NodeId, None] = {}  # who is above, and has not answered
        self._beaten = False  # somebody above sees to it
        self._tries = 0
        self._unpassed: dict[bool, tuple[NodeId, Ballot | Elected, int]] = {}  # ELECTED?, to whom, how often sent
        self._passed: dict[bool, tuple[int, ...]] = {}  # what was passed on last: a copy is not passed on again
        self._rounds = 0
        self._patience = Patience(SECOND)
        self._announced_at: Instant = 0
        self._wide_at: Instant = 0  # from when on all may be looked after

    # --- what a subclass says ----------------------------------------------------------------------------------------

    @abstractmethod
    def _willing(self) -> bool:
        """Whether this node would lead."""

    @abstractmethod
    def _state(self) -> int:
        """What a leader must know of this node."""

    @abstractmethod
    def _followed(self, node: NodeId, state: int, now: Instant, out: list[Effect]) -> None:
        """This node was chosen, and that one follows it."""

    @abstractmethod
    def _led(self, now: Instant, out: list[Effect]) -> None:
        """All follow this node: it may act."""

    @abstractmethod
    def _chosen(self, now: Instant, out: list[Effect]) -> None:
        """It was chosen: what it knew of the others counts no longer."""

    def _follows_another(self, now: Instant, out: list[Effect]) -> None:
        """There is another leader, or none (NOBODY)."""

    def _follows_late(self, node: NodeId, state: int, now: Instant, out: list[Effect]) -> None:
        """It was not waited for: it is new here, or says it again."""

    def _may_follow(self) -> bool:
        return True

    # --- an election -------------------------------------------------------------------------------------------------

    def _call_election(self, now: Instant, out: list[Effect]) -> None:
        """There is no leader, and somebody is needed."""
        if self._leader == NOBODY and not self._calling and self._willing():
            if self._listening:
                return
            self._tries = 0
            if self._term == 0 and self._others():  # new here: a leader will say so by itself
                self._listening = True
                out.append(SetTimer(ELECTION, now + self._span() * self.listens // 2))
            else:
                self._begin(now, out)

    def _begin(self, now: Instant, out: list[Effect]) -> None:
        self._calling, self._beaten, self._listening = True, False, False
        others = self._others()
        self._awaited = dict.fromkeys(node for node in others if node > self._me or self._method is Method.RING)
        if not self._awaited:
            self._announce(now, out)
        elif self._method is Method.BULLY:
            out.extend(Send(node, Election(self._term)) for node in self._awaited)
        else:
            self._rounds += 1
            self._pass(Ballot(self._term, self._me, self._rounds, self._me), now, out)
        if self._calling:
            out.append(SetTimer(ELECTION, now + self._span()))

    def _span(self) -> Duration:
        """How long until an election should have ended: a ballot takes as many trips as there are members."""
        wait = self._patience.wait(self._tries)
        return max(2 * wait, SECOND // 5 * len(self._members)) if self._method is Method.RING else wait

    def _next(self) -> NodeId:
        others = self._others()
        return others[bisect_right(others, self._me) % len(others)]

    def _announce(self, now: Instant, out: list[Effect]) -> None:
        self._chosen_for(self._term + 1, now, out)
        if self._method is Method.BULLY:
            out.extend(Send(node, Coordinator(self._term)) for node in self._missing)
        elif self._missing:
            self._pass(Elected(self._term, self._me, self._me), now, out)
        self._check_led(now, out)

    def _chosen_for(self, term: int, now: Instant, out: list[Effect]) -> None:
        self._term, self._leader, self._leads, self._calling = term, self._me, False, False
        self._missing = dict.fromkeys(self._others())
        self._announced_at, self._tries = now, 0
        self._chosen(now, out)
        out.append(SetTimer(ELECTION, now + self._span()))

    def _check_led(self, now: Instant, out: list[Effect]) -> None:
        if self._leader == self._me and not self._leads and not self._missing:  # E1
            self._leads = True
            out += [CancelTimer(ELECTION), Note(FactKind.LEADER, None, self._me)]
            self._led(now, out)

    def _look_after(self, node: NodeId, now: Instant, out: list[Effect]) -> None:
        """After all the others, too, where it is silent: those that are cut off with it are given up with it. Not each
        time: all would ask all, for as long as it is silent."""
        is_wide = node in self._silent and now >= self._wide_at
        if is_wide:
            self._wide_at = now + WIDELY
        out.extend(Suspect(other) for other in (self._others() if is_wide else [node]))

    def _resign(self, now: Instant, out: list[Effect]) -> None:
        if self._leader == self._me:
            out.extend(Send(node, Known(self._term, NOBODY)) for node in self._others())
            self._bereave(now, out)

    def _bereave(self, now: Instant, out: list[Effect]) -> None:
        """Nobody is followed any more."""
        self._leader, self._leads, self._missing, self._calling, self._listening = NOBODY, False, {}, False, False
        out += [CancelTimer(ELECTION), Note(FactKind.LEADER, None, NOBODY)]
        self._follows_another(now, out)

    def _follow(self, term: int, leader: NodeId, now: Instant, out: list[Effect]) -> bool:
        """Whether it is followed: it says that it leads."""
        if not self._counts(leader) or term >= HIGHEST:
            return False
        if (term, leader) < (self._term, self._leader):  # E2
            out.append(Send(leader, Known(self._term, self._leader)))
            return False
        if (term, leader) > (self._term, self._leader):
            if not self._may_follow():
                self._term = term
                self._announce(now, out)
                return False
            self._term, self._leader, self._leads, self._missing, self._calling = term, leader, False, {}, False
            out += [CancelTimer(ELECTION), Note(FactKind.LEADER, None, leader)]
            out.append(Send(leader, Follow(term, self._state())))
            self._follows_another(now, out)
        else:
            out.append(Send(leader, Follow(term, self._state())))
        return True

    # --- messages ----------------------------------------------------------------------------------------------------

    def _of_elections(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        if not self._counts(sender):
            return  # dead, or not known yet: it will ask again
        match message:
            case Follow(term, state):
                self._is_followed(sender, term, state, now, out)
            case Coordinator(term):
                self._follow(term, sender, now, out)
            case Known(term, leader):
                self._heard_who_leads(sender, term, leader, now, out)
            case Election(term):
                self._asked_who_leads(sender, term, now, out)
            case TakeOver(willing):
                self._answered(sender, willing, now, out)
            case Ballot():
                out.append(Send(sender, GoesOn(message.origin, False)))
                if self._is_new(False, message[:3]):
                    self._ballot(message, now, out)
            case Elected():
                out.append(Send(sender, GoesOn(message.origin, True)))
                if self._is_new(True, message):
                    self._round_told(*message, now, out)
            case GoesOn(origin, elected):
                if elected in self._unpassed and self._unpassed[elected][1].origin == origin:
                    del self._unpassed[elected]
            case _:
                pass

    def _is_followed(self, sender: NodeId, term: int, state: int, now: Instant, out: list[Effect]) -> None:
        if self._term < term < HIGHEST and self._leader != self._me:  # ring: it heard before I did
            if not self._willing():
                self._term = term
                out.append(Send(sender, Known(term, NOBODY)))
                return
            self._chosen_for(term, now, out)
        if self._leader != self._me or term != self._term:
            if term <= self._term:
                self._tell_who_leads(sender, out)
            return
        if sender in self._missing:
            self._patience.learn(now - self._announced_at, self._tries)
            del self._missing[sender]
            self._followed(sender, state, now, out)
            self._check_led(now, out)
        elif self._leads:
            self._follows_late(sender, state, now, out)

    def _tell_who_leads(self, node: NodeId, out: list[Effect]) -> None:
        if self._counts(node):
            out.append(Send(node, Known(self._term, self._leader)))

    def _heard_who_leads(self, sender: NodeId, term: int, leader: NodeId, now: Instant, out: list[Effect]) -> None:
        if sender == self._leader != leader and term >= self._term:  # whom this node follows does not lead
            self._bereave(now, out)
            self._succeed(sender, now, out)
        if leader == self._me != self._leader:  # not any more
            self._term = max(self._term, min(term, HIGHEST - 1))
            out.append(Send(sender, Known(self._term, self._leader)))
        elif leader not in (NOBODY, self._me):
            if (term, leader) != (self._term, self._leader):
                self._follow(term, leader, now, out)
        elif self._term < term < HIGHEST or (leader == NOBODY and term == self._term):
            if self._leader == self._me:
                self._term = term
                self._announce(now, out)
            elif self._leader == NOBODY:
                self._term = term

    def _asked_who_leads(self, sender: NodeId, term: int, now: Instant, out: list[Effect]) -> None:
        if self._leader == self._me:
            if self._term < term < HIGHEST:
                self._term = term
                self._announce(now, out)
            else:
                out.append(Send(sender, Coordinator(self._term)))
        elif self._counts(self._leader) and (self._term > term or (self._term == term and self._leader != sender)):
            out.append(Send(sender, Known(self._term, self._leader)))
            self._look_after(self._leader, now, out)  # it is missed there
        else:
            if term < HIGHEST:
                self._term = max(term, self._term)
            if self._leader != NOBODY:
                self._bereave(now, out)
            out.append(Send(sender, TakeOver(self._willing())))
            self._call_election(now, out)

    def _answered(self, sender: NodeId, willing: bool, now: Instant, out: list[Effect]) -> None:
        if self._calling and sender in self._awaited:
            del self._awaited[sender]
            self._beaten = self._beaten or willing
            if not self._awaited and not self._beaten:
                self._announce(now, out)

    # --- the ring ----------------------------------------------------------------------------------------------------

    def _is_new(self, elected: bool, what: tuple[int, ...]) -> bool:
        known = self._passed.get(elected) == what
        self._passed[elected] = what
        return not known

    def _pass(self, message: Ballot | Elected, now: Instant, out: list[Effect]) -> None:
        to = self._next()
        self._unpassed[type(message) is Elected] = (to, message, 0)
        out += [Send(to, message), SetTimer(PASS, now + self._patience.wait())]

    def _pass_again(self, now: Instant, out: list[Effect]) -> None:
        """To whoever is the next now."""
        if not self._others():
            self._unpassed = {}
        for elected, (to, message, tries) in self._unpassed.items():
            if tries and tries % TRIES == 0:
                self._look_after(to, now, out)
            self._unpassed[elected] = (self._next(), message, tries + 1)
            out.append(Send(self._next(), message))
        if self._unpassed:
            most = max(tries for _, _, tries in self._unpassed.values())
            out.append(SetTimer(PASS, now + self._patience.wait(most)))

    def _ballot(self, ballot: Ballot, now: Instant, out: list[Effect]) -> None:
        term, origin, number, best = ballot
        if (self._leader == self._me or self._counts(self._leader)) and self._term >= term:
            if origin != self._me:
                out.append(Send(origin, Known(self._term, self._leader)))
            if self._leader != self._me:
                self._look_after(self._leader, now, out)  # it is missed there
            return
        self._term = max(min(term, HIGHEST), self._term)
        if self._leader != NOBODY:
            self._bereave(now, out)
        if origin != self._me:
            if not (self._calling and origin < self._me):
                self._pass(Ballot(self._term, origin, number, max(best, self._me * self._willing())), now, out)
                out.append(SetTimer(ELECTION, now + self._span()))
        elif self._calling and best == self._me:
            self._announce(now, out)
        elif self._calling and self._follow(self._term + 1, best, now, out):
            self._pass(Elected(self._term, self._me, best), now, out)

    def _round_told(self, term: int, origin: NodeId, leader: NodeId, now: Instant, out: list[Effect]) -> None:
        if leader == self._me:
            if not self._willing() or term < self._term or term >= HIGHEST:
                return
            if term > self._term or self._leader != self._me:
                self._chosen_for(term, now, out)
        elif (term, leader) == (self._term, self._leader) or not self._follow(term, leader, now, out):
            return
        if self._others() and self._next() != origin:
            self._pass(Elected(term, origin, leader), now, out)

    # --- time, and who is there --------------------------------------------------------------------------------------

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer == PASS:
            self._pass_again(now, out)
        if timer != ELECTION:
            return
        self._tries += 1
        suspects = self._tries % TRIES == 0
        if self._leader == self._me:
            if self._missing:
                out.extend(Send(node, Coordinator(self._term)) for node in self._missing)
                if suspects:
                    out.extend(Suspect(node) for node in self._missing)
                out.append(SetTimer(ELECTION, now + self._span()))
        elif self._leader == NOBODY and self._willing():
            if self._calling and suspects:
                out.extend(Suspect(node) for node in self._awaited)
                if self._method is Method.BULLY and not self._beaten:
                    self._announce(now, out)
                    return
            self._begin(now, out)

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            self._missing.pop(node, None)
            self._awaited.pop(node, None)
        for node in joined:
            if self._leader == self._me and node != self._me:
                if not self._leads:
                    self._missing[node] = None
                out.append(Send(node, Coordinator(self._term)))
        if self._leader in left:
            gone = self._leader
            self._bereave(now, out)
            self._succeed(gone, now, out)
        elif self._calling and not self._beaten and not self._awaited:
            self._announce(now, out)
        self._check_led(now, out)

    def _succeed(self, gone: NodeId, now: Instant, out: list[Effect]) -> None:
        """The leader is gone, and all know it at about the same time: one should begin, and the next if it does not."""
        if not self._willing():
            return
        ring = sorted([*self._others(), self._me])
        at = bisect_right(ring, self._me) - 1
        rank = len(ring) - 1 - at if self._method is Method.BULLY else (at - bisect_right(ring, gone)) % len(ring)
        if rank == 0:
            self._call_election(now, out)
        else:
            out.append(SetTimer(ELECTION, now + min(rank, 4) * self._span() // 2))
