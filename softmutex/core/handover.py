"""Passing a token from one node to another over a network that loses, delays, repeats and reorders.

What it decides: at every moment at most one of the two nodes may use the token. The naive way, one message that
carries it, doubles the token as soon as a datagram is repeated, and loses it with the datagram. Resending makes the
loss rare and the doubling common. So a token moves in steps, each of which names the attempt (`nonce`, the sender's;
`reply`, the receiver's), and it changes hands at exactly one of them: the receiver's first COMMIT.

    DIRECT     TOKEN                        the papers' model: no loss, no delay, no repetition, no answer
    THREE_WAY  TOKEN, ACK, COMMIT           seed 000 section 4: a lost COMMIT loses the token, nothing doubles it
    FOUR_WAY   TOKEN, ACK, COMMIT, DONE     the default: COMMIT is resent until DONE, then the sender asks

    sender    OFFERED --ACK--> READY --commit--> COMMITTED --DONE--> Passed
                 |               |                   |-------VOID--> Failed: the token is the sender's again
                 |               |                   '--silence----> Gone: it may be lost, or alive over there
                 '-- silence, REFUSE, VOID, withdraw --> Failed or withdrawn: it never left

    receiver  unknown --TOKEN--> promised --COMMIT--> taken: answers DONE from now on
                                    '--ASK, WITHDRAW, time, crowding--> void: answers VOID from now on

Invariants
    S1  The receiver takes only on a COMMIT whose (sender, nonce, reply) it has promised and not settled. A promise is
        settled once: taken or void. No reply is ever used again, so whatever is forgotten stays refused for ever.
    S2  A sender that has committed takes the token back only on a VOID of that very (nonce, reply).
    S3  VOID is said only of a promise that is remembered as void. Of what is not remembered, nothing is said: the
        sender ends with `Gone`, never with a second token.
    L1  While messages get through at all, a hand-over ends in `Passed` or `Failed` within the sender's patience.
    A4  Whatever arrives, at most `PROMISES` promises and `MEMORY` settled ones are kept. A promise of an early offer
        has no time limit, for A may run for hours; at worst it is crowded out, which the sender learns as VOID.

`MEMORY` is long enough when no more than that many hand-overs reach one node while a sender still asks about an older
one, a few round trips. A node that gets the token back needs no DONE: the higher hop proves it.

How an algorithm embeds it: one `Handover` a machine, and every outcome, from whichever call, into one method.

    self.handover = Handover(setup.me, setup.rng, Passing.FOUR_WAY, patience=..., resends=3)

    case Received(sender, message): outcome = self.handover.received(sender, message, now, out, accept=...)
    case Fired(timer):              outcome = self.handover.fired(timer, now, out)     # None for timers of others
    to pass the token on:           outcome = self.handover.give(token, to, now, out)  # and forget it

    match outcome:
        case Taken(token, sender):  the token is here, its hop already counted: use it, then give it
        case Passed(token, to):     it is over there
        case Failed(token, to):     it is still, or again, here: pick another node and give it
        case Gone(token, to):       never use this key again; regenerate as the algorithm's rules say
        case None:                  nothing to decide

Pipelined: `offer_early` while A runs and the token is still used; at the release `commit` (one message when the offer
was accepted by then); `withdraw` before that to choose another. A `Failed` before ends the early offer, not the hold.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias

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
)
from softmutex.core.machine import Rng
from softmutex.core.messages import Accept, Ask, Commit, Done, Message, Offer, Refuse, Void, Withdraw

TIMER: Final = "handover"  # every timer set here is named (TIMER, nonce)
MAX_HOP: Final = 2**53  # no honest token was ever passed on so often
_HOP: Final = Token._fields.index("hop")


class Passing(StrEnum):
    DIRECT = "direct"
    THREE_WAY = "3-way"
    FOUR_WAY = "4-way"


class Taken(NamedTuple):
    """The token is this node's. Its hop counts this passing already."""

    token: Token
    sender: NodeId


class Passed(NamedTuple):
    """The token is `to`'s (THREE_WAY: unless the COMMIT was lost)."""

    token: Token
    to: NodeId


