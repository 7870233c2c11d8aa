"""A token that goes round a ring of members, and is lent on its way: what both searches of seed 003 have in common.

What it decides: where a token that is here goes next. The naive way, always to the neighbour, serves whoever waits
after half a round. Here the nodes keep traps, of those who want the token (who sets them is a subclass's matter), and

    mission, at the borrower: use it      else, on to the next borrower, or back to the lender
    else, a trap: lend it                 (this node's own wish is a trap among the others)
    else: rest, then on to the next of the ring; ever more slowly while nobody wants it

A loan is given in one message, by the promise that a search is (`at_once.py`); a promise that was kept or withdrawn is
VOID, so a stale trap costs a round trip, never the token. A promise may be spent, on a token that was refused or lost,
by one that waits still: so whoever says VOID is offered the token once, and then the token tells that nobody waits.
While the borrower runs A, its way back is offered already.

Invariants, with those of `one_by_one.py`, `remake.py` and `handover.py`
    S1  A runs only while the token is here, and is not being given away.
    S2  A token that is here moves on, is in use, rests (a timer), waits for an inquiry, or has nowhere to go.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import ClassVar, Final

from softmutex.core.algorithms.one_by_one import OneByOne
from softmutex.core.algorithms.remake import (
    NEVER_SEEN,
    NO_LABEL,
    Agreed,
    Barred,
    Denied,
    Found,
    Label,
    Outdated,
    Phase,
    Remake,
    Sighting,
    Turnout,
    label_of,
)
from softmutex.core.algorithms.ring_words import (
    Anybody,
    Cleanup,
    Discipline,
    Gimme,
    Initiative,
    Mission,
    RingOptions,
    Trap,
)
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Effect,
    Event,
    FactKind,
    Grant,
    Instant,
    Lose,
    LostReason,
    NodeId,
    Note,
    RequestId,
    Send,
    SetTimer,
    Suspect,
    Ticket,
    Token,
    from_seconds,
)
from softmutex.core.handover import Failed, Gone, Handover, Outcome, Passed, Passing, Taken
from softmutex.core.machine import Setup, View
from softmutex.core.messages import Ask, Commit, Message, Offer

REST: Final = "rest"
LEAST_REST: Final = SECOND // 100  # however short A is
TOUR: Final = 8  # borrowers in one loan of the fast discipline
TOLD: Final = 20  # served requests that a token tells of


class BriefHandover(Handover):
    """To give one up in doubt costs an inquiry of everybody, which finds the token if it is there."""

    ASKS = 3


class Lending(OneByOne):
    """Subclasses say how the token is looked for."""

    Options: ClassVar[type[RingOptions]] = RingOptions
    has_token = True

    __slots__ = (
        "_asked_first",
        "_calm",
        "_early",
        "_given",
        "_handover",
        "_how",
        "_lent",
        "_maker",
        "_options",
        "_passing",
        "_remake",
        "_rest",
        "_rested",
        "_resting",
        "_seen",
        "_skipped",
        "_slowest",
        "_token",
        "_traps",
        "_used",
        "_visited",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._options = options = self.Options.read(setup.options, self.name)
        constants = setup.timing.constants(self.pace)
        rest = max(constants.skip_ns, LEAST_REST)
        self._rest = rest if options.rest is None else from_seconds(options.rest)
        self._slowest = max(self._rest, from_seconds(options.slowest))
        self._how = self.passing(setup)
        self._handover = BriefHandover(setup.me, setup.rng, self._how, SECOND // 4, 3)
        self._remake = Remake(setup.me, setup.rng, self._others)
        self._token: Token | None = None
        self._passing: Token | None = None  # being given away
        self._given: tuple[NodeId, Sighting] = (NOBODY, NEVER_SEEN)  # the last giving, to whom
        self._early: NodeId = NOBODY  # to whom it is offered while A runs
        self._asked_first = Ticket(NOBODY, 0)  # its promise was void: it is offered the token, in place of given it
        self._lent: tuple[NodeId, ...] = ()  # to whom, until it is back
        self._traps: dict[NodeId, Trap] = {}  # in the order in which they were set; this node's own wish is among them
        self._seen = NEVER_SEEN  # the token's last visit on its way round
        self._visited = NEVER_SEEN  # its last visit
        self._maker: NodeId = NOBODY  # where it began its way, as far as is known
        self._calm = 0  # how often it went by since anybody wanted it
        self._resting = False  # the timer is set
        self._rested = False  # it is time to go on
        self._used = False  # since it came
        self._skipped: tuple[NodeId, ...] = ()  # would not have it just now

    @classmethod
    def passing(cls, setup: Setup) -> Passing:
        chosen = cls.Options.read(setup.options, cls.name).passing
        return chosen or (Passing.DIRECT if setup.instant else Passing.FOUR_WAY)

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out = list(super().handle(event, now))
        self._move(now, out)
        if self._token is None and self._running is not None:
            raise InvariantBreach(f"{self.name}, node {self._me}: A runs without the token ({self.view()})")  # S1
        return out

    # --- the token is here (S2) --------------------------------------------------------------------------------------

    def _move(self, now: Instant, out: list[Effect]) -> None:
        """Whatever is to be done with the token, if it is here, free, and not under inquiry."""
        token = self._token
        if token is None or self._running is not None or self._remake.stage is Phase.BARRED:
            return
        loan, served = Mission.of(token)
        loan = tuple(ticket for ticket in loan if ticket.node == self._me or self._counts(ticket.node))
        if loan and loan[-1].request:
            loan += (Ticket(self._me, 0),)  # the lender is gone
        is_borrower = False
        while loan and loan[0].node == self._me:
            is_borrower = is_borrower or bool(loan[0].request)
            self._lent = self._lent if loan[0].request else ()
            loan = loan[1:]
        if token.queue != loan + served:
            self._token = token = token._replace(queue=loan + served)
        if is_borrower and self._waiting and not self._leaving:
            self._use(token, now, out)
        elif loan:
            self._carry(token, loan[0], now, out)
        elif self._leaving or not self._traps:
            self._go_round(token, now, out)
        else:
            self._spring(token, served, now, out)

    def _spring(self, token: Token, served: tuple[Ticket, ...], now: Instant, out: list[Effect]) -> None:
        """There are traps: the token is used here, lent, or was here for long enough."""
        if next(iter(self._traps)) == self._me and not (self._used and self._rested):
            self._use(token, now, out)
        elif others := [node for node in self._traps if node != self._me]:
            if self._options.discipline is Discipline.FAIR:
                lent = others[:1]
            else:  # up to this node's own turn
                lent = list(takewhile(lambda node: node != self._me, self._traps))[:TOUR] or others[:TOUR]
            loan = (*(Ticket(node, self._traps[node].request) for node in lent), Ticket(self._me, 0))
            self._lent, self._calm = tuple(lent), 0
            self._carry(token._replace(queue=loan + served), loan[0], now, out)
            for node in lent:
                self._traps.pop(node, None)
        else:
            self._go_round(token, now, out)

    def _use(self, token: Token, now: Instant, out: list[Effect]) -> None:
        self._traps.pop(self._me, None)
        self._handover.stand(0)
        self._used, self._calm = True, 0
        self._found(out)
        self._grant(Grant.by(token, self._waiting[0]), out)
        loan = Mission.of(token).loan
        if loan and not loan[0].request and self._how is Passing.FOUR_WAY:
            self._early = loan[0].node
            self._handover.offer_early(token, self._early, now, out)

    def _carry(self, token: Token, ticket: Ticket, now: Instant, out: list[Effect]) -> None:
        """To the borrower or the lender; inverse: by way of those who sent its search on."""
        trap = self._traps.pop(ticket.node, None)
        to = ticket.node
        if self._options.cleanup is Cleanup.INVERSE and ticket.request and trap is not None:
            to = trap.via if trap.via != self._me and self._counts(trap.via) else to
        at_once = to == ticket.node and ticket != self._asked_first
        self._give(token, to, ticket.request if at_once else 0, now, out)

    def _go_round(self, token: Token, now: Instant, out: list[Effect]) -> None:
        to = self._next_of(self._me, self._skipped)
        if to == NOBODY:
            if self._skipped and not self._resting:
                self._skipped = ()
                self._take_rest(now, out)
        elif self._rested or self._leaving:
            self._calm += 1
            self._give(token, to, 0, now, out)
        elif not self._resting:
            self._take_rest(now, out)
            if self._options.initiative in (Initiative.PUSH, Initiative.BOTH):
                self._ask_round(Anybody(self._me, len(self._members)), out)

    def _take_rest(self, now: Instant, out: list[Effect]) -> None:
        rest = self._rest
        if self._options.initiative in (Initiative.PULL, Initiative.BOTH):  # else nobody would say that it wants it
            rest = min(self._slowest, rest << min(self._calm, 40))
        self._resting = True
        out.append(SetTimer(REST, now + rest))

    def _give(self, token: Token, to: NodeId, request: RequestId, now: Instant, out: list[Effect]) -> None:
        self._token, self._passing = None, token
        if self._resting:
            self._resting = False
            out.append(CancelTimer(REST))
        if self._early == to:
            self._early = NOBODY
            self._conclude(self._handover.commit(token, now, out), now, out)
        elif request and self._how is Passing.FOUR_WAY:
            self._withdraw_early(token, out)
            self._handover.give_at_once(token, to, request, now, out)
        else:
            self._withdraw_early(token, out)
            self._conclude(self._handover.give(token, to, now, out), now, out)
        if self._waiting and self._token is None and not self._leaving:
            self._miss(Mission.of(token).lender, now, out)

    def _withdraw_early(self, token: Token, out: list[Effect]) -> None:
        if self._early:
            self._early = NOBODY
            self._handover.withdraw(token, out)

    # --- it comes and goes -------------------------------------------------------------------------------------------

    def _conclude(self, outcome: Outcome | None, now: Instant, out: list[Effect]) -> None:
        match outcome:
            case Taken(token, _):
                self._arrive(token, now, out)
            case Passed(token, to):
                self._passing = None
                self._given = (to, Sighting(token.epoch, token.hop))
            case Failed() if self._early:
                self._early = NOBODY
            case Failed(token, to, is_silent):
                self._passing = None
                self._take_back(token, to, is_silent, out)
            case Gone(token, to):
                self._passing = None
                self._given = (to, Sighting(token.epoch, token.hop))
                if self._token is None:
                    self._heed(self._remake.begin(Phase.ALL, NO_LABEL, now, out), now, out)
            case None:
                pass

    def _arrive(self, token: Token, now: Instant, out: list[Effect]) -> None:
        label = label_of(token)
        if label < self._remake.bar or (self._token is not None and label <= label_of(self._token)):
            out.append(Note(FactKind.DISCARDED, token, detail="there is a newer one"))
            return
        if label_of(self._passing) == label:
            self._passing = None  # it came back before it was said that it had arrived
        if self._token is not None:
            self._outdated(out, replaced=True)
        self._remake.saw(token)
        self._remake.end(out)
        loan, served = Mission.of(token)
        self._place(token)
        if not loan:
            self._seen = self._visited
        for node, request in served:
            if node in self._traps and node != self._me and self._traps[node].request <= request:
                del self._traps[node]

    def _place(self, token: Token) -> None:
        self._token, self._visited = token, Sighting(token.epoch, token.hop)
        self._resting = self._rested = self._used = False
        self._skipped = ()

    def _take_back(self, token: Token, to: NodeId, is_silent: bool, out: list[Effect]) -> None:
        """It could not be given."""
        if self._token is not None:
            out.append(Note(FactKind.DISCARDED, token, detail="there is a newer one"))
            return
        self._token = token
        loan, served = Mission.of(token)
        if loan and loan[0].node == to:
            if loan[0].request and not is_silent and loan[0] != self._asked_first:
                self._asked_first = loan[0]  # its promise is spent; it may wait all the same
                return
            if loan[0].request and not is_silent:  # it waits no more: the other traps of this request are stale, too
                served = tell(served, loan[0])
            self._token = token._replace(queue=loan[1:] + served)
        elif not loan:
            self._skipped += (to,)
            self._rested = True
            out.append(Suspect(to))

    def _started(self, founder: bool, now: Instant, out: list[Effect]) -> None:
        if founder:
            self._make(self._remake.fresh(0), "the first one", now, out)

    def _make(self, label: Label, why: str, now: Instant, out: list[Effect]) -> None:
        """A new one; or the one that is here, under a new label."""
        old = self._token
        if old is None:
            token = Token(label.epoch, now, label.id, 0)
        else:
            token = old._replace(epoch=label.epoch, id=label.id, hop=old.hop + 1)
            self._withdraw_early(old, out)
            out.append(Note(FactKind.DISCARDED, old, detail="it has a new label"))
        out.append(Note(FactKind.GENERATED, token, detail=why))
        self._remake.saw(token)
        self._place(token)
        self._seen, self._maker, self._given, self._calm = self._visited, self._me, (NOBODY, NEVER_SEEN), 0

    def _outdated(self, out: list[Effect], replaced: bool = False) -> None:
        """There is a newer one, made by somebody who did not know of this one."""
        if self._running is not None:
            out += [Note(FactKind.OVERLAP, self._token), Lose(self._running, LostReason.OVERLAP)]
        if self._token is not None and (replaced or self._running is None):
            self._withdraw_early(self._token, out)
            out.append(Note(FactKind.DISCARDED, self._token, detail="there is a newer one"))
            self._token = None
            if self._resting:
                self._resting = False
                out.append(CancelTimer(REST))

    def _heed(self, finding: Turnout | None, now: Instant, out: list[Effect]) -> None:
        match finding:
            case Agreed(label) if self._passing is None:
                self._make(label, "none was left" if self._token is None else "somebody refuses the old one", now, out)
            case Found(holder):
                self._heard_of_holder(holder, out)
            case Outdated() if self._token is not None:
                self._outdated(out)
                self._search_soon(now, out)
            case Barred(maker):
                self._seen, self._maker, self._lent, self._calm = NEVER_SEEN, maker, (), 0
                self._search_soon(now, out)
            case _:
                pass

    def _ended(self, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        token = self._token
        if token is None:
            raise InvariantBreach(f"{self.name}, node {self._me}: A has run without the token")  # S1
        loan, served = Mission.of(token)
        told = tell(served, Ticket(self._me, self._last))
        self._token = token._replace(hop=token.hop + 1, queue=loan + told, baggage=baggage)
        if loan and self._counts(loan[-1].node):  # what was kept back goes where the token goes
            for node, trap in [each for each in self._traps.items() if each[1].held_back]:
                del self._traps[node]
                if node != loan[-1].node:
                    where = Gimme(node, trap.request, NOBODY, NOBODY, NEVER_SEEN)
                    out.append(Send(loan[-1].node, where))

    def _passed_to_me(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        accept = not self._leaving
        if isinstance(message, Offer | Commit):
            label = label_of(message.token)
            loan = Mission.of(message.token).loan
            wants = bool(self._waiting) or not loan or loan[0].node != self._me or not loan[0].request
            accept = accept and wants and label >= self._remake.bar and label > label_of(self._token)
            if label < self._remake.bar and self._how is not Passing.DIRECT:  # remake.S2
                out.append(Send(sender, Denied(self._remake.bar)))
                if isinstance(message, Commit):
                    message = Ask(message.nonce, message.reply)
        self._conclude(self._handover.received(sender, message, now, out, accept), now, out)

    # --- comings and goings ------------------------------------------------------------------------------------------

    def _changed(self, joined: Sequence[NodeId], left: Sequence[NodeId], now: Instant, out: list[Effect]) -> None:
        for node in left:
            self._traps.pop(node, None)
            self._maker = NOBODY if self._maker == node else self._maker
            self._lent = tuple(each for each in self._lent if each != node)
            for outcome in self._handover.departed(node, out):
                self._conclude(outcome, now, out)
        self._heed(self._remake.changed(joined, left, self._my_label(), now, out), now, out)
        to, seen = self._given
        if to in left and not self._my_label().epoch and not self._remake.stage and not self._leaving:
            neighbour = self._next_of(to)
            ask = neighbour if neighbour != self._me else NOBODY
            stage = Phase.NEIGHBOUR if ask else Phase.ALL
            self._heed(self._remake.begin(stage, NO_LABEL, now, out, ask, seen), now, out)
        if left:
            self._search_soon(now, out)
        if self._my_label() > NO_LABEL:  # if all others die that knew it, no newcomer makes an older one
            out.extend(Send(node, Denied(self._remake.bar)) for node in joined if node != self._me)

    def _leave(self, now: Instant, out: list[Effect]) -> None:
        self._handover.renounce(out)
        self._remake.end(out)

    def _may_depart(self, now: Instant, out: list[Effect]) -> bool:
        self._move(now, out)
        if self._token is not None and not self._others():
            out.append(Note(FactKind.DISCARDED, self._token, detail="the last member leaves"))
            self._token = None
        return self._token is None and self._passing is None and self._handover.idle

    # --- what a subclass does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _miss(self, lender: NodeId, now: Instant, out: list[Effect]) -> None:
        """It is wanted here, and not here, or no longer: it goes back to `lender`."""

    @abstractmethod
    def _found(self, out: list[Effect]) -> None:
        """It is here, for the request that was searched for."""

    @abstractmethod
    def _search_soon(self, now: Instant, out: list[Effect]) -> None:
        """What lay in wait for the token may be gone."""

    @abstractmethod
    def _heard_of_holder(self, holder: NodeId, out: list[Effect]) -> None:
        """An inquiry found the token there."""

    @abstractmethod
    def _ask_round(self, question: Anybody, out: list[Effect]) -> None:
        """Who wants it? On it goes from here."""

    # --- who is where ------------------------------------------------------------------------------------------------

    def _my_label(self) -> Label:
        return label_of(self._token or self._passing)

    def _at(self, node: NodeId) -> int:
        """Its place on the ring, or where it would be."""
        return bisect_left(self._members, node)

    def _next_of(self, node: NodeId, but: Collection[NodeId] = ()) -> NodeId:
        """Its first neighbour on the ring that counts."""
        count = len(self._members)
        start = bisect_left(self._members, node + 1)
        for number in range(count):
            other = self._members[(start + number) % count]
            if other != node and other not in but and self._counts(other):
                return other
        return NOBODY

    # --- what is shown -----------------------------------------------------------------------------------------------

    def may_take_again(self) -> bool:
        return self._token is not None

    def view(self) -> View:
        token = self._token
        states = {
            "holding": self._running is not None,
            "lending": token is None and bool(self._lent),
            "passing": self._passing is not None,
            "inquiring": bool(self._remake.stage),
            "resting": token is not None,
            "waiting": bool(self._waiting),
        }
        return View(
            tokens=self._handover.offered if token is None else (token,),
            holding=() if self._running is None else (self._running,),
            waiting=len(self._waiting),
            holder=self._me if token is not None else self._lent[0] if self._lent else NOBODY,
            queue=tuple(self._traps),
            epoch=self._remake.bar.epoch,
            state=next((name for name, there in states.items() if there), "idle"),
        )


def tell(served: tuple[Ticket, ...], ticket: Ticket) -> tuple[Ticket, ...]:
    """Of which requests the token tells that they are over, with this one."""
    return (*(each for each in served if each.node != ticket.node), ticket)[-TOLD:]
