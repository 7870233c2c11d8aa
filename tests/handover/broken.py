"""Versions of the hand-over that are broken on purpose. The explorer must catch each of them.

Each breaks one rule that the module states, the way a hurried programmer might. Beside it stand the bounds within which
it is caught; the true version passes the same search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from softmutex.core.at_once import STANDING, AtOnce
from softmutex.core.attempts import Settled, Stage
from softmutex.core.events import CancelTimer, Effect, Instant, NodeId, Send, SetTimer, TimerName, Token
from softmutex.core.handover import Failed, Gone, Handover, Outcome, Passed, Passing, Taken
from softmutex.core.messages import Ask, Commit, Message, Offer, Refuse, Void
from tests.handover.explorer import Bounds


class UsesTheTokenOnTheOffer(Handover):
    def received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect], accept: bool = True) -> Any:
        outcome = super().received(sender, message, now, out, accept)
        return Taken(hopped(message.token), sender) if isinstance(message, Offer) else outcome


class KeepsThePromiseAfterVoid(Handover):
    def on_ask(self, sender: NodeId, ask: Ask, out: list[Effect]) -> None:
        promise = self.promises.get((sender, ask.nonce))
        if promise is not None and promise.reply == ask.reply:
            out.append(Send(sender, Void(ask.nonce, ask.reply)))
        else:
            super().on_ask(sender, ask, out)


class TakesACommitAfterVoid(Handover):
    def on_commit(self, sender: NodeId, commit: Commit, now: Instant, out: list[Effect]) -> Taken | None:
        name = (sender, commit.nonce)
        if self.settled.get(name) == Settled(commit.reply, False):
            self.settled[name] = Settled(commit.reply, True)
            return Taken(hopped(commit.token), sender)
        return super().on_commit(sender, commit, now, out)


class TakesEveryCopyOfACommit(Handover):
    def on_commit(self, sender: NodeId, commit: Commit, now: Instant, out: list[Effect]) -> Taken | None:
        if self.settled.get((sender, commit.nonce)) == Settled(commit.reply, True):
            return Taken(hopped(commit.token), sender)
        return super().on_commit(sender, commit, now, out)


class TakesACommitWithAnyReply(Handover):
    def on_commit(self, sender: NodeId, commit: Commit, now: Instant, out: list[Effect]) -> Taken | None:
        promise = self.promises.get((sender, commit.nonce))
        return super().on_commit(sender, commit._replace(reply=promise.reply) if promise else commit, now, out)


class AnswersVoidToWhatItForgot(Handover):
    def answer(self, name: tuple[NodeId, int], question: Commit | Ask, out: list[Effect]) -> None:
        if name in self.settled:
            super().answer(name, question, out)
        else:
            out.append(Send(name[0], Void(question.nonce, question.reply)))


class ResumesInsteadOfAsking(Handover):
    def fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> Outcome | None:
        outcome = super().fired(timer, now, out)
        for effect in out:
            if isinstance(effect, Send) and isinstance(effect.message, Ask):
                outgoing = self.outgoing.pop(effect.message.nonce)
                out.append(CancelTimer(timer))
                return Failed(outgoing.token, outgoing.to)
        return outcome


class ResumesWhenNobodyAnswers(Handover):
    def fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> Outcome | None:
        outcome = super().fired(timer, now, out)
        return Failed(*outcome) if isinstance(outcome, Gone) else outcome


class ResumesOnALateRefusal(Handover):
    def on_answer(self, sender: NodeId, answer: Any, now: Instant, out: list[Effect]) -> Passed | Failed | None:
        outgoing = self.outgoing.get(answer.nonce)
        if outgoing is not None and isinstance(answer, Refuse):
            answer = Void(answer.nonce, outgoing.reply)
        return super().on_answer(sender, answer, now, out)


class BelievesAVoidOfAnotherAttempt(Handover):
    def on_answer(self, sender: NodeId, answer: Any, now: Instant, out: list[Effect]) -> Passed | Failed | None:
        for outgoing in self.outgoing.values():
            if isinstance(answer, Void) and outgoing.to == sender:
                answer = Void(outgoing.nonce, outgoing.reply)
        return super().on_answer(sender, answer, now, out)


class WithdrawsWhatIsCommitted(Handover):
    def withdraw(self, token: Token, out: list[Effect]) -> bool:
        outgoing = self.find(token)
        if outgoing is not None and outgoing.stage is Stage.COMMITTED:
            self.close(outgoing, out)
            return True
        return super().withdraw(token, out)


class CommitsWithoutARelease(Handover):
    def on_answer(self, sender: NodeId, answer: Any, now: Instant, out: list[Effect]) -> Passed | Failed | None:
        outgoing = self.outgoing.get(answer.nonce)
        if outgoing is not None:
            outgoing.released = True
        return super().on_answer(sender, answer, now, out)


class BreaksAtOnce(Handover):
    """Its part for what is committed at once is a broken one."""

    Part: ClassVar[type[AtOnce]]

    def __init__(self, me: NodeId, *rest: Any, **named: Any) -> None:
        super().__init__(me, *rest, **named)
        self.at_once = self.Part(me, self.MEMORY)


class StandsAgainForTheSameRequest(BreaksAtOnce):
    class Part(AtOnce):
        def retire(self, request: int, taken: int) -> None:
            super().retire(request, taken)
            del self.retired[request]
            self.retired_to = 0


class VoidsWithoutGivingUpItsPlace(BreaksAtOnce):
    class Part(AtOnce):
        def answer(self, name: tuple[NodeId, int], question: Any, out: list[Effect]) -> None:
            if question.reply - STANDING == self.standing:
                out.append(Send(name[0], Void(question.nonce, question.reply)))
            else:
                super().answer(name, question, out)


class SaysVoidOfWhatItForgotToStandFor(BreaksAtOnce):
    class Part(AtOnce):
        def answer(self, name: tuple[NodeId, int], question: Any, out: list[Effect]) -> None:
            if question.reply - STANDING in (self.standing, *self.retired):
                super().answer(name, question, out)
            else:
                out.append(Send(name[0], Void(question.nonce, question.reply)))


class ForgetsASenderWithoutATrace(BreaksAtOnce):
    class Part(AtOnce):
        def remember(self, name: tuple[NodeId, int], request: int) -> None:
            super().remember(name, request)
            self.unsure_to = 0


class IsSilentAboutWhatItForgot(BreaksAtOnce):
    class Part(AtOnce):
        def may_be_taken(self, name: tuple[NodeId, int], request: int) -> bool:
            return True


class RepeatsItsNonces(Handover):
    def fresh_nonce(self) -> int:
        return self.last_nonce


class TakesAnyOfferForAProof(Handover):
    def proven(self, token: Token, out: list[Effect]) -> Passed | None:
        return super().proven(token._replace(hop=10**6), out)


class ListensToImpostors(Handover):
    """Goes by the numbers alone, whoever says them."""

    def received(self, sender: NodeId, message: Message, now: Instant, out: list[Effect], accept: bool = True) -> Any:
        nonce = getattr(message, "nonce", 0)
        if nonce in self.outgoing:
            sender = self.outgoing[nonce].to
        for promised_to, promised in self.promises:
            if promised == nonce:
                sender = promised_to
        return super().received(sender, message, now, out, accept)


class IsSilentWhenAsked(Handover):
    def on_ask(self, sender: NodeId, ask: Ask, out: list[Effect]) -> None:
        pass


class WaitsForeverForDone(Handover):
    def fired(self, timer: TimerName, now: Instant, out: list[Effect]) -> Outcome | None:
        outgoing = self.outgoing.get(timer[1]) if isinstance(timer, tuple) else None
        return None if outgoing and outgoing.stage is Stage.COMMITTED else super().fired(timer, now, out)


class ForgetsToWaitForTheAck(Handover):
    def send_offer(self, outgoing: Any, now: Instant, out: list[Effect]) -> None:
        super().send_offer(outgoing, now, out)
        out[:] = [effect for effect in out if not isinstance(effect, SetTimer)]


def settle_behind_its_back(handover: Handover, sender: NodeId, nonce: int, reply: int) -> None:
    handover.settled[sender, nonce] = Settled(reply, True)


def hopped(token: Token) -> Token:
    return token._replace(hop=token.hop + 1)


class Breakage(NamedTuple):
    variant: type[Handover]
    symptom: str
    passing: Passing
    bounds: Bounds


TWICE = "is taken twice|takes the token and has it already|may both use"
SAFETY = Bounds(attempts=2, finish=False)
FORGETFUL = Bounds(attempts=3, memory=1, promises=1, finish=False)
PIPELINED = Bounds(attempts=2, early=True, finish=False)
AT_ONCE = Bounds(attempts=3, asks=1, stands=2, offers=False, finish=False)
SENDERS = Bounds(nodes=3, attempts=3, resends=0, asks=0, memory=1, stands=2, offers=False, finish=False)
SLEEPERS = Bounds(attempts=2, resends=0, asks=1, memory=1, stands=3, offers=False)
LIVENESS = Bounds(attempts=2)
IMPOSTORS = Bounds(nodes=3, attempts=2, resends=0, impostors=True)

BREAKAGES = [
    Breakage(UsesTheTokenOnTheOffer, TWICE, Passing.THREE_WAY, SAFETY),
    Breakage(UsesTheTokenOnTheOffer, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(KeepsThePromiseAfterVoid, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(TakesACommitAfterVoid, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(TakesEveryCopyOfACommit, TWICE, Passing.THREE_WAY, SAFETY),
    Breakage(TakesEveryCopyOfACommit, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(TakesACommitWithAnyReply, TWICE, Passing.FOUR_WAY, FORGETFUL),
    Breakage(AnswersVoidToWhatItForgot, TWICE, Passing.FOUR_WAY, FORGETFUL),
    Breakage(ResumesInsteadOfAsking, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(ResumesWhenNobodyAnswers, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(ResumesOnALateRefusal, TWICE, Passing.FOUR_WAY, replace(SAFETY, refusals=True)),
    Breakage(BelievesAVoidOfAnotherAttempt, TWICE, Passing.FOUR_WAY, SAFETY),
    Breakage(WithdrawsWhatIsCommitted, TWICE, Passing.FOUR_WAY, PIPELINED),
    Breakage(CommitsWithoutARelease, TWICE, Passing.THREE_WAY, PIPELINED),
    Breakage(CommitsWithoutARelease, "without an early offer", Passing.FOUR_WAY, PIPELINED),
    Breakage(StandsAgainForTheSameRequest, TWICE, Passing.FOUR_WAY, AT_ONCE),
    Breakage(VoidsWithoutGivingUpItsPlace, TWICE, Passing.FOUR_WAY, AT_ONCE),
    Breakage(SaysVoidOfWhatItForgotToStandFor, TWICE, Passing.FOUR_WAY, replace(AT_ONCE, memory=1)),
    Breakage(ForgetsASenderWithoutATrace, TWICE, Passing.FOUR_WAY, SENDERS),
    Breakage(IsSilentAboutWhatItForgot, "gives up although it is answered", Passing.FOUR_WAY, SLEEPERS),
    Breakage(RepeatsItsNonces, TWICE, Passing.FOUR_WAY, replace(FORGETFUL, nodes=3, resends=0)),
    Breakage(TakesAnyOfferForAProof, "it ends like this: lost", Passing.FOUR_WAY, LIVENESS),
    Breakage(ListensToImpostors, "gives up although it is answered", Passing.FOUR_WAY, IMPOSTORS),
    Breakage(IsSilentWhenAsked, "gives up although it is answered", Passing.FOUR_WAY, LIVENESS),
    Breakage(WaitsForeverForDone, "it ends like this: stuck", Passing.FOUR_WAY, LIVENESS),
    Breakage(ForgetsToWaitForTheAck, "it ends like this: stuck", Passing.FOUR_WAY, LIVENESS),
]