class Failed(NamedTuple):
    """The token is this node's, as before: `to` refused it, never answered, or never saw the COMMIT and never will."""

    token: Token
    to: NodeId


class Gone(NamedTuple):
    """Committed, and never an answer: the token is lost or alive at `to`. This node may not use this key again."""

    token: Token
    to: NodeId


Outcome: TypeAlias = Taken | Passed | Failed | Gone


class Stage(IntEnum):
    OFFERED = 0  # waits for the ACK; nothing is committed, so it can be given up at any time
    READY = 1  # promised by the receiver; waits for this node's release
    COMMITTED = 2  # out of this node's hands until DONE or VOID


class Outgoing:
    """One hand-over, as its sender sees it."""

    __slots__ = ("nonce", "released", "reply", "since", "stage", "to", "token", "tries")

    def __init__(self, nonce: int, token: Token, to: NodeId, released: bool, since: Instant) -> None:
        self.nonce = nonce
        self.token = token
        self.to = to
        self.released = released  # commit as soon as the ACK is here
        self.since = since
        self.stage = Stage.OFFERED
        self.reply = 0
        self.tries = 0  # resends in this stage


class Promise(NamedTuple):
    """An offer that this node has accepted and that is neither taken nor void yet."""

    reply: int
    key: tuple[Instant, int]
    until: Instant | None  # a later COMMIT is too late; None: never too late


class Settled(NamedTuple):
    reply: int
    taken: bool


