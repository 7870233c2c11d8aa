"""A token that wanders from node to node at random: what the seeds' algorithms share (seed 000 section 5, seed 001).

What it decides: when a token that came is used, skipped on or discarded, and when a missing one is made anew. Which
tokens are spurious and how long a silence is too long is left to `adaptive.py` and `sandwich.py`; how a token changes
hands, to `handover.py`. The naive way, one loop that waits for the token, then sleeps, then sends, is deaf while it
sleeps: it sees neither the second token, which it should discard, nor the request that it could serve.

    a token comes --spurious--> discarded
         |
         v      a request waits, and A ran `pause` ago or earlier
       here ---------------------------------------------> RUNNING
         |                                                    | Released
         '--> SKIPPING, skip later --> passed to a random other member <--'
                 ^                         |
                 '-- Failed: try again ----'          nobody else there: PARKED until somebody joins

    no token received for too long, and none here --> a new one is made, and used at once if a request waits

The papers' own demand, everybody wants it all the time, is a request that always waits. Without one a token is skipped
on. A second token that arrives while one is here waits in the inbox, as in the socket of the papers' single-threaded
loop; where hand-overs are acknowledged it is refused instead, and goes elsewhere.

Invariants
    W1  A runs only while a token is here, and once at a time.
    W2  A token that is here is in use, or a timer will move it on, or there is nobody to pass it to.
    W3  Tokens wait in the inbox only behind one that is here, and at most `INBOX` of them.
    W4  While no token is here or being passed on, the silence is timed; while one is, none is made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn

from softmutex.core.chance import drawn
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Depart,
    Duration,
    Effect,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    Leaving,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Note,
    OfGroup,
    Reach,
    Received,
    Released,
    Requested,
    RequestId,
    Returned,
    Send,
    SetTimer,
    Silenced,
    Slept,
    Started,
    Token,
    Withdrawn,
    from_seconds,
)
from softmutex.core.handover import MAX_HOP, Failed, Handover, Outcome, Passing, Taken
from softmutex.core.laws import Law, Weather, claim
from softmutex.core.machine import Algorithm, Setup, View, pick_other
from softmutex.core.messages import Message, Offer
from softmutex.core.options import Options, within

SKIP: Final = "skip"
SILENCE: Final = "silence"
INBOX: Final = 4  # more tokens than that at one node at once are a flood, not an accident
LONG_AGO: Final = -(2**63)
FOREVER: Final = 2**63
# How long to wait for an acknowledgement, and how often to say it again. Seed 000 waits for skip, which is a guess at
# the network made from how long A takes. In four steps it is learnt; in three, who is late loses the token.
ANSWERS: Final = {Passing.THREE_WAY: (SECOND, 1)}
ANSWERS_ELSE: Final = (SECOND // 4, 3)
RETRY: Final = SECOND // 4  # after a hand-over that failed; or after skip, if that is shorter


@dataclass(frozen=True)
class WalkerOptions(Options):
    passing: Passing | None = None  # None: in four steps, or at once where nothing can be lost (`Setup.instant`)
    min_interval: float | None = within(None, 0.0)  # in seconds, between two runs of A on a node; None: the group's min


class Walker(Algorithm):
    """One mutex on one node. Subclasses say which tokens are `_spurious` and, with `_heard` and `_restart`, when the
    silence has lasted too long."""

    Options: ClassVar[type[WalkerOptions]] = WalkerOptions
    laws = claim(Weather.ANY, Law.EFFECTS, Law.REQUESTS)  # overlaps are a part of the algorithms

    __slots__ = (
        "_alarm",
        "_departed",
        "_direct",
        "_due",
        "_enabler",
        "_epoch",
        "_handover",
        "_inbox",
        "_last_access",
        "_leaving",
        "_me",
        "_members",
        "_nonce",
        "_overlapped",
        "_pause",
        "_retry",
        "_rng",
        "_running",
        "_skip",
        "_skipping",
        "_token",
        "_under_way",
        "_waiting",
    )

    def __init__(self, setup: Setup) -> None:
        self.check(setup)
        pause_s = self.Options.read(setup.options, self.name).min_interval
        constants = setup.timing.constants(self.pace)
        self._me = setup.me
        self._members = setup.members
        self._rng = setup.rng
        self._skip = constants.skip_ns
        self._pause = constants.min_ns if pause_s is None else from_seconds(pause_s)
        passing = self.passing(setup)
        self._direct = passing is Passing.DIRECT
        patience, resends = ANSWERS.get(passing, ANSWERS_ELSE)
        self._handover = Handover(setup.me, setup.rng, passing, patience, resends)
        self._retry = min(self._skip, RETRY)
        self._nonce = 0
        self._token: Token | None = None
        self._inbox: tuple[Token, ...] = ()
        self._running: RequestId | None = None
        self._waiting: tuple[RequestId, ...] = ()
        self._overlapped = False  # whoever runs A has been told that a better token is about
        self._skipping = False  # the timer that moves the token on is set
        self._under_way = 0  # tokens whose passing on has begun and not ended
        self._leaving = False
        self._departed = False
        self._epoch = 0  # the highest generation seen
        self._last_access: Instant = LONG_AGO  # when A last began here
        self._enabler: tuple[Instant, int] = (0, 0)  # key of the token that enabled it
        self._due: Instant = FOREVER  # when the silence will have lasted too long
        self._alarm: Instant = FOREVER  # when its timer looks next: at `_due` or earlier; FOREVER: not set

    @classmethod
    def passing(cls, setup: Setup) -> Passing:
        chosen = cls.Options.read(setup.options, cls.name).passing
        return chosen or (Passing.DIRECT if setup.instant else Passing.FOUR_WAY)

    # --- what each algorithm decides --------------------------------------------------------------------------------

    @abstractmethod
    def _spurious(self, token: Token, now: Instant) -> bool:
        """Whether to discard this token, which was received just now. Asked once a visit."""

    @abstractmethod
    def _heard(self, now: Instant) -> Instant:
        """A token is received. When, from now on, the silence will have lasted too long."""

    @abstractmethod
    def _restart(self, now: Instant) -> Instant:
        """The same where the silence begins without a token received: at the start, after making or using one."""

    @abstractmethod
    def _made(self, token: Token, regenerated: bool) -> None:
        """This token was made here, as the first one or after a silence."""

    # --- events ------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out: list[Effect] = []
        if isinstance(event, Fired):
            timer = event[0]
            if timer == SKIP:
                self._skipping = False
                self._move_on(now, out)
            elif timer == SILENCE:
                self._on_silence(now, out)
            else:
                self._conclude(self._handover.fired(timer, now, out), now, out)
        elif isinstance(event, Received):
            self._receive(event[0], event[1], now, out)
        else:
            self._rarer(event, now, out)
        if self._token is None:
            if self._running is not None or self._skipping or self._inbox:
                self._breach("W1, W2, W3: no token is here, yet something goes on as if one were")
            if self._alarm > self._due and not self._under_way:
                self._breach("W4: no token is here, and nobody times the silence")
        elif not self._skipping and self._running is None and len(self._members) > 1:
            self._breach("W2: nothing will move this token on")
        return out

    def _rarer(
        self,
        event: Requested | Released | Withdrawn | Started | MembersChanged | Slept | Leaving | OfGroup,
        now: Instant,
        out: list[Effect],
    ) -> None:
        match event:
            case Requested(request):
                self._waiting += (request,)
                if self._token is not None and self._running is None:
                    self._serve(self._token, now, out, self._skip)
            case Released(request, baggage):
                self._release(request, baggage, now, out)
            case Withdrawn(request):
                self._waiting = tuple(each for each in self._waiting if each != request)
            case Started(founder):
                self._listen(self._restart(now), out)
                if founder:
                    self._make(now, out, regenerated=False)
            case MembersChanged():
                if self._token is not None and self._running is None and not self._skipping:
                    self._serve(self._token, now, out, self._skip)  # it was parked
            case Slept() | Silenced() | Returned() | Reach():
                pass  # what is late may be used all the same: only a token counts
            case Leaving():
                self._leave(now, out)

    def view(self) -> View:
        held = () if self._token is None else (self._token,)
        state = "waiting" if self._waiting else "idle"
        if self._running is not None:
            state = "running"
        elif held:
            state = "skipping" if self._skipping else "parked"
        elif self._under_way:
            state = "passing"
        return View(
            tokens=held + self._inbox + self._handover.offered,
            holding=() if self._running is None else (self._running,),
            waiting=len(self._waiting),
            holder=self._me if held else NOBODY,
            epoch=self._epoch,
            state=state,
        )

    # --- a token comes -----------------------------------------------------------------------------------------------

    def _receive(self, sender: NodeId, message: Message, now: Instant, out: list[Effect]) -> None:
        if isinstance(message, Offer):
            token = message[1]
            if self._running is not None:
                self._compare(self._running, token, out)
            if self._direct:  # what `Handover` does in this mode, spelled out: it is the simulator's inner loop
                if token[3] < MAX_HOP:
                    self._arrive(tuple.__new__(Token, (*token[:3], token[3] + 1, *token[4:])), now, out)
                return
        accept = self._token is None and not self._leaving
        self._conclude(self._handover.received(sender, message, now, out, accept), now, out)

    def _conclude(self, outcome: Outcome | None, now: Instant, out: list[Effect]) -> None:
        """A hand-over has come to its end, in or out."""
        if outcome is None:
            return
        if isinstance(outcome, Taken):
            self._arrive(outcome.token, now, out)
            return
        self._under_way -= 1
        if not isinstance(outcome, Failed):
            self._gone(now, out)
        elif self._token is None:
            self._token = _again(outcome.token)
            self._serve(self._token, now, out, self._retry)
        else:
            self._queue(outcome.token, out)

    def _arrive(self, token: Token, now: Instant, out: list[Effect]) -> None:
        if self._token is not None:
            self._queue(token, out)
            return
        if token[0] > self._epoch:
            self._epoch = token[0]
        due = self._heard(now)
        if due < self._alarm:
            self._listen(due, out)
        else:
            self._due = due  # the timer stays, and looks again when it fires
        if self._spurious(token, now):
            out.append(Note(FactKind.DISCARDED, token))
            self._next_in_line(now, out)
            return
        self._token = token
        if self._waiting and now - self._last_access >= self._pause and not self._leaving:
            self._grant(token, now, out)
        else:
            self._skipping = True
            out.append(SetTimer(SKIP, now + self._skip))

    def _queue(self, token: Token, out: list[Effect]) -> None:
        """A second token while one is here. Of too many the youngest goes."""
        self._inbox += (token,)
        if len(self._inbox) > INBOX:
            youngest = max(self._inbox, key=lambda each: each.key)
            self._inbox = tuple(each for each in self._inbox if each is not youngest)
            out.append(Note(FactKind.DISCARDED, youngest, detail="too many at once"))

    def _next_in_line(self, now: Instant, out: list[Effect]) -> None:
        if self._inbox:
            first, *others = self._inbox
            self._inbox = tuple(others)
            self._arrive(first, now, out)
        elif self._leaving and not self._under_way and not self._departed:
            self._departed = True
            out.append(Depart())

    def _compare(self, running: RequestId, token: Token, out: list[Effect]) -> None:
        """Another token shows up while A runs. If it is the better one, this one will be found spurious."""
        if token.key < self._enabler and not self._overlapped:
            self._overlapped = True
            out.append(Lose(running, LostReason.OVERLAP))
            out.append(Note(FactKind.OVERLAP, token))

    # --- a token is here ---------------------------------------------------------------------------------------------

    def _serve(self, token: Token, now: Instant, out: list[Effect], skip: Duration) -> None:
        """A token is here and not in use: use it if somebody here may, else see that it moves on."""
        if self._waiting and now - self._last_access >= self._pause and not self._leaving:
            if self._skipping:
                self._skipping = False
                out.append(CancelTimer(SKIP))
            self._grant(token, now, out)
        elif not self._skipping:
            self._skipping = True
            out.append(SetTimer(SKIP, now + skip))

    def _grant(self, token: Token, now: Instant, out: list[Effect]) -> None:
        request, self._waiting = self._waiting[0], self._waiting[1:]
        self._running = request
        self._overlapped = False
        self._last_access = now
        self._enabler = (token[1], token[2])
        out.append(Grant.by(token, request))

    def _release(self, request: RequestId, baggage: bytes, now: Instant, out: list[Effect]) -> None:
        if request != self._running or self._token is None:
            self._breach(f"machine.D4: request {request} is released, and {self._running} runs")
        self._running = None
        if baggage != self._token.baggage:
            self._token = self._token._replace(baggage=baggage)
        self._move_on(now, out)

    def _move_on(self, now: Instant, out: list[Effect]) -> None:
        """The token that is here goes to a random other member, if there is one."""
        token = self._token
        if token is None:
            self._breach("W2: a token is to move on, and none is here")
        to = pick_other(self._members, self._me, self._rng)
        if to == NOBODY:
            self._park(token, now, out)
            return
        self._token = None
        if self._direct:
            self._nonce += 1
            out.append(Send(to, Offer(self._nonce, token)))
            if self._alarm == FOREVER:
                self._listen(self._restart(now), out)
            if self._inbox or self._leaving:
                self._next_in_line(now, out)
            return
        self._under_way += 1
        self._handover.give(token, to, now, out)
        self._next_in_line(now, out)

    def _gone(self, now: Instant, out: list[Effect]) -> None:
        """The token that was being passed on is no longer this node's."""
        if self._alarm == FOREVER:
            self._listen(self._restart(now), out)
        if self._token is None:
            self._next_in_line(now, out)

    def _park(self, token: Token, now: Instant, out: list[Effect]) -> None:
        """There is nobody to pass it to: this node is its own next one."""
        self._token = token = _again(token)
        ready_at = self._last_access + self._pause
        if self._leaving:
            self._token = None
            out.append(Note(FactKind.DISCARDED, token, detail="the last member leaves"))
            self._next_in_line(now, out)
        elif self._waiting and now >= ready_at:
            self._grant(token, now, out)
        elif self._waiting:
            self._skipping = True
            out.append(SetTimer(SKIP, ready_at))

    def _leave(self, now: Instant, out: list[Effect]) -> None:
        self._leaving = True
        self._due = FOREVER
        self._handover.renounce(out)
        if self._token is None:
            self._next_in_line(now, out)
        elif self._running is None:
            if self._skipping:
                self._skipping = False
                out.append(CancelTimer(SKIP))
            self._move_on(now, out)

    # --- no token is here --------------------------------------------------------------------------------------------

    def _listen(self, due: Instant, out: list[Effect]) -> None:
        """Times the silence, which will have lasted too long at `due`, earlier than any timer is set for."""
        self._due = self._alarm = due
        out.append(SetTimer(SILENCE, due))

    def _on_silence(self, now: Instant, out: list[Effect]) -> None:
        self._alarm = FOREVER
        if self._leaving:
            self._due = FOREVER
        elif self._token is not None or self._under_way:
            return  # the silence begins when that token is gone
        elif now < self._due:
            self._listen(self._due, out)
        else:
            self._make(now, out, regenerated=True)
            self._listen(self._restart(now), out)

    def _make(self, now: Instant, out: list[Effect], regenerated: bool) -> None:
        self._epoch += 1
        token = Token(self._epoch, now, drawn(self._rng), 0)
        self._made(token, regenerated)
        self._token = token
        why = "none was seen for too long" if regenerated else "the first one"
        out.append(Note(FactKind.GENERATED, token, detail=why))
        self._serve(token, now, out, self._skip)

    def _breach(self, what: str) -> NoReturn:
        raise InvariantBreach(f"{self.name}, node {self._me}: {what} ({self.view()})")


def _again(token: Token) -> Token:
    """The token as it is used again by the same node: at the resource (epoch, hop) grows from grant to grant."""
    return token._replace(hop=token.hop + 1)
