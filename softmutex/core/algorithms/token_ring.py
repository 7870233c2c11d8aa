"""`token-ring`, seed 002: the token goes round, and who has it may run A. One PASS a hop, and a TOOK for each.

What it decides: when a lost token may be made anew. The time between two appearances has no bound, so the naive way, a
time limit, makes a second token whenever A takes long. Here whoever misses it asks everybody (SEEK), and who has not
got it takes none until the search is over (SOUGHT). If no member has it, then none can get it: it is lost, and a new
one with a higher epoch is the only one. The first token is made in the same way.

    here --PASS--> next --TOOK--> it is gone from here            not wanted: on it goes, the slower the less it is used
    searcher --SEEK--> all: "not here, and I take none" --SOUGHT--> all        one that has it: the search is over

A PASS is said again until its TOOK comes, or the same token comes back, or the next is known to be dead: then it is
purged from the ring, and its predecessor searches, for nobody can say whether the token was there. Only whoever leaves
in order says so, to all: without that a group whose members come and go would search all the time, and wait for those
who have gone, of whom the membership tells late. Of two searchers the lower
id goes on. Who waits for a TOOK cannot say whether it has the token: it asks with its PASS, and answers when it knows.
If it said "here", a search could end by the word of one whose token went on long ago, and was lost since.

Survives: loss, repetition, delay, reordering, pauses, wrong clocks; comings and goings; deaths, as soon as they are
known. A member that is silent stops the token in front of it until it speaks or is known to be dead. Two may overlap
where two members do not know of each other.

Invariants
    R1  A runs only with the token here, and what was passed is not used here any more.
    R2  A token is made only when every member that counts has said in this search that it has none.
    L1  A token is somewhere, or somebody searches: the predecessor of whoever dies, and who waits for too long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from softmutex.core.algorithms.one_by_one import OF_HOLDERS, OneByOne
from softmutex.core.chance import drawn
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Count,
    Duration,
    Effect,
    FactKind,
    Grant,
    Instant,
    NodeId,
    Note,
    RequestId,
    Send,
    SetTimer,
    Suspect,
    TimerName,
    Token,
    from_seconds,
)
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Setup, View
from softmutex.core.messages import Flag, Message
from softmutex.core.options import Options, within
from softmutex.core.patience import Patience

REST, PASS, SEEK, MISSED, THAW = "rest", "pass", "seek", "missed", "thaw"
STAGGER: Final = SECOND // 50  # between the first searches of two members
TRIES: Final = 2  # unanswered, until somebody is suspected
HIGHEST: Final = 2**62  # an epoch from there on is no honest one
MISSED_AFTER: Final = 5 * SECOND  # beyond the time that a full round takes with everybody running A
LONGEST_REST: Final = SECOND // 2  # nobody can call a token that rests: who wants it waits for most of a round


class Pass(NamedTuple):
    """The token is yours. `idle`: so many hops ago it was used last."""

    token: Token
    idle: Count


class Took(NamedTuple):
    """I have it: the one of this epoch, at this hop."""

    epoch: Count
    hop: Count


class Seek(NamedTuple):
    """Have you got the token? If not, take none until I say SOUGHT."""

    number: Count


class Looked(NamedTuple):
    """`here`: I have it. Else I have not, and take none. With the highest epoch that I know.

    Number 0: I leave; and, if `here`, without knowing where a token is that I searched for.
    """

    number: Count
    here: Flag
    epoch: Count


class Sought(NamedTuple):
    """The search with this number is over."""

    number: Count
    epoch: Count


@dataclass(frozen=True)
class TokenRingOptions(Options):
    rest: float | None = within(
        None, 0.0
    )  # seconds that a token which nobody wants rests at most; None: op / 8, 20 ms to 0.5 s


class TokenRing(OneByOne):
    name: ClassVar[str] = "token-ring"
    has_token = True
    Options = TokenRingOptions
    messages: ClassVar = {88: Pass, 89: Took, 90: Seek, 91: Looked, 92: Sought, **OF_HOLDERS}
    laws = (
        claim(Weather.ANY, Law.EFFECTS)
        | claim(Weather.ANY & ~Weather.SILENCE, Law.REQUESTS)
        | claim(Weather.ANY & ~Weather.VIEWS, Law.OVERLAP, Law.EXCLUSION, Law.EVIDENCE, Law.ORDER)
    )
    needs_every_member = True

    __slots__ = (
        "_at",
        "_epoch",
        "_founds",
        "_frozen",
        "_gone",
        "_idle",
        "_known_at",
        "_number",
        "_over",
        "_owes",
        "_passed_at",
        "_passing",
        "_patience",
        "_rest",
        "_seeking",
        "_skip",
        "_token",
        "_tries",
        "_yielded_to",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        rest_s = TokenRingOptions.read(setup.options, self.name).rest
        self._skip: Duration = setup.timing.constants(self.pace).skip_ns
        self._rest: Duration = (
            from_seconds(rest_s) if rest_s is not None else min(max(self._op // 8, SECOND // 50), LONGEST_REST)
        )
        self._token: Token | None = None  # here
        self._idle = 0
        self._at = (0, 0)  # (epoch, hop) of the newest token that was here
        self._epoch = 0  # the highest that is known; it counts seconds, to be above what everybody has forgotten,
        self._founds = False  # but for a founder's token
        self._known_at: Instant = 0  # when a token was here last, or was said to be made
        self._passing: tuple[NodeId, Token] | None = None  # no TOOK yet: it is here, or there
        self._passed_at: Instant = 0
        self._tries = 0
        self._patience = Patience(SECOND)
        self._seeking: dict[NodeId, None] | None = None  # who has not answered
        self._number = 0  # of the own searches
        self._frozen: dict[NodeId, int] = {}  # who searches, so that no token is taken
        self._over: dict[NodeId, int] = {}  # the last search of each that is over
        # Members that said that they leave: they take no token. Does nobody miss one? None: it is seen to.
        self._gone: dict[NodeId, bool | None] = {}
        self._yielded_to: NodeId = NOBODY  # its search instead of this node's
        self._owes = False  # a search, as soon as that of another one is over

    # --- the token ---------------------------------------------------------------------------------------------------

    def _want(self, now: Instant, out: list[Effect]) -> None:
        if self._token is not None:
            self._run(out)
        else:
            due = max(now + SECOND, self._known_at + self._round()) if self._epoch else now + self._first_look()
            out.append(SetTimer(MISSED, due))

    def _first_look(self) -> Duration:
        """Before anything was heard of a token. One after the other: who is asked meanwhile need not ask."""
        return SECOND + bisect_left(self._members, self._me) * STAGGER

    def _round(self) -> Duration:
        return MISSED_AFTER + len(self._members) * (2 * (self._op + self._rest) + self._patience.wait())

    def _run(self, out: list[Effect]) -> None:
        if self._token is None or self._passing is not None:
            raise InvariantBreach(f"R1: node {self._me} runs A without the token")
        out += [CancelTimer(REST), CancelTimer(MISSED)]
        self._grant(Grant.by(self._token, self._waiting[0]), out)

    def _unwant(self, request: RequestId, now: Instant, out: list[Effect]) -> None:
        out.append(CancelTimer(MISSED))

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        if self._token is not None:
            self._token = self._token._replace(hop=self._token.hop + 1, baggage=baggage)
            self._idle = 0
            self._pass_on(now, out)

    def _has(self, token: Token, now: Instant, out: list[Effect]) -> None:
        """It is here."""
        self._token, self._at, self._epoch = token, (token.epoch, token.hop), token.epoch
        self._known_at = now
        if self._seeking is not None:
            self._end_search(now, out)
        self._use_it(now, out)

    def _use_it(self, now: Instant, out: list[Effect]) -> None:
        """The token has come."""
        if self._waiting and not self._leaving:
            self._run(out)
        elif self._idle < len(self._members) or self._leaving:
            self._pass_on(now, out)
        else:
            rounds = min(self._idle // max(1, len(self._members)), 20)
            out.append(SetTimer(REST, now + min(self._rest, self._skip << rounds)))

    def _pass_on(self, now: Instant, out: list[Effect]) -> None:
        if self._token is None or (to := self._next_one()) == NOBODY:
            return
        token = self._token._replace(hop=self._token.hop + 1)
        self._token, self._passing = None, (to, token)
        self._passed_at, self._tries = now, 0
        out += [CancelTimer(REST), Send(to, self._pass_of(token))]
        out.append(SetTimer(PASS, now + self._patience.wait()))

    def _next_one(self) -> NodeId:
        """To whom the token that is here goes now."""
        members = self._members
        start = bisect_right(members, self._me)
        for step in range(len(members)):
            if (node := members[(start + step) % len(members)]) != self._me and self._counts(node):
                return node
        return NOBODY

    def _others(self) -> list[NodeId]:
        others = super()._others()
        return [node for node in others if node not in self._gone] if self._gone else others

    def _counts(self, node: NodeId) -> bool:
        return node not in self._gone and super()._counts(node)

    def _pass_of(self, token: Token) -> Message:
        return Pass(token, self._idle + 1)

    def _passed(self, sender: NodeId, token: Token, idle: int, out: list[Effect], now: Instant) -> None:
        position = (token.epoch, token.hop)
        if self._departed or not self._counts(sender) or token.epoch >= HIGHEST:
            return
        if position <= self._at or token.epoch < self._epoch:
            out.append(Send(sender, Took(*position)))
            if position > self._at:
                out.append(Note(FactKind.DISCARDED, token, sender))  # another one was made since
            return
        if self._passing is not None and self._passing[1].id == token.id and self._passing[1].epoch == token.epoch:
            self._passing = None  # it comes back: it was there
            out.append(CancelTimer(PASS))
        for searcher, number in self._frozen.items():
            out.append(Send(searcher, Looked(number, True, token.epoch)))  # not lost: it waits to come here
        if self._frozen or self._token is not None or self._passing is not None:
            if self._at[0] < token.epoch or not self._frozen:  # two tokens: the membership was wrong
                self._rival(sender, token, out)
            return  # it will be said again
        out.append(Send(sender, Took(*position)))
        self._idle = idle
        self._has(token, now, out)

    def _rival(self, sender: NodeId, token: Token, out: list[Effect]) -> None:
        """A second token comes where one is, or is on its way from here: the newer one stays; if need be, it waits."""
        mine = self._token or (self._passing and self._passing[1])
        if mine is None or self._frozen:
            return
        if (token.epoch, token.hop, token.id) > (mine.epoch, mine.hop, mine.id):
            if self._running is None and self._token is not None:
                self._token = None
                out += [CancelTimer(REST), Note(FactKind.DISCARDED, mine, sender)]
        else:  # even if mine has arrived where it was sent: it is the newer one there, too
            out += [Send(sender, Took(token.epoch, token.hop)), Note(FactKind.DISCARDED, token, sender)]

    # --- a search ----------------------------------------------------------------------------------------------------

    def _search(self, now: Instant, out: list[Effect]) -> None:
        if self._seeking is not None or self._token is not None or self._passing is not None or self._frozen:
            return
        self._number += 1
        self._seeking, self._tries = dict.fromkeys(self._others()), 0
        out.extend(Send(node, Seek(self._number)) for node in self._seeking)
        out.append(SetTimer(SEEK, now + self._patience.wait()))
        self._check_search(now, out)

    def _check_search(self, now: Instant, out: list[Effect]) -> None:
        if self._seeking is None or self._seeking:
            return
        if self._token is not None or self._passing is not None:
            raise InvariantBreach(f"R2: node {self._me} makes a token beside its own")
        self._epoch = max(self._epoch + 1, 0 if self._founds else now // SECOND)
        self._founds = False
        token = Token(self._epoch, now, drawn(self._rng), 1)
        self._end_search(now, out)
        out.append(Note(FactKind.GENERATED, token))
        self._idle = 0
        self._has(token, now, out)

    def _end_search(self, now: Instant, out: list[Effect]) -> None:
        self._seeking = None
        out.append(CancelTimer(SEEK))
        out.extend(Send(node, Sought(self._number, self._epoch)) for node in self._others())

    def _sought_by(self, sender: NodeId, number: int, now: Instant, out: list[Effect]) -> None:
        if not self._counts(sender) or number <= self._over.get(sender, 0):
            return
        if self._seeking is not None:
            if self._me < sender:
                return  # mine first: it will ask again
            self._end_search(now, out)
            self._yielded_to = sender
        if self._passing is not None:
            to, token = self._passing
            out.append(Send(to, self._pass_of(token)))
            return  # it will ask again
        here = self._token is not None
        if not here:
            self._frozen[sender] = max(number, self._frozen.get(sender, 0))
            out.append(SetTimer(THAW, now + SECOND))
        out.append(Send(sender, Looked(number, here, self._epoch)))

    def _answered(self, sender: NodeId, seen: Looked, now: Instant, out: list[Effect]) -> None:
        if self._seeking is None or seen.number != self._number:
            out.append(Send(sender, Sought(seen.number, self._epoch)))
        elif self._counts(sender) and seen.epoch < HIGHEST:
            self._epoch = max(self._epoch, seen.epoch)
            if seen.here:
                self._end_search(now, out)
            elif self._seeking.pop(sender, self) is None:
                self._check_search(now, out)

    # --- messages, time, members -------------------------------------------------------------------------------------

    def _received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        match message:
            case Pass(token, idle):
                self._passed(sender, token, idle, out, now)
            case Took(epoch, hop):
                if self._passing is not None:
                    to, token = self._passing
                    if (sender, epoch, hop) == (to, token.epoch, token.hop):
                        self._patience.learn(now - self._passed_at, self._tries)
                        self._passing = None
                        out.append(CancelTimer(PASS))
            case Seek(number):
                self._sought_by(sender, number, now, out)
            case Looked(number, here, _) if not number:
                if self._counts(sender):
                    self._gone[sender] = not here
                    self._changed((), (sender,), now, out)
            case Looked():
                self._answered(sender, message, now, out)
            case Sought(number, epoch):
                if self._counts(sender) and epoch < HIGHEST:
                    self._over[sender] = max(number, self._over.get(sender, 0))
                    if epoch:  # it was found, or made: who misses it as well need not ask everybody again
                        self._epoch, self._known_at = max(epoch, self._epoch), now
                        if self._waiting and self._token is None:
                            out.append(SetTimer(MISSED, now + self._round()))
                    if self._frozen.get(sender, number + 1) <= number:
                        del self._frozen[sender]
                        self._search_if_owed(now, out)
            case _:
                pass

    def _fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> None:
        if timer == REST:
            if self._running is None:
                self._pass_on(now, out)
        elif timer == PASS and self._passing is not None:
            to, token = self._passing
            self._tries += 1
            out.append(Send(to, self._pass_of(token)))
            if self._tries % TRIES == 0:
                out.append(Suspect(to))
            out.append(SetTimer(PASS, now + self._patience.wait(self._tries)))
        elif timer == SEEK and self._seeking is not None:
            self._tries += 1
            out.extend(Send(node, Seek(self._number)) for node in self._seeking)
            if self._tries % TRIES == 0:
                out.extend(Suspect(node) for node in self._seeking)
            out.append(SetTimer(SEEK, now + self._patience.wait(self._tries)))
        elif timer == MISSED and self._waiting and self._token is None:
            self._search(now, out)
            out.append(SetTimer(MISSED, now + (self._round() if self._epoch else 4 * SECOND)))
        elif timer == THAW and self._frozen:
            out.extend(Send(node, Looked(number, False, self._epoch)) for node, number in self._frozen.items())
            out.append(SetTimer(THAW, now + SECOND))

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            is_clean = self._gone.get(node, False)
            if is_clean is None:
                del self._gone[node]
                continue
            self._goes(node, is_clean, out)
            if node in self._gone:
                self._gone[node] = None
        for node in joined:
            if self._seeking is not None and node != self._me:
                self._seeking[node] = None
                out.append(Send(node, Seek(self._number)))
        if self._token is not None and joined and self._running is None and not self._waiting:
            out.append(SetTimer(REST, now + self._skip))  # it was alone
        self._check_search(now, out)
        self._search_if_owed(now, out)

    def _goes(self, node: NodeId, is_clean: bool, out: list[Effect]) -> None:
        """It counts no more. `is_clean`: it did not take the token along."""
        unfinished = self._frozen.pop(node, None) is not None and self._yielded_to == node
        self._over.pop(node, None)
        self._owes = self._owes or unfinished or (not is_clean and self._precedes(node))
        if self._passing is not None and self._passing[0] == node:
            self._passing, self._owes = None, True
            out.append(CancelTimer(PASS))
        if self._seeking is not None:
            self._seeking.pop(node, None)

    def _search_if_owed(self, now: Instant, out: list[Effect]) -> None:
        if self._owes and not self._frozen:
            self._owes = False
            self._search(now, out)

    def _precedes(self, gone: NodeId) -> bool:
        """Whether this node is the last before it in the ring of those that are there."""
        ring = sorted([*self._others(), self._me])
        return ring[bisect_left(ring, gone) - 1] == self._me

    def _started(self, founder: bool, now: Instant, out: list[Effect]) -> None:
        self._founds = founder
        if founder:
            self._search(now, out)

    def _leave(self, now: Instant, out: list[Effect]) -> None:
        if self._running is None:
            self._pass_on(now, out)

    def _may_depart(self, now: Instant, out: list[Effect]) -> bool:
        done = self._passing is None  # the token that was here is on its way, or nobody else is there
        if done:  # nobody waits for its word any more, and where all is well, nobody need search
            is_missed = self._owes or self._seeking is not None
            out.extend(Send(node, Looked(0, is_missed, self._epoch)) for node in self._others())
        return done

    # --- what is shown -----------------------------------------------------------------------------------------------

    def view(self) -> View:
        shown = super().view()
        token = self._token or (self._passing[1] if self._passing is not None else None)
        if shown.state == "idle":
            state = "resting" if self._token is not None else "searching" if self._seeking is not None else "idle"
            shown = shown._replace(state=state)
        holder = self._me if self._token is not None else self._passing[0] if self._passing is not None else 0
        return shown._replace(tokens=(token,) if token else (), holder=holder, epoch=self._epoch)
