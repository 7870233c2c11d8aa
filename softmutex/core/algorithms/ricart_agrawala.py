"""`ricart-agrawala`, seed 002: who wants to run A asks everybody, and whoever comes first says yes later.

What it decides: who goes first. The naive way, whoever asks first, is a race that each node sees otherwise. Here each
request carries a Lamport clock: all see the same order of (stamp, node), and a permission is withheld exactly from
those who come after. An entry costs n - 1 REQUESTs and n - 1 PERMITs, and not one message more while none is lost and
a question is answered within a second.

    wanted --REQUEST(stamp)--> everybody      a permit of each --> A runs --> the postponed are permitted
                                  '--PERMIT(stamp)--> at once; or, if it runs A or comes first itself, after its release

Which silence is a lost message? To ask all again after a while doubles the messages of everybody who queues. But the
order tells who cannot have answered yet: a node whose newest request comes before ours, and is not known to be over.
It is over when its node asks again or permits us, or when a later one has run. So who is expected to be silent is not
asked again, but for the first in the order, seldom, and the seldomer the more permits are missing: the whole group may
wait for the one who misses the last one. It says LATER, or is dead. All others are asked again soon: after the time of
an answer, learnt from those alone of whom it is known which question they answer.

Survives: loss, repetition, delay, reordering, pauses, wrong clocks; comings and goings; deaths, as soon as they are
known. A member that is silent stops everybody until it speaks or is known to be dead (`one_by_one.py`). Two may overlap
where two members do not know of each other, for a permit is asked of those who are known.

Invariants
    S1  A runs only with a permit of every other member that counts, each given for this very request.
    S2  A permit is given to nobody who comes after a request that waits here, and to nobody while A runs here.
    L1  Whoever is postponed here is permitted when A has run here, or is not wanted any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from softmutex.core.algorithms.one_by_one import OF_HOLDERS, OneByOne
from softmutex.core.errors import InvariantBreach
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
from softmutex.core.messages import Flag, Message
from softmutex.core.patience import Patience

AGAIN: Final = "again"
HIGHEST: Final = 2**62  # a stamp from there on is no honest one, and the clock would run out of bytes
TRIES: Final = 3  # unanswered, until somebody is suspected
SELDOM: Final = 5 * SECOND  # how often at the least somebody is asked who is expected to be silent, a missing permit
STRANGERS: Final = 16  # requests that are kept until it is known who sent them


class Request(NamedTuple):
    """May I? By (stamp, node) the smaller comes first. `again`: I asked before; say LATER if you do not permit it."""

    stamp: Count
    again: Flag = False


class Permit(NamedTuple):
    """You may, as far as I am concerned, for the request of this stamp."""

    stamp: Count


class Later(NamedTuple):
    """I have your request, and come first, with `mine`."""

    stamp: Count
    mine: Count


class RicartAgrawala(OneByOne):
    name: ClassVar[str] = "ricart-agrawala"
    messages: ClassVar = {80: Request, 81: Permit, 82: Later, **OF_HOLDERS}
    laws = (
        claim(Weather.ANY, Law.EFFECTS)
        | claim(Weather.ANY & ~Weather.SILENCE, Law.REQUESTS)
        | claim(Weather.ANY & ~Weather.VIEWS, Law.OVERLAP, Law.EXCLUSION, Law.EVIDENCE)
    )
    needs_every_member = True

    __slots__ = (
        "_asked_again",
        "_asked_at",
        "_clock",
        "_doubted",
        "_fires_at",
        "_heard",
        "_look_at",
        "_missing",
        "_moved_at",
        "_newest",
        "_over",
        "_patience",
        "_postponed",
        "_stamp",
        "_strangers",
        "_tries",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._clock = 0  # the highest stamp seen
        self._stamp = 0  # of the request that is asked for, or runs; 0: there is none
        self._missing: dict[NodeId, None] = {}  # who has not permitted it
        self._doubted: dict[NodeId, None] = {}  # who should have answered when we looked last
        self._postponed: dict[NodeId, int] = {}  # who is permitted later, and for which stamp
        self._heard: dict[NodeId, int] = {}  # the newest stamp of each other node
        self._over = (0, 0)  # requests up to this (stamp, node) have run, or are not wanted any more
        self._strangers: dict[NodeId, int] = {}
        self._patience = Patience(SECOND // 4)
        self._newest = 0  # the stamp of the last request
        self._asked_at: Instant = 0
        self._asked_again: dict[NodeId, Instant] = {}  # for the newest one, and when; 0: more than once
        self._moved_at: Instant = 0  # when it was made, or permitted by somebody, or somebody asked anew
        self._fires_at: Instant = 0
        self._look_at: Instant = 0  # when the first of those that are expected to be silent is asked
        self._tries = 0

    # --- asking ------------------------------------------------------------------------------------------------------

    def _want(self, now: Instant, out: list[Effect]) -> None:
        self._clock += 1
        self._stamp = self._newest = stamp = self._clock
        self._missing = self._doubted = dict.fromkeys(self._others())
        self._asked_at = self._moved_at = now
        self._tries, self._asked_again = 0, {}
        if not self._missing:
            self._run(out)
            return
        request = Request(stamp)
        out.extend([Send(node, request) for node in self._missing])
        self._look_at = now + min(self._seldom(), 2 * self._op)
        self._look_again(now + self._patience.wait(), out)

    def _look_again(self, at: Instant, out: list[Effect]) -> None:
        self._fires_at = at
        out.append(SetTimer(AGAIN, at))

    def _seldom(self) -> Duration:
        return SELDOM * len(self._missing)

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        """Somebody is silent. Is that what is to be expected? If not: for as long as an answer takes?"""
        if not self._missing:
            return
        odd = {node: None for node in self._missing if not self._is_expected(node)}
        quiet = now - self._moved_at >= self._patience.wait()
        silent = [node for node in odd if quiet or node in self._doubted]
        self._doubted = odd
        if not silent and now >= self._look_at:
            silent = [min(self._missing, key=lambda node: (self._heard.get(node, 0), node))]
        if silent:
            out.extend([Send(node, Request(self._stamp, again=True)) for node in silent])
            self._asked_again |= {node: 0 if node in self._asked_again else now for node in silent}
            self._tries += 1
            if self._tries % TRIES == 0:
                out.extend([Suspect(node) for node in silent])
        wait = self._patience.wait(self._tries)
        self._look_again(now + wait if odd or silent else max(now + wait, min(self._look_at, now + self._op)), out)

    def _is_expected(self, node: NodeId) -> bool:
        """To be silent: it comes first, and has not had its turn yet."""
        return node in self._heard and self._over < (self._heard[node], node) < (self._stamp, self._me)

    def _permitted(self, node: NodeId, now: Instant, out: list[Effect]) -> None:
        if self._is_expected(node):
            self._over = (self._heard[node], node)
        elif node not in self._asked_again and self._heard.get(node, 0) < self._stamp:
            self._patience.learn(now - self._asked_at)
        del self._missing[node]
        if not self._missing:
            self._run(out)
            return
        self._tries, self._moved_at = 0, now
        self._look_at = now + min(self._seldom(), 2 * self._op)
        soon = now + self._patience.wait()
        if self._fires_at > soon:  # others may be expected no longer
            self._look_again(soon, out)

    def _run(self, out: list[Effect]) -> None:
        if self._missing or not self._stamp:
            raise InvariantBreach(f"S1: node {self._me} runs A without the permit of {list(self._missing)}")
        self._over = max(self._over, (self._stamp, self._me))
        out.append(CancelTimer(AGAIN))
        self._enter(out, hop=self._stamp)

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(AGAIN))
        self._ended(b"", now, out)

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        self._stamp, self._missing = 0, {}
        out.extend([Send(node, Permit(stamp)) for node, stamp in self._postponed.items()])
        self._postponed = {}

    # --- being asked -------------------------------------------------------------------------------------------------

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        kind = type(message)
        if kind is Permit:
            if message[0] == self._stamp and sender in self._missing:
                self._permitted(sender, now, out)
            elif message[0] == self._newest:
                self._answered_again(sender, now)
        elif kind is Request:
            self._asked(sender, message[0], message[1], now, out)
        elif kind is Later:
            stamp, mine = message
            if stamp == self._stamp and sender in self._missing and 0 < mine < HIGHEST:
                self._heard[sender] = max(mine, self._heard.get(sender, 0))
                self._over = min(self._over, (mine - 1, sender))
                self._tries = 0
                self._look_at = now + min(self._seldom(), max(2 * self._op, (now - self._moved_at) // 2))
                self._answered_again(sender, now)

    def _answered_again(self, node: NodeId, now: Instant) -> None:
        """By LATER, or by a second permit: that answers the second question, if there were no more than two."""
        if asked := self._asked_again.get(node, 0):
            self._asked_again[node] = 0
            self._patience.learn(now - asked)

    def _asked(self, sender: NodeId, stamp: int, again: bool, now: Instant, out: list[Effect]) -> None:
        if stamp >= HIGHEST:
            return
        self._clock = max(self._clock, stamp)
        if sender not in self._heard and not self._counts(sender):  # it would not be asked in turn
            self._strangers[sender] = max(stamp, self._strangers.pop(sender, 0))
            if len(self._strangers) > STRANGERS:
                del self._strangers[next(iter(self._strangers))]
            return
        heard = self._heard.get(sender, 0)
        if stamp < heard:
            return  # an old copy
        if stamp > heard:
            self._heard[sender] = stamp
            self._over = max(self._over, (heard, sender))
            self._moved_at = now  # its permit of the earlier one is on its way
        if self._running is not None or (self._stamp and (self._stamp, self._me) < (stamp, sender)):
            self._postponed[sender] = stamp
            if again:
                out.append(Send(sender, Later(stamp, self._stamp)))
        else:
            out.append(Send(sender, Permit(stamp)))

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            self._heard.pop(node, None)
            self._postponed.pop(node, None)
            self._missing.pop(node, None)
        asking = self._stamp and self._running is None
        for node in joined:
            if asking and node != self._me and node not in self._missing:  # it has a say, too
                self._missing[node] = None
                out.append(Send(node, Request(self._stamp)))
            if node in self._strangers:
                self._asked(node, self._strangers.pop(node), False, now, out)
        if asking and not self._missing:
            self._run(out)

    def _may_depart(self, now: Instant, out: list[Effect]) -> bool:
        return not self._postponed
