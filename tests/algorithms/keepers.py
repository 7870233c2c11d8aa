"""A keeper's desk alone, for tests of its parts: what is put on it, at which time, and nothing else happens."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, TypeVar

from softmutex.core.algorithms.keeper.desk import Desk, KeeperOptions
from softmutex.core.algorithms.keeper.messages import Name
from softmutex.core.events import SECOND, CancelTimer, Duration, Instant, NodeId, Note, Send, SetTimer, TimerName
from softmutex.core.machine import Setup

E = TypeVar("E")
ME = 1
NOW: Instant = 1_000_000 * SECOND


def desk(*, me: NodeId = ME, slots: int = 1, members: Iterable[NodeId] = range(1, 41), least: float = 0.0) -> Desk:
    options = KeeperOptions(min_interval=least)
    made = Desk(Setup(me, list(members), random.Random(1), slots=slots), options)
    made.now = NOW
    return made


def keeping(term: int = 3, **how: Any) -> Desk:
    made = desk(**how)
    made.follow(term, ME)
    made.former.clear()
    return made


def name(hop: int = 5, *, slot: int = 0, epoch: int = 7, stamp: int = 70, id: int = 700) -> Name:
    return Name(slot, epoch, stamp, id, hop)


def done(on: Desk) -> list[Any]:
    """Everything since it was last asked, what is said to oneself first."""
    found = [*on.inbox, *on.out]
    on.inbox.clear()
    on.out.clear()
    return found


def said(found: Iterable[Any], kind: type[E]) -> list[tuple[NodeId, E]]:
    mine = [(ME, each) for each in found if isinstance(each, kind)]
    return mine + [
        (each.to, each.message) for each in found if isinstance(each, Send) and isinstance(each.message, kind)
    ]


def timers(found: Iterable[Any]) -> dict[TimerName, Duration | None]:
    """In how long they are due; None: not any more."""
    made: dict[TimerName, Duration | None] = {}
    for each in found:
        if isinstance(each, SetTimer):
            made[each.timer] = each.at - NOW
        elif isinstance(each, CancelTimer):
            made[each.timer] = None
    return made


def notes(found: Iterable[Any]) -> list[str]:
    return [each.kind.value for each in found if isinstance(each, Note)]
