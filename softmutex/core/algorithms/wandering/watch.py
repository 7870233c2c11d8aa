"""The holder's side of the watch: it lets two others know that the token is well, and notices when they do not hear.

    holder --SEEN(place, lease, queue)--> watcher --HEARD(tickets)--> holder        once a BEAT while in use
                                          the first watcher tells the second       each other time, and of parking
    parked --SEEN(lease 0)------------->  watcher                                   when it parks, then each 30 s

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

from softmutex.core.algorithms.wandering.desk import Desk, place_of
from softmutex.core.algorithms.wandering.messages import Heard, Seen
from softmutex.core.algorithms.wandering.settings import (
    BEAT,
    LAZY,
    PACE_MOST,
    PACE_OF_AGE,
    PARKED_BEAT,
    PROBES,
    SLACK,
    SLACK_MOST,
)
from softmutex.core.events import NOBODY, Duration, NodeId, escorted

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering
    from softmutex.core.algorithms.wandering.seat import Seat

BEAT_EARLY: Final = 3 * BEAT // 4  # a holder that begins then speaks at once
TRIES: Final = 3  # unanswered beats until a watcher is replaced
BEAT_ASTRAY: Final = BEAT // 4  # where the first home does not watch over it


class Watch:
    __slots__ = ("machine",)

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    @property
    def slack(self) -> Duration:
        return max(SLACK, min(4 * self.desk.rto, SLACK_MOST))

    @property
    def lease(self) -> Duration:
        """Of a token whose turn has just begun, or that is on its way."""
        return BEAT + self.slack

    def pace_of(self, seat: Seat) -> Duration:
        age = 0 if seat.using is None else self.desk.now - seat.granted_at
        return min(max(BEAT, age // PACE_OF_AGE), PACE_MOST)

    def appoint(self, seat: Seat) -> NodeId:
        """Let the token name its watchers, if it names none. Who is to hear of it now."""
        desk = self.desk
        if not seat.token.escort.watch:
            seat.token = escorted(seat.token, watch=desk.homes(desk.options.watchers))
        for node in seat.token.escort.watch:
            if node != desk.me:
                return node
        return next(iter(desk.homes(1, but=desk.me)), NOBODY)

    def knows_home(self, seat: Seat) -> bool:
        """False where others had to stand in for the first home, and it is no longer under suspicion here. A token
        that wanders among those who were on its side of a divided group would not meet the other one otherwise."""
        first = next(iter(self.desk.homes(1)), NOBODY)
        return not seat.token.escort.watch or first in (NOBODY, self.desk.me, *seat.token.escort.watch)

    # --- the seat's story --------------------------------------------------------------------------------------------

    def began(self, seat: Seat) -> None:
        """The token is here and about to be used."""
        if not self.desk.options.watch:
            return
        if self.desk.alone:
            seat.heard_at = self.desk.now
        seat.sent_at = 0
        seat.tries = 0
        early = BEAT_EARLY if self.knows_home(seat) else BEAT_ASTRAY
        if seat.heard_at + early <= self.desk.now:
            self.check(seat)
            if not seat.doubt:
                self.beat(seat)  # now rather than in the middle of a short hold, when the answer would come too late
        else:
            self.desk.timer(("beat", seat.token.slot), seat.heard_at + BEAT)

    def ended(self, seat: Seat) -> None:
        """It is being given away or discarded; the next holder speaks for it."""
        if self.desk.options.watch:
            self.desk.cancel(("beat", seat.token.slot))

    def parked(self, seat: Seat) -> None:
        """It stays here and costs (nearly) nothing; its watchers should know where."""
        seat.tries = 0
        seat.sent_at = 0
        if seat.unheard:
            self.desk.timer(("beat", seat.token.slot), max(self.desk.now, seat.heard_at + BEAT))  # its use is confirmed
        elif self.desk.now < seat.quiet_until:
            self.desk.timer(("beat", seat.token.slot), seat.quiet_until)  # they know, and it never went away
        elif seat.token.escort.watch and self.desk.now - seat.came_at < LAZY:
            self.desk.timer(("beat", seat.token.slot), self.desk.now + LAZY)  # it is on the move, and may go on at once
        else:
            self.beat(seat)

    def moved_homes(self) -> None:
        """The membership changed: the first homes may be others now."""
        homes = self.desk.homes(self.desk.options.watchers)
        for seat in self.machine.seats.by_slot.values():
            if seat.token.escort.watch and any(node not in seat.token.escort.watch for node in homes):
                seat.token = escorted(seat.token, watch=homes)
                if not seat.giving:
                    seat.tries = 0
                    seat.sent_at = 0
                    self.beat(seat)

    # --- beats -------------------------------------------------------------------------------------------------------

    def beat(self, seat: Seat) -> None:
        """Tell the watchers, and ourselves if we are the home that keeps the register."""
        desk = self.desk
        slot = seat.token.slot
        if not desk.options.watch and not desk.options.hints:
            return
        watcher = self.appoint(seat)
        place = place_of(seat.token, desk.me)
        pace = BEAT if seat.parked else self.pace_of(seat)
        lease = 0 if seat.parked else pace + self.slack
        if desk.me in seat.token.escort.watch:
            desk.post(desk.me, Seen(place, lease, seat.token.queue))
        if watcher == NOBODY:
            seat.heard_at, seat.pace, seat.unheard = desk.now, pace, False
            if not seat.parked:
                desk.timer(("beat", slot), desk.now + pace)
            return
        desk.post(watcher, Seen(place, lease, seat.token.queue, desk.now))
        seat.quiet_until = 0
        seat.watcher = watcher
        if seat.tries == 0 and not self.knows_home(seat):
            desk.post(desk.home, Seen(place, lease, seat.token.queue))
        if seat.tries == 0:
            seat.sent_at = desk.now
            seat.asked_pace = pace
        seat.tries += 1
        desk.timer(("beat", slot), desk.now + desk.rto)

    def fired(self, slot: int) -> None:
        seat = self.machine.seats.by_slot.get(slot)
        if seat is None or seat.giving:
            return
        desk = self.desk
        if seat.sent_at and seat.tries > 1:
            desk.suspicious(seat.watcher)
        if seat.sent_at and seat.tries >= TRIES:
            desk.suspect(seat.watcher)
            seat.token = escorted(seat.token, watch=())
            seat.tries = 0
            seat.silent += 1
            if seat.parked and seat.silent > PROBES:  # nobody answers; a parked token has nothing to fear
                seat.silent = 0
                seat.sent_at = 0
                desk.timer(("beat", slot), desk.now + PARKED_BEAT)
                return
        self.check(seat)
        if not seat.doubt:
            first_sent = seat.sent_at
            self.beat(seat)
            if first_sent:
                seat.sent_at = first_sent

    def overslept(self, seat: Seat) -> bool:
        """A parked token of which nobody heard when it was due: this node slept, or is cut off."""
        watched = self.desk.options.watch and not self.desk.alone
        pause = seat.pace if seat.unheard else PARKED_BEAT
        return watched and self.desk.now > seat.heard_at + pause + self.slack

    def check(self, seat: Seat) -> None:
        """Has this node been silent, or asleep, for so long that it may have been replaced?"""
        if seat.parked or seat.doubt or not self.desk.options.watch or self.desk.alone:
            return
        if self.desk.now - seat.heard_at > seat.pace + self.slack:
            self.machine.inquirer.doubt(seat)  # which tells A, if it does not learn otherwise soon

    def answered(self, seat: Seat, sender: NodeId) -> None:
        """The first home is well, and another stands in for it: back to the rule that everybody can compute."""
        watch = seat.token.escort.watch
        if watch and sender not in watch and sender == next(iter(self.desk.ring()), NOBODY):
            seat.token = escorted(seat.token, watch=self.desk.homes(self.desk.options.watchers))

    def heard(self, sender: NodeId, message: Heard) -> None:
        desk = self.desk
        seat = self.machine.seats.by_slot.get(message.slot)
        if seat is None or seat.token.epoch != message.epoch or seat.giving:
            if message.tickets:
                self.machine.registrar.forward(message.slot, message.tickets, message.more)
            return
        self.answered(seat, sender)
        if sender != desk.me and sender == seat.watcher and 0 < seat.sent_at <= message.sent <= desk.now:
            desk.measured(desk.now - message.sent)
            if message.sent >= seat.heard_at:
                seat.heard_at, seat.pace = message.sent, seat.asked_pace
            seat.unheard = False
            seat.sent_at = 0
            seat.tries = 0
            seat.silent = 0
            pause = PARKED_BEAT if seat.parked else seat.pace
            if seat.parked:
                seat.quiet_until = seat.heard_at + PARKED_BEAT
            desk.timer(("beat", seat.token.slot), max(desk.now, seat.heard_at + pause))
        if message.tickets or sender == next(iter(seat.token.escort.watch), sender):
            self.machine.seats.fed(seat, message.tickets, message.more)
