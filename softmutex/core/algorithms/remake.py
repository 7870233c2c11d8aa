"""A token is made anew, and never beside another: what seed 003 leaves to the two neighbours of a dead holder.

What it decides: whether the token is lost. The naive way, a time limit, makes a second token whenever A takes long. The
paper's: who misses the token asks x^-1 and x^+1, the neighbours of the dead x, whether it was there. That is enough
where a token only goes round; a lent one may be anywhere, and be on its way while one asks. So it is asked in stages,
each of which ends the inquiry as soon as somebody has the token or has seen it go on:

    NEIGHBOUR   whoever gave the token to x, when x dies, asks x's other neighbour: did it go on to you?
    ALL         everybody: have you got it?         (here begins who waits, gets no answer, and knows of no death)
    BARRED      everybody: take no token below this label any more!    all are CLEAR --> a token of that label is made

A label is (epoch, id) of a token; the higher is the newer one. An inquiry proposes one. Whoever has the token says HERE
and is not barred; so it may find its token refused later: DENIED. Then it holds on to it and inquires itself, and all
who are CLEAR of the token that is known to be HERE let it have the new label. Of two inquiries the higher label wins,
or, where nothing is barred yet, the lower node.

Invariants
    S1  A token is made, or given a new label, only when every other member that counts was clear of this very label.
    S2  Whoever was clear of a label takes no token below it, ever: of commits that are too late it says VOID.
    L1  Where everybody answers, an inquiry ends after at most one round for each stage.
    A4  One inquiry at a time; what is kept of it is one entry a member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from softmutex.core.chance import Rng, drawn
from softmutex.core.events import (
    NOBODY,
    SECOND,
    U64,
    CancelTimer,
    Count,
    Effect,
    Instant,
    NodeId,
    Send,
    SetTimer,
    Suspect,
    Token,
)
from softmutex.core.messages import Message
from softmutex.core.patience import Patience

INQUIRY: Final = "inquiry"
TRIES: Final = 3  # unanswered, until somebody is suspected
DEFERRED: Final = 4  # rounds that another one's inquiry may take: it was a late copy, perhaps, of one that is over
MOST_EPOCHS: Final = 2**62  # a label from there on is no honest one


class Label(NamedTuple):
    epoch: Count
    id: U64


class Sighting(NamedTuple):
    """Where in its life a token was seen: on its way round, the higher the later."""

    epoch: Count
    hop: Count


NO_LABEL: Final = Label(0, 0)
NEVER_SEEN: Final = Sighting(0, 0)


class Phase(IntEnum):
    NONE = 0
    NEIGHBOUR = 1
    ALL = 2
    BARRED = 3


class Inquire(NamedTuple):
    """Have you got the token? BARRED: if not, take none below `label` from now on. `mine`: of the one that I have."""

    label: Label
    phase: Phase
    mine: Label


class Here(NamedTuple):
    """I have it, since `seen`; or I had it then, and do not know yet that it has arrived where I sent it."""

    label: Label  # of the inquiry
    mine: Label
    seen: Sighting


class Clear(NamedTuple):
    """I have not. `seen`: when I had it last."""

    label: Label
    seen: Sighting
    bar: Label


class Denied(NamedTuple):
    """Nothing below this label is taken here."""

    bar: Label


class Agreed(NamedTuple):
    """A token of this label may be made, or the one that is here may have it."""

    label: Label


class Found(NamedTuple):
    """It is there."""

    holder: NodeId


class Outdated(NamedTuple):
    """The token that is here has a rival of a higher label: it is to be discarded."""


class Barred(NamedTuple):
    """Another node may make a token: what is known of the old one's way says nothing any more."""

    maker: NodeId


Turnout: TypeAlias = Agreed | Found | Outdated | Barred


def label_of(token: Token | None) -> Label:
    return NO_LABEL if token is None else Label(token.epoch, token.id)


