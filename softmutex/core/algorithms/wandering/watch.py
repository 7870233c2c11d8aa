"""The holder's side of the watch: it lets two others know that the token is well, and notices when they do not hear.

    holder --SEEN(place, lease, queue)--> watcher --HEARD(tickets)--> holder        once a BEAT while in use
                                          the first watcher tells the second       each other time, and of parking
    parked --SEEN(lease 0)------------->  watcher                                   when it parks, then each 7 s

The naive lease, renewed by each holder for itself, costs a renewal for each hand-over and cannot tell a token that is
passed on quickly from one that is lost. Here the token carries `unseen`, how long its watchers have not heard of it:
whoever has it when that reaches a BEAT speaks, so a beat costs two messages a BEAT, however often the token moves.

The watchers travel in the token (`watch`), the first two homes to begin with. A silent one is replaced on the spot.
Where others stand in for the first home, it is told too, and sooner: there the halves of a divided group meet again.

S1  The holder's lease (counted from when an answered beat was sent) ends before a watcher's (counted from when it
    arrived, and followed by probes): as far as clocks run alike, a holder knows first that it may be replaced.
L1  A token that is in use sends a beat, waits for an answer, or is doubted: one of the two timers below runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.context import Context, place_of
from softmutex.core.algorithms.wandering.messages import Heard, Seen
from softmutex.core.algorithms.wandering.settings import (
    BEAT,
    LAZY,
    PACE_MOST,
    PACE_OF_AGE,
    PARKED_BEAT,
    PROBES,
    SLACK,
)
from softmutex.core.events import NOBODY, SECOND, CallRoll, Duration, Instant, Level, NodeId

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.search import TokenSearches
    from softmutex.core.algorithms.wandering.tokens import HeldToken, TokensHere

BEAT_EARLY: Final = 3 * BEAT // 4  # a holder that begins then speaks at once
TRIES: Final = 3  # unanswered beats until a watcher is replaced
BEAT_ASTRAY: Final = BEAT // 4  # where the first home does not watch over it


ROLL_EVERY: Final = 5 * SECOND  # two messages, where all is well
ROLL_AGAIN: Final = 2 * SECOND
LONG_AGO: Final[Instant] = -86_400 * SECOND


def doubts_another(here: TokensHere, slot: int, since: Instant) -> bool:
    """A token of another slot is doubted since then: this node may be cut off."""
    return any(held.doubt and held.doubted_at > since for at, held in here.by_slot.items() if at != slot)


class Beats:
    """What the watchers of a token that is here have heard."""

    __slots__ = ("asked_pace", "heard_at", "pace", "quiet_until", "sent_at", "silent", "tries", "unheard", "watcher")

    def __init__(self, heard_at: Instant) -> None:
        self.heard_at = heard_at  # when they heard of it last
        self.pace: Duration = BEAT  # of the beats; the lease that the last answered one gave is a SLACK longer
        self.asked_pace: Duration = BEAT  # of the beat that is not answered yet
        self.sent_at: Instant = 0  # the beat that is not answered yet; 0: none
        self.tries = 0
        self.quiet_until: Instant = 0  # they know that it is parked here, and expect no word before
        self.watcher = NOBODY  # to whom it was sent
        self.unheard = False  # they believe that it is parked, and it is in use
        self.silent = 0  # watchers that did not answer, one after another

    def again(self) -> None:
        """Nothing is on its way that is to be answered."""
        self.sent_at = 0
        self.tries = 0


class Watch:
    __slots__ = ("context", "here", "search")

    def __init__(self, here: TokensHere, search: TokenSearches) -> None:
        self.context = here.context
        self.here = here
        self.search = search

    def pace_of(self, held: HeldToken) -> Duration:
        age = 0 if held.using is None else held.visit.age(self.context.now)
        return min(max(BEAT, age // PACE_OF_AGE), PACE_MOST)

    def appoint(self, held: HeldToken) -> NodeId:
        """Let the token name its watchers, if it names none. Who is to hear of it now."""
        context = self.context
        if not held.token.escort.watch:
            held.escort(watch=context.homes(context.options.watchers))
        for node in held.token.escort.watch:
            if node != context.me:
                return node
        return next(iter(context.homes(1, but=context.me)), NOBODY)

    def knows_home(self, held: HeldToken) -> bool:
        """False where others had to stand in for the first home, and it is no longer under suspicion here. A token
        that wanders among those who were on its side of a divided group would not meet the other one otherwise."""
        watch = held.token.escort.watch
        if not watch:
            return True
        first = self.context.home
        return first in watch or first == self.context.me

    # --- a token's story ---------------------------------------------------------------------------------------------

    def began(self, held: HeldToken) -> None:
        """The token is here and about to be used."""
        beats = held.beats
        if not self.context.options.watch:
            return
        if self.context.alone:
            beats.heard_at = self.context.now
        beats.again()
        early = BEAT_EARLY if self.knows_home(held) else BEAT_ASTRAY
        if beats.heard_at + early <= self.context.now:
            self.check(held)
            if not held.doubt:
                self.beat(held)  # now rather than in the middle of a short hold, when the answer would come too late
        else:
            self.context.timer(("beat", held.token.slot), beats.heard_at + BEAT)

    def unparked(self, held: HeldToken) -> None:
        """It is used again where it was parked: nobody expected to hear of it until now, and from now on they do."""
        beats = held.beats
        if not beats.unheard:
            beats.unheard = True
            beats.pace = BEAT
            beats.heard_at = self.context.now
        self.began(held)

    def wanted(self, held: HeldToken) -> None:
        """It is parked here no longer: somebody waits."""
        beats = held.beats
        beats.quiet_until = 0
        beats.heard_at = max(beats.heard_at, self.context.now - BEAT)  # not in use it was heard of less often
        self.began(held)

    def settled(self, held: HeldToken) -> None:
        """An inquiry found that it was not replaced."""
        beats = held.beats
        beats.heard_at = self.context.now
        self.began(held)

    def is_missed(self, held: HeldToken) -> None:
        """Somebody waits for it from now on, while its watchers believe that it is parked."""
        beats = held.beats
        if beats.unheard and not beats.sent_at and held.using is not None and not held.doubt:
            self.beat(held)

    def unseen(self, held: HeldToken, way: Duration) -> Duration:
        """How long its watchers will not have heard of it when it has gone this way: where ways are longer than turns
        it would be heard of too seldom, but nobody doubts it for a guess. A beat that was sent just now will have been
        heard; if not, their probes find the next holder."""
        beats = held.beats
        last = beats.sent_at if beats.tries == 1 else beats.heard_at
        unseen = max(0, self.context.now - last - (beats.pace - BEAT))
        return max(unseen, min(unseen + way, BEAT))

    def ended(self, held: HeldToken) -> None:
        """It is being given away or discarded; the next holder speaks for it."""
        if self.context.options.watch:
            self.context.cancel(("beat", held.token.slot))

    def parked(self, held: HeldToken) -> None:
        """It stays here and costs (nearly) nothing; its watchers should know where."""
        beats = held.beats
        beats.again()
        if beats.unheard:
            # Its use is confirmed.
            self.context.timer(("beat", held.token.slot), max(self.context.now, beats.heard_at + BEAT))
        elif self.context.now < beats.quiet_until:
            self.context.timer(("beat", held.token.slot), beats.quiet_until)  # they know, and it never went away
        elif held.token.escort.watch and self.context.now - held.came_at < LAZY:
            # It is on the move, and may go on at once.
            self.context.timer(("beat", held.token.slot), self.context.now + LAZY)
        else:
            self.beat(held)

    def moved_homes(self) -> None:
        """The membership changed: the first homes may be others now."""
        homes = self.context.homes(self.context.options.watchers)
        for held in self.here.by_slot.values():
            if held.token.escort.watch and any(node not in held.token.escort.watch for node in homes):
                held.escort(watch=homes)
                if not held.giving:
                    held.beats.again()
                    self.beat(held)

    # --- beats -------------------------------------------------------------------------------------------------------

    def beat(self, held: HeldToken) -> None:
        """Tell the watchers, and ourselves if we are the home that keeps the register."""
        context, beats = self.context, held.beats
        slot = held.token.slot
        if not context.options.watch and not context.options.hints:
            return
        watcher = self.appoint(held)
        place = place_of(held.token, context.me)
        pace = BEAT if held.parked else self.pace_of(held)
        lease = 0 if held.parked else pace + self.context.slack + 2 * self.context.way
        if context.me in held.token.escort.watch:
            context.post(context.me, Seen(place, lease, held.token.queue))
        if watcher == NOBODY:
            beats.heard_at, beats.pace, beats.unheard = context.now, pace, False
            if not held.parked:
                context.timer(("beat", slot), context.now + pace)
            return
        context.post(watcher, Seen(place, lease, held.token.queue, context.now))
        beats.quiet_until = 0
        beats.watcher = watcher
        if beats.tries == 0 and not self.knows_home(held):
            context.post(context.home, Seen(place, lease, held.token.queue))
        if beats.tries == 0:
            beats.sent_at = context.now
            beats.asked_pace = pace
        beats.tries += 1
        context.timer(("beat", slot), context.now + max(context.rto, 3 * context.way))

    def fired(self, slot: int) -> None:
        held = self.here.by_slot.get(slot)
        if held is None or held.giving:
            return
        context, beats = self.context, held.beats
        if beats.sent_at and beats.tries > 1:
            context.lost()
            context.suspicious(beats.watcher)
        if beats.sent_at and beats.tries >= TRIES:
            context.suspect(beats.watcher)
            held.escort(watch=())
            beats.tries = 0
            beats.silent += 1
            if held.parked and beats.silent > PROBES:  # nobody answers; a parked token has nothing to fear
                beats.silent = 0
                beats.sent_at = 0
                context.timer(("beat", slot), context.now + PARKED_BEAT)
                return
        self.check(held)
        if not held.doubt:
            first_sent = beats.sent_at
            self.beat(held)
            if first_sent:
                beats.sent_at = first_sent

    def overslept(self, held: HeldToken) -> bool:
        """A parked token of which nobody heard when it was due, or since another one here is doubted: this node slept,
        or is cut off. (Else a node with several would use one after the other, each for as long as its lease lasts.)"""
        beats = held.beats
        watched = self.context.options.watch and not self.context.alone
        pause = beats.pace if beats.unheard else PARKED_BEAT
        is_late = self.context.now > beats.heard_at + pause + self.context.slack
        return watched and (is_late or doubts_another(self.here, held.token.slot, beats.heard_at))

    def check(self, held: HeldToken) -> None:
        """Has this node been silent, or asleep, for so long that it may have been replaced?"""
        context, beats = self.context, held.beats
        silent_for = context.now - beats.heard_at - beats.pace
        if silent_for <= SLACK or held.parked or held.doubt or not context.options.watch or context.alone:
            return
        if silent_for > context.slack:
            self.search.doubt(held)  # which tells A, if it does not learn otherwise soon

    def answered(self, held: HeldToken, sender: NodeId) -> None:
        """The first home is well, and another stands in for it: back to the rule that everybody can compute."""
        watch = held.token.escort.watch
        if watch and sender not in watch and sender == self.context.first:
            held.escort(watch=self.context.homes(self.context.options.watchers))

    def heard(self, held: HeldToken, sender: NodeId, message: Heard) -> None:
        """Its answer: the lease counts from when the beat was sent."""
        context, beats = self.context, held.beats
        self.answered(held, sender)
        if sender != context.me and sender == beats.watcher and 0 < beats.sent_at <= message.sent <= context.now:
            context.measured(context.now - message.sent)
            if message.sent >= beats.heard_at:
                beats.heard_at, beats.pace = message.sent, beats.asked_pace
            beats.unheard = False
            beats.again()
            beats.silent = 0
            pause = PARKED_BEAT if held.parked else beats.pace
            if held.parked:
                beats.quiet_until = beats.heard_at + PARKED_BEAT
            context.timer(("beat", held.token.slot), max(context.now, beats.heard_at + pause))


class LendersRoll:
    """Who lends a lease to a token in use makes sure now and then that it is not itself cut off, with the smaller side.

        well --Reach: too few--> few --wide, again too few--> cut off: leases are taken back, own tokens are doubted
          ^---------- Reach: more than half, or half with the ring's first member ----------'

    To reach one random member says enough of a group where nobody is known to be silent, and costs two messages; where
    some are, it may just have been one of the few on our side, so all are called.
    """

    __slots__ = ("called_at", "context", "cut_off", "few")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.called_at: Instant = LONG_AGO
        self.few = False  # it has found too few
        self.cut_off = False  # ... twice

    def may_lend(self) -> bool:
        context = self.context
        if context.options.when_isolated == "proceed" or context.alone:
            return True
        if context.now - self.called_at >= (ROLL_AGAIN if self.cut_off else ROLL_EVERY):
            self._call(wide=self.cut_off or bool(context.silent))
        return not self.cut_off

    def silenced(self) -> None:
        """A member fell silent, perhaps one of many: who has a token, or watches over one, makes sure at once."""
        context = self.context
        if context.options.when_isolated != "proceed" and not context.alone:
            self._call(wide=True)

    def reaches(self, level: Level) -> bool:
        """A call has ended: is this node cut off? Who does not reach more than half of the group gives no lease, and
        takes back those that it gave; of two halves the one with the ring's first member goes on."""
        context = self.context
        first = context.first or context.me
        lately = context.now - context.heard.get(first, 0) < ROLL_EVERY and first not in context.silent
        half = first == context.me or lately
        few = level is Level.LESS or (level is Level.HALF and not half)
        if few and not self.few:
            self.few = True  # on a slow network it may only have been impatient
            self._call(wide=True)
            return False
        self.cut_off = self.few = few
        return few

    def _call(self, wide: bool) -> None:
        self.called_at = self.context.now
        self.context.out.append(CallRoll(wide=wide))
