"""Requests of this node, and its one claim for all of them, until the keeper has it in its register.

    wanted --CLAIM--> keeper --ENTERED(patience)--> waits, and asks again when that is over
              '-----> who does not keep passes it on, or answers KEEPS(nobody): the next one is asked

A claim is a promise to take one token, once (`handover.stand`). Whoever promised a proposer to take none (`frozen`)
retires it: a commit that comes all the same is void, and goes back to its sender.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from softmutex.core.algorithms.keeper.desk import Desk
from softmutex.core.algorithms.keeper.messages import Claim, Entered
from softmutex.core.events import NOBODY, SECOND, Instant, NodeId, RequestId

STEPS: Final = 6
TRIES: Final = 2  # unanswered claims, before the keeper is passed over; it is suspected at the first one
IN_VAIN: Final = 3  # ... or a keeper is looked for by asking everybody
LOSSY: Final = 60 * SECOND  # since a claim had to be repeated: what the keeper says may be lost as well, so
WHERE_LOSSY: Final = 5 * SECOND  # it is asked again after so long at the most
PROMISE: Final = 3 * SECOND  # how long a token is refused to please a proposer


class Waiter:
    __slots__ = (
        "_asked_at",
        "_desk",
        "_frozen_until",
        "_hint",
        "_look_for_keeper",
        "_lossy_at",
        "_serial",
        "_served_at",
        "_tries",
        "claim",
        "waiting",
    )

    def __init__(self, desk: Desk, look_for_keeper: Callable[[], None]) -> None:
        self._desk = desk
        self._look_for_keeper = look_for_keeper
        self.waiting: dict[RequestId, Instant] = {}
        self.claim = 0  # what this node stands for; 0: nothing
        self._serial = 0
        self._served_at: Instant = 0  # others come first after that
        self._tries = 0
        self._asked_at: Instant = 0
        self._hint: NodeId = NOBODY
        self._frozen_until: Instant = 0
        self._lossy_at: Instant = -LOSSY

    def started(self, hint: NodeId) -> None:
        self._hint = hint

    @property
    def claimed(self) -> RequestId:
        """The last one; the keeper may have it still."""
        return self._serial

    def next(self) -> RequestId:
        request = next(iter(self.waiting))
        del self.waiting[request]
        self._served_at = self._desk.now
        return request

    def settle(self) -> None:
        """At the end of each event: nothing waits, so nothing is claimed."""
        if self.claim and not self.waiting:
            if self._asked_at and self._desk.now - self._asked_at >= self._desk.patience.wait():  # silence goes on
                self._desk.suspect(self._desk.keeper)
            if self._desk.keeper == NOBODY:
                self._look_for_keeper()
            self.claim = 0
            self._desk.cancel("claim")

    # --- claims ------------------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        return self._desk.now < self._frozen_until

    def freeze(self) -> None:
        self._frozen_until = self._desk.now + PROMISE
        self.claim = 0
        self._desk.timer("claim", self._frozen_until + 1)

    def thaw(self) -> None:
        if self._frozen_until:
            self._frozen_until = 0
            if self.waiting and not self.claim:
                self._desk.timer("claim", self._desk.now)

    def want(self, anew: bool = True) -> None:
        """Claim, or claim again. `anew`: what was claimed before is no longer stood for."""
        desk = self._desk
        if not self.waiting or self.frozen or desk.leaving:
            return
        if anew or not self.claim:
            self._serial += 1
            self.claim = self._serial
            self._tries = 0 if desk.keeper_counts else self._tries
        if self._tries <= 0:
            self._asked_at = desk.now
        waited = max(0, desk.now - max(self._served_at, next(iter(self.waiting.values()))))
        late = max(0, self._served_at + desk.least - desk.now) if self._served_at else 0
        desk.post(self._whom_to_ask(), Claim(desk.me, self.claim, desk.term, waited, late, STEPS))
        desk.timer("claim", desk.now + desk.jitter(desk.patience.wait(max(0, self._tries))))

    def _whom_to_ask(self) -> NodeId:
        desk = self._desk
        if desk.keeper_counts or (desk.keeper != NOBODY and self._tries < TRIES):
            return desk.keeper
        first = [node for node in dict.fromkeys((self._hint, *desk.homes())) if node in desk.members]
        if 0 <= self._tries < len(first):
            return first[self._tries]
        others = len(desk.members)
        return desk.members[int(desk.rng.random() * others)] if others > 1 else NOBODY

    def fired(self) -> None:
        """Nobody answered; or it is time to ask again."""
        desk = self._desk
        if not self.waiting or self.frozen:
            return
        if not self.claim:
            self.want()
            return
        self._tries += 1
        if self._tries > 0:
            desk.suspect(desk.keeper)
        if self._tries >= (2 * IN_VAIN if desk.keeper_counts else TRIES if desk.keeper else IN_VAIN):
            self._look_for_keeper()
        self.want(anew=False)

    def entered(self, message: Entered) -> None:
        if message.request == self.claim and self.waiting:
            if 0 < self._asked_at < self._desk.now:
                self._desk.patience.learn(self._desk.now - self._asked_at, max(0, self._tries))
                self._asked_at = 0
            if self._tries > 0:
                self._lossy_at = self._desk.now
            is_lossy = self._desk.now - self._lossy_at < LOSSY
            self._tries = -1  # the next time that it asks is the first
            patience = min(message.patience, WHERE_LOSSY) if is_lossy else message.patience
            self._desk.timer("claim", self._desk.now + self._desk.jitter(patience))

    def nobody_known(self) -> None:
        """Who was asked knows no keeper."""
        desk = self._desk
        if not desk.keeper_counts and self.claim and self.waiting:
            self._tries = max(0, self._tries) + 1
            if self._tries >= IN_VAIN:
                self._look_for_keeper()
            else:
                self.want(anew=False)
