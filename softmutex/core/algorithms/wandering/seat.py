"""One token that is here, and what this node notes of it: who uses it, who is invited, and what its watchers heard.

Notes only: `seats.py` decides who may use it, `invitations.py` who is asked early, `watch.py` when it speaks.
"""

from __future__ import annotations

from softmutex.core.algorithms.wandering.ledger import Visit
from softmutex.core.algorithms.wandering.settings import BEAT
from softmutex.core.events import NOBODY, Duration, Instant, RequestId, Ticket, Token


class Seat:
    """One token that is here."""

    __slots__ = (
        "arrived",
        "asked_pace",
        "came_at",
        "doubt",
        "doubted_at",
        "given_for",
        "giving",
        "granted_at",
        "heard_at",
        "invite_set",
        "invited",
        "late",
        "late_more",
        "pace",
        "parked",
        "plain",
        "quiet_until",
        "retry",
        "row",
        "sent_at",
        "silent",
        "token",
        "told",
        "tries",
        "unanswered",
        "unheard",
        "used",
        "using",
        "visit",
        "watcher",
    )

    def __init__(self, token: Token, visit: Visit, now: Instant) -> None:
        self.token = token
        self.visit = visit
        self.using: RequestId | None = None
        self.told = False  # the hold was told that it may not be alone
        self.used = token.hop if token.hop == 0 else -1  # the hop of the last grant; hop 0 is never granted
        self.row = 0  # grants in a row
        self.arrived = now  # its row began
        self.came_at = now
        self.parked = False
        self.invited = NOBODY  # who has an offer
        self.invite_set = False  # the timer that looks whether the next holder still is there
        self.plain = NOBODY  # who did not stand for its ticket
        self.retry: Ticket | None = None  # for which the token was committed at once
        self.unanswered: list[Ticket] = []  # added here, and not told yet
        self.given_for: Ticket | None = None  # whose turn it is to be
        self.giving = False  # offered for good, perhaps committed
        self.late: tuple[Ticket, ...] = ()  # came while it was being given away
        self.late_more = False  # ... and others wait that are not among them
        self.doubt = False  # it may have been replaced
        self.heard_at: Instant = now - token.escort.unseen  # when its watchers heard of it last
        self.pace: Duration = BEAT  # of the beats; the lease that the last answered one gave is a SLACK longer
        self.asked_pace: Duration = BEAT  # of the beat that is not answered yet
        self.sent_at: Instant = 0  # the beat that is not answered yet; 0: none
        self.tries = 0
        self.quiet_until: Instant = 0  # the watchers know that it is parked here, and expect no word before
        self.watcher = NOBODY  # to whom it was sent
        self.granted_at: Instant = 0  # of the last hold
        self.doubted_at: Instant = 0
        self.unheard = False  # its watchers believe that it is parked, and it is in use
        self.silent = 0  # watchers that did not answer, one after another
