"""Passing a token from one node to another over a network that loses, delays, repeats and reorders.

What it decides: at every moment at most one of the two nodes may use the token. The naive way, one message that
carries it, doubles the token as soon as a datagram is repeated, and loses it with the datagram; resending makes the
loss rare and the doubling common. So a token moves in steps, each of which names the attempt (`nonce`, the sender's;
`reply`, the receiver's), and it changes hands at exactly one of them: the first COMMIT that the receiver sees.

    DIRECT     OFFER                           the papers' model: no loss, no delay, no repetition, no answer
    THREE_WAY  OFFER, ACCEPT, COMMIT           seed 000 section 4: a lost COMMIT loses the token, nothing doubles it
    FOUR_WAY   OFFER, ACCEPT, COMMIT, DONE     the default: COMMIT is resent until DONE, then the sender asks

    sender    OFFERED --ACCEPT--> READY --commit--> COMMITTED --DONE--> Passed
                 |               |                   |-------VOID--> Failed: the token is the sender's again
                 |               |                   '----silence--> Gone: it may be lost, or alive over there
                 '-- silence, REFUSE, VOID, withdraw --> Failed or withdrawn: it never left

    receiver  unknown --OFFER--> promised --COMMIT--> taken: answers DONE from now on
                                    '--ASK, WITHDRAW, lateness, crowding--> void: answers VOID from now on

Invariants
    S1  The receiver takes only on a COMMIT whose (sender, nonce, reply) it has promised and not settled. A promise is
        settled once: taken or void. No reply is ever used again, so whatever is forgotten stays refused for ever.
    S2  A sender that has committed takes the token back only on a VOID of that very (nonce, reply).
    S3  VOID is said only of a promise that is remembered as void. Of what is not remembered, nothing is said: the
        sender ends with `Gone`, never with a second token. (What is not remembered, but was surely never taken, is
        void as well: `at_once.py`.)
    L1  While messages get through at all, a hand-over ends in `Passed` or `Failed`.
    A4  Whatever arrives, at most `PROMISES` promises and `MEMORY` settled ones are kept. A promise of an early offer
        has no time limit, for A may run for hours; at worst it is crowded out, which the sender learns as VOID.

At once: who waits may promise beforehand, in its request: `stand(request)`. Whoever learns of the request and has the
token commits it in one message, without offer and ACCEPT (`at_once.py`).

`MEMORY` is enough while no more than that many hand-overs reach one node between a COMMIT and the sender's last
question about it, some seconds. A token that comes back needs no DONE: its higher hop proves the hand-over.

How an algorithm embeds it: one `Handover` a machine, and every outcome, from whichever call, into one method.

    self.handover = Handover(setup.me, setup.rng, Passing.FOUR_WAY, patience=..., resends=...)

    case Received(sender, message): outcome = self.handover.received(sender, message, now, out, accept=...)
    case Fired(timer):              outcome = self.handover.fired(timer, now, out)     # None for timers of others
    to pass the token on:           outcome = self.handover.give(token, to, now, out)  # and use it no longer

    match outcome:
        case Taken(token, sender):  the token is here, its hop already counted: use it, then give it
        case Passed(token, to):     it is over there
        case Failed(token, to):     it is still, or again, here: pick another node and give it
        case Gone(token, to):       never use this key again; regenerate as the algorithm's rules say
        case None:                  nothing to decide

Pipelined: `offer_early` while A runs and the token is still used; at the release `commit` (one message when the offer
was accepted by then); `withdraw` before that to choose another. A `Failed` before it ends the offer, not the hold.

What it remembers and its steps have public names, for two readers: `softmutex.testing.handovers`, by which all states
are searched, and the versions that are broken on purpose (`tests/handover/broken.py`). An algorithm uses none of them.
To leave: `renounce`, refuse new offers, go on until `idle`, and then answer for a little while: peers may still ask.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from softmutex.core.at_once import OWED, STANDING, AtOnce
from softmutex.core.attempts import Outgoing, Promise, Remembered, Settled, Stage
from softmutex.core.chance import Rng
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Duration,
    Effect,
    FactKind,
    Instant,
    NodeId,
    Note,
    Send,
    SetTimer,
    TimerName,
    Token,
    hopped,
    new,
)
from softmutex.core.messages import Accept, Ask, Commit, Done, Message, Offer, Refuse, Void, Withdraw
from softmutex.core.patience import Patience
from softmutex.core.tuples import NamedTuple

TIMER: Final = "handover"  # every timer set here is named (TIMER, nonce)
MAX_HOP: Final = 2**53  # no honest token was ever passed on so often


class Passing(StrEnum):
    DIRECT = "direct"
    THREE_WAY = "3-way"
    FOUR_WAY = "4-way"


class Taken(NamedTuple):
    """The token is this node's. Its hop counts this passing already."""

    token: Token
    sender: NodeId


