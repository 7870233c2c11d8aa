"""What is noted of one search for one token. `inquirer.py` decides what follows from it."""

from __future__ import annotations

from softmutex.core.events import Instant, NodeId


class Inquiry:
    __slots__ = (
        "asked",
        "began",
        "between",
        "everybody",
        "heir",
        "news",
        "number",
        "pending",
        "refused",
        "sent_at",
        "slot",
        "tries",
        "unasked",
        "why",
        "wide",
    )

    def __init__(self, slot: int, why: str, number: int) -> None:
        self.slot = slot
        self.why = why
        self.number = number
        self.wide = False
        self.asked: dict[NodeId, int] = {}  # node -> probes sent without an answer; -1: it answered
        self.news = False  # the wide stage heard of a later sighting than the near one
        self.between = False  # somebody has one that is doubted, or should be
        self.refused = False  # somebody promised the ballot to another
        self.heir: NodeId = 0  # to whom somebody says it is passing the token
        self.began: Instant = 0  # this stage
        self.sent_at: Instant = 0
        self.tries = 0  # rounds of probes in this stage
        self.pending = 0  # asked in this round, and not answered
        self.everybody = False  # is asked, in this stage
        self.unasked: list[NodeId] = []  # who comes in a later batch