class Handover:
    """The passing of tokens by one machine: any number in, one at a time out for each token key."""

    PROMISES: ClassVar[int] = 16
    MEMORY: ClassVar[int] = 64

    __slots__ = (
        "_ceiling",
        "_deviation",
        "_last_nonce",
        "_me",
        "_outgoing",
        "_passing",
        "_patience",
        "_promises",
        "_resends",
        "_round_trip",
        "_settled",
        "_wait",
    )

    def __init__(
        self,
        me: NodeId,
        rng: Rng,
        passing: Passing = Passing.FOUR_WAY,
        patience: Duration = SECOND // 4,
        resends: int = 3,
    ) -> None:
        """`patience`: how long to wait for an answer before anything is known about the network (seed 000: skip).

        FOUR_WAY learns the round trip and then waits between patience/64 and 8 * patience. TOKEN, COMMIT and ASK are
        each sent up to 1 + `resends` times, the waits doubling.
        """
        self._me = me
        self._passing = passing
        self._patience = patience
        self._resends = resends
        self._ceiling = 8 * patience
        self._wait = patience  # before the first resend
        self._round_trip = -1  # smoothed; -1: not measured yet
        self._deviation = 0
        self._last_nonce = int(rng.random() * 2**53)  # counted up from there: never the same twice in one life
        self._outgoing: dict[int, Outgoing] = {}
        self._promises: dict[tuple[NodeId, int], Promise] = {}
        self._settled: dict[tuple[NodeId, int], Settled] = {}

    # --- what the algorithm wants ------------------------------------------------------------------------------------

    def give(self, token: Token, to: NodeId, now: Instant, out: list[Effect]) -> Passed | None:
        """Offer the token and commit as soon as it is accepted. The algorithm no longer uses it, unless it `Failed`."""
        if self._passing is Passing.DIRECT:
            self._last_nonce += 1
            out.append(Send(to, Offer(self._last_nonce, token)))
            return Passed(token, to)
        self._offer(token, to, True, now, out)
        return None

    def offer_early(self, token: Token, to: NodeId, now: Instant, out: list[Effect]) -> None:
        """Offer the token while it is still in use here: only `commit` gives it away."""
        self._offer(token, to, False, now, out)

    def commit(self, token: Token, now: Instant, out: list[Effect]) -> Passed | None:
        """Give away, as it is now, the token that was offered early: at once if accepted, else with the ACK."""
        outgoing = self._find(token)
        if outgoing is None or outgoing.released:
            raise InvariantBreach(f"node {self._me} commits {token} without an early offer under way: give it instead")
        outgoing.token = token
        outgoing.released = True
        if self._passing is Passing.DIRECT:
            del self._outgoing[outgoing.nonce]
            return self.give(token, outgoing.to, now, out)
        return self._send_commit(outgoing, now, out) if outgoing.stage is Stage.READY else None

    def withdraw(self, token: Token, out: list[Effect]) -> bool:
        """Take an offer back. False: there is none, or it is committed and cannot be taken back."""
        outgoing = self._find(token)
        if outgoing is None or outgoing.stage is Stage.COMMITTED:
            return False
        if self._passing is not Passing.DIRECT:
            out.append(Send(outgoing.to, Withdraw(outgoing.nonce)))
        self._close(outgoing, out)
        return True

    def renounce(self, out: list[Effect]) -> None:
        """Void every promise, and say so: this node leaves, or wants no token any more."""
        for (sender, nonce), promise in list(self._promises.items()):
            self._settle((sender, nonce), promise.reply, False)
            out.append(Send(sender, Void(nonce, promise.reply)))

    @property
    def offered(self) -> tuple[Token, ...]:
        """Tokens that are under way but still this node's: it has not committed them."""
        return tuple(o.token for o in self._outgoing.values() if o.stage is not Stage.COMMITTED)

    @property
    def idle(self) -> bool:
        """Nothing under way, in or out. A leaver waits for this, and then a little, since peers may still ask."""
        return not self._outgoing and not self._promises

    # --- what happens ------------------------------------------------------------------------------------------------

    def received(
        self, sender: NodeId, message: Message, now: Instant, out: list[Effect], accept: bool = True
    ) -> Outcome | None:
        """Any message. Those that are not about passing are not looked at. `accept`: the answer to a new offer.

        DIRECT cannot refuse: the sender has let go.
        """
        match message:
            case Offer():
                if self._passing is Passing.DIRECT:
                    return Taken(_hopped(message.token), sender)
                return self._on_offer(sender, message, now, out, accept)
            case Accept():
                return self._on_accept(sender, message, now, out)
            case Commit():
                return self._on_commit(sender, message, now, out)
            case Done():
                return self._on_done(sender, message, out)
            case Refuse():
                return self._on_refuse(sender, message, out)
            case Void():
                return self._on_void(sender, message, out)
            case Ask():
                self._on_ask(sender, message, out)
            case Withdraw():
                self._on_withdraw(sender, message)
        return None

    def fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> Outcome | None:
        """Any timer. Those that were not set here are not looked at."""
        outgoing = self._outgoing.get(timer[1]) if isinstance(timer, tuple) and timer[0] == TIMER else None
        if outgoing is None or outgoing.stage is Stage.READY:
            return None
        outgoing.tries += 1
        if outgoing.stage is Stage.OFFERED:
            if outgoing.tries > self._resends:
                del self._outgoing[outgoing.nonce]
                return self._failed(outgoing, out, "no answer")
            self._send_offer(outgoing, now, out)
        elif outgoing.tries <= self._resends:
            self._send_commit(outgoing, now, out)
        elif outgoing.tries <= 2 * self._resends + 1:
            out.append(Send(outgoing.to, Ask(outgoing.nonce, outgoing.reply)))
            self._set_timer(outgoing, now, out)
        else:
            del self._outgoing[outgoing.nonce]
            out.append(Note(FactKind.TOKEN_LOST, outgoing.token, outgoing.to, "committed, never confirmed"))
            return Gone(outgoing.token, outgoing.to)
        return None

    # --- the sender --------------------------------------------------------------------------------------------------

    def _offer(self, token: Token, to: NodeId, released: bool, now: Instant, out: list[Effect]) -> None:
        if to in (self._me, NOBODY):
            raise InvariantBreach(f"node {self._me} passes {token} to {to}: it must go to another node")
        under_way = self._find(token)
        if under_way is not None:
            raise InvariantBreach(
                f"node {self._me} passes {token} to {to} while it is {under_way.stage.name.lower()} to {under_way.to}"
            )
        outgoing = Outgoing(self._fresh_nonce(), token, to, released, now)
        self._outgoing[outgoing.nonce] = outgoing
        if self._passing is Passing.DIRECT:
            outgoing.stage = Stage.READY
        else:
            self._send_offer(outgoing, now, out)

    def _send_offer(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> None:
        out.append(Send(outgoing.to, Offer(outgoing.nonce, outgoing.token, not outgoing.released)))
        self._set_timer(outgoing, now, out)

    def _on_accept(self, sender: NodeId, accept: Accept, now: Instant, out: list[Effect]) -> Passed | None:
        outgoing = self._outgoing.get(accept.nonce)
        if outgoing is None or outgoing.to != sender or outgoing.stage is not Stage.OFFERED:
            self._drop(sender, "a late ACK", out)
            return None
        if self._passing is Passing.FOUR_WAY:
            self._learn(now - outgoing.since, outgoing.tries)
        outgoing.reply = accept.reply
        outgoing.tries = 0
        outgoing.stage = Stage.READY
        if outgoing.released and self._passing is Passing.FOUR_WAY:
            return self._send_commit(outgoing, now, out)  # its timer replaces the one of the offer
        out.append(CancelTimer((TIMER, outgoing.nonce)))
        return self._send_commit(outgoing, now, out) if outgoing.released else None

    def _send_commit(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> Passed | None:
        out.append(Send(outgoing.to, Commit(outgoing.nonce, outgoing.reply, outgoing.token)))
        if self._passing is Passing.THREE_WAY:
            del self._outgoing[outgoing.nonce]
            out.append(Note(FactKind.HANDED_OVER, outgoing.token, outgoing.to))
            return Passed(outgoing.token, outgoing.to)
        outgoing.stage = Stage.COMMITTED
        self._set_timer(outgoing, now, out)
        return None

    def _on_done(self, sender: NodeId, done: Done, out: list[Effect]) -> Passed | None:
        outgoing = self._outgoing.get(done.nonce)
        if (
            outgoing is None
            or outgoing.to != sender
            or outgoing.stage is not Stage.COMMITTED
            or outgoing.reply != done.reply
        ):
            self._drop(sender, "a late DONE", out)
            return None
        return self._pass(outgoing, out)

    def _on_refuse(self, sender: NodeId, refuse: Refuse, out: list[Effect]) -> Failed | None:
        outgoing = self._outgoing.get(refuse.nonce)
        # Once an ACK is here, a REFUSE is the answer to an earlier copy of the offer.
        if outgoing is None or outgoing.to != sender or outgoing.stage is not Stage.OFFERED:
            self._drop(sender, "a late REFUSE", out)
            return None
        self._close(outgoing, out)
        return self._failed(outgoing, out, "refused")

    def _on_void(self, sender: NodeId, void: Void, out: list[Effect]) -> Failed | None:
        outgoing = self._outgoing.get(void.nonce)
        if outgoing is None or outgoing.to != sender:
            self._drop(sender, "a late VOID", out)
            return None
        if outgoing.stage is not Stage.OFFERED and outgoing.reply != void.reply:
            self._drop(sender, "a VOID of another promise", out)
            return None
        self._close(outgoing, out)
        return self._failed(outgoing, out, "void")

    def _pass(self, outgoing: Outgoing, out: list[Effect]) -> Passed:
        self._close(outgoing, out)
        out.append(Note(FactKind.HANDED_OVER, outgoing.token, outgoing.to))
        return Passed(outgoing.token, outgoing.to)

    def _failed(self, outgoing: Outgoing, out: list[Effect], why: str) -> Failed:
        out.append(Note(FactKind.HANDOVER_FAILED, outgoing.token, outgoing.to, why))
        return Failed(outgoing.token, outgoing.to)

    def _close(self, outgoing: Outgoing, out: list[Effect]) -> None:
        del self._outgoing[outgoing.nonce]
        if outgoing.stage is not Stage.READY:
            out.append(CancelTimer((TIMER, outgoing.nonce)))

    def _find(self, token: Token) -> Outgoing | None:
        for outgoing in self._outgoing.values():
            if outgoing.token.key == token.key:
                return outgoing
        return None

    # --- the receiver ------------------------------------------------------------------------------------------------

    def _on_offer(self, sender: NodeId, offer: Offer, now: Instant, out: list[Effect], accept: bool) -> Passed | None:
        token = offer.token
        name = (sender, offer.nonce)
        passed = None
        outgoing = self._find(token)
        if outgoing is not None:
            if outgoing.stage is not Stage.COMMITTED or token.hop <= outgoing.token.hop:
                self._drop(sender, "an offer of a token that is under way from here", out)
                return None
            passed = self._pass(outgoing, out)  # it went on from where it was sent to: better than any DONE
        if name in self._settled or token.hop >= MAX_HOP:
            self._drop(sender, "a late or impossible offer", out)
            return passed
        promise = self._promises.get(name)
        if promise is None and not accept:
            out.append(Send(sender, Refuse(offer.nonce)))
            return passed
        reply = self._fresh_nonce() if promise is None else promise.reply
        timed = self._passing is Passing.THREE_WAY and not offer.early
        self._promises[name] = Promise(reply, token.key, now + self._patience if timed else None)
        if len(self._promises) > self.PROMISES:
            oldest = next(iter(self._promises))
            self._settle(oldest, self._promises[oldest].reply, False)
        out.append(Send(sender, Accept(offer.nonce, reply)))
        return passed

    def _on_commit(self, sender: NodeId, commit: Commit, now: Instant, out: list[Effect]) -> Taken | None:
        name = (sender, commit.nonce)
        promise = self._promises.get(name)
        if promise is None or promise.reply != commit.reply:
            self._answer(name, commit.reply, out)
            return None
        token = commit.token
        in_time = promise.until is None or now <= promise.until
        honest = token.key == promise.key and token.hop < MAX_HOP and self._find(token) is None
        self._settle(name, promise.reply, in_time and honest)
        self._answer(name, promise.reply, out)
        return Taken(_hopped(token), sender) if in_time and honest else None

    def _on_ask(self, sender: NodeId, ask: Ask, out: list[Effect]) -> None:
        name = (sender, ask.nonce)
        promise = self._promises.get(name)
        if promise is not None and promise.reply == ask.reply:
            self._settle(name, promise.reply, False)
        self._answer(name, ask.reply, out)

    def _on_withdraw(self, sender: NodeId, withdraw: Withdraw) -> None:
        name = (sender, withdraw.nonce)
        promise = self._promises.get(name)
        if promise is not None:
            self._settle(name, promise.reply, False)

    def _settle(self, name: tuple[NodeId, int], reply: int, taken: bool) -> None:
        del self._promises[name]
        self._settled[name] = Settled(reply, taken)
        if len(self._settled) > self.MEMORY:
            del self._settled[next(iter(self._settled))]

    def _answer(self, name: tuple[NodeId, int], reply: int, out: list[Effect]) -> None:
        """Say how a promise was settled, as often as it is asked; of what is not remembered say nothing (S3)."""
        sender, nonce = name
        settled = self._settled.get(name)
        if settled is None or settled.reply != reply:
            self._drop(sender, "about a promise that is not remembered", out)
        elif self._passing is Passing.FOUR_WAY:
            out.append(Send(sender, Done(nonce, reply) if settled.taken else Void(nonce, reply)))

    # --- both --------------------------------------------------------------------------------------------------------

    def _fresh_nonce(self) -> int:
        self._last_nonce += 1
        return self._last_nonce

    def _set_timer(self, outgoing: Outgoing, now: Instant, out: list[Effect]) -> None:
        wait = min(self._wait << outgoing.tries, self._ceiling)
        out.append(SetTimer((TIMER, outgoing.nonce), now + wait))

    def _learn(self, round_trip: Duration, tries: int) -> None:
        """Jacobson's estimate. After a resend nobody knows which copy was answered: then only the longer wait stays."""
        if tries:
            self._wait = min(self._wait << tries, self._ceiling)
            return
        if self._round_trip < 0:
            self._round_trip, self._deviation = round_trip, round_trip // 2
        else:
            self._deviation += (abs(round_trip - self._round_trip) - self._deviation) // 4
            self._round_trip += (round_trip - self._round_trip) // 8
        self._wait = min(max(self._round_trip + 4 * self._deviation, self._patience // 64), self._ceiling)

    def _drop(self, sender: NodeId, what: str, out: list[Effect]) -> None:
        out.append(Note(FactKind.STALE, None, sender, what))


def _hopped(token: Token) -> Token:
    return Token(*token[:_HOP], token.hop + 1, *token[_HOP + 1 :])  # half the price of `_replace`