class Remake:
    """The inquiries of one node, and its answers to others'."""

    FIRST: ClassVar[int] = SECOND // 2

    def __init__(self, me: NodeId, rng: Rng, others: Callable[[], Sequence[NodeId]]) -> None:
        self.bar = NO_LABEL  # tokens below it are not taken
        self.stage = Phase.NONE
        self._me = me
        self._rng = rng
        self._others = others
        self._patience = Patience(self.FIRST)
        self._label = NO_LABEL
        self._epoch = 0  # the highest that was heard of
        self._above = NEVER_SEEN  # NEIGHBOUR: who saw it later proves that it went on
        self._leader: NodeId = NOBODY  # who asks, where this node asked before
        self._missing: dict[NodeId, None] = {}
        self._tries = 0
        self._asked_at: Instant = 0

    def fresh(self, now: Instant) -> Label:
        """Above all that was heard of, and, by counting seconds, above what everybody has forgotten; nobody else's."""
        self._epoch = max(max(self._epoch, self.bar.epoch) + 1, now // SECOND)
        return Label(self._epoch, (drawn(self._rng) ^ self._me) % 2**53)

    def saw(self, token: Token) -> None:
        self.bar = max(self.bar, label_of(token))
        self._leader = NOBODY

    # --- asking ------------------------------------------------------------------------------------------------------

    def begin(
        self,
        stage: Phase,
        mine: Label,
        now: Instant,
        out: list[Effect],
        asked: NodeId = NOBODY,
        above: Sighting = NEVER_SEEN,
    ) -> Agreed | None:
        """Ask `asked`, or everybody; or find at once that nobody is there to be asked."""
        self.stage, self._above, self._leader = stage, above, NOBODY
        self._label = self.fresh(now)
        if stage is Phase.BARRED:
            self.bar = self._label
        self._missing = {asked: None} if asked else dict.fromkeys(self._others())
        self._tries, self._asked_at = 0, now
        self._ask(list(self._missing), mine, now, out)
        return self._go_on(mine, now, out)

    def end(self, out: list[Effect]) -> None:
        if self.stage:
            self.stage = Phase.NONE
            out.append(CancelTimer(INQUIRY))

    def fired(self, mine: Label, now: Instant, out: list[Effect]) -> Agreed | None:
        if not self.stage:
            is_open = self._leader != NOBODY and mine == NO_LABEL
            return self.begin(Phase.ALL, mine, now, out) if is_open else None
        self._tries += 1
        if self._tries >= TRIES:
            out.extend(Suspect(node) for node in self._missing)
        self._ask(list(self._missing), mine, now, out)
        return None

    def changed(
        self, joined: Sequence[NodeId], left: Sequence[NodeId], mine: Label, now: Instant, out: list[Effect]
    ) -> Agreed | None:
        if not self.stage:
            return self.begin(Phase.ALL, mine, now, out) if self._leader in left and mine == NO_LABEL else None
        if self.stage is not Phase.NEIGHBOUR:
            new = [node for node in joined if node != self._me and node not in self._missing]
            self._missing.update(dict.fromkeys(new))
            self._ask(new, mine, now, out)
        for node in left:
            self._missing.pop(node, None)
        return self._go_on(mine, now, out)

    def _ask(self, nodes: Sequence[NodeId], mine: Label, now: Instant, out: list[Effect]) -> None:
        out.extend(Send(node, Inquire(self._label, self.stage, mine)) for node in nodes)
        out.append(SetTimer(INQUIRY, now + self._patience.wait(self._tries)))

    def _go_on(self, mine: Label, now: Instant, out: list[Effect]) -> Agreed | None:
        if self._missing:
            return None
        if self.stage is not Phase.BARRED:
            return self.begin(Phase(self.stage + 1), mine, now, out)
        self.end(out)
        return Agreed(self._label)

    # --- messages ----------------------------------------------------------------------------------------------------

    def received(
        self, sender: NodeId, message: Message, mine: Label, seen: Sighting, now: Instant, out: list[Effect]
    ) -> Turnout | None:
        """`mine`: of the token that is here or is being given away, whichever; `seen`: when it was last."""
        match message:
            case Inquire():
                return self._asked_by(sender, message, mine, seen, now, out)
            case Denied(bar) if bar.epoch < MOST_EPOCHS:
                return self._denied(bar, mine, now, out)
            case Here(label, theirs, since) if self.stage and label == self._label:
                if theirs < mine or since < seen:
                    return None  # it will find out that its own is outdated, or has arrived
                self.end(out)
                return Outdated() if mine > NO_LABEL else Found(sender)
            case Clear(label, theirs, bar) if self.stage and label == self._label and sender in self._missing:
                self._patience.learn(now - self._asked_at, self._tries)
                self._epoch = max(self._epoch, bar.epoch if bar.epoch < MOST_EPOCHS else 0)
                if self.stage is Phase.NEIGHBOUR and theirs > self._above:
                    self.end(out)
                    return None
                del self._missing[sender]
                return self._go_on(mine, now, out)
            case _:
                return None

    def _asked_by(
        self, sender: NodeId, inquire: Inquire, mine: Label, seen: Sighting, now: Instant, out: list[Effect]
    ) -> Barred | Outdated | None:
        label, phase, theirs = inquire
        if label.epoch >= MOST_EPOCHS:
            return None
        if mine > NO_LABEL:
            out.append(Send(sender, Here(label, mine, seen)))
            return Outdated() if theirs > mine else None
        bars = phase is Phase.BARRED
        if bars and label < self.bar:
            out.append(Send(sender, Denied(self.bar)))
            return None
        gives_way = bars or (phase is Phase.ALL and self.stage < Phase.BARRED and sender < self._me)
        if self.stage and gives_way:
            self._leader = sender
            self.end(out)
            out.append(SetTimer(INQUIRY, now + DEFERRED * self._patience.wait()))
        out.append(Send(sender, Clear(label, seen, self.bar)))
        if not bars or label == self.bar:
            return None
        self.bar = label
        return Barred(sender)

    def _denied(self, bar: Label, mine: Label, now: Instant, out: list[Effect]) -> Agreed | None:
        self._epoch = max(self._epoch, bar.epoch)
        if mine > NO_LABEL and bar > max(mine, self._label if self.stage else NO_LABEL):
            self.bar = max(self.bar, bar)
            return self.begin(Phase.BARRED, mine, now, out)
        if self.stage is Phase.BARRED and bar > self._label:
            self.end(out)  # another inquiry is ahead of this one; if it comes to nothing, whoever waits begins again
        return None
