"""Who lends a lease to a token in use makes sure now and then that it is not cut off, with the smaller side, itself.

    well --Reach: too few--> few --wide, again too few--> cut off: leases are taken back, own tokens are doubted
      ^---------- Reach: more than half, or half with the ring's first member ----------'

To reach one random member says enough of a group where nobody is known to be silent, and costs two messages; where some
are, it may just have been one of the few on our side, so all are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.messages import Presence, Sight
from softmutex.core.events import SECOND, CallRoll, Instant, Level

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering

EVERY: Final = 5 * SECOND  # two messages, where all is well
AGAIN: Final = 2 * SECOND
DAY: Final = 86_400 * SECOND


class Roll:
    __slots__ = ("called_at", "cut_off", "few", "machine")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.called_at: Instant = -DAY
        self.few = False  # it has found too few
        self.cut_off = False  # ... twice

    def may_lend(self) -> bool:
        desk = self.machine.desk
        if desk.options.when_isolated == "proceed" or desk.alone:
            return True
        if desk.now - self.called_at >= (AGAIN if self.cut_off else EVERY):
            self._call(wide=self.cut_off or bool(desk.silent))
        return not self.cut_off

    def silenced(self) -> None:
        """A member fell silent, perhaps one of many: who has a token, or watches over one, makes sure at once."""
        desk, machine = self.machine.desk, self.machine
        concerned = bool(machine.seats.by_slot) or any(post.heard_at for post in machine.registrar.posts.values())
        if concerned and desk.options.when_isolated != "proceed" and not desk.alone:
            self._call(wide=True)

    def reaches(self, level: Level) -> None:
        """A call has ended. Who does not reach more than half of the group gives no lease, and takes back those that it
        gave; of two halves the one with the ring's first member goes on."""
        desk = self.machine.desk
        first = next(desk.ring(), desk.me)
        half = first == desk.me or desk.now - desk.heard.get(first, 0) < EVERY
        few = level is Level.LESS or (level is Level.HALF and not half)
        if few and not self.few:
            self.few = True  # on a slow network it may only have been impatient
            self._call(wide=True)
            return
        self.cut_off = self.few = few
        if self.cut_off:
            for post in self.machine.registrar.posts.values():
                if post.heard_at and post.until:
                    place = post.place
                    desk.post(place.holder, Sight(0, place.slot, place, Presence.DOUBTED, False))
            for seat in list(self.machine.seats.by_slot.values()):
                if not seat.giving:
                    self.machine.inquirer.doubt(seat)

    def _call(self, wide: bool) -> None:
        self.called_at = self.machine.desk.now
        self.machine.desk.out.append(CallRoll(wide=wide))