class Passed(NamedTuple):
    """The token is `to`'s (THREE_WAY: unless the COMMIT is lost)."""

    token: Token
    to: NodeId


class Failed(NamedTuple):
    """The token is this node's, as before: `to` refused it, never answered, or never saw the COMMIT and never will."""

    token: Token
    to: NodeId
    is_silent: bool = False  # it said nothing at all: it may wait for the token, and only be out of reach


class Gone(NamedTuple):
    """Committed, and never an answer: the token is lost or alive at `to`. This node may not use this key again."""

    token: Token
    to: NodeId


Outcome: TypeAlias = Taken | Passed | Failed | Gone


class Handover:
    """The passing of tokens by one machine: any number in, one at a time out for each token key."""

    PROMISES: ClassVar[int] = 16
    MEMORY: ClassVar[int] = 64
    ASKS: ClassVar[int] = 10  # enough for 40 % loss, where one round trip in three succeeds
    LONG: ClassVar[int] = 30  # times the first patience; then others should look for the token, slow as the network is

    def __init__(
        self,
        me: NodeId,
        rng: Rng,
        passing: Passing = Passing.FOUR_WAY,
        patience: Duration = SECOND // 4,
        resends: int = 2,
    ) -> None:
        """`patience`: how long to wait for an answer while nothing is known about the network (seed 000: skip).
        FOUR_WAY learns the round trip (`patience.py`). It resends `resends` times and until 4 * patience at least, then
        asks, `ASKS` more times or `LONG` * patience, and 6 * patience at least. THREE_WAY: `patience`, 1 + `resends`.
        """
        self._me = me
        self._passing = passing
        self._limit = patience  # THREE_WAY
        self.patience = Patience(patience)  # FOUR_WAY
        self._resends = resends
        self._silence = 4 * patience if passing is Passing.FOUR_WAY else 0  # give nobody up sooner
        self.last_nonce = int(rng.random() * 2**53)  # counted up from there: never the same twice in one life
        self.outgoing: dict[int, Outgoing] = {}
        self.promises: dict[tuple[NodeId, int], Promise] = {}
        self.settled: dict[tuple[NodeId, int], Settled] = {}
        self.at_once = AtOnce(me, self.MEMORY)

    # --- what the algorithm wants ------------------------------------------------------------------------------------

    def stand(self, request: int) -> None:
        """Promise beforehand: one token that comes for `request` is taken, whoever sends it. 0: no more.

        Requests grow. One that was answered, or passed over, is never promised again.
        """
        self.at_once.stand(request)

    def give_at_once(self, token: Token, to: NodeId, request: int, now: Instant, out: list[Effect]) -> None:
        """Commit to who stands for `request`: one message. FOUR_WAY only."""
        if request >= STANDING:  # no honest one is so large, and no frame could carry the answer
            self.give(token, to, now, out)
            return
        outgoing = self._begin(token, to, True, now)
        outgoing.stage = Stage.COMMITTED
        outgoing.reply = STANDING + request
        self.at_once.forgive(to, token, out)
        self._send_commit(outgoing, now, out)

    def give(self, token: Token, to: NodeId, now: Instant, out: list[Effect]) -> Passed | None:
        """Offer the token and commit as soon as it is accepted. The algorithm no longer uses it, unless it `Failed`."""
        if self._passing is Passing.DIRECT:
            self.last_nonce += 1
            out.append(Send(to, Offer(self.last_nonce, token)))
            return Passed(token, to)
        self._offer(token, to, True, now, out)
        return None

    def offer_early(self, token: Token, to: NodeId, now: Instant, out: list[Effect]) -> None:
        """Offer the token while it is still in use here: only `commit` gives it away."""
        self._offer(token, to, False, now, out)

    def commit(self, token: Token, now: Instant, out: list[Effect]) -> Passed | None:
        """Give away, as it is now, the token that was offered early: at once if accepted, else with the ACCEPT."""
        outgoing = self.find(token)
        if outgoing is None or outgoing.released:
            raise InvariantBreach(f"node {self._me} commits {token} without an early offer under way: give it instead")
        outgoing.token = token
        outgoing.released = True
        if self._passing is Passing.DIRECT:
            del self.outgoing[outgoing.nonce]
            return self.give(token, outgoing.to, now, out)
        return self._begin_commit(outgoing, now, out) if outgoing.stage is Stage.READY else None

    def withdraw(self, token: Token, out: list[Effect]) -> bool:
        """Take an offer back. False: there is none, or it is committed and cannot be taken back."""
        outgoing = self.find(token)
        if outgoing is None or outgoing.stage is Stage.COMMITTED:
            return False
        if self._passing is not Passing.DIRECT:
            out.append(Send(outgoing.to, Withdraw(outgoing.nonce)))
        self.close(outgoing, out)
        return True

    def renounce(self, out: list[Effect]) -> None:
        """Void every promise, and say so: this node leaves, or wants no token any more."""
        for name, promise in list(self.promises.items()):
            self._settle(name, promise, False)
            out.append(Send(name[0], Void(name[1], promise.reply)))
        self.stand(0)

    def departed(self, node: NodeId, out: list[Effect]) -> list[Failed | Gone]:
        """It is no member any more: nobody waits for its answers, nor for its commits."""
        outcomes: list[Failed | Gone] = []
        for outgoing in [each for each in self.outgoing.values() if each.to == node]:
            self.close(outgoing, out)
            if outgoing.stage is Stage.COMMITTED:
                outcomes.append(self._gone(outgoing, "left, and never confirmed", out))
            else:
                outcomes.append(self._failed(outgoing, "left", out))
        for name, promise in list(self.promises.items()):
            if name[0] == node:
                self._settle(name, promise, False)
        self.at_once.departed(node, out)
        return outcomes

    @property
    def standing(self) -> int:
        return self.at_once.standing

    @property
    def offered(self) -> tuple[Token, ...]:
        """Tokens that are under way but still this node's: it has not committed them."""
        return tuple(o.token for o in self.outgoing.values() if o.stage is not Stage.COMMITTED)

    def is_silent(self, timer: TimerName) -> bool:
        """Whether this timer, which fires now, ran out before: who is asked did not answer twice."""
        return any(timer == (TIMER, nonce) and outgoing.tries > 0 for nonce, outgoing in self.outgoing.items())

    @property
    def idle(self) -> bool:
        """Nothing under way, in or out."""
        return not self.outgoing and not self.promises and not self.at_once.owes

    @property
    def remembered(self) -> Remembered:
        return Remembered(len(self.outgoing), len(self.promises), len(self.settled), self.at_once.senders)

    # --- what happens ------------------------------------------------------------------------------------------------

    def received(
        self, sender: NodeId, message: Message, now: Instant, out: list[Effect], accept: bool = True
    ) -> Outcome | None:
        """Any message; those that are not about passing are not looked at. `accept`: the answer to a new offer.

        DIRECT cannot refuse: the sender has let go.
        """
        if isinstance(message, Commit):
            return self.on_commit(sender, message, now, out)
        if isinstance(message, Offer):
            if self._passing is Passing.DIRECT:
                return Taken(hopped(message.token), sender)
            return self.on_offer(sender, message, now, out, accept)
        if isinstance(message, (Done, Accept, Void, Refuse)):
            return self.on_answer(sender, message, now, out)
        if isinstance(message, Ask):
            self.on_ask(sender, message, out)
        elif isinstance(message, Withdraw):
            self.on_withdraw(sender, message)
        return None

    def fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> Outcome | None:
        """Any timer; those that were not set here are not looked at."""
        if isinstance(timer, tuple) and timer[0] == OWED:
            self.at_once.fired(timer, out)
            return None
        outgoing = self.outgoing.get(timer[1]) if isinstance(timer, tuple) and timer[0] == TIMER else None
        if outgoing is None or outgoing.stage is Stage.READY:
            return None
        outgoing.tries += 1
        silent_for = now - outgoing.since
        few = outgoing.tries <= self._resends + self.ASKS
        resend = outgoing.tries <= self._resends or silent_for < self._silence
        if outgoing.stage is Stage.OFFERED:
            if not resend:
                del self.outgoing[outgoing.nonce]
                self.patience.learn(silent_for, outgoing.tries)  # it may be on its way
                return self._failed(outgoing, "no answer", out)
            self.send_offer(outgoing, now, out)
        elif resend:
            self._send_commit(outgoing, now, out)
        elif 2 * silent_for < 3 * self._silence or (few and silent_for <= self.LONG * self._limit):
            out.append(Send(outgoing.to, Ask(outgoing.nonce, outgoing.reply)))
            self._set_timer(outgoing, now, out)
        else:
            del self.outgoing[outgoing.nonce]
            return self._gone(outgoing, "committed, never confirmed", out)
        return None

    # --- the sender --------------------------------------------------------------------------------------------------

    def _offer(self, token: Token, to: NodeId, released: bool, now: Instant, out: list[Effect]) -> None:
        outgoing = self._begin(token, to, released, now)
        if self._passing is Passing.DIRECT:
            outgoing.stage = Stage.READY
        else:
            self.send_offer(outgoing, now, out)

    def _begin(self, token: Token, to: NodeId, released: bool, now: Instant) -> Outgoing:
        under_way = self.find(token)
        if under_way is not None:
            stage = under_way.stage.name.lower()
            raise InvariantBreach(f"node {self._me} passes {token} to {to} while it is {stage} to {under_way.to}")
        if to in (self._me, NOBODY):
            raise InvariantBreach(f"node {self._me} passes {token} to {to}: it must go to another node")
        outgoing = Outgoing(self.fresh_nonce(), token, to, released, now)
        self.outgoing[outgoing.nonce] = outgoing
        return outgoing

    def send_offer(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> None:
        out.append(new(Send, (outgoing.to, new(Offer, (outgoing.nonce, outgoing.token, not outgoing.released)))))
        self._set_timer(outgoing, now, out)

    def _begin_commit(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> Passed | None:
        if self._passing is Passing.THREE_WAY:
            del self.outgoing[outgoing.nonce]
            out.append(Send(outgoing.to, Commit(outgoing.nonce, outgoing.reply, outgoing.token)))
            return self._passed(outgoing, out)
        outgoing.stage = Stage.COMMITTED
        outgoing.since = now
        self._send_commit(outgoing, now, out)
        return None

    def _send_commit(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> None:
        out.append(new(Send, (outgoing.to, new(Commit, (outgoing.nonce, outgoing.reply, outgoing.token)))))
        self._set_timer(outgoing, now, out)

    def on_answer(
        self, sender: NodeId, answer: Accept | Done | Refuse | Void, now: Instant, out: list[Effect]
    ) -> Passed | Failed | None:
        outgoing = self.outgoing.get(answer.nonce)
        if outgoing is None or outgoing.to != sender:
            self._drop(sender, answer, out)
            return None
        offered = outgoing.stage is Stage.OFFERED
        match answer:
            case Accept() if offered:
                return self._accepted(outgoing, answer.reply, now, out)
            # Once an ACCEPT is here, a REFUSE answers an earlier copy of the offer: it goes the way of the late.
            case Refuse() if offered:
                self.close(outgoing, out)
                return self._failed(outgoing, "refused", out)
            case Void() if offered or answer.reply == outgoing.reply:
                self.close(outgoing, out)
                return self._failed(outgoing, "void", out)
            case Done() if outgoing.stage is Stage.COMMITTED and answer.reply == outgoing.reply:
                self.close(outgoing, out)
                return self._passed(outgoing, out)
            case _:
                self._drop(sender, answer, out)
                return None

    def _accepted(self, outgoing: Outgoing, reply: int, now: Instant, out: list[Effect]) -> Passed | None:
        self.patience.learn(now - outgoing.since, outgoing.tries)
        outgoing.stage = Stage.READY
        outgoing.tries = 0
        outgoing.reply = reply
        if not (outgoing.released and self._passing is Passing.FOUR_WAY):  # there, the commit's timer replaces this one
            out.append(CancelTimer((TIMER, outgoing.nonce)))
        return self._begin_commit(outgoing, now, out) if outgoing.released else None

    def close(self, outgoing: Outgoing, out: list[Effect]) -> None:
        del self.outgoing[outgoing.nonce]
        if outgoing.stage is not Stage.READY:
            out.append(new(CancelTimer, ((TIMER, outgoing.nonce),)))

    def _passed(self, outgoing: Outgoing, out: list[Effect]) -> Passed:
        out.append(Note(FactKind.HANDED_OVER, outgoing.token, outgoing.to))
        return Passed(outgoing.token, outgoing.to)

    def _failed(self, outgoing: Outgoing, why: str, out: list[Effect]) -> Failed:
        out.append(Note(FactKind.HANDOVER_FAILED, outgoing.token, outgoing.to, why))
        return Failed(outgoing.token, outgoing.to, why == "no answer")

    def _gone(self, outgoing: Outgoing, why: str, out: list[Effect]) -> Gone:
        out.append(Note(FactKind.TOKEN_LOST, outgoing.token, outgoing.to, why))
        return Gone(outgoing.token, outgoing.to)

    # --- the receiver ------------------------------------------------------------------------------------------------

    def on_offer(self, sender: NodeId, offer: Offer, now: Instant, out: list[Effect], accept: bool) -> Passed | None:
        name = (sender, offer.nonce)
        passed = self.proven(offer.token, out)
        promise = self.promises.get(name)
        if name in self.settled or not self._is_possible(offer.token):
            self._drop(sender, offer, out)
        elif promise is None and not accept:
            out.append(Send(sender, Refuse(offer.nonce)))
        else:
            reply = self.fresh_nonce() if promise is None else promise.reply
            timed = self._passing is Passing.THREE_WAY and not offer.early
            self.promises[name] = Promise(reply, offer.token.key, now + self._limit if timed else None)
            if len(self.promises) > self.PROMISES:
                self._settle(*next(iter(self.promises.items())), False)
            out.append(Send(sender, Accept(offer.nonce, reply)))
        return passed

    def proven(self, token: Token, out: list[Effect]) -> Passed | None:
        """A token that comes from further on has left where this node sent it: better than any DONE."""
        outgoing = self.find(token)
        if outgoing is None or outgoing.stage is not Stage.COMMITTED or token.hop <= outgoing.token.hop:
            return None
        self.close(outgoing, out)
        return self._passed(outgoing, out)

    def on_commit(self, sender: NodeId, commit: Commit, now: Instant, out: list[Effect]) -> Taken | Passed | None:
        name, token = (sender, commit.nonce), commit.token
        if commit.reply >= STANDING:
            passed = self.proven(token, out)
            taken = self.at_once.take(name, commit, self._is_possible(token), now, out)
            return Taken(hopped(token), sender) if taken else passed  # what is taken was passed before
        promise = self.promises.get(name)
        if promise is None or promise.reply != commit.reply:
            self.answer(name, commit, out)
            return None
        in_time = promise.until is None or now <= promise.until
        possible = token.key == promise.key and self._is_possible(token)
        self._settle(name, promise, in_time and possible)
        self.answer(name, commit, out)
        return Taken(hopped(token), sender) if in_time and possible else None

    def _is_possible(self, token: Token) -> bool:
        return token.hop < MAX_HOP and self.find(token) is None

    def on_ask(self, sender: NodeId, ask: Ask, out: list[Effect]) -> None:
        name = (sender, ask.nonce)
        if ask.reply >= STANDING:
            self.at_once.answer(name, ask, out)
            return
        promise = self.promises.get(name)
        if promise is not None and promise.reply == ask.reply:
            self._settle(name, promise, False)
        self.answer(name, ask, out)

    def on_withdraw(self, sender: NodeId, withdraw: Withdraw) -> None:
        name = (sender, withdraw.nonce)
        if (promise := self.promises.get(name)) is not None:
            self._settle(name, promise, False)

    def _settle(self, name: tuple[NodeId, int], promise: Promise, taken: bool) -> None:
        if name in self.settled:
            raise InvariantBreach(f"node {self._me} settles a promise to {name[0]} twice: {promise}")  # S1
        del self.promises[name]
        self.settled[name] = Settled(promise.reply, taken)
        if len(self.settled) > self.MEMORY:
            del self.settled[next(iter(self.settled))]

    def answer(self, name: tuple[NodeId, int], question: Commit | Ask, out: list[Effect]) -> None:
        """How was this promise settled? As often as it is asked; of what is not remembered, nothing is said (S3)."""
        settled = self.settled.get(name)
        if settled is None or settled.reply != question.reply:
            self._drop(name[0], question, out)
        elif self._passing is Passing.FOUR_WAY:
            sender, nonce = name
            out.append(Send(sender, (Done if settled.taken else Void)(nonce, settled.reply)))

    # --- both --------------------------------------------------------------------------------------------------------

    def find(self, token: Token) -> Outgoing | None:
        if self.outgoing:
            key = token.key
            for outgoing in self.outgoing.values():
                if outgoing.token.key == key:
                    return outgoing
        return None

    def fresh_nonce(self) -> int:
        self.last_nonce += 1
        return self.last_nonce

    def _set_timer(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> None:
        wait = self.patience.wait(outgoing.tries) if self._passing is Passing.FOUR_WAY else self._limit
        out.append(new(SetTimer, ((TIMER, outgoing.nonce), now + wait)))

    def _drop(self, sender: NodeId, message: Message, out: list[Effect]) -> None:
        out.append(Note(FactKind.STALE, None, sender, type(message).__name__))
